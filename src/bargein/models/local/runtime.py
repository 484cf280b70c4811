"""The child process that runs a model: started when needed, shared, watched, stopped.

What holds:

- A child lives only while it is in use, or was used less than `idle_s` ago. If everybody who waits
  for its start is cancelled, the start is cancelled too, and they return when nothing of it is
  left.
- It is a contained process: it dies with us, however we end. Its input is a pipe that only we hold,
  which makes it exit even where containment guarantees little.
- If it dies by itself, a notice says so and the next request starts another. After `deaths_max`
  deaths within `deaths_within_s`, starts are refused until that time has passed.
- There is never more than one: a new child waits until the previous one is gone.

One asyncio loop. One task, the keeper, owns a child's life; no caller's cancel reaches it, and
`aclose` waits for it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import msgspec

from bargein.cancel import SYSTEM_CLOCK, Token, in_empty_context, shield
from bargein.models.local.errors import LocalModelError, RuntimeFailed
from bargein.models.local.handshake import Ears, Facts, Order, explain
from bargein.models.local.life import ChildLife, Lease
from bargein.models.local.notices import (
    Died,
    Loading,
    LocalNotices,
    Ready,
    RuntimeStopped,
    WhyStopped,
)
from bargein.process import CaptureLimits, Containment, InputClosed, Process, SpawnError

STOP_S: Final = 3.0
TELL_S: Final = 0.5
UNLIMITED: Final = -1
_KEPT: Final = CaptureLimits(head_bytes=8 * 1024, tail_bytes=16 * 1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSettings:
    """How to run a child. None leaves a value to the model or the machine.

    `batch_tokens` decides how soon the child stops reading a prompt. `sampling` uses the runtime's
    own names.
    """

    idle_s: float = 300.0
    load_timeout_s: float = 300.0
    deaths_max: int = 3
    deaths_within_s: float = 120.0
    context_tokens: int = 8192
    batch_tokens: int = 8
    requests_at_once: int = 4
    cache_mib: int = 256
    threads: int | None = None
    output_tokens_max: int | None = None
    sampling: Mapping[str, float] | None = None


class ModelSource(Protocol):
    """Where the model's file comes from, and alternatives to suggest if it does not work."""

    @property
    def instead(self) -> str: ...

    def check(self) -> None:
        """Raises `LocalModelError` if trying would be useless."""
        ...

    async def obtain(
        self, containment: Containment, token: Token, notices: LocalNotices
    ) -> Path: ...

    async def repair(self, token: Token) -> bool:
        """Repairs after a failed load; returns whether a second load is worth trying."""
        ...


