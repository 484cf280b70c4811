"""What will happen in a simulated world: plain data, made from a seed and nothing else.

Users' steps, the faults of the store and the ends of the engine's lives are lists, so that a
failing plan can be made smaller by leaving some of them out. What a model, a tool or a hook does is
drawn from the seed and the name of what it belongs to, so that leaving one thing out changes the
others as little as possible.
"""

import random
from enum import StrEnum

import msgspec

from bargein.contracts.message import Mode


class Aim(StrEnum):
    """Which turn a user believes to be speaking of."""

    ANY = "any"
    CURRENT = "current"
    PREVIOUS = "previous"


class SendMessage(msgspec.Struct, frozen=True, tag="send"):
    mode: Mode
    aim: Aim = Aim.ANY
    group: str | None = None
    client_id: str | None = None
    attachment: bool = False
    waits_for_result: bool = False


class SendAgain(msgspec.Struct, frozen=True, tag="send_again"):
    """The same client id once more, with the same words or with others."""

    which: float
    same_words: bool = True


class StopTurn(msgspec.Struct, frozen=True, tag="stop_turn"):
    aim: Aim = Aim.ANY


class StopSession(msgspec.Struct, frozen=True, tag="stop_session"):
    pass


class StopCall(msgspec.Struct, frozen=True, tag="stop_call"):
    which: float


class PauseTurn(msgspec.Struct, frozen=True, tag="pause"):
    pass


class ResumeTurn(msgspec.Struct, frozen=True, tag="resume"):
    pass


class ContinueQueue(msgspec.Struct, frozen=True, tag="continue"):
    pass


class DetachCall(msgspec.Struct, frozen=True, tag="detach"):
    which: float


class EditMessage(msgspec.Struct, frozen=True, tag="edit"):
    which: float


class MoveMessage(msgspec.Struct, frozen=True, tag="move"):
    which: float
    before: float | None = None


class WithdrawMessage(msgspec.Struct, frozen=True, tag="withdraw"):
    which: float


class AnswerQuestion(msgspec.Struct, frozen=True, tag="answer"):
    which: float
    allow: bool = True
    late: bool = False


class WatchEvents(msgspec.Struct, frozen=True, tag="watch"):
    seconds: float


class EndSession(msgspec.Struct, frozen=True, tag="end"):
    pass


Action = (
    SendMessage
    | SendAgain
    | StopTurn
    | StopSession
    | StopCall
    | PauseTurn
    | ResumeTurn
    | ContinueQueue
    | DetachCall
    | EditMessage
    | MoveMessage
    | WithdrawMessage
    | AnswerQuestion
    | WatchEvents
    | EndSession
)


class Moment(StrEnum):
    """Something that a user may wait for in a session before they act."""

    STARTS = "an agent starts"
    ASKED = "the model is asked"
    SAID = "the model says something"
    RUNS = "a tool runs"
    STOPPING = "a stop was decided"
    SETTLES = "a turn settles"
    WRITES = "the store is about to write"
    WRITTEN = "the store has written"


class Step(msgspec.Struct, frozen=True):
    """It comes `after_s` after the one before, or when `moment` comes if that is sooner.
    `gives_up_s`: the user cancels their own call after this long. `alone`: the next step waits for
    this one; otherwise they overlap."""

    after_s: float
    session: int
    action: Action
    moment: Moment | None = None
    gives_up_s: float | None = None
    alone: bool = True


class FaultKind(StrEnum):
    SLOW_BEFORE = "slow before"
    SLOW_AFTER = "slow after"
    FAILS_BEFORE = "fails before it is durable"
    FAILS_AFTER = "fails after it is durable"
    STOLEN = "another owner claims the session"
    CRASH_BEFORE = "crash before it is durable"
    CRASH_AFTER = "crash after it is durable"


class StoreFault(msgspec.Struct, frozen=True):
    """At the n-th operation of one life's store."""

    operation: int
    kind: FaultKind
    seconds: float = 0.0


