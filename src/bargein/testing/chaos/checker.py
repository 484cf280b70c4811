"""What must be true afterwards: of the clients' histories, the logs and the effects."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from bargein.cancel import Cause
from bargein.contracts.event import (
    CallStarted,
    MessageAccepted,
    Recorded,
    TurnOutcome,
    TurnSettled,
)
from bargein.contracts.value import Value
from bargein.testing.engine_invariants import SessionLaws


class Acknowledged(Value, frozen=True):
    """A message that a client was told is accepted."""

    session: str
    key: str


class StopTold(Value, frozen=True):
    """A stop that a client was told the outcome of."""

    session: str
    status: str
    turn: str


class EffectSeen(Value, frozen=True):
    """`began` and `ended` are of the machine's one clock."""

    session: str
    call: str
    node: str
    began: float
    ended: float


def violations(
    logs: Mapping[str, Sequence[Recorded]],
    acknowledged: Iterable[Acknowledged],
    stopped: Iterable[StopTold],
    effects: Sequence[EffectSeen],
    *,
    stops_asked: Counter[str],
) -> list[str]:
    """Each as a sentence. `stops_asked` counts the stops of each session, answered or not."""
    found: list[str] = []
    for session, log in logs.items():
        found += _of_log(session, log)
        found += _of_stops(session, log, stops_asked[session])
    found += _of_messages(logs, acknowledged)
    found += _of_receipts(logs, stopped)
    found += _of_effects(logs, effects)
    return found


def _of_log(session: str, log: Sequence[Recorded]) -> list[str]:
    """The laws, as far as a log shows them: one turn at a time, nothing twice, well formed."""
    laws = SessionLaws(session)
    try:
        for recorded in log:
            laws.feed(recorded)
        laws.check_all_ran()
    except AssertionError as broken:
        return [f"{session}: {broken}"]
    return []


def _of_messages(
    logs: Mapping[str, Sequence[Recorded]], acknowledged: Iterable[Acknowledged]
) -> list[str]:
    found: list[str] = []
    keys = Counter(
        (session, each.event.message.client_id)
        for session, log in logs.items()
        for each in log
        if isinstance(each.event, MessageAccepted)
    )
    found += [
        f"{each.session}: {each.key} was acknowledged and is lost"
        for each in acknowledged
        if keys[each.session, each.key] == 0
    ]
    found += [f"{session}: {key} is there {n} times" for (session, key), n in keys.items() if n > 1]
    return found


def _of_receipts(logs: Mapping[str, Sequence[Recorded]], stopped: Iterable[StopTold]) -> list[str]:
    """A receipt that says "stopped" names a turn that the log says was stopped. A crash may have
    come between the stop and its place in the log."""
    found = []
    for each in stopped:
        if each.status != "stopped" or not each.turn:
            continue
        ends = [
            one.event.outcome
            for one in logs.get(each.session, ())
            if isinstance(one.event, TurnSettled) and one.event.turn == each.turn
        ]
        if not ends or ends[0] not in (TurnOutcome.STOPPED, TurnOutcome.CRASHED):
            found.append(f"{each.session}: {each.turn} was stopped, and the log says {ends}")
    return found


def _of_stops(session: str, log: Sequence[Recorded], asked: int) -> list[str]:
    """Every stop is aimed: not more turns were stopped than stops were asked for. A message that
    interrupts stops a turn too, by the same client, and counts for itself."""
    ends = [each.event for each in log if isinstance(each.event, TurnSettled)]
    by_clients = [
        each.turn
        for each in ends
        if each.outcome is TurnOutcome.STOPPED
        and each.receipt is not None
        and each.receipt.by == "client"
        and each.receipt.reason is not None
        and each.receipt.reason.cause is Cause.USER_STOP
    ]
    if len(by_clients) > asked:
        return [f"{session}: {asked} stops were asked for, and {len(by_clients)} turns stopped"]
    return []


def _of_effects(logs: Mapping[str, Sequence[Recorded]], effects: Sequence[EffectSeen]) -> list[str]:
    found = []
    counts = Counter((each.session, each.call) for each in effects)
    found += [
        f"{key[0]}: the effect of {key[1]} happened {n} times" for key, n in counts.items() if n > 1
    ]
    started = {
        (session, each.event.call.id)
        for session, log in logs.items()
        for each in log
        if isinstance(each.event, CallStarted)
    }
    found += [
        f"{each.session}: {each.call} had an effect, and the log does not say that it started"
        for each in effects
        if (each.session, each.call) not in started
    ]
    return found
