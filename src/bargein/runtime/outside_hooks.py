"""Runs the hooks of the configuration: commands and webhooks, when sessions do something.

What holds:

- Nothing waits for a hook. `observe` only queues; a hook that hangs, fails or floods delays no
  turn, no stop and no commit.
- Each run has a time limit, and few run at once. If too many wait, the newest are dropped. Both are
  logged, and so is every failure.
- A command is contained and leaves no process behind. It gets the notice as JSON on its standard
  input, a webhook gets it as the body of a POST. Redirects are not followed.
- When the engine closes, hooks that wait or run get `CLOSE_S` to finish; then they are stopped.
"""

import logging
import os
import shutil
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio
import msgspec

from bargein.cancel import Cancelled, CancelSource, Cause, Reason
from bargein.contracts.event import (
    BudgetLow,
    Event,
    QuestionAsked,
    Recorded,
    TurnOutcome,
    TurnSettled,
)
from bargein.contracts.receipt import Receipt
from bargein.contracts.tool import Question
from bargein.contracts.value import Value
from bargein.errors import BargeinError
from bargein.runtime.hook_config import HookEvent, OutsideHook
from bargein.session.broadcast import Watched
from bargein.session.children import is_child
from bargein.session.engine_tasks import EngineTasks

if TYPE_CHECKING:
    from bargein.process import Containment, Process

AT_ONCE_MAX = 4
WAITING_MAX = 100
CLOSE_S = 2.0
OUTPUT_SHOWN = 500

_log = logging.getLogger("bargein.hooks")
_encode = msgspec.json.Encoder().encode


class HookNotice(Value, frozen=True):
    """The JSON that a hook gets. `receipt` is that of a stopped turn."""

    event: HookEvent
    session: str
    turn: str
    at: float
    outcome: TurnOutcome | None = None
    error: str = ""
    receipt: Receipt | None = None
    question_id: str = ""
    question: Question | None = None
    budget: BudgetLow | None = None


def notices_of(session: str, recorded: Recorded) -> tuple[HookNotice, ...]:
    """Returns what hooks learn of an event, the most particular first."""
    event: Event = recorded.event
    match event:
        case TurnSettled():
            kinds = {
                TurnOutcome.STOPPED: (HookEvent.STOPPED,),
                TurnOutcome.CRASHED: (HookEvent.RECOVERED,),
            }.get(event.outcome, ())
            return tuple(
                HookNotice(
                    kind,
                    session,
                    event.turn,
                    recorded.at,
                    event.outcome,
                    event.error,
                    event.receipt,
                )
                for kind in (*kinds, HookEvent.SETTLED)
            )
        case QuestionAsked():
            return (
                HookNotice(
                    HookEvent.QUESTION,
                    session,
                    event.turn,
                    recorded.at,
                    question_id=event.id,
                    question=event.question,
                ),
            )
        case BudgetLow():
            return (HookNotice(HookEvent.BUDGET, session, event.turn, recorded.at, budget=event),)
        case _:
            return ()


