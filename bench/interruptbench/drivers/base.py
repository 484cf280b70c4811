"""What all drivers share: the line protocol with the runner. Standard library only.

A driver is a script that runs in the virtual environment of the system it drives. It reads
commands as lines of JSON from standard input and tells what happens as lines on standard output,
with times by `time.monotonic()`, which is the same clock in every process of a machine. What the
system prints goes to standard error.

    open     {"home": ..., "tools": [...]}      -> opened, with versions, features, tools
    start    {"run", "session", "text", "at"?}  -> returned, when the caller has its answer
    redirect {"run", "session", "text", "at"?}  -> returned: stop what runs, answer this
    stop     {"run", "session"}                 -> asked, at once; stopped, when that call is back
    queue    {"session", "text"}                -> accepted: a message behind the running turn
    recover  {"session"}                        -> recovered: go on after a crash
    beat     {"on"}                             -> beat, with the loop's longest pause
    cost     {"what"}                           -> cost, with a figure

It ends when its standard input does.

A driver subclasses `System` and calls `serve(TheSystem())`. It uses the documented way of its
system to run, to stop and to go on, and nothing else.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.metadata
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")

OUT = os.fdopen(os.dup(1), "wb", buffering=0)
os.dup2(2, 1)  # what a system prints is not for the runner
_lock = threading.Lock()


def tell(event: str, **more: object) -> None:
    line = json.dumps({"event": event, "at": time.monotonic(), **more}).encode() + b"\n"
    with _lock:
        OUT.write(line)


class Stopped(Exception):
    """The run came back because it was stopped."""


def block(seconds: float, word: str) -> str:
    """The tool that never checks for a stop: sleeps, then has a result that nobody may want."""
    tell("tool", word=word)
    time.sleep(seconds)
    tell("tool_over", word=word)
    return f"LATE-{word}"


async def run_command(command: str) -> str:
    """A terminal tool for systems that have none: a process group, killed by a cancel."""
    process = await asyncio.create_subprocess_shell(
        command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return output.decode()


class System:
    """`lacks` says for each feature that is not there why; the runner asks for none of those."""

    package = ""
    calls: ClassVar[dict[str, dict[str, object]]] = {}
    lacks: ClassVar[dict[str, str]] = {}
    notes: ClassVar[dict[str, str]] = {}

    home = ""
    tools: tuple[str, ...] = ()

    async def open(self) -> None: ...

    async def run(self, run: str, session: str, text: str) -> str:
        """Answer a message; raises `Stopped` if it was stopped."""
        raise NotImplementedError

    async def stop(self, run: str, session: str) -> None:
        raise NotImplementedError

    async def redirect(self, run: str, session: str, text: str) -> str:
        raise NotImplementedError

    async def queue(self, session: str, text: str) -> None:
        """Hand over a message that is to be answered after the running turn."""
        raise NotImplementedError

    async def recover(self, session: str) -> None:
        """What one does after a crash so that a session goes on; nothing, unless there is a way."""

    async def check_cost(self) -> float | None:
        """Seconds for one check whether the work was stopped; None if the system has no such
        check."""
        return None

    async def close(self) -> None: ...


class HostedSystem(System):
    """For systems that run one message at a time and leave the rest to the program around them.

    That program is the obvious one: it knows which run of a session is the current one, and a
    redirect stops that, waits until it is back, and then starts the next.
    """

    def __init__(self) -> None:
        self._under_way: dict[str, asyncio.Event] = {}
        self._current: dict[str, str] = {}

    async def answer(self, run: str, session: str, text: str) -> str:
        """Answer a message; raises `Stopped` if `halt` ended it."""
        raise NotImplementedError

    async def halt(self, run: str) -> None:
        """The system's own stop of a run; it may have ended already."""
        raise NotImplementedError

    async def run(self, run: str, session: str, text: str) -> str:
        over = self._under_way[run] = asyncio.Event()
        self._current[session] = run
        try:
            return await self.answer(run, session, text)
        finally:
            del self._under_way[run]
            over.set()

    async def stop(self, run: str, session: str) -> None:
        over = self._under_way.get(run)
        await self.halt(run)
        if over is not None:
            await over.wait()

    async def redirect(self, run: str, session: str, text: str) -> str:
        current = self._current.get(session, "")
        if current in self._under_way:
            await self.stop(current, session)
        return await self.run(run, session, text)


