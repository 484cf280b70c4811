"""How a session continues after a crash, or after its store failed. Read it from top to bottom.

1. A start continues every unfinished session: `Recovery.go_on_with_unfinished`. The engine claims
   the epoch first, so that the process that died cannot write any more.
2. A session is brought into memory from what is durable: `Recovery.bring`. Its sub-agents are
   settled first, the deepest first; none of them runs again.
3. Everything that an earlier process left unsettled is settled, and the waiting messages are taken
   next: `recover`.
4. The turn that was running is settled once: `settle_crashed` makes the same `Settled` command as
   `abort.settle` does for a turn that ends in this process, from the log since the turn's start.
   Its text so far is kept and marked. Calls that had started get "outcome unknown" and are not run
   again, unless they left a note from which `LostCalls` learns it in time; calls that had not get
   "not started". Its messages count as taken and unanswered; its
   questions stay open.
5. A session whose store failed comes back by itself in the same process: `Recovery.begin`.
6. A stop whose receipt was given but not stored still counts: `Known`, from this process or from
   the reserve beside the store. The turn is then settled as stopped, with that receipt.
"""

import logging
import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio
import msgspec

from bargein.calls import words
from bargein.cancel import CancelSource, run_thread
from bargein.contracts.event import (
    AssistantSaid,
    BackgroundEnded,
    CallEnded,
    CallNoted,
    CallStarted,
    CallsUndoing,
    ChildStarted,
    Event,
    MessageAccepted,
    ModelUsed,
    QuestionAsked,
    QuestionClosed,
    Recorded,
    TextCheckpoint,
    TurnOutcome,
    TurnSettled,
    TurnStarted,
)
from bargein.contracts.model import AssistantMessage, Text, ToolCall
from bargein.contracts.receipt import Receipt, Scope
from bargein.contracts.store import (
    LeasedStore,
    OwnedElsewhere,
    Reserve,
    SessionHead,
    SessionUnreadable,
    StaleEpoch,
    StoreFailed,
    UnstoredStop,
)
from bargein.contracts.tool import CallResult, CallStatus, Effect, LostCalls
from bargein.errors import BargeinError
from bargein.session import child_report, snapshot
from bargein.session.abort import receipt_of
from bargein.session.actor import Actor, Parts
from bargein.session.commands import BackgroundOver, ChildOver, End, Settled, Wake
from bargein.session.journal import TOLD
from bargein.session.reply import SessionGone
from bargein.session.results import Results
from bargein.session.state import Phase, SessionState

if TYPE_CHECKING:
    from bargein.session.engine import SessionEngine
    from bargein.session.turn import Turn

RESERVE_S = 1.0
RESERVE_GRACE_S = 0.1
LOST_CALLS_S = 5.0
"""How long a session waits to learn how its lost calls ended."""

_log = logging.getLogger("bargein.session")


class Ending(msgspec.Struct, frozen=True):
    """How a sub-agent of a crashed session ended."""

    outcome: TurnOutcome
    summary: str
    task: str = ""


Endings = dict[str, Ending]


class Known(msgspec.Struct, frozen=True):
    """What is known about the end of the running turn, beyond the log: the receipt of a stop that
    could not be stored, or why nothing could be stored; the results of its calls; and the model's
    answers and usage since, each with the place in the log that it would have had."""

    stop: Receipt | None = None
    failure: str = ""
    results: dict[str, CallResult] = {}
    said: tuple[tuple[float, AssistantSaid | ModelUsed], ...] = ()


