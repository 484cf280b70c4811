"""The helper: a small program that starts the processes that become commands.

So the cost of a start does not grow with our memory, and somebody is left to kill the commands if
we are killed. Linux only.

An interpreter of its own runs it, without site-packages, as `bargein.process.helper.main`, with
empty modules in place of the packages above it. So code here may import only this package and
little of the standard library (no pathlib): every page that the helper touches is copied for each
command.

- `main`        the main loop: carries out orders, watches its owner
- `spare`       a process that waits for a command and becomes it
- `supervisor`  a process that holds a command and everything it starts, and kills them
- `procfs`      reads /proc: who is whose child, and how to signal them without hitting a stranger
- `sandbox`     closes a command in: namespaces and mounts, or a Landlock domain
- `init`        the first process of a command's pid namespace, which makes the sandbox
- `rights`      what a command in a sandbox gives up: capabilities, system calls
- `hiding`      covers directories that the helper, and so every command, must not see
- `cgroups`     kills and removes cgroups, whole instances too
- `wire`        messages with descriptors
- `syscalls`    system calls that Python has no function for
"""
