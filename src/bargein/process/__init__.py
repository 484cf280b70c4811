"""Processes that always die: commands started in containment, stopped whole, and reported on.

    async with await open_containment() as containment:
        process = await containment.spawn(["make"], cwd=".", env={...}, token=token)
        exit = await process.wait()
        report = await process.stop()

What holds:

- A command is contained before it exists, by the best means that works here (`Means`, best first),
  which `Containment.report` names together with what it promises.
- When its token is cancelled the first signal is sent at that moment, by whoever cancels. The rest
  of the ladder follows on the loop, though nobody waits, within the time that `Ladder` gives.
- A `StopReport` tells each process that was stopped, and `confirmed`: whether the kernel says that
  nobody is left.
- Output is read as it comes and kept within `CaptureLimits`; reading ends with the processes, not
  with the pipe.
- With a `Hiding`, commands do not see the directories it names, if this machine can do that:
  `ContainmentReport.hiding` says whether and how.
- If this program is killed, its helper kills the commands. If both are, the next start does.

For asyncio and uvloop. All methods are called on the loop of the containment.
"""

from bargein.process.containment import Containment, open_containment
from bargein.process.errors import InputClosed, MeansUnavailable, SpawnError
from bargein.process.late import containment_when_needed
from bargein.process.own_processes import OwnProcesses
from bargein.process.process import Process
from bargein.process.values import (
    Attempt,
    Captured,
    CaptureLimits,
    ContainmentReport,
    EndedProcess,
    Exit,
    Hiding,
    HidingReport,
    Input,
    Ladder,
    Means,
    MeansChoice,
    PtySize,
    StopReport,
    Survivor,
)

__all__ = [
    "Attempt",
    "CaptureLimits",
    "Captured",
    "Containment",
    "ContainmentReport",
    "EndedProcess",
    "Exit",
    "Hiding",
    "HidingReport",
    "Input",
    "InputClosed",
    "Ladder",
    "Means",
    "MeansChoice",
    "MeansUnavailable",
    "OwnProcesses",
    "Process",
    "PtySize",
    "SpawnError",
    "StopReport",
    "Survivor",
    "containment_when_needed",
    "open_containment",
]