class LifeEnd(StrEnum):
    CLOSED = "closed"
    CRASHED = "crashed"
    OVERTAKEN = "overtaken"
    """The next one starts on the same store while this one goes on for a while."""


class LifePlan(msgspec.Struct, frozen=True):
    """One life of an engine. `at_step` counts the steps of the scheduler; `at_s` is in virtual
    seconds. Whichever comes first ends it; with neither it lives to the end of the world."""

    end: LifeEnd = LifeEnd.CLOSED
    at_step: int | None = None
    at_s: float | None = None
    faults: tuple[StoreFault, ...] = ()


class Temper(msgspec.Struct, frozen=True):
    """What this world's model, tools, agent, hooks and store are like."""

    calls: float = 0.0
    fails: float = 0.0
    stalls: float = 0.0
    pace_s: float = 0.0
    tools: tuple[str, ...] = ()
    odd_agents: float = 0.0
    hooks: bool = False
    store_pace_s: float = 0.0
    idle_s: float = 300.0


class Plan(msgspec.Struct, frozen=True):
    seed: int
    sessions: int
    users: tuple[tuple[Step, ...], ...]
    lives: tuple[LifePlan, ...]
    temper: Temper


TOOLS = (
    "crowd",
    "quick",
    "slow",
    "stubborn",
    "shielded",
    "late",
    "raises",
    "asks",
    "approval",
    "refused",
)

_MODES = (
    Mode.STEER,
    Mode.STEER,
    Mode.INTERRUPT,
    Mode.INTERRUPT,
    Mode.QUEUE,
    Mode.QUEUE,
    Mode.ROLLBACK,
    Mode.REJECT,
)


def make_plan(seed: int) -> Plan:
    rng = random.Random(seed)
    temper = _temper(rng)
    sessions = rng.choice((1, 1, 1, 2, 2, 3))
    deck = _deck(rng, has_calls=bool(temper.calls))
    users = tuple(
        tuple(_step(rng, deck, user, number, sessions) for number in range(rng.randint(2, 5)))
        for user in range(rng.choice((1, 2, 2, 3)))
    )
    return Plan(seed, sessions, users, _lives(rng), temper)


def _temper(rng: random.Random) -> Temper:
    has_calls = rng.random() < 0.65
    return Temper(
        calls=rng.choice((0.3, 0.6, 0.9)) if has_calls else 0.0,
        fails=rng.choice((0.0, 0.0, 0.15, 0.4)),
        stalls=rng.choice((0.0, 0.1, 0.4, 0.7)),
        pace_s=rng.choice((0.0, 0.05, 0.4, 0.4, 1.5)),
        tools=tuple(rng.sample(TOOLS, rng.randint(1, 4))) if has_calls else (),
        odd_agents=rng.choice((0.0, 0.0, 0.0, 0.3)),
        hooks=rng.random() < 0.2,
        store_pace_s=rng.choice((0.0, 0.0, 0.0, 0.02, 0.3)),
        idle_s=rng.choice((300.0, 300.0, 1.0, 4.0)),
    )


def _deck(rng: random.Random, *, has_calls: bool) -> list[str]:
    """The kinds of steps that may happen in this world: always sends and stops, and some others.
    Worlds with few kinds go deeper into each of them."""
    deck = ["send"] * 5 + ["stop"] * 2
    others = ["again", "pause", "resume", "continue", "edit", "move", "withdraw", "album", "watch"]
    if has_calls:
        others += ["stop_call", "detach", "answer"]
    for kind in others:
        if rng.random() < 0.35:
            deck += [kind] * rng.randint(1, 3)
    if "pause" in deck:
        deck.append("resume")
    if rng.random() < 0.15:
        deck.append("stop_session")
    if rng.random() < 0.04:
        deck.append("end")
    return deck


