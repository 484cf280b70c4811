"""The plain data of this package, all frozen: what callers ask for and what they get."""

import signal
from enum import StrEnum
from typing import Literal

import msgspec

MeansChoice = Literal["auto", "cgroup", "supervisor", "group"]
Input = Literal["null", "pipe"]


class Means(StrEnum):
    """How a command and everything it starts are held together, best first."""

    CGROUP = "cgroup"
    SUPERVISOR = "supervisor"
    GROUP = "group"

    @property
    def promise(self) -> str:
        return _PROMISES[self]


_PROMISES = {
    Means.CGROUP: "every process that a command or a tool's own code starts is in a cgroup from "
    "its first moment; the kernel kills the whole cgroup and confirms that nobody is left",
    Means.SUPERVISOR: "every process that a command starts stays below its supervisor, which "
    "kills until the kernel confirms that it has no child left; the helper catches a command that "
    "kills its supervisor. Processes that your own tools' code starts are looked for and killed, "
    "and nothing confirms that all were found",
    Means.GROUP: "a stop reaches only processes that stay in the command's process group; one that "
    "calls setsid escapes, and nothing confirms that none did. Processes that your own tools' code "
    "starts are looked for and killed, also without confirmation",
}


class PtySize(msgspec.Struct, frozen=True):
    rows: int = 24
    columns: int = 80


class CaptureLimits(msgspec.Struct, frozen=True):
    """How much output is kept: the first `head_bytes` and the last `tail_bytes`."""

    head_bytes: int = 32 * 1024
    tail_bytes: int = 96 * 1024

    def __post_init__(self) -> None:
        if self.head_bytes < 0 or self.tail_bytes < 0:
            raise ValueError(f"capture limits must be 0 or more bytes, not {self}")


class Captured(msgspec.Struct, frozen=True):
    """Output so far. Between head and tail, `dropped_bytes` bytes were dropped."""

    head: bytes = b""
    tail: bytes = b""
    dropped_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return len(self.head) + self.dropped_bytes + len(self.tail)

    def text(self) -> str:
        """Decode it. Replaces what is not UTF-8, and says how much was dropped."""
        if not self.dropped_bytes:
            return (self.head + self.tail).decode("utf-8", "replace")
        head = self.head.decode("utf-8", "replace")
        tail = self.tail.decode("utf-8", "replace")
        return f"{head}\n[... {self.dropped_bytes} bytes left out ...]\n{tail}"


class Ladder(msgspec.Struct, frozen=True):
    """How long each rung of a stop may take before the next; by default under 1 s in all.

    `end_input_s` closes standard input and waits; `interrupt_s` interrupts like Ctrl-C. Both end
    early when the command's first process is gone, and None leaves the rung out. `terminate_s`
    sends SIGTERM to everybody, or SIGHUP on a terminal. `kill_s` kills, and is the kernel's time
    to say that nobody is left.
    """

    end_input_s: float | None = None
    interrupt_s: float | None = 0.25
    terminate_s: float = 0.25
    kill_s: float = 0.4

    def __post_init__(self) -> None:
        if min(self._rungs()) < 0:
            raise ValueError(f"the rungs of a ladder take 0 or more seconds each, not {self}")

    @property
    def total_s(self) -> float:
        return sum(self._rungs())

    def _rungs(self) -> tuple[float, ...]:
        return self.end_input_s or 0.0, self.interrupt_s or 0.0, self.terminate_s, self.kill_s


class Exit(msgspec.Struct, frozen=True):
    """How the command's first process ended: with a code or by a signal. Both are None if other
    code of this program collected its status first."""

    code: int | None
    signal: int | None
    elapsed_s: float

    def __str__(self) -> str:
        if self.signal is not None:
            return signal_name(self.signal)
        return "ended" if self.code is None else f"exit {self.code}"


class EndedProcess(msgspec.Struct, frozen=True):
    """One process that a stop saw end.

    `ended_by` is exact ("SIGTERM", "exit 0") for the command's first process, and under a
    supervisor for all that it collected. For the others it is the last signal that they were
    sent. `elapsed_ms` counts from the beginning of the stop.
    """

    pid: int
    command: str
    ended_by: str
    elapsed_ms: float


class Survivor(msgspec.Struct, frozen=True):
    pid: int
    command: str


class StopReport(msgspec.Struct, frozen=True):
    """What a stop did. `confirmed`: the kernel says that nobody is left. `found_over`: all
    processes had ended before the first signal."""

    means: Means
    confirmed: bool
    found_over: bool
    elapsed_ms: float
    processes: tuple[EndedProcess, ...]
    survivors: tuple[Survivor, ...] = ()