class Recovery:
    """`owed` are the results that senders still expect from sessions on their way back."""

    def __init__(
        self,
        engine: "SessionEngine",
        reserve: Reserve | None,
        lost_calls: LostCalls | None = None,
    ) -> None:
        self.owed: dict[str, Results] = {}
        self._lost_calls = lost_calls
        self._engine = engine
        self._reserve = reserve
        self._known: dict[str, dict[str, Known]] = {}
        self._returning: dict[str, anyio.Event] = {}
        self._pauses: dict[str, tuple[float, float]] = {}
        """When a session last left memory because of the store, and the pause that followed."""

    # 1. The start

    async def go_on_with_unfinished(self) -> None:
        after = ""
        while ids := await self._engine.store.unfinished(after=after):
            for session_id in ids:
                await self._go_on_with(session_id)
            after = ids[-1]

    async def _go_on_with(self, session_id: str) -> None:
        # A session that another owner has claimed since is that owner's; one that cannot be read
        # keeps none of the others from going on.
        with suppress(SessionGone, SessionUnreadable, OwnedElsewhere):
            await self._engine.actor(session_id)
            await self._go_on_below(session_id)

    async def rescue(self, store: LeasedStore) -> None:
        """Go on, for as long as the engine runs, with what owners left that have died since."""
        while True:
            for session_id in await store.orphans():
                try:
                    await self._go_on_with(session_id)
                    elsewhere = self._engine.elsewhere
                    if elsewhere is not None and session_id in self._engine.in_memory:
                        elsewhere.moved["left by another node"] += 1
                except BargeinError as error:
                    _log.warning("%s cannot be taken over: %s", session_id, error)
                    await anyio.sleep(self._engine.limits.bring_back_first_s)

    async def _go_on_below(self, root: str) -> None:
        """Continue sub-agents whose own end could not be stored, though their parent counts them as
        over."""
        engine = self._engine
        before: tuple[float, str] | None = None
        while heads := await engine.store.sessions(under=root, before=before):
            for head in heads:
                if head.id != root and snapshot.stored_in(head).state.unfinished:
                    await engine.actor(head.id, unasked=True)
            before = (heads[-1].updated_at, heads[-1].id)

    # 2. Into memory

    async def bring(self, head: SessionHead, parts: Parts | None = None) -> Actor:
        """Bring a session into memory from what is durable, and settle what is unsettled."""
        engine, stored = self._engine, snapshot.stored_in(head)
        ended = await self._settle_children(stored.state, head.epoch)
        log: list[Recorded] = []
        # A sender may still expect an old answer, and a call in the background may be as old: then
        # read the whole log.
        from_long_ago = head.id in self.owed or bool(stored.state.background)
        begins_at = 1 if from_long_ago else stored.log_begins_at
        if begins_at is not None:
            log = await engine.events(head.id, after=begins_at - 1)
        engine.refuse_if_closing()
        results = self.owed.pop(head.id, Results())
        results.come_back(stored.state.turn, [ref.message for ref in stored.waiting], log)
        state = snapshot.with_messages(head.id, stored, log)
        state = msgspec.structs.replace(state, child=head.root != head.id)
        moved = on_machine(state, engine.machine)
        actor = Actor(parts or engine.parts, head, moved, results)
        if moved.note != state.note:
            actor.moved_from = state.machine
        known = self._known_of(head, stored.state.turn)
        learnt = await self._outcomes_of_lost_calls(state, head.id, log)
        if learnt:
            known = msgspec.structs.replace(known, results={**learnt, **known.results})
        recover(actor, log, stored.turn_seq, ended, known)
        if known.stop is not None and self._reserve is not None:
            engine.spawn(partial(self._forget_stop, actor, self._reserve))
        return actor

    async def _outcomes_of_lost_calls(
        self, state: SessionState, session_id: str, log: list[Recorded]
    ) -> dict[str, CallResult]:
        """Return how the calls ended that left a note, as far as that is learnt in time."""
        lost, results = self._lost_calls, dict[str, CallResult]()
        noted = _noted_calls(log, state) if lost is not None else []
        if lost is None or not noted:
            return results
        with anyio.move_on_after(LOST_CALLS_S):
            for call, note in noted:
                try:
                    found = await lost.outcome_of(session_id, call, note)
                except BargeinError as error:
                    _log.warning("%s: the outcome of %s is unknown: %s", session_id, call.id, error)
                    continue
                if found is not None:
                    results[call.id] = found
        return results

    async def _settle_children(self, state: SessionState, epoch: int) -> Endings:
        """Settle the sub-agents that a crash left unsettled, the deepest first, so that another
        crash meanwhile leaves a state from which the rest can be settled."""
        return {child.id: await self._settle_child(child.id, epoch) for child in state.children}

    async def _settle_child(self, child: str, epoch: int) -> Ending:
        engine = self._engine
        head = await engine.store.head(child)
        if head is None:
            return Ending(TurnOutcome.CRASHED, "the program ended before it began")
        if snapshot.stored_in(head).state.phase is not Phase.ENDED:
            why: list[BaseException | None] = []
            parts = msgspec.structs.replace(engine.parts, left=lambda _, error: why.append(error))
            actor = await self.bring(owned(head, epoch), parts)
            await actor.gone.wait()
            if isinstance(why[0], StaleEpoch):
                raise SessionGone(f"{child} has another owner: {why[0]}")
            if actor.comes_back:
                raise StoreFailed(
                    f"{child} could not be settled; Bargein tries again", retryable=True
                )
        return ending_of(await engine.events(child))

    # 5. After the store failed

    def begin(self, actor: Actor, error: BaseException, let_in: Callable[[], None]) -> None:
        """Bring back a session that left memory because of `error`. Calls `let_in` when its turn is
        over: nothing may bring it into memory before that."""
        self.owed[actor.session_id] = actor.results
        returning = self._returning[actor.session_id] = anyio.Event()
        self._engine.spawn(partial(self._bring_back, actor, error, let_in, returning))

    def is_returning(self, session_id: str) -> bool:
        return session_id in self._returning or session_id in self.owed

    async def returned(self, session_id: str) -> None:
        """Wait while a session is on its way back into memory after the store failed."""
        returning = self._returning.get(session_id)
        if returning is not None:
            await returning.wait()

    def give_up(self, error: BargeinError) -> None:
        """Fail the results that senders still expect, because the engine is closed."""
        for owed in self.owed.values():
            owed.lost(error)

    async def _bring_back(
        self,
        actor: Actor,
        error: BaseException,
        let_in: Callable[[], None],
        returning: anyio.Event,
    ) -> None:
        try:
            await self._remember(actor, error, let_in)
            await self._bring_back_when_possible(actor, error)
        finally:
            returning.set()
            if self._returning.get(actor.session_id) is returning:
                del self._returning[actor.session_id]

    def _pause_s(self, session_id: str) -> float:
        """How long to wait before the session is brought back. A store may take its claim and not
        its events; then it leaves memory again each time, and waits longer each time."""
        limits, now = self._engine.limits, anyio.current_time()
        recent_s = 2 * limits.bring_back_max_s
        self._pauses = {k: each for k, each in self._pauses.items() if now - each[0] < recent_s}
        if session_id in self._pauses:
            doubled_s = 2 * self._pauses[session_id][1]
            pause_s = min(max(doubled_s, limits.bring_back_first_s), limits.bring_back_max_s)
        else:
            pause_s = 0.0
        self._pauses[session_id] = now, pause_s
        return pause_s

    async def _remember(
        self, actor: Actor, error: BaseException, let_in: Callable[[], None]
    ) -> None:
        """Wait until nothing of the session is in flight, and keep what is known about its
        turns."""
        await actor.work_over()
        failure = f"it could not be stored: {actor.tree.lost or error}"
        known = {turn.id: known_of(actor, turn, failure) for turn in actor.turns.unsettled}
        self._known[actor.session_id] = known
        for turn, each in known.items():
            if each.stop is not None:
                await self.keep_stop(actor, turn, each.stop)
        let_in()

    async def _bring_back_when_possible(self, actor: Actor, error: BaseException) -> None:
        """Try until the store answers again. Gives up a session that another owner has claimed, and
        without waiting: until then its sub-agents take it for one that comes back."""
        engine, session_id = self._engine, actor.session_id
        pause_s = self._pause_s(session_id)
        delay_s = engine.limits.bring_back_first_s
        while not engine.closing:
            error = actor.tree.lost or error
            if isinstance(error, StaleEpoch | SessionGone):
                break
            if pause_s:
                await anyio.sleep(pause_s)
                pause_s = 0.0
                continue
            try:
                await engine.actor(session_id, unasked=True)
                return
            except (SessionGone, SessionUnreadable, OwnedElsewhere) as lost:
                error = SessionGone(str(lost))
            except Exception as failure:  # boundary: tried again until the engine is closed
                _log.warning("%s cannot be brought back: %s", session_id, failure)
                pause_s = delay_s
                delay_s = min(2 * delay_s, engine.limits.bring_back_max_s)
        self._known.pop(session_id, None)
        self.owed.pop(session_id, Results()).lost(SessionGone(str(error)))

    # 6. Stops that could not be stored

    async def keep_stop(self, actor: Actor, turn: str, receipt: Receipt) -> None:
        """Write a stop that the store has not confirmed to the reserve, so that no recovery
        contradicts its receipt. Bounded; the receipt says in any case that it is not stored."""
        if self._reserve is None:
            return
        stop = UnstoredStop(actor.session_id, actor.created_at, turn, receipt)
        with anyio.move_on_after(RESERVE_S, shield=True), CancelSource("reserve") as source:
            await run_thread(self._reserve.keep, stop, token=source.token, grace_s=RESERVE_GRACE_S)

    async def _forget_stop(self, actor: Actor, reserve: Reserve) -> None:
        if await actor.stored_so_far():
            forget = partial(reserve.forget, actor.session_id)
            token = self._engine.source.token
            await run_thread(forget, token=token, grace_s=RESERVE_GRACE_S)

    def _known_of(self, head: SessionHead, turn: str | None) -> Known:
        if turn is None:
            return Known()
        known = self._known.pop(head.id, {}).get(turn)
        if known is None and self._reserve is not None:
            kept = self._reserve.find(head.id, head.created_at, turn)
            known = Known(kept.receipt) if kept is not None else None
        return known or Known()


