"""The helper: a small program that gives birth to commands, so that their cost does not grow with
ours and so that somebody is left to kill them if we are killed.

It is run by its own interpreter, without site-packages, as `bargein.process.helper.zygote`, with
the packages above it replaced by empty ones. Nothing here may therefore import anything but the
standard library and this package, and little of that (no pathlib): every page it touches is
copied for each command. Linux only.

- `zygote`      its main loop: takes orders for cells, watches its owner
- `embryo`      a process that waits for a command and becomes it
- `supervisor`  a process that holds a command and all it starts, and kills them
- `family`      who is whose child, and signalling them without hitting a stranger
- `hiding`      directories that the helper, and so every command, cannot see
- `cgroups`     killing and removing cgroups, whole instances too
- `wire`        messages with descriptors
- `syscalls`    what Python has no function for
"""