class Runtime:
    """`lease` returns a serving child, `Lease.release` gives it back. `facts` describe the model as
    last loaded."""

    def __init__(
        self,
        name: str,
        source: ModelSource,
        *,
        command: Sequence[str],
        environment: Mapping[str, str],
        containment: Callable[[], Awaitable[Containment]],
        notices: LocalNotices,
        settings: RuntimeSettings,
    ) -> None:
        self.name = name
        self.settings = settings
        self._source = source
        self._command = tuple(command)
        self._environment = environment
        self._containment = containment
        self._notices = notices
        self._deaths: deque[float] = deque()
        self.facts: Facts | None = None
        self._life: ChildLife | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def process(self) -> Process | None:
        """The child, while one serves."""
        return self._life.process if self._life is not None and self._life.facts else None

    async def lease(self, token: Token) -> Lease:
        """Waits for a serving child and keeps it until released. Raises `LocalModelError`, or
        `Cancelled` with the token."""
        token.check()
        life = self._living()
        life.join()
        try:
            with token.scope():
                await life.decided.wait()
            token.check()
            if life.failure is not None:
                raise life.failure.with_traceback(None)
        except BaseException:
            life.leave()
            if life.users == 0 and life.source.token.cancelled:
                # We were the last to wait for its start: return when nothing of it is left.
                with shield(STOP_S):
                    await life.gone.wait()
            raise
        return Lease(life)

    async def aclose(self) -> None:
        """Stops the child. Bounded; requests that still use it fail."""
        self._closed = True
        if self._life is not None:
            self._life.end(WhyStopped.CLOSED)
        if self._keeper is not None:
            with shield(STOP_S):
                await asyncio.wait({self._keeper})

    def _living(self) -> ChildLife:
        """Returns the child that serves or starts, or begins to start a new one."""
        if self._closed:
            raise RuntimeError(f"{self.name} is closed and takes no more requests")
        life = self._life
        if life is not None and not life.source.token.cancelled:
            return life
        self._refuse_if_it_keeps_dying()
        life = self._life = ChildLife(self.name)
        # In an empty context, because it outlives the call that came first.
        self._keeper = in_empty_context(asyncio.ensure_future, self._keep(life, self._keeper))
        return life

    async def _keep(self, life: ChildLife, previous: "asyncio.Task[None] | None") -> None:
        try:
            if previous is not None:
                await asyncio.wait({previous})
            with life.source.token.scope():
                await self._live(life)
        except LocalModelError as error:
            life.failure = error
        except Exception as error:  # boundary: the keeper has no caller; waiting requests raise it
            life.failure = self._failure(f"it could not be started ({error!r})")
            life.failure.__cause__ = error
        finally:
            life.source.seal()
            if self._life is life:
                self._life = None
            with shield(STOP_S):
                await life.stop_process()
            if life.failure is None and life.facts is None:
                life.failure = self._failure("it was stopped while it started", retryable=True)
            if life.facts is not None and life.why_stopped is not None:
                self._notices(RuntimeStopped(life.why_stopped))
            life.gone.set()
            life.decided.set()

    async def _live(self, life: ChildLife) -> None:
        self._source.check()
        containment = await self._containment()
        token = life.source.token
        path = await self._source.obtain(containment, token, self._notices)
        try:
            await self._load(life, containment, path)
        except RuntimeFailed:
            await life.stop_process()
            if not await self._source.repair(token):
                raise
            path = await self._source.obtain(containment, token, self._notices)
            await self._load(life, containment, path)
        life.decided.set()
        await self._serve(life)

    async def _load(self, life: ChildLife, containment: Containment, path: Path) -> None:
        token = life.source.token
        began_at = token.clock.now()
        ears = Ears(life.wake)
        process = await self._spawn(life, containment, path, ears)
        while ears.answer is None and process.exit is None:
            elapsed_s = token.clock.now() - began_at
            if elapsed_s > self.settings.load_timeout_s:
                raise self._failure(f"it was not ready after {elapsed_s:.0f} s")
            self._notices(Loading(elapsed_s))
            await life.changed(TELL_S)
        if not isinstance(ears.answer, Facts):
            token.check()  # a child that was told to stop has not failed
            ended = await process.wait()
            failure = explain(
                self.name, ears.answer, ended, process.output.text(), self._source.instead
            )
            if failure.retryable:
                self._note_death()
            raise failure
        life.facts = self.facts = ears.answer
        elapsed_s = token.clock.now() - began_at
        self._notices(Ready(process.pid, elapsed_s, ears.answer.context_tokens))

    async def _spawn(
        self, life: ChildLife, containment: Containment, path: Path, ears: Ears
    ) -> Process:
        settings = self.settings
        order = Order(
            name=self.name,
            path=str(path),
            key=life.key.reveal(),
            context_tokens=settings.context_tokens,
            batch_tokens=settings.batch_tokens,
            requests_at_once=settings.requests_at_once,
            cache_mib=settings.cache_mib,
            threads=settings.threads,
            output_tokens_max=settings.output_tokens_max or UNLIMITED,
            sampling=dict(settings.sampling or {}),
        )
        try:
            process = await containment.spawn(
                self._command,
                cwd=path.parent,
                env=self._environment,
                token=life.source.token,
                stdin="pipe",
                output=_KEPT,
                on_output=ears.hear,
            )
        except SpawnError as error:
            why = f"its process could not be started: {error}"
            raise self._failure(why, retryable=error.retryable) from error
        life.began(process)
        try:
            await process.write(msgspec.json.encode(order) + b"\n")
        except InputClosed:
            pass  # it is already dead; its exit says how
        return process

    async def _serve(self, life: ChildLife) -> None:
        """Serves until the child dies or has been idle for too long."""
        process = life.process
        assert process is not None
        now = life.source.token.clock.now
        while process.exit is None:
            left_s = None
            if life.users == 0:
                left_s = life.used_until + self.settings.idle_s - now()
                if left_s <= 0:
                    life.why_stopped = WhyStopped.IDLE
                    return
            await life.changed(left_s)
        life.source.token.check()  # a child that was told to stop did not die by itself
        life.death = process.exit
        self._note_death()
        restarts_left = self.settings.deaths_max - self._recent_deaths()
        self._notices(Died(str(life.death), max(restarts_left, 0)))

    def _note_death(self) -> None:
        self._deaths.append(SYSTEM_CLOCK.now())

    def _recent_deaths(self) -> int:
        since = SYSTEM_CLOCK.now() - self.settings.deaths_within_s
        while self._deaths and self._deaths[0] < since:
            self._deaths.popleft()
        return len(self._deaths)

    def _refuse_if_it_keeps_dying(self) -> None:
        deaths = self._recent_deaths()
        if deaths >= self.settings.deaths_max:
            within_s = self.settings.deaths_within_s
            raise self._failure(
                f"its process died {deaths} times within {within_s:g} s; it is not started again "
                "for now"
            )

    def _failure(self, why: str, *, retryable: bool = False) -> RuntimeFailed:
        message = f"{self.name}: {why}. {self._source.instead}"
        return RuntimeFailed(message, retryable=retryable, model=self.name)