def owned(child: SessionHead, epoch: int) -> SessionHead:
    """Return the head of a sub-agent with the epoch at which its root was claimed here. The epoch
    that the store shows now may be another owner's."""
    return msgspec.structs.replace(child, epoch=epoch)


def known_of(actor: Actor, turn: "Turn", failure: str) -> Known:
    """Collect what this process knows about a turn whose end the store could not write."""
    results = {call.id: call.result for call in turn.calls.all if call.result is not None}
    said: list[tuple[float, AssistantSaid | ModelUsed]] = [
        (seq, event) for seq, event in actor.lost if event.turn == turn.id
    ]
    if not any(event is last for _, event in said for last in turn.last_events):
        # The session had left memory before the turn's end could be appended.
        last_told = (event for event in turn.last_events if isinstance(event, TOLD))
        said += [(math.inf, event) for event in last_told]
    # A turn that was stopped before it began made no receipt, but who stopped it was given one.
    stop = (turn.receipt or receipt_of(actor, turn)) if turn.stopped_on_request else None
    return Known(stop, "" if stop is not None else failure, results, tuple(said))


def on_machine(state: SessionState, machine: str) -> SessionState:
    """The state of a session that goes on at this machine; "" if all share their files. What the
    model reads next says that it moved."""
    if not machine or state.machine == machine:
        return state
    note = words.moved_note(state.machine, machine) if state.machine and state.turns else ""
    both = "\n".join(filter(None, (state.note, note)))
    return msgspec.structs.replace(state, machine=machine, note=both)


