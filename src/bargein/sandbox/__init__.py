"""The sandbox: what a command may see and touch, and how a program that holds keys hides them.

Containment (`bargein.process`) makes sure that commands end; this package decides what they see.
Its first part keeps the agent away from everything that would let it act as its owner:

- `hiding`     chooses the directories that commands must not see
- `keyholder`  removes keys from what /proc shows of this process, and forbids tracing it

It does not stop a command that has another service of the machine read for it (cron, a container
engine, ssh to this machine), nor root with a device file. `bargein doctor` says what holds on this
machine.
"""