class HookRunner:
    """`async with HookRunner(...)` around an engine that calls `observe`. Each hook runs once for
    an event, however many of its kinds it is for."""

    def __init__(
        self,
        hooks: tuple[OutsideHook, ...],
        *,
        environment: Mapping[str, str],
        containment: "Callable[[], Containment]",
        hooks_of: Callable[[str], tuple[OutsideHook, ...]] = lambda session: (),
        close_s: float = CLOSE_S,
    ) -> None:
        """`hooks_of` returns further hooks for a session, those of the project that it works in."""
        self._hooks = hooks
        self._hooks_of = hooks_of
        self._environment = environment
        self._make_containment = containment
        self._containment: Containment | None = None
        self._close_s = close_s
        self._source = CancelSource("hooks")
        self._tasks = EngineTasks()
        self._waiting: deque[tuple[OutsideHook, HookNotice]] = deque()
        self._running = 0
        self._idle = anyio.Event()
        self._idle.set()

    async def __aenter__(self) -> Self:
        self._tasks.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with anyio.move_on_after(self._close_s):
            await self._idle.wait()
        for hook, notice in self._waiting:
            _log.warning("the hook %s for %s was not run: the program ends", hook, notice.event)
        self._waiting.clear()
        self._source.cancel(Reason(Cause.SHUTDOWN, "the engine is closed"))
        await self._tasks.close()
        if self._containment is not None:
            await self._containment.aclose()

    def observe(self, session: str, event: Watched) -> None:
        """Queues the hooks for an event. Never waits."""
        if not isinstance(event, Recorded) or is_child(session):
            return
        notices = notices_of(session, event)
        if not notices:
            return
        further = tuple(each for each in self._hooks_of(session) if each not in self._hooks)
        for hook in (*self._hooks, *further):
            notice = next((each for each in notices if each.event in hook.on), None)
            if notice is not None:
                self._add(hook, notice)

    def _add(self, hook: OutsideHook, notice: HookNotice) -> None:
        if len(self._waiting) >= WAITING_MAX:
            _log.warning("the hook %s for %s is dropped: too many wait", hook, notice.event)
            return
        self._waiting.append((hook, notice))
        if self._running < AT_ONCE_MAX:
            self._running += 1
            if self._idle.is_set():
                self._idle = anyio.Event()
            self._tasks.spawn(self._work)

    async def _work(self) -> None:
        try:
            while self._waiting:
                await self._run(*self._waiting.popleft())
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def _run(self, hook: OutsideHook, notice: HookNotice) -> None:
        try:
            # In a thread: it reads the files of a project.
            why_not = await anyio.to_thread.run_sync(hook.why_not, abandon_on_cancel=True)
            if why_not:
                _log.warning("the hook %s is not run: %s", hook, why_not)
                return
            run = self._run_command if hook.command else self._call_webhook
            token, name = self._source.token, f"hook {notice.event}"
            with token.child(name, timeout_s=hook.timeout_s) as source:
                failed = await run(hook, notice, source)
                if source.token.cancelled:
                    failed = f"it took longer than {hook.timeout_s:g} s"
                    if token.cancelled:
                        failed = "the program ends"
        except (BargeinError, OSError) as error:
            failed = str(error) or type(error).__name__
        except Exception as error:  # boundary: the hooks that wait behind it still run
            # Its words may have the address or a header.
            failed = type(error).__name__
        if failed:
            _log.warning("the hook %s for %s failed: %s", hook, notice.event, failed)

    async def _run_command(
        self, hook: OutsideHook, notice: HookNotice, source: CancelSource
    ) -> str:
        """Returns why it failed; empty if it did not."""
        if self._containment is None:
            self._containment = self._make_containment()
        shell = shutil.which("sh") or "/bin/sh"
        extra = {
            "BARGEIN_HOOK": str(notice.event),
            "BARGEIN_HOOK_SESSION": notice.session,
            "BARGEIN_HOOK_TURN": notice.turn,
        }
        try:
            process = await self._containment.spawn(
                [shell, "-c", hook.command],
                cwd=hook.table.project if hook.table is not None else os.getcwd(),
                env={**self._environment, **extra},
                token=source.token,
                stdin="pipe",
            )
        except Cancelled:
            return "it was stopped before it began"
        async with anyio.create_task_group() as group:
            group.start_soon(_feed, process, _encode(notice))
            exited = await process.wait()
            group.cancel_scope.cancel()
        # What it left in the background ends with it.
        await process.stop()
        if exited.code == 0 or source.token.cancelled:
            return ""
        said = " ".join(process.output.text().split())[-OUTPUT_SHOWN:]
        return f"{exited}{f': {said}' if said else ''}"

    async def _call_webhook(
        self, hook: OutsideHook, notice: HookNotice, source: CancelSource
    ) -> str:
        import aiohttp

        headers = {"Content-Type": "application/json", "User-Agent": "Bargein", **hook.headers}
        with source.token.scope():
            try:
                async with (
                    aiohttp.ClientSession(trust_env=True) as client,
                    client.post(
                        hook.url, data=_encode(notice), headers=headers, allow_redirects=False
                    ) as response,
                ):
                    return "" if response.status < 300 else f"HTTP status {response.status}"
            except aiohttp.ClientConnectionError as error:
                return str(error) or type(error).__name__
            except aiohttp.ClientError as error:
                # The words of the others have the whole address.
                return type(error).__name__
        return ""


async def _feed(process: "Process", body: bytes) -> None:
    """Writes the notice and closes the input; a command need not read it."""
    from bargein.process import InputClosed

    try:
        await process.write(body)
        process.close_input()
    except InputClosed:
        pass


def both(
    one: Callable[[str, Watched], None] | None, other: Callable[[str, Watched], None]
) -> Callable[[str, Watched], None]:
    """Returns an observer that calls these."""
    if one is None:
        return other

    def observe(session: str, event: Watched) -> None:
        one(session, event)
        other(session, event)

    return observe