def recover(actor: Actor, log: list[Recorded], turn_seq: int, ended: Endings, known: Known) -> None:
    """Settle what an earlier process left unsettled, and continue with the waiting messages. The
    turn that was running begins at `turn_seq`."""
    state = actor.state
    titles = _titles(log)
    for call in state.background:
        lost = known.results.get(call) or words.unknown_outcome()
        message = words.background_news(call, titles.get(call, ""), lost)
        actor.post(BackgroundOver(call, lost, message, begins_turn=False))
    for child in state.children:
        ending = ended[child.id]
        news = None
        if child.detached:
            news = child_report.news(child.id, ending.task, _news_of(child.id, ending))
        actor.post(ChildOver(child.id, ending.outcome, ending.summary, news, lost=True))
    if state.turn is not None:
        kept = {pending.asked.id for pending in state.questions}
        turn_log = [each for each in log if each.seq >= turn_seq]
        settled = settle_crashed(state.turn, turn_log, ended, kept, known)
        has_files = actor.files.checkpoints is not None
        actor.post(msgspec.structs.replace(settled, has_files=has_files))
    elif state.child and state.phase is not Phase.ENDED:
        actor.post(End("crash"))
    actor.post(Wake())


def _noted_calls(log: list[Recorded], state: SessionState) -> list[tuple[ToolCall, str]]:
    """Return the calls without an end that stored a note, with their last note."""
    calls: dict[str, ToolCall] = {}
    notes: dict[str, str] = {}
    for recorded in log:
        event = recorded.event
        if isinstance(event, AssistantSaid):
            parts = (part for part in event.message.content if isinstance(part, ToolCall))
            calls.update((call.id, call) for call in parts)
        elif isinstance(event, CallNoted):
            notes[event.call_id] = event.note
        elif isinstance(event, BackgroundEnded) or (
            isinstance(event, CallEnded) and event.call_id not in state.background
        ):
            notes.pop(event.call_id, None)
    return [(calls[call_id], note) for call_id, note in notes.items() if call_id in calls]