def _step(rng: random.Random, deck: list[str], user: int, number: int, sessions: int) -> Step:
    kind = "send" if number == 0 else rng.choice(deck)
    moment = rng.choice(tuple(Moment)) if number and rng.random() < 0.5 else None
    return Step(
        after_s=_delay_s(rng) if moment is None else rng.choice((0.5, 5.0)),
        session=rng.randrange(sessions),
        action=_action(rng, kind, f"u{user}.{number}"),
        moment=moment,
        gives_up_s=rng.choice((0.0, 0.01, 0.3, 3.0)) if rng.random() < 0.1 else None,
        alone=rng.random() < 0.5,
    )


def _delay_s(rng: random.Random) -> float:
    """Most things that go wrong do when several happen at one moment."""
    kind = rng.random()
    if kind < 0.45:
        return 0.0
    if kind < 0.85:
        return round(rng.uniform(0.001, 0.5), 3)
    return round(rng.uniform(0.5, 6.0), 2)


def _action(rng: random.Random, kind: str, name: str) -> Action:
    which = round(rng.random(), 3)
    match kind:
        case "send":
            return SendMessage(
                mode=rng.choice(_MODES),
                aim=rng.choice((Aim.ANY, Aim.ANY, Aim.ANY, Aim.CURRENT, Aim.PREVIOUS)),
                client_id=f"c{name}" if rng.random() < 0.4 else None,
                attachment=rng.random() < 0.1,
                waits_for_result=rng.random() < 0.4,
            )
        case "album":
            mode = rng.choice((Mode.STEER, Mode.INTERRUPT, Mode.QUEUE))
            return SendMessage(mode=mode, group=f"g{int(which * 2)}")
        case "again":
            return SendAgain(which, same_words=rng.random() < 0.8)
        case "stop":
            return StopTurn(rng.choice((Aim.ANY, Aim.ANY, Aim.CURRENT, Aim.PREVIOUS)))
        case "edit":
            return EditMessage(which)
        case "move":
            return MoveMessage(which, None if rng.random() < 0.4 else round(rng.random(), 3))
        case "answer":
            return AnswerQuestion(which, allow=rng.random() < 0.7, late=rng.random() < 0.3)
        case "watch":
            return WatchEvents(round(rng.uniform(0.0, 5.0), 2))
        case "stop_call":
            return StopCall(which)
        case "detach":
            return DetachCall(which)
        case "withdraw":
            return WithdrawMessage(which)
    return _PLAIN[kind]


_PLAIN: dict[str, Action] = {
    "stop_session": StopSession(),
    "pause": PauseTurn(),
    "resume": ResumeTurn(),
    "continue": ContinueQueue(),
    "end": EndSession(),
}


def _lives(rng: random.Random) -> tuple[LifePlan, ...]:
    """Two worlds in five have one life without a fault; the others have faults, ends, or both."""
    if rng.random() < 0.4:
        return (LifePlan(),)
    lives = [_life(rng) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    return (*lives, LifePlan(faults=_faults(rng)))


def _life(rng: random.Random) -> LifePlan:
    end = rng.choice((LifeEnd.CRASHED, LifeEnd.CRASHED, LifeEnd.CLOSED, LifeEnd.OVERTAKEN))
    by_step = rng.random() < 0.6
    return LifePlan(
        end,
        at_step=int(rng.expovariate(1 / 120)) if by_step else None,
        at_s=None if by_step else round(rng.choice((0.0, rng.uniform(0, 1), rng.uniform(0, 8))), 3),
        faults=_faults(rng),
    )


def _faults(rng: random.Random) -> tuple[StoreFault, ...]:
    if rng.random() < 0.5:
        return ()
    kinds = list(FaultKind)
    return tuple(
        StoreFault(
            operation=int(rng.expovariate(1 / 10)),
            kind=rng.choice(kinds),
            seconds=rng.choice((0.001, 0.2, 1.0, 3.0, 12.0)),
        )
        for _ in range(rng.randint(1, 3))
    )