class TaskSystem(HostedSystem):
    """For systems whose documented way to stop is to cancel the task that awaits the run."""

    def __init__(self) -> None:
        super().__init__()
        self._tasks: dict[str, asyncio.Task[str]] = {}

    async def work(self, session: str, text: str) -> str:
        raise NotImplementedError

    async def answer(self, run: str, session: str, text: str) -> str:
        task = self._tasks[run] = asyncio.ensure_future(self.work(session, text))
        await asyncio.wait([task])
        if task.cancelled():
            raise Stopped
        return task.result()

    async def halt(self, run: str) -> None:
        self._tasks[run].cancel()


async def in_thread(function: Callable[[], T]) -> T:
    """Run a blocking system in a thread of its own, as hosts do, without holding the exit."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # handed over, whatever it is
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return await asyncio.wrap_future(future)


class Driver:
    def __init__(self, system: System) -> None:
        self._system = system
        self._jobs: set[asyncio.Task[None]] = set()
        self._beat: asyncio.Task[None] | None = None
        self._longest_s = 0.0

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        over = asyncio.Event()

        def read() -> None:
            # In a thread, so that a stop has its time also when the event loop does not turn.
            for line in sys.stdin.buffer:
                command: dict[str, Any] = json.loads(line)
                if command["do"] == "stop":
                    tell("asked", run=command["run"])
                loop.call_soon_threadsafe(self._take, command)
            loop.call_soon_threadsafe(over.set)

        threading.Thread(target=read, daemon=True).start()
        tell("ready", python=sys.version.split()[0])
        await over.wait()
        await asyncio.wait_for(self._system.close(), 3)

    def _take(self, command: dict[str, Any]) -> None:
        job = asyncio.ensure_future(self._run_job(command.pop("do"), command))
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)

    async def _run_job(self, action: str, command: dict[str, Any]) -> None:
        run = command.get("run", "")
        due = command.pop("at", None)
        if due is not None:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        try:
            await getattr(self, f"_do_{action}")(**command)
        except Exception as error:  # a driver tells of failures, it does not end by them
            traceback.print_exc()
            tell("failed", action=action, run=run, error=f"{type(error).__name__}: {error}"[:400])

    async def _do_open(self, home: str, tools: list[str]) -> None:
        system = self._system
        system.home, system.tools = home, tuple(tools)
        await system.open()
        names = system.package.split()
        versions = {name: importlib.metadata.version(name) for name in names}
        tell(
            "opened", versions=versions, lacks=system.lacks, calls=system.calls, notes=system.notes
        )

    async def _do_start(self, run: str, session: str, text: str) -> None:
        await self._report(run, self._system.run(run, session, text))

    async def _do_redirect(self, run: str, session: str, text: str) -> None:
        await self._report(run, self._system.redirect(run, session, text))

    async def _report(self, run: str, answer: Awaitable[str]) -> None:
        try:
            text = await answer
        except Stopped:
            tell("returned", run=run, outcome="stopped", text="")
        except Exception as error:  # what a caller of the system would see
            traceback.print_exc()
            shown = f"{type(error).__name__}: {error}"[:400]
            tell("returned", run=run, outcome="failed", text="", error=shown)
        else:
            tell("returned", run=run, outcome="finished", text=text[-200:])

    async def _do_stop(self, run: str, session: str) -> None:
        await self._system.stop(run, session)
        tell("stopped", run=run)

    async def _do_queue(self, session: str, text: str) -> None:
        await self._system.queue(session, text)
        tell("accepted")

    async def _do_recover(self, session: str) -> None:
        await self._system.recover(session)
        tell("recovered", session=session)

    async def _do_beat(self, on: bool) -> None:
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None
            tell("beat", longest_s=self._longest_s)
        if on:
            self._longest_s = 0.0
            self._beat = asyncio.ensure_future(self._keep_beating())
            tell("beat", longest_s=0.0)

    async def _keep_beating(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.005)
            now = time.monotonic()
            self._longest_s = max(self._longest_s, now - last - 0.005)
            last = now

    async def _do_cost(self, what: str) -> None:
        if what == "memory":
            gc.collect()
            tell("cost", value=memory_bytes())
        elif what == "cpu":
            tell("cost", value=time.process_time())
        elif what == "check":
            tell("cost", value=await self._system.check_cost())


def memory_bytes() -> int:
    """The memory that is this process's alone, in bytes."""
    private = 0
    with open("/proc/self/smaps_rollup") as file:
        for line in file:
            if line.startswith(("Private_Clean:", "Private_Dirty:")):
                private += int(line.split()[1]) * 1024
    return private


def serve(system: System) -> None:
    asyncio.run(Driver(system).serve())
    OUT.flush()
    os._exit(0)  # a wedged worker thread must not hold the bench