def _titles(log: list[Recorded]) -> dict[str, str]:
    """Return the titles of calls by id; for a call without an effect, the name of its tool."""
    titles: dict[str, str] = {}
    for recorded in log:
        event = recorded.event
        if isinstance(event, AssistantSaid):
            calls = (part for part in event.message.content if isinstance(part, ToolCall))
            titles.update((call.id, call.name) for call in calls)
        elif isinstance(event, CallStarted):
            titles[event.call.id] = event.title
    return titles


def ending_of(log: list[Recorded]) -> Ending:
    """Read from a sub-agent's log how it ended. Its first message is its task."""
    told = (each.event.message.text for each in log if isinstance(each.event, MessageAccepted))
    task = next(told, "")
    for recorded in reversed(log):
        event = recorded.event
        if isinstance(event, TurnSettled):
            return Ending(event.outcome, event.error or str(event.outcome), task)
    return Ending(TurnOutcome.CRASHED, "the program ended before it began", task)


def settle_crashed(
    turn: str,
    log: list[Recorded],
    ended: Endings | None = None,
    kept: set[str] | None = None,
    known: Known | None = None,
) -> Settled:
    """Make the command that settles `turn`, from its part of the log. `kept` are the questions that
    stay open and can still be answered. A turn with a `known` stop is settled as stopped, as its
    receipt said, and its questions are closed as by any stop."""
    left = _read(log)
    known = known or Known()
    if known.stop is not None:
        kept = set()
    closed = sorted(left.questions.keys() - (kept or set()))
    events: list[Event] = [QuestionClosed(question) for question in closed]
    notes = [words.NOT_STORED if known.failure else words.CRASHED]
    asking = {left.questions[question] for question in left.questions.keys() & (kept or set())}
    for call in left.calls.values():
        result = _result_of(call.id, left, known)
        if call.id in left.children:
            result = _with_children(result, left.children[call.id], ended or {})
        elif call.id in asking:
            result = words.not_answered()
        notes.append(f"[{call.name} ({call.id}): {result.status}]")
        events.append(CallEnded(turn, call.id, result))
    last_seq = log[-1].seq if log else 0
    unstored = [event for seq, event in known.said if seq > last_seq]
    for event in unstored:
        events.append(event)
        if isinstance(event, AssistantSaid):
            calls = (part for part in event.message.content if isinstance(part, ToolCall))
            events += [CallEnded(turn, c.id, _result_of(c.id, left, known)) for c in calls]
    if left.text and not any(isinstance(event, AssistantSaid) for event in unstored):
        said = AssistantMessage((Text(left.text),))
        events.append(AssistantSaid(turn, said, partial=True))
    if not any(isinstance(each.event, TurnStarted) and each.event.messages for each in log):
        # If the turn was only compressing, the model needs no note about it.
        notes = [words.UNDOING_CRASHED, *notes[1:]] if left.undoing else []
    if known.stop is not None:
        # Now the receipt is stored; `turn_settled` adds the held and queued messages.
        receipt = msgspec.structs.replace(known.stop, scope=Scope.TURN, stored=True)
        return Settled(
            turn,
            TurnOutcome.STOPPED,
            tuple(events),
            receipt=receipt,
            note=words.stop_note(receipt) if notes else "",
        )
    crash = "\n".join(notes)
    return Settled(turn, TurnOutcome.CRASHED, tuple(events), error=known.failure, note=crash)