class MeansAttempt(msgspec.Struct, frozen=True):
    """One means that was really tried, and the result."""

    means: Means
    works: bool
    detail: str
    errno_name: str | None = None


class Hiding(msgspec.Struct, frozen=True):
    """Directories that commands must not see: to them each looks empty, and cannot be written.

    `kept` are directories below them that stay visible. All paths are absolute, without links.
    """

    directories: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    def covers(self, path: str) -> bool:
        """Whether commands cannot see this path."""
        return _is_in(path, self.directories) and not _is_in(path, self.kept)


def _is_in(path: str, directories: tuple[str, ...]) -> bool:
    return any(f"{path}/".startswith(f"{each}/") for each in directories)


class HidingReport(msgspec.Struct, frozen=True):
    """What commands cannot see, and by which means.

    `how` is "mount namespace" (as root), "user namespace" (as an ordinary user) or empty: then
    nothing is hidden and `detail` says why. `fenced`: a command can neither undo it nor look into
    processes that were started outside.
    """

    hiding: Hiding = Hiding()
    how: str = ""
    fenced: bool = False
    detail: str = ""

    @property
    def works(self) -> bool:
        return bool(self.how)


Network = Literal["none", "all"]
SandboxChoice = Literal["auto", "namespaces", "Landlock"]
SandboxPlan = tuple[str, list[str], list[str], list[str], bool, str, list[str], int]


class SandboxView(msgspec.Struct, frozen=True):
    """What one command in a sandbox may touch. All paths are absolute, without links.

    `tmp` is a folder that becomes its /tmp. It can write to the folders `writable` and everything
    in them, except for the paths `protected`; it sees the paths `hidden` empty. Protected and
    hidden paths that do not exist are left out. `read_only`: it can write to its /tmp alone.
    `door` is a unix socket of ours, which gets a listening socket of its network namespace.
    `stage` is one of the writable folders and another one, which the command sees at its place; it
    needs namespaces. With `tmp_bytes` its /tmp is in memory and no larger than that; all commands
    of a containment with the same `tmp` share it.
    """

    tmp: str
    writable: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    read_only: bool = False
    door: str = ""
    stage: tuple[str, str] | None = None
    tmp_bytes: int = 0

    @property
    def plan(self) -> "SandboxPlan":
        """As the helper takes it (see `helper.sandbox`)."""
        paths = list(self.writable), list(self.protected), list(self.hidden)
        stage = list(self.stage or ())
        return self.tmp, *paths, self.read_only, self.door, stage, self.tmp_bytes


class SandboxReport(msgspec.Struct, frozen=True):
    """How commands are closed in: `means` is "namespaces", "Landlock", or empty if they are not;
    `detail` says why no better means works."""

    means: str = ""
    network: str = ""
    detail: str = ""

    @property
    def holds(self) -> bool:
        """Whether it holds everything that the documentation promises of a sandbox."""
        return self.means == "namespaces"


class CommandLimits(msgspec.Struct, frozen=True):
    """What a command may use; None is without a limit. `cpu_s` and `file_bytes` hold for each of
    its processes, `memory_bytes` and `processes` for all of them together, where a cgroup can do
    that. `tmp_bytes` is the size of a session's /tmp in a sandbox by namespaces."""

    memory_bytes: int | None = None
    processes: int | None = None
    cpu_s: int | None = None
    file_bytes: int | None = None
    tmp_bytes: int | None = None

    def __post_init__(self) -> None:
        given = [getattr(self, name) for name in self.__struct_fields__]
        if any(value is not None and value <= 0 for value in given):
            raise ValueError(f"limits must be more than 0, not {self}")


class LimitsReport(msgspec.Struct, frozen=True):
    """By which means each limit is held: "cgroup v2", "cgroup v1", "rlimit", or not at all."""

    limits: CommandLimits = CommandLimits()
    memory: str = ""
    processes: str = ""
    others: str = ""


class ContainmentReport(msgspec.Struct, frozen=True):
    """Which means is in use, what it promises, what was tried, how many instances of dead programs
    were cleaned up, what commands cannot see, how they are closed in, and
    how limits are held."""

    means: Means
    promise: str
    attempts: tuple[MeansAttempt, ...]
    leftovers_reaped: int = 0
    hiding: HidingReport = HidingReport()
    sandbox: SandboxReport = SandboxReport()
    limits: LimitsReport = LimitsReport()


_SIGNAL_NAMES = {int(each): each.name for each in signal.Signals}


def signal_name(number: int) -> str:
    return _SIGNAL_NAMES.get(number) or f"signal {number}"
