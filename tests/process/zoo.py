"""How the animals are kept: their command lines, and a look from outside at who is alive.

The look does not use what it checks: every animal carries a mark of its own in its environment, as
does whatever it starts, and all of /proc is searched for it.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bargein.process import PtySize

ANIMALS = Path(__file__).with_name("animals.py")
MARK = "BARGEIN_ZOO"
PF_EXITING = 0x4

# What an interactive shell is given to type: jobs in the background, each in a group of its own.
JOBS = b"sleep 120 &\nnohup sleep 121 &\n(setsid sleep 122 &)\necho re''ady\n"


@dataclass(frozen=True)
class Kind:
    name: str
    argv: tuple[str, ...]
    pty: bool = False
    typed: bytes = b""
    says_ready: bool = True
    escapes_group: bool = False
    """Outlives a kill of its process group."""

    @property
    def size(self) -> PtySize | None:
        return PtySize() if self.pty else None


def _animal(name: str, *, escapes_group: bool = False, pty: bool = False) -> Kind:
    argv = (sys.executable, "-I", "-S", "-E", str(ANIMALS), name)
    return Kind(name, argv, pty=pty, says_ready=name != "quick", escapes_group=escapes_group)


_KINDS = (
    _animal("sleeper"),
    _animal("family"),
    _animal("setsid", escapes_group=True),
    _animal("double_fork"),
    _animal("daemon", escapes_group=True),
    _animal("nohup"),
    _animal("deaf"),
    _animal("frozen"),
    _animal("chain", escapes_group=True),
    _animal("zombies"),
    _animal("flood"),
    _animal("silent"),
    _animal("pipe_holder", escapes_group=True),
    Kind(
        "shell",
        ("bash", "--norc", "--noprofile", "-i"),
        pty=True,
        typed=JOBS,
        escapes_group=True,
    ),
    _animal("prompt", pty=True),
    _animal("quick", escapes_group=True),
)
ZOO = {kind.name: kind for kind in _KINDS}


def new_mark() -> str:
    return secrets.token_hex(8)


def environment(mark: str) -> dict[str, str]:
    path = os.environ.get("PATH", os.defpath)
    end = str(_end_of(mark))
    return {"PATH": path, "HOME": "/", "TERM": "dumb", MARK: mark, f"{MARK}_END": end}


def _end_of(mark: str) -> Path:
    return Path(tempfile.gettempdir(), f"bargein-zoo-{mark}")


def put_down(mark: str) -> None:
    """End those that a means could not reach: for tests of what cannot be promised."""
    end = _end_of(mark)
    end.touch()
    try:
        while pids := alive(mark):
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
    finally:
        end.unlink()


def alive(mark: str) -> list[int]:
    """Every process with this mark that is not dead, wherever it has got to."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                # Empty for the dead that nobody has collected.
                marked = wanted in Path(entry.path, "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if marked:
                found.append(int(entry.name))
    return found


def runs(pid: int) -> bool:
    """Whether it can still do anything: not one that the kernel is taking apart, which is neither
    running nor a zombie for a moment, nor one that waits to be collected."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX" and not int(fields[6]) & PF_EXITING


def command(pid: int) -> str:
    """What it runs, or nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def descriptors() -> set[str]:
    """What this process has open, by what it is: to be compared before and after."""
    found = set()
    for entry in os.scandir("/proc/self/fd"):
        try:
            found.add(f"{entry.name}:{Path(entry.path).readlink()}")
        except OSError:
            continue
    return found


def zombies() -> list[int]:
    """Dead children of ours that nobody has collected."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                state, parent, *_ = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if state == "Z" and int(parent) == os.getpid():
                found.append(int(entry.name))
    return found
