"""Limits of what a command may use: memory and processes of all of it, CPU time and file size of
each of its processes.

Memory and processes are held by controllers of cgroup v2 in the command's own cgroup, or else by
those of v1 in cgroups beside it, or else by rlimits, which count for each process (memory) or for
the whole user (processes, and not for root). CPU time and file size are rlimits always. Which means
works is found by trying. Called on the loop; nothing here waits for another process, except
`open_limiter`.
"""

import os
import resource
import secrets
import subprocess
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

from bargein.process.fork_hooks import unowned
from bargein.process.helper import cgroups
from bargein.process.values import CommandLimits, LimitsReport

_TRY_S_MAX: Final = 2.0
_V2 = "cgroup v2"
_V1 = "cgroup v1"
_RLIMIT = "rlimit"
# The file that sets a limit, the file that counts how often it was reached, and the name there.
_V2_FILES: Final = {
    "memory": ("memory.max", "memory.events", "oom_kill"),
    "pids": ("pids.max", "pids.events", "max"),
}
_V1_FILES: Final = {
    "memory": ("memory.limit_in_bytes", "memory.oom_control", "oom_kill"),
    "pids": ("pids.max", "pids.events", "max"),
}
_WORDS: Final = {"memory": "memory", "pids": "processes"}


class LimitedCommand:
    """The cgroups beside a command's own that limit it. `directories` are those that its first
    process enters."""

    def __init__(self, directories: dict[str, str]) -> None:
        self._directories = directories
        self.directories = list(directories.values())

    def reached(self) -> list[str]:
        found = []
        for controller, directory in self._directories.items():
            _, events, name = _V1_FILES[controller]
            if _count(f"{directory}/{events}", name):
                found.append(_WORDS[controller])
        return found

    def remove(self) -> None:
        """Once the command is over. What is still busy is removed with all others at the end."""
        for directory in self.directories:
            with suppress(OSError):
                os.rmdir(directory)


class Limiter:
    """Of one containment. `means` says for each controller how it is limited."""

    def __init__(self, limits: CommandLimits, means: dict[str, str], bases: dict[str, str]) -> None:
        self._values = _values(limits)
        self._means = means
        self._bases = bases
        self._serials = count(1)
        each = {name: means.get(name, "") for name in ("memory", "pids")}
        self.report = LimitsReport(
            limits,
            memory=each["memory"],
            processes=each["pids"],
            others=_RLIMIT if limits.cpu_s or limits.file_bytes else "",
        )
        self.rlimits = tuple(_rlimits(limits, means))

    def limit_own(self, directory: str) -> None:
        """Set the limits of a command's own cgroup v2. Raises OSError."""
        for name, how in self._means.items():
            if how == _V2:
                _write(f"{directory}/{_V2_FILES[name][0]}", str(self._values[name]))

    def reached_in(self, directory: str) -> list[str]:
        """The limits that were reached in a command's own cgroup v2."""
        return [
            _WORDS[name]
            for name, how in self._means.items()
            if how == _V2 and _count(f"{directory}/{_V2_FILES[name][1]}", _V2_FILES[name][2])
        ]

    def make(self) -> LimitedCommand:
        """Make cgroups for one command beside its own. Raises OSError."""
        serial = next(self._serials)
        made: dict[str, str] = {}
        try:
            for name, base in self._bases.items():
                directory = f"{base}/{serial}"
                os.mkdir(directory)
                made[name] = directory
                _write(f"{directory}/{_V1_FILES[name][0]}", str(self._values[name]))
        except OSError:
            LimitedCommand(made).remove()
            raise
        return LimitedCommand(made)

    def close(self) -> None:
        for base in self._bases.values():
            cgroups.remove(base)


def open_limiter(limits: CommandLimits, instance: str | None) -> Limiter:
    """Find the means. `instance` is the directory of our cgroups v2, if there is one."""
    means: dict[str, str] = {}
    bases: dict[str, str] = {}
    for name, value in _values(limits).items():
        if instance is not None and _enable(instance, name):
            means[name] = _V2
        elif (base := _make_base(name, value)) is not None:
            means[name] = _V1
            bases[name] = base
        elif name == "memory" or os.geteuid() != 0:
            means[name] = _RLIMIT
    return Limiter(limits, means, bases)


def _values(limits: CommandLimits) -> dict[str, int]:
    given = {"memory": limits.memory_bytes, "pids": limits.processes}
    return {name: value for name, value in given.items() if value is not None}


def _rlimits(limits: CommandLimits, means: dict[str, str]) -> list[tuple[int, int]]:
    found = []
    if limits.cpu_s is not None:
        found.append((resource.RLIMIT_CPU, limits.cpu_s))
    if limits.file_bytes is not None:
        found.append((resource.RLIMIT_FSIZE, limits.file_bytes))
    if means.get("memory") == _RLIMIT and limits.memory_bytes is not None:
        found.append((resource.RLIMIT_AS, limits.memory_bytes))
    if means.get("pids") == _RLIMIT and limits.processes is not None:
        found.append((resource.RLIMIT_NPROC, limits.processes))
    return found


def _enable(instance: str, controller: str) -> bool:
    """Let the cgroups below our instance have this controller."""
    try:
        _write(f"{instance}/cgroup.subtree_control", f"+{controller}")
    except OSError:
        return False
    return True


def _make_base(controller: str, value: int) -> str | None:
    """A directory of ours in the hierarchy of a v1 controller, in which a limit was really set and
    a process really put."""
    own = _own_v1_directory(controller)
    if own is None:
        return None
    _remove_leftovers(own)
    base = f"{own}/{cgroups.INSTANCE_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
    try:
        os.mkdir(base)
        os.mkdir(f"{base}/0")
        _write(f"{base}/0/{_V1_FILES[controller][0]}", str(value))
        with unowned():
            tried = subprocess.run(
                ["/bin/sh", "-c", 'echo 0 > "$1"', "sh", f"{base}/0/cgroup.procs"],
                stderr=subprocess.DEVNULL,
                timeout=_TRY_S_MAX,
                check=False,
            )
        if tried.returncode == 0:
            return base
    except (OSError, subprocess.TimeoutExpired):
        pass
    cgroups.remove(base)
    return None


def _own_v1_directory(controller: str) -> str | None:
    path = None
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, where = line.split(":", 2)
        if controller in names.split(","):
            path = where
    if path is None:
        return None
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, details = line.partition(" - ")
        kind, _, options = details.split(" ", 2)
        if kind == "cgroup" and controller in options.split(","):
            root, mount_point = fields.split(" ")[3:5]
            inside = os.path.relpath(path, root)
            if not inside.startswith(".."):
                return os.path.normpath(os.path.join(mount_point, inside))
    return None


def _remove_leftovers(own: str) -> None:
    """Of programs that are dead. Their processes were killed by other means, so all is empty."""
    for directory in cgroups.instances_in(own):
        pid = directory.rpartition("/")[2].removeprefix(cgroups.INSTANCE_PREFIX).partition("-")[0]
        if pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            cgroups.remove(directory)


def _count(path: str, name: str) -> int:
    with suppress(OSError, ValueError):
        for line in Path(path).read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0


def _write(path: str, text: str) -> None:
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)
