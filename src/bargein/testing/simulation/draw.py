"""Draws a plan from a seed.

Each world has a theme and uses only some of the steps that its theme allows: worlds with few kinds
of steps explore each of them more deeply. docs/simulation.md says how the chances were chosen.
"""

import random
from enum import StrEnum

import msgspec

from bargein.contracts.message import Mode
from bargein.testing.simulation.plan import (
    Action,
    Aim,
    CompactSession,
    ContinueQueue,
    DetachCall,
    EditMessage,
    EndSession,
    LifeEnd,
    LifePlan,
    Moment,
    MoveMessage,
    PauseTurn,
    Plan,
    RenameSession,
    ReplyToQuestion,
    ResumeTurn,
    SendAgain,
    SendMessage,
    Step,
    StopCall,
    StopChild,
    StopFromAThread,
    StopSession,
    StopTurn,
    StoreFault,
    StoreFaultKind,
    Temper,
    Titling,
    WatchEvents,
    WithdrawMessage,
)

TOOLS = (
    "delegates",
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
SLOW_TOOLS = ("slow", "stubborn", "shielded", "late", "asks", "approval", "background")
FAMILY_TOOLS = ("delegates",) * 4 + ("slow", "asks", "background")


class ActionKind(StrEnum):
    """The kind of a step, before its details are drawn."""

    SEND = "send"
    ALBUM = "album"
    AGAIN = "again"
    STOP = "stop"
    STOP_CALL = "stop call"
    STOP_CHILD = "stop child"
    STOP_SESSION = "stop session"
    PAUSE = "pause"
    RESUME = "resume"
    CONTINUE = "continue"
    DETACH = "detach"
    EDIT = "edit"
    MOVE = "move"
    WITHDRAW = "withdraw"
    ANSWER = "answer"
    WATCH = "watch"
    COMPACT = "compact"
    RENAME = "rename"
    END = "end"


_NATURAL = {
    ActionKind.STOP: (Moment.ASKED, Moment.SAID, Moment.RUNS, Moment.SETTLES),
    ActionKind.STOP_CALL: (Moment.RUNS,),
    ActionKind.STOP_CHILD: (Moment.BELOW,),
    ActionKind.COMPACT: (Moment.SETTLES,),
    ActionKind.RENAME: (Moment.TITLES, Moment.SETTLES),
    ActionKind.STOP_SESSION: (Moment.RUNS, Moment.WRITTEN),
    ActionKind.EDIT: (Moment.WRITTEN, Moment.WRITES),
    ActionKind.MOVE: (Moment.WRITTEN, Moment.WRITES),
    ActionKind.WITHDRAW: (Moment.WRITTEN, Moment.WRITES, Moment.SETTLES),
    ActionKind.DETACH: (Moment.RUNS,),
    ActionKind.ANSWER: (Moment.WRITTEN, Moment.RUNS),
    ActionKind.PAUSE: (Moment.ASKED, Moment.SAID, Moment.RUNS),
}
"""The moments at which a step of this kind finds something to act on."""

_NEEDS_ITS_MOMENT = (ActionKind.STOP_CHILD,)
"""At most other times these would find nothing."""


class Theme(msgspec.Struct, frozen=True):
    """The kinds of steps that dominate a world."""

    always: tuple[ActionKind, ...]
    perhaps: tuple[ActionKind, ...]
    modes: tuple[Mode, ...]
    calls: tuple[float, ...]
    stalls: tuple[float, ...]
    tools: tuple[str, ...] = TOOLS


_STEER, _INTERRUPT, _QUEUE = Mode.STEER, Mode.INTERRUPT, Mode.QUEUE
_ROLLBACK, _REJECT = Mode.ROLLBACK, Mode.REJECT

TALK = Theme(
    always=(ActionKind.SEND, ActionKind.SEND, ActionKind.SEND, ActionKind.STOP, ActionKind.STOP),
    perhaps=(
        ActionKind.PAUSE,
        ActionKind.RESUME,
        ActionKind.CONTINUE,
        ActionKind.AGAIN,
        ActionKind.ALBUM,
        ActionKind.WATCH,
        ActionKind.COMPACT,
        ActionKind.RENAME,
        ActionKind.END,
    ),
    modes=(_STEER, _STEER, _INTERRUPT, _INTERRUPT, _ROLLBACK, _QUEUE, _REJECT),
    calls=(0.0, 0.0, 0.3),
    stalls=(0.0, 0.2, 0.5),
)
CALLS = Theme(
    always=(ActionKind.SEND, ActionKind.SEND, ActionKind.STOP),
    perhaps=(
        ActionKind.DETACH,
        ActionKind.DETACH,
        ActionKind.STOP_CALL,
        ActionKind.ANSWER,
        ActionKind.PAUSE,
        ActionKind.RESUME,
        ActionKind.STOP_SESSION,
    ),
    modes=(_STEER, _INTERRUPT, _QUEUE, _ROLLBACK),
    calls=(0.9, 1.0),
    stalls=(0.0, 0.0, 0.2),
    tools=SLOW_TOOLS,
)
FAMILY = Theme(
    always=(ActionKind.SEND, *[ActionKind.STOP_CHILD] * 4),
    perhaps=(
        ActionKind.STOP,
        ActionKind.STOP_CALL,
        ActionKind.DETACH,
        ActionKind.ANSWER,
        ActionKind.STOP_SESSION,
    ),
    modes=(_STEER, _QUEUE),
    calls=(0.6, 0.8),
    stalls=(0.0, 0.5),
    tools=FAMILY_TOOLS,
)
INBOX = Theme(
    always=(ActionKind.SEND, ActionKind.SEND, ActionKind.SEND, ActionKind.STOP),
    perhaps=(
        ActionKind.EDIT,
        ActionKind.MOVE,
        ActionKind.WITHDRAW,
        ActionKind.CONTINUE,
        ActionKind.AGAIN,
        ActionKind.ALBUM,
    ),
    modes=(_QUEUE, _QUEUE, _QUEUE, _STEER, _INTERRUPT),
    calls=(0.0, 0.5),
    stalls=(0.5, 0.9),
)
MIXED = Theme(
    always=(ActionKind.SEND, ActionKind.SEND, ActionKind.SEND, ActionKind.STOP),
    perhaps=tuple(ActionKind),
    modes=(_STEER, _STEER, _INTERRUPT, _INTERRUPT, _QUEUE, _QUEUE, _ROLLBACK, _REJECT),
    calls=(0.0, 0.5, 0.9),
    stalls=(0.0, 0.1, 0.4),
)


def make_plan(seed: int) -> Plan:
    rng = random.Random(seed)
    theme = rng.choice((TALK, TALK, CALLS, CALLS, INBOX, INBOX, MIXED, MIXED, FAMILY))
    sessions = rng.choice((1, 1, 1, 1, 2, 2, 3))
    steps = _Steps(rng, theme, sessions)
    users = tuple(
        tuple(steps.draw(f"u{user}.{number}") for number in range(rng.randint(2, 5)))
        for user in range(rng.choice((1, 2, 2, 3)))
    )
    return Plan(seed, sessions, users, _lives(rng), _temper(rng, theme))


def _temper(rng: random.Random, theme: Theme) -> Temper:
    calls = rng.choice(theme.calls)
    return Temper(
        calls=calls,
        fails=rng.choice((0.0, 0.0, 0.15, 0.4)),
        stalls=rng.choice(theme.stalls),
        pace_s=rng.choice((0.0, 0.05, 0.4, 0.4, 1.5)),
        tools=tuple(rng.sample(theme.tools, rng.randint(1, 3))) if calls else (),
        odd_agents=rng.choice((0.0, 0.0, 0.0, 0.3)),
        hooks=rng.random() < 0.2,
        store_pace_s=rng.choice((0.0, 0.0, 0.0, 0.02, 0.3)),
        idle_s=rng.choice((300.0, 300.0, 1.0, 4.0)),
        titling=rng.choice((Titling.NONE, Titling.NONE, Titling.WORDS, Titling.MODEL)),
    )


class _Steps:
    """Draws the steps of one world's users."""

    def __init__(self, rng: random.Random, theme: Theme, sessions: int) -> None:
        self._rng = rng
        self._theme = theme
        self._sessions = sessions
        self._deck = list(theme.always)
        for kind in theme.perhaps:
            if rng.random() < 0.4:
                self._deck += [kind] * rng.randint(1, 3)
        if ActionKind.PAUSE in self._deck:
            self._deck.append(ActionKind.RESUME)

    def draw(self, name: str) -> Step:
        rng = self._rng
        first = name.endswith(".0")
        kind = ActionKind.SEND if first else rng.choice(self._deck)
        moment = None
        if not first and (rng.random() < 0.5 or kind in _NEEDS_ITS_MOMENT):
            moment = rng.choice(_NATURAL.get(kind, tuple(Moment)))
        return Step(
            after_s=_delay_s(rng) if moment is None else rng.choice((0.5, 5.0)),
            session=rng.randrange(self._sessions),
            action=self._action(kind, name),
            moment=moment,
            gives_up_s=rng.choice((0.0, 0.01, 0.3, 3.0)) if rng.random() < 0.1 else None,
            alone=rng.random() < 0.5,
        )

    def _action(self, kind: ActionKind, name: str) -> Action:
        rng = self._rng
        which = round(rng.random(), 3)
        match kind:
            case ActionKind.SEND:
                return self._send(name)
            case ActionKind.ALBUM:
                mode = rng.choice((Mode.STEER, Mode.INTERRUPT, Mode.INTERRUPT, Mode.QUEUE))
                return SendMessage(mode=mode, group="g0" if which < 0.8 else "g1")
            case ActionKind.AGAIN:
                return SendAgain(which, same_words=rng.random() < 0.8)
            case ActionKind.STOP:
                aim = rng.choice((Aim.ANY, Aim.ANY, Aim.CURRENT, Aim.PREVIOUS))
                if rng.random() < 0.15:
                    return StopFromAThread(rng.choice((0.0, 0.0, 0.01, 0.5, 3.0)), aim)
                return StopTurn(aim)
            case ActionKind.MOVE:
                return MoveMessage(which, None if rng.random() < 0.4 else round(rng.random(), 3))
            case ActionKind.ANSWER:
                return ReplyToQuestion(which, allow=rng.random() < 0.7, late=rng.random() < 0.3)
            case ActionKind.WATCH:
                return WatchEvents(round(rng.uniform(0.0, 5.0), 2))
        return _plain_action(kind, which)

    def _send(self, name: str) -> SendMessage:
        rng = self._rng
        return SendMessage(
            mode=rng.choice(self._theme.modes),
            aim=rng.choice((Aim.ANY, Aim.ANY, Aim.ANY, Aim.CURRENT, Aim.PREVIOUS)),
            client_id=f"c{name}" if rng.random() < 0.4 else None,
            attachment=rng.random() < 0.1,
            waits_for_result=rng.random() < 0.4,
        )


def _plain_action(kind: ActionKind, which: float) -> Action:
    match kind:
        case ActionKind.STOP_CALL:
            return StopCall(which)
        case ActionKind.DETACH:
            return DetachCall(which)
        case ActionKind.EDIT:
            return EditMessage(which)
        case ActionKind.WITHDRAW:
            return WithdrawMessage(which)
        case ActionKind.PAUSE:
            return PauseTurn()
        case ActionKind.RESUME:
            return ResumeTurn()
        case ActionKind.CONTINUE:
            return ContinueQueue()
        case ActionKind.STOP_SESSION:
            return StopSession()
        case ActionKind.STOP_CHILD:
            return StopChild(which)
        case ActionKind.COMPACT:
            return CompactSession()
        case ActionKind.RENAME:
            return RenameSession()
    return EndSession()


def _delay_s(rng: random.Random) -> float:
    """Most failures need several things to happen at one moment."""
    kind = rng.random()
    if kind < 0.45:
        return 0.0
    if kind < 0.85:
        return round(rng.uniform(0.001, 0.5), 3)
    return round(rng.uniform(0.5, 6.0), 2)


def _lives(rng: random.Random) -> tuple[LifePlan, ...]:
    """Two worlds in five have one life without faults; the others have faults, ends, or both."""
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
    return tuple(_fault(rng) for _ in range(rng.randint(1, 3)))


def _fault(rng: random.Random) -> StoreFault:
    by_event = rng.random() < 0.5
    return StoreFault(
        operation=rng.choice((0, 0, 1, 2)) if by_event else int(rng.expovariate(1 / 10)),
        kind=rng.choice(list(StoreFaultKind)),
        seconds=rng.choice((0.001, 0.2, 1.0, 3.0, 12.0)),
        event=rng.choice(_EVENTS) if by_event else None,
    )


_EVENTS = (
    "MessageAccepted",
    "MessagesTaken",
    "MessageEdited",
    "MessageWithdrawn",
    "InterruptLanded",
    "TurnSettled",
    "CallStarted",
    "CallEnded",
    "CallDetached",
    "BackgroundEnded",
    "QuestionAsked",
    "TextCheckpoint",
    "Compressed",
    "SessionTitled",
)
