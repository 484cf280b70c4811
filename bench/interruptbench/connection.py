"""The runner's end of a process that speaks lines of JSON: a driver, or the model server.

Everything that a process says is kept, and whoever waits for something is woken by each line. A
process that ends or falls silent never holds the runner: every wait has a bound.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
Event = dict[str, Any]


class Gone(Exception):
    """The process ended though it should have gone on."""


class TooLong(Exception):
    """What was awaited did not happen within its bound."""


class Talk:
    """A child process, what it said, and a way to say something to it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._command = command
        self._environment = environment
        self._log = log
        self._news = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process
        self.ended = False

    async def start(self) -> None:
        with self._log.open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=dict(self._environment),
                limit=2**24,
                start_new_session=True,
            )
        self._reader = asyncio.ensure_future(self._read())

    @property
    def pid(self) -> int:
        return self._process.pid

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            self.hear(json.loads(line))
            self._wake()
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def hear(self, event: Event) -> None:
        raise NotImplementedError

    def say(self, line: bytes) -> None:
        assert self._process.stdin is not None
        if not self.ended:
            self._process.stdin.write(line + b"\n")

    async def until(self, look: Callable[[], T | None], bound_s: float, what: str = "") -> T:
        """Returns what `look` finds as soon as it finds something; raises `TooLong` or `Gone`."""
        give_up_at = time.monotonic() + bound_s
        while True:
            found = look()
            if found is not None:
                return found
            if self.ended:
                raise Gone(f"{self._command[-1]} ended while {what or 'something'} was awaited")
            left_s = give_up_at - time.monotonic()
            if left_s <= 0:
                raise TooLong(what)
            try:
                await asyncio.wait_for(self._news.wait(), left_s)
            except TimeoutError:
                continue

    async def end(self, grace_s: float = 2.0) -> None:
        """Closes its input, and kills it if it does not end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), grace_s)
        except TimeoutError:
            await self.kill()
        if self._reader is not None:
            self._reader.cancel()

    async def kill(self) -> None:
        # It may have ended, and been collected, a moment before the loop is told of it.
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()
        self.ended = True


@dataclass
class Request:
    """One request to the model server, as the server saw it."""

    number: int
    script: str
    step: int
    at: float
    words: list[str]
    problems: list[str]
    first_part_at: float | None = None
    finished_at: float | None = None
    gone_at: float | None = None

    @property
    def over_at(self) -> float | None:
        return self.gone_at or self.finished_at


class ServerTalk(Talk):
    """The model server and all requests that came to it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        super().__init__(command, environment, log)
        self.port = 0
        self.scripts: set[str] = set()
        self.requests: list[Request] = []
        self._by_number: dict[int, Request] = {}
        self._by_script: dict[str, list[Request]] = {}

    def hear(self, event: Event) -> None:
        kind, number, at = event["event"], event["request"], event["at"]
        if kind == "listening":
            self.port = event["port"]
        elif kind == "script":
            self.scripts.add(event["script"])
        elif kind == "request":
            script = event["script"]
            request = Request(number, script, event["step"], at, event["words"], event["problems"])
            self.requests.append(request)
            self._by_number[number] = request
            self._by_script.setdefault(script, []).append(request)
        else:
            setattr(self._by_number[number], f"{kind}_at", at)

    def of(self, script: str) -> list[Request]:
        return self._by_script.get(script, [])


@dataclass
class DriverTalk(Talk):
    """A driver; its events by kind and by what they are about."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    lacks: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    calls: dict[str, dict[str, Any]] = field(default_factory=dict)
    python: str = ""

    def __post_init__(self) -> None:
        super().__init__(self.command, self.environment, self.log)
        self._heard: dict[tuple[str, str], Event] = {}

    def hear(self, event: Event) -> None:
        about = event.get("run") or event.get("word") or event.get("session") or ""
        self._heard[event["event"], about] = event

    def do(self, action: str, **more: object) -> None:
        self.say(json.dumps({"do": action, **more}).encode())

    def heard(self, kind: str, about: str = "") -> Event | None:
        return self._heard.get((kind, about))

    async def hears(self, kind: str, about: str = "", *, bound_s: float) -> Event:
        return await self.until(lambda: self.heard(kind, about), bound_s, f"{kind} {about}")

    async def ask(self, action: str, kind: str, *, bound_s: float = 10.0, **more: object) -> Event:
        """A question with one answer; only one of a kind at a time."""
        self._heard.pop((kind, ""), None)
        self.do(action, **more)
        return await self.hears(kind, bound_s=bound_s)

    async def open(self, home: Path, tools: Sequence[str], *, bound_s: float = 60.0) -> None:
        await self.start()
        ready = await self.hears("ready", bound_s=bound_s)
        self.python = ready["python"]
        self.do("open", home=str(home), tools=list(tools))
        give_up = self.until(
            lambda: self.heard("opened") or self.heard("failed"), bound_s, "opened"
        )
        opened = await give_up
        if opened["event"] == "failed":
            raise Gone(opened["error"])
        self.lacks, self.notes = opened["lacks"], opened["notes"]
        self.versions, self.calls = opened["versions"], opened["calls"]
