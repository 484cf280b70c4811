"""Processes that always end: contained from their first moment, stopped whole, and reported on.

    async with await open_containment() as containment:
        process = await containment.spawn(["make"], cwd=".", env={...}, token=token)
        exit = await process.wait()
        report = await process.stop()

What holds:

- A command is contained before it runs, by the best means that works here (`Means`, best first).
  `Containment.report` names the means and what it promises.
- When its token is cancelled, the thread that cancels sends the first signal at once. The rest of
  the ladder follows on the loop, whether or not a task waits, within the time of its `Ladder`.
- A `StopReport` names each process that was stopped, and says whether the kernel has `confirmed`
  that nobody is left.
- Output is read as it comes and kept within `CaptureLimits`; reading ends with the processes, not
  with the pipe.
- A `Service` is a process that outlives calls, such as a server on standard input and output.
- With a `Hiding`, commands do not see the directories it names, if this machine can do that:
  `ContainmentReport.hiding` says whether and how.
- If this program is killed, its helper kills the commands. If both are killed, the next start does.

For asyncio and uvloop. All methods are called on the loop of the containment. docs/processes.md
draws the life of a process and says which file does what.
"""

from bargein.process.containment import Containment, containment_when_needed, open_containment
from bargein.process.errors import InputClosed, MeansUnavailable, SpawnError
from bargein.process.own_processes import OwnProcesses
from bargein.process.process import Process
from bargein.process.service import SERVICE_LADDER, Service
from bargein.process.values import (
    Captured,
    CaptureLimits,
    CommandLimits,
    ContainmentReport,
    EndedProcess,
    Exit,
    Hiding,
    HidingReport,
    Input,
    Ladder,
    LimitsReport,
    Means,
    MeansAttempt,
    MeansChoice,
    Network,
    PtySize,
    SandboxChoice,
    SandboxReport,
    SandboxView,
    StopReport,
    Survivor,
)

__all__ = [
    "SERVICE_LADDER",
    "CaptureLimits",
    "Captured",
    "CommandLimits",
    "Containment",
    "ContainmentReport",
    "EndedProcess",
    "Exit",
    "Hiding",
    "HidingReport",
    "Input",
    "InputClosed",
    "Ladder",
    "LimitsReport",
    "Means",
    "MeansAttempt",
    "MeansChoice",
    "MeansUnavailable",
    "Network",
    "OwnProcesses",
    "Process",
    "PtySize",
    "SandboxChoice",
    "SandboxReport",
    "SandboxView",
    "Service",
    "SpawnError",
    "StopReport",
    "Survivor",
    "containment_when_needed",
    "open_containment",
]
