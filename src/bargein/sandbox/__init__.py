"""The sandbox: what a command may see and touch, and how a program that holds keys hides them.

Containment (`bargein.process`) makes sure that commands end; this package decides what they see.
`hiding` and `keyholder` are always on: they keep from the agent everything with which it could act
as its owner. The sandbox proper is a setting: it lets commands change little and reach nobody.

- `hiding`           chooses the directories that commands must not see
- `keyholder`        removes keys from what /proc shows of this process, and forbids tracing it
- `command_sandbox`  the sandbox of a workspace: what each command may touch
- `protected_paths`  secrets that it hides, and files in a workspace that it protects

Without the sandbox, nothing stops a command that has another service of the machine read for it
(cron, a container engine, ssh to this machine), nor root with a device file. `bargein doctor` says
what holds on this machine.
"""
