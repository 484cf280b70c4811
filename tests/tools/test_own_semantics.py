"""Inside a call, every way to start a process behaves as it does outside: each row runs in both
places, and the results are compared."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from bargein.cancel import TaskOwner
from bargein.process import open_containment
from bargein.tools import tool
from bargein.tools.standard import open_tool_environment, standard_registry
from tests.tools.bench_of_tools import Shop
from tests.tools.desk import Desk, text_of

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(60),
    pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True),
]

TELL = """
import os, sys, signal
fds = sorted(int(each) for each in os.listdir("/proc/self/fd"))
mask = sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, [])))
ignored = [n for n in range(1, 32) if n not in (9, 19) and signal.getsignal(n) is signal.SIG_IGN]
names = sorted(name for name in os.environ if not name.startswith("BARGEIN_TAG_"))
umask = os.umask(0)
print(sys.argv[1:], os.getcwd(), names, os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid(),
      os.getuid(), os.getgid(), umask, fds[:-1], mask, ignored, sys.stdin.read())
"""
ARGV = [sys.executable, "-I", "-S", "-c", TELL, "one", "two"]


def _told(**options: Any) -> str:
    return str(
        subprocess.run(
            ARGV, input="given", capture_output=True, text=True, check=True, **options
        ).stdout
    )


def _with_a_descriptor() -> str:
    file = os.open("/dev/null", os.O_RDONLY)
    high = os.dup2(file, 77)
    try:
        return _told(pass_fds=[high])
    finally:
        os.close(file)
        os.close(high)


def _spawned(
    env: Any = {"A": "1"},  # noqa: B006 - not changed
    more: Sequence[tuple[int, int]] = (),
    **options: Any,
) -> tuple[int, str]:
    ours, theirs = os.pipe()
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, theirs, 1),
        (os.POSIX_SPAWN_CLOSE, 2),
        *more,
    ]
    try:
        pid = os.posix_spawn(sys.executable, ARGV, env, file_actions=actions, **options)
        os.close(theirs)
        theirs = -1
        with open(ours, closefd=False) as pipe:
            return os.waitpid(pid, 0)[1], pipe.read()
    finally:
        for fd in (ours, theirs):
            if fd >= 0:
                os.close(fd)


def _without_environment() -> str:
    """Python can ask for that since 3.13, and for all descriptors to be closed."""
    if sys.version_info < (3, 13):
        return ""
    file = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(file, True)
    try:
        return str(_spawned(env=None, more=[(os.POSIX_SPAWN_CLOSEFROM, 3)]))
    finally:
        os.close(file)


def _missing_for_posix_spawn() -> None:
    os.posix_spawn("/no/such/program", ["x"], {})


def _popen() -> tuple[str, int | None]:
    pipe = os.popen("echo hello; exit 2")
    return pipe.read(), pipe.close()


def _bad_action() -> None:
    os.posix_spawn("/bin/true", ["x"], {}, file_actions=[(os.POSIX_SPAWN_DUP2, 999, 1)])


def _searched() -> int:
    return os.waitpid(os.posix_spawnp("sh", ["sh", "-c", "exit 7"], os.environ), 0)[1]


def _a_file(mode: int, text: str) -> str:
    path = Path(os.environ["OWN_FOLDER"], f"file-{mode:o}")
    path.write_text(text)
    path.chmod(mode)
    return str(path)


ROWS: dict[str, Callable[[], object]] = {
    "plain": _told,
    "cwd": lambda: _told(cwd="/usr"),
    "env": lambda: _told(env={"B": "2", "LC_ALL": "C"}),
    "no env": lambda: _told(env={}),
    "session": lambda: _told(start_new_session=True),
    "group": lambda: _told(process_group=0),
    "umask": lambda: _told(umask=0o77),
    "descriptors": _with_a_descriptor,
    "all descriptors": lambda: _told(close_fds=False),
    "signals": lambda: _told(restore_signals=False),
    "preexec": lambda: _told(preexec_fn=os.setsid),
    "user": lambda: _told(user=65534, group=65534, extra_groups=[]) if os.getuid() == 0 else "",
    "missing": lambda: subprocess.run(["/no/such/program"], check=False),
    "missing on PATH": lambda: subprocess.run(["no-such-program"], check=False),
    "not executable": lambda: subprocess.run([_a_file(0o600, "")], check=False),
    "no interpreter": lambda: subprocess.run([_a_file(0o700, "#!/no/such\n")], check=False),
    "no format": lambda: subprocess.run([_a_file(0o700, "\0\0\0")], check=False),
    "no folder": lambda: subprocess.run(["true"], cwd="/no/such/folder", check=False),
    "null": lambda: subprocess.run(["true\0"], check=False),
    "preexec raises": lambda: subprocess.run(["true"], preexec_fn=lambda: 1 / 0, check=False),
    "time-out": lambda: subprocess.run(["sleep", "9"], timeout=0.05, check=False),
    "check": lambda: subprocess.run(["false"], check=True),
    "killed": lambda: subprocess.run(["sh", "-c", "kill -9 $$"], check=False).returncode,
    "system": lambda: os.system("exit 3"),
    "system, killed": lambda: os.system("kill -9 $$"),
    "system, missing": lambda: os.system("no-such-program 2>/dev/null"),
    "popen": _popen,
    "spawn": _spawned,
    "spawn, session": lambda: _spawned(setsid=True),
    "spawn, group": lambda: _spawned(setpgroup=0),
    "spawn, signals": lambda: _spawned(
        setsigmask=[signal.SIGUSR1], setsigdef=[signal.SIGPIPE], resetids=True
    ),
    "spawn, without an environment": _without_environment,
    "spawn, missing": _missing_for_posix_spawn,
    "spawn, bad action": _bad_action,
    "spawn, searched": _searched,
    "spawnv": lambda: os.spawnv(os.P_WAIT, "/bin/sh", ["sh", "-c", "exit 5"]),
}


def outcome(name: str) -> str:
    try:
        return repr(ROWS[name]())
    except Exception as error:
        filename = getattr(error, "filename", None)
        if isinstance(error, subprocess.TimeoutExpired):
            return "it took too long"
        return f"{type(error).__name__}: {error} {filename!r}"


@tool
def do(row: str) -> str:
    return outcome(row)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OWN_FOLDER", str(tmp_path))
    return tmp_path


async def test_each_row(folder: Path) -> None:
    # In a thread in both places, so that nothing else differs.
    outside = {name: await asyncio.to_thread(outcome, name) for name in ROWS}
    async with await open_containment() as containment, TaskOwner() as owner:
        tool_environment = open_tool_environment(containment, folder, {"PATH": os.environ["PATH"]})
        shop = Shop(tool_environment, standard_registry(tool_environment, [do]), owner)
        inside = {name: text_of(await shop.use(Desk(), "do", row=name)) for name in ROWS}
    for name in ROWS:
        assert inside[name].split() == outside[name].split(), name
    assert "FileNotFoundError" in outside["missing"]
