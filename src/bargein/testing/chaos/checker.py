"""What must be true afterwards: of the clients' histories, the logs and the effects."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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

FROZEN_S = 0.3
"""An effect takes far less; one that began so soon after SIGCONT was decided before."""


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


class Thawed(Value, frozen=True):
    """A node went on after SIGSTOP, at this time of the machine's one clock."""

    node: int
    at: float


@dataclass
class Verdict:
    """`broken` is what no run may show, each as a sentence. `lost` is what was confirmed and is not
    there any more, which only an asynchronous standby may do. `residue` counts effects of a node
    that woke from SIGSTOP between "call started" and the effect: no lease can prevent those."""

    broken: list[str]
    lost: list[str]
    residue: int = 0


def check(
    logs: Mapping[str, Sequence[Recorded]],
    acknowledged: Iterable[Acknowledged],
    stopped: Iterable[StopTold],
    effects: Sequence[EffectSeen],
    *,
    stops_asked: Counter[str],
    thawed: Sequence[Thawed] = (),
    may_lose: bool = False,
) -> Verdict:
    """`stops_asked` counts the stops of each session, answered or not."""
    broken: list[str] = []
    for session, log in logs.items():
        broken += _of_log(session, log)
        broken += _of_stops(session, log, stops_asked[session])
    broken += _of_repeated_messages(logs)
    at_once, residue = _of_overlaps(effects, thawed)
    # A turn that is lost has an effect, and the next one has its name.
    lost = [
        *_of_repeated_effects(effects),
        *_of_messages(logs, acknowledged),
        *_of_receipts(logs, stopped),
        *_of_effects(logs, effects),
    ]
    if may_lose:
        return Verdict([*broken, *at_once], lost, residue)
    return Verdict([*broken, *at_once, *lost], [], residue)


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


def _keys(logs: Mapping[str, Sequence[Recorded]]) -> Counter[tuple[str, str | None]]:
    return Counter(
        (session, each.event.message.client_id)
        for session, log in logs.items()
        for each in log
        if isinstance(each.event, MessageAccepted)
    )


def _of_messages(
    logs: Mapping[str, Sequence[Recorded]], acknowledged: Iterable[Acknowledged]
) -> list[str]:
    keys = _keys(logs)
    return [
        f"{each.session}: {each.key} was acknowledged and is lost"
        for each in acknowledged
        if keys[each.session, each.key] == 0
    ]


def _of_repeated_messages(logs: Mapping[str, Sequence[Recorded]]) -> list[str]:
    counted = _keys(logs).items()
    return [f"{session}: {key} is there {n} times" for (session, key), n in counted if n > 1]


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


def _of_repeated_effects(effects: Sequence[EffectSeen]) -> list[str]:
    counted = Counter((each.session, each.call) for each in effects).items()
    return [
        f"{session}: the effect of {call} happened {n} times"
        for (session, call), n in counted
        if n > 1
    ]


def _of_effects(logs: Mapping[str, Sequence[Recorded]], effects: Sequence[EffectSeen]) -> list[str]:
    started = {
        (session, each.event.call.id)
        for session, log in logs.items()
        for each in log
        if isinstance(each.event, CallStarted)
    }
    return [
        f"{each.session}: {each.call} had an effect, and the log does not say that it started"
        for each in effects
        if (each.session, each.call) not in started
    ]


def _of_overlaps(effects: Sequence[EffectSeen], thawed: Sequence[Thawed]) -> tuple[list[str], int]:
    """A turn of these nodes does one thing at a time, so effects of a session at the same time are
    of two turns. Returns those, and how many are explained by a node that was frozen."""

    def was_frozen(effect: EffectSeen) -> bool:
        if effect.ended - effect.began > FROZEN_S:
            return True
        number = int(effect.node.partition(".")[0])
        return any(
            each.node == number and 0 <= effect.began - each.at < FROZEN_S for each in thawed
        )

    found: list[str] = []
    residue = 0
    latest: dict[str, EffectSeen] = {}
    for each in sorted(effects, key=lambda effect: effect.began):
        before = latest.get(each.session)
        if before is not None and each.began < before.ended:
            if was_frozen(before) or was_frozen(each):
                residue += 1
            else:
                found.append(
                    f"{each.session}: {before.call} at {before.node} and {each.call} at "
                    f"{each.node} happened at the same time"
                )
        if before is None or each.ended > before.ended:
            latest[each.session] = each
    return found, residue
