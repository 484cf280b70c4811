"""The checks that are possible only when a world is over."""

from collections import Counter
from typing import TYPE_CHECKING

from bargein.cancel import Cause
from bargein.contracts.event import BackgroundEnded, CallEnded, TurnOutcome
from bargein.contracts.model import Text
from bargein.contracts.receipt import ReceiptStatus, Scope
from bargein.contracts.tool import CallStatus
from bargein.session.budget import Accounts
from bargein.session.children import PARENT
from bargein.session.snapshot import decode
from bargein.session.state import SessionState
from bargein.session.title import TITLE_S
from bargein.session.transcript import Transcript
from bargein.stores.encoding import decode_event
from bargein.testing.engine_invariants import SessionLaws, check_messages
from bargein.testing.simulation.plan import LifePlan, Titling
from bargein.testing.simulation.record import Fate, Record

if TYPE_CHECKING:
    from bargein.testing.simulation.world import World


def check_state(record: Record, name: str, state: SessionState) -> None:
    """Law 3, for a session at rest: its state agrees with its log."""
    laws = record.laws_of(name)
    said = [each.message.id for each in state.waiting], state.held, set(state.background)
    if said != (laws.waiting, laws.held, laws.background):
        record.blame(3, f"{name} says {said}, its log {laws.waiting} {laws.held} {laws.background}")


def give_verdict(world: "World") -> None:
    record = world.record
    durable = world.disk.snapshot().sessions
    for name, laws in record.laws.items():
        kept = [decode_event(body) for _, body in durable[name].events] if name in durable else []
        if kept != [recorded.event for recorded in laws.log]:
            record.blame(3, f"{name}: what is on the disk is not what was written")
        laws.check_all_ran()
        check_messages(Transcript.of(laws.log).messages())
        _check_accounts(record, name, laws)
        _check_outcomes(record, name, laws)
        if name in durable:
            _check_spent(record, laws, durable[name].state)
            _check_title(world, laws, durable[name].title)
    _check_too_late(world)
    _check_told_stops(world)
    for token, reason in record.cancels.items():
        if not token.cancelled or token.reason != reason:
            record.blame(2, f"{token.name} was cancelled, and now is {token!r}")


def _check_accounts(record: Record, name: str, laws: SessionLaws) -> None:
    """Law 3: every message is where its sender was told, exactly once."""
    there = Counter(
        accepted.message.text
        for accepted in laws.dispositions.values()
        if accepted.message.sender not in ("background", PARENT)
        and accepted.message.id not in laws.late_answers
    )
    sendings = [each for each in record.sendings if each.session == name]
    for words, times in there.items():
        if times > 1 or all(each.words != words for each in sendings):
            record.blame(3, f"{name}: {words} is there {times} times")
    by_words: dict[str, set[Fate]] = {}
    for sending in sendings:
        by_words.setdefault(sending.words, set()).add(sending.fate)
    for words, fates in by_words.items():
        if Fate.ACKNOWLEDGED in fates and not there[words]:
            record.blame(3, f"{name}: {words} was acknowledged and is nowhere")
        if fates == {Fate.REFUSED} and there[words]:
            record.blame(3, f"{name}: {words} was refused and is there")
    keys = Counter(
        (m.sender, m.client_id) for m in laws.messages.values() if m.client_id is not None
    )
    for key, times in keys.items():
        if times > 1:
            record.blame(3, f"{name}: {key} was accepted {times} times")


def _check_spent(record: Record, laws: SessionLaws, state: bytes) -> None:
    """The usage that a session reports agrees with its log."""
    accounts = Accounts()
    for recorded in laws.log:
        accounts = accounts.after(recorded.event)
    kept = decode(state).accounts.spent
    if (kept.steps, kept.tokens) != (accounts.spent.steps, accounts.spent.tokens):
        record.blame(3, f"{laws.session} says {kept}, its log {accounts.spent}")


def _check_title(world: "World", laws: SessionLaws, kept: str) -> None:
    """Law 3: a list of sessions shows the last title. If nothing went wrong, every session in which
    a turn got as far as its agent has a title."""
    last = laws.titles[-1].title if laws.titles else ""
    if kept != last:
        world.record.blame(3, f"{laws.session} is called {last!r}, and the store says {kept!r}")
    temper = world.plan.temper
    calm = world.plan.lives in ((), (LifePlan(),)) and temper.idle_s > TITLE_S
    titled = temper.titling is not Titling.NONE and not laws.is_child and not laws.ended
    words = Transcript.of(laws.log).first_words
    begun = any(work.session == laws.session for work in world.record.agents)
    if calm and titled and words and begun and not last:
        world.record.blame(3, f"{laws.session} was never given a title")


