"""Ways in which a tool's code starts processes by itself.

Each is a tool that takes a folder. Whoever is started leaves a file there that is named by its
pid, and then stays for two minutes.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import multiprocessing
import os
import pty
import subprocess
import threading
import time
from multiprocessing.context import ForkContext, ForkServerContext, SpawnContext
from pathlib import Path
from typing import Any

from bargein.tools import tool
from bargein.tools.declaration import Tool

STAY = ': > "$0/$$"; exec sleep 120'
"""For `sh -c STAY FOLDER`."""


def stay(folder: str) -> None:
    Path(folder, str(os.getpid())).touch()
    time.sleep(120)


def argv(folder: str) -> list[str]:
    return ["sh", "-c", STAY, folder]


def below(folder: str) -> str:
    """A shell that stays, and has started one in a session of its own and one that is an orphan."""
    return (
        f"setsid sh -c '{STAY}' '{folder}' & "
        f"(setsid sh -c '{STAY}' '{folder}' &) ; "
        f"sh -c '{STAY}' '{folder}'"
    )


@tool
async def async_shell(folder: str) -> int:
    process = await asyncio.create_subprocess_shell(below(folder))
    return await process.wait()


@tool
async def async_exec(folder: str) -> int:
    process = await asyncio.create_subprocess_exec(*argv(folder), start_new_session=True)
    return await process.wait()


@tool
async def async_and_gone(folder: str) -> None:
    """Nobody waits for it."""
    await asyncio.create_subprocess_shell(below(folder), stdout=subprocess.DEVNULL)
    await asyncio.sleep(120)


@tool
async def in_executor(folder: str) -> int:
    loop = asyncio.get_running_loop()
    done = await loop.run_in_executor(None, lambda: subprocess.run(argv(folder), check=False))
    return done.returncode


@tool
async def to_thread(folder: str) -> int:
    done = await asyncio.to_thread(subprocess.run, argv(folder), check=False)
    return done.returncode


@tool
def run(folder: str) -> int:
    return subprocess.run(argv(folder), check=False).returncode


@tool
def run_shell(folder: str) -> int:
    return subprocess.run(below(folder), shell=True, check=False).returncode


@tool
def popen_with_preexec(folder: str) -> int:
    with subprocess.Popen(argv(folder), preexec_fn=os.setsid) as process:  # noqa: PLW1509
        return process.wait()


@tool
def popen_by_posix_spawn(folder: str) -> int:
    """What `subprocess` uses `posix_spawn` for."""
    with subprocess.Popen(["/bin/sh", *argv(folder)[1:]], close_fds=False) as process:
        return process.wait()


@tool
def os_system(folder: str) -> int:
    return os.system(below(folder))


@tool
def os_popen(folder: str) -> str:
    with os.popen(below(folder)) as pipe:
        return pipe.read()


@tool
def posix_spawn(folder: str) -> int:
    pid = os.posix_spawn("/bin/sh", argv(folder), os.environ, setsid=True)
    return os.waitpid(pid, 0)[1]


@tool
def spawnvp(folder: str) -> int:
    return os.spawnvp(os.P_WAIT, "sh", argv(folder))


@tool
def fork(folder: str) -> int:
    pid = os.fork()
    if pid == 0:
        stay(folder)
    return os.waitpid(pid, 0)[1]


@tool
def double_fork(folder: str) -> int:
    """Waits for an orphan, by the pipe that it holds open."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork() == 0:
            stay(folder)
        os._exit(0)
    os.close(theirs)
    os.waitpid(pid, 0)
    os.read(ours, 1)
    os.close(ours)
    return 0


@tool
def pty_fork(folder: str) -> int:
    pid, ours = pty.fork()
    if pid == 0:
        os.execvp("sh", argv(folder))
    try:
        return os.waitpid(pid, 0)[1]
    finally:
        os.close(ours)


def _by_multiprocessing(
    folder: str, context: ForkContext | SpawnContext | ForkServerContext
) -> int:
    process = context.Process(target=stay, args=(folder,))
    process.start()
    process.join()
    return process.exitcode or 0


@tool
def multiprocessing_fork(folder: str) -> int:
    return _by_multiprocessing(folder, multiprocessing.get_context("fork"))


@tool
def multiprocessing_spawn(folder: str) -> int:
    return _by_multiprocessing(folder, multiprocessing.get_context("spawn"))


@tool
def multiprocessing_forkserver(folder: str) -> int:
    return _by_multiprocessing(folder, multiprocessing.get_context("forkserver"))


def _by_process_pool(folder: str, method: str) -> None:
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        pool.submit(stay, folder).result()


@tool
def process_pool_fork(folder: str) -> None:
    _by_process_pool(folder, "fork")


@tool
def process_pool_spawn(folder: str) -> None:
    _by_process_pool(folder, "spawn")


@tool
def process_pool_forkserver(folder: str) -> None:
    _by_process_pool(folder, "forkserver")


@tool
def in_thread(folder: str) -> None:
    thread = threading.Thread(target=lambda: subprocess.run(argv(folder), check=False))
    thread.start()
    thread.join()


POOL = concurrent.futures.ThreadPoolExecutor(1)
"""Shared by all calls; its thread is made by the first of them."""


@tool
def in_pool(folder: str) -> int:
    return POOL.submit(subprocess.run, argv(folder), check=False).result().returncode


_WITH_TWO_BELOW = (async_shell, async_and_gone, run_shell, os_system, os_popen)
_ALONE = (
    async_exec, in_executor, to_thread, run, popen_with_preexec, popen_by_posix_spawn, posix_spawn,
    spawnvp, fork, double_fork, pty_fork, multiprocessing_fork, multiprocessing_spawn,
    multiprocessing_forkserver, process_pool_fork, process_pool_spawn, process_pool_forkserver,
    in_thread, in_pool,
)  # fmt: skip
WAYS: dict[str, tuple[Tool[..., Any], int]] = {
    **{each.name: (each, 3) for each in _WITH_TWO_BELOW},
    **{each.name: (each, 1) for each in _ALONE},
}
"""Each with how many it starts that stay."""