def _result_of(call_id: str, left: "_Left", known: Known) -> CallResult:
    """Make the result of a call that has no end in the log."""
    result = known.results.get(call_id)
    if result is not None and result.status is not CallStatus.DETACHED:
        return result
    for step in known.stop.steps if known.stop is not None else ():
        if step.call_id == call_id:
            return words.end_not_stored(step)
    return words.unknown_outcome() if call_id in left.started else words.never_started()


class _Left(msgspec.Struct):
    """The open work of a turn. `questions` maps each open question to the call that asked it."""

    text: str = ""
    calls: dict[str, ToolCall] = {}
    started: set[str] = set()
    questions: dict[str, str] = {}
    children: dict[str, list[str]] = {}
    undoing: bool = False


def _read(log: list[Recorded]) -> _Left:
    left = _Left()
    for recorded in log:
        event = recorded.event
        if isinstance(event, TextCheckpoint):
            left.text = "" if event.void else left.text + event.text
        elif isinstance(event, AssistantSaid):
            left.text = ""
            calls = (part for part in event.message.content if isinstance(part, ToolCall))
            left.calls.update((call.id, call) for call in calls)
        elif isinstance(event, CallsUndoing):
            left.undoing = True
            left.calls.update((each.call.id, each.call) for each in event.calls)
        elif isinstance(event, CallStarted) and event.effect is not Effect.NONE:
            left.started.add(event.call.id)
        elif isinstance(event, ChildStarted) and not event.detached:
            left.children.setdefault(event.call_id, []).append(event.child)
        elif isinstance(event, CallEnded):
            left.calls.pop(event.call_id, None)
        elif isinstance(event, QuestionAsked):
            left.questions[event.id] = event.call_id
        elif isinstance(event, QuestionClosed):
            left.questions.pop(event.id, None)
    return left


def _with_children(result: CallResult, children: list[str], ended: Endings) -> CallResult:
    lines = [
        f"[Sub-agent {child}: {ended[child].outcome if child in ended else 'over before'}]"
        for child in children
    ]
    told = "\n".join(["None of its sub-agents was run again:", *lines])
    return msgspec.structs.replace(result, content=(*result.content, Text(told)))


def _news_of(child: str, ending: Ending) -> CallResult:
    told = f"[Sub-agent {child}: {ending.outcome}. The program ended; it was not run again.]"
    return CallResult(CallStatus.UNKNOWN, (Text(told),), ending.summary)