def _check_outcomes(record: Record, name: str, laws: SessionLaws) -> None:
    asked = {(attempt.session, attempt.turn) for attempt in record.attempts}
    for turn in laws.turns.values():
        if turn.settled is None:
            continue
        failed = turn.settled.outcome is TurnOutcome.FAILED
        known = (name, turn.id) in record.failing or record.is_disturbed(name)
        if failed and not known:
            record.blame(8, f"{name} {turn.id} failed of itself: {turn.settled.error}")
        completed = turn.settled.outcome is TurnOutcome.COMPLETED
        if completed and (name, turn.id) not in asked and (name, turn.id) in record.looping:
            record.blame(9, f"{name} {turn.id} came to its end, and the model was never asked")
    _check_partial_text(record, name, laws)
    for run in record.runs.values():
        if run.session == name and run.effects and not run.crashed:
            _check_told(record, laws, run.call_id)


def _check_told(record: Record, laws: SessionLaws, call: str) -> None:
    """Law 10: a call that had an effect is not reported as never started."""
    for recorded in laws.log:
        event = recorded.event
        if isinstance(event, CallEnded | BackgroundEnded) and event.call_id == call:
            status = event.result.status
            if status is CallStatus.NOT_STARTED:
                record.blame(
                    10, f"{laws.session}: {call} had its effect, and is reported as {status}"
                )


def _check_partial_text(record: Record, name: str, laws: SessionLaws) -> None:
    """Law 5: what the model said before it was cut off is kept, unless the program crashed."""
    for attempt in record.attempts:
        turn = laws.turns.get(attempt.turn)
        if attempt.session != name or attempt.crashed or turn is None or turn.settled is None:
            continue
        if turn.settled.outcome is TurnOutcome.CRASHED or not attempt.token.cancelled:
            continue
        # Whether the last part was read before the cancel is unknown.
        heard = "".join(attempt.said[:-1])
        parts = [part for said in turn.said for part in said.message.content]
        kept = [part.text for part in parts if isinstance(part, Text)]
        if heard and not any(text.startswith(heard) for text in kept):
            record.blame(5, f"{name} {turn.id} had said {heard!r}, kept is {kept}")


def _check_told_stops(world: "World") -> None:
    """Law 10: a turn that a receipt reported as stopped is not reported otherwise later. If the
    store did not accept it, that holds for the life of the process that gave the receipt, unless
    another owner took the session meanwhile, who knows nothing that was not stored."""
    lives = world.plan.lives
    one_life = not lives or (len(lives) == 1 and lives[0].at_step is None and lives[0].at_s is None)
    for stopping in world.record.stoppings.values():
        receipt = stopping.receipt
        if receipt is None or receipt.status is not ReceiptStatus.STOPPED:
            continue
        if stopping.scope not in (Scope.TURN, Scope.SESSION) or receipt.reason is None:
            continue
        turn = world.record.laws_of(stopping.session).turns.get(receipt.target)
        settled = turn.settled if turn is not None else None
        known = receipt.stored or (one_life and stopping.session not in world.record.stolen)
        told = receipt.reason.root.cause is Cause.USER_STOP and known
        # A turn whose start could not be stored either never began; the next one gets its id.
        if told and settled is not None and settled.outcome is TurnOutcome.CRASHED:
            world.record.blame(10, f"{stopping.by}: {receipt.target} was stopped, and is crashed")


def _check_too_late(world: "World") -> None:
    """Law 9: a stop that was too late changed nothing, and its target ended by itself."""
    for stopping in world.record.stoppings.values():
        receipt = stopping.receipt
        if receipt is None or receipt.status is not ReceiptStatus.TOO_LATE:
            continue
        if world.stop_changed.get(stopping.by):
            world.record.blame(9, f"{stopping.by} was too late, and yet changed the session")
        laws = world.record.laws_of(stopping.session)
        turn = laws.turns.get(stopping.turn or "")
        aimed = stopping.expected in (None, stopping.turn)
        aimed = aimed and stopping.scope in (Scope.TURN, Scope.SESSION)
        settled = turn.settled if turn is not None else None
        if aimed and settled is not None and settled.outcome is TurnOutcome.STOPPED:
            world.record.blame(9, f"{stopping.by}: too late for {settled.turn}, which was stopped")
