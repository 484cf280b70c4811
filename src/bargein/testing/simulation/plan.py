"""The plan of a simulated world: plain data, drawn from a seed by `draw`.

Users' steps, faults of the store and ends of the engine's lives are lists, so that a failing plan
can be made smaller by leaving some out. What a model, tool or hook does is drawn from the seed and
from its own name, so that leaving one thing out changes the others as little as possible.
"""

from enum import StrEnum

import msgspec

from bargein.contracts.message import Mode


class Aim(StrEnum):
    """Which turn a user means."""

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
    """Sends the same client id again, with the same words or with others."""

    which: float
    same_words: bool = True


class StopTurn(msgspec.Struct, frozen=True, tag="stop_turn"):
    aim: Aim = Aim.ANY


class StopFromAThread(msgspec.Struct, frozen=True, tag="stop_from_a_thread"):
    """The cancel lands at once, as from another thread; the session learns of it later."""

    later_s: float
    aim: Aim = Aim.ANY


class StopSession(msgspec.Struct, frozen=True, tag="stop_session"):
    pass


class StopCall(msgspec.Struct, frozen=True, tag="stop_call"):
    which: float


class StopChild(msgspec.Struct, frozen=True, tag="stop_child"):
    """Stops one sub-agent, at any depth, and no other."""

    which: float


class CompactSession(msgspec.Struct, frozen=True, tag="compact"):
    pass


class RenameSession(msgspec.Struct, frozen=True, tag="rename"):
    pass


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


class ReplyToQuestion(msgspec.Struct, frozen=True, tag="answer"):
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
    | StopFromAThread
    | StopSession
    | StopCall
    | StopChild
    | CompactSession
    | RenameSession
    | PauseTurn
    | ResumeTurn
    | ContinueQueue
    | DetachCall
    | EditMessage
    | MoveMessage
    | WithdrawMessage
    | ReplyToQuestion
    | WatchEvents
    | EndSession
)


class Moment(StrEnum):
    """An event in a session that a user may wait for before acting."""

    STARTS = "an agent starts"
    ASKED = "the model is asked"
    SAID = "the model says something"
    RUNS = "a tool runs"
    STOPPING = "a stop was decided"
    BELOW = "the model is asked by a sub-agent"
    TITLES = "a title is asked for, in some session"
    SETTLES = "a turn settles"
    WRITES = "the store is about to write"
    WRITTEN = "the store has written"


class Step(msgspec.Struct, frozen=True):
    """Comes `after_s` after the previous step, or at `moment` if that is earlier. `gives_up_s`: the
    user cancels their own call after this long. `alone`: the next step waits for this one;
    otherwise they overlap."""

    after_s: float
    session: int
    action: Action
    moment: Moment | None = None
    gives_up_s: float | None = None
    alone: bool = True


class StoreFaultKind(StrEnum):
    SLOW_BEFORE = "slow before"
    SLOW_AFTER = "slow after"
    FAILS_BEFORE = "fails before it is durable"
    FAILS_AFTER = "fails after it is durable"
    STOLEN = "another owner claims the session"
    CRASH_BEFORE = "crash before it is durable"
    CRASH_AFTER = "crash after it is durable"


class StoreFault(msgspec.Struct, frozen=True):
    """Happens at the n-th operation of one life's store; with `event`, at the n-th commit with an
    event of that name."""

    operation: int
    kind: StoreFaultKind
    seconds: float = 0.0
    event: str | None = None


class LifeEnd(StrEnum):
    CLOSED = "closed"
    CRASHED = "crashed"
    OVERTAKEN = "overtaken"
    """The next life starts on the same store while this one goes on for a while."""


class LifePlan(msgspec.Struct, frozen=True):
    """One life of an engine. `at_step` counts steps of the scheduler, `at_s` is in virtual seconds.
    Whichever comes first ends it; with neither, it lives to the end of the world."""

    end: LifeEnd = LifeEnd.CLOSED
    at_step: int | None = None
    at_s: float | None = None
    faults: tuple[StoreFault, ...] = ()


class Titling(StrEnum):
    """How sessions get their titles."""

    NONE = "none"
    WORDS = "by their first words"
    MODEL = "by the model"


class Temper(msgspec.Struct, frozen=True):
    """The character of this world's model, tools, agent, hooks and store."""

    calls: float = 0.0
    fails: float = 0.0
    stalls: float = 0.0
    pace_s: float = 0.0
    tools: tuple[str, ...] = ()
    odd_agents: float = 0.0
    hooks: bool = False
    store_pace_s: float = 0.0
    idle_s: float = 300.0
    titling: Titling = Titling.NONE


class Plan(msgspec.Struct, frozen=True):
    seed: int
    sessions: int
    users: tuple[tuple[Step, ...], ...]
    lives: tuple[LifePlan, ...]
    temper: Temper
