"""The sandbox: what a command may see and touch, and what the program that holds keys shows.

Containment (`bargein.process`) limits how commands end; this package decides what they see. Its
first part keeps the agent away from what would let it act as its owner:

- `hiding`     which directories commands must not see: the data directory and the user's settings
- `keyholder`  the process that holds keys shows none in /proc, and cannot be traced

It does not stop a command that asks another service of the machine to read for it (cron, a
container engine, ssh to this machine), nor root with a device file. `bargein doctor` names what
holds on this machine.
"""
