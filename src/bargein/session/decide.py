"""`decide(state, command) -> state, effects`: the whole behaviour of a session, without I/O.

`TABLE` has a rule for each command that is possible in a phase. Each rule lists the phases it may
lead to; a test checks the lists, and the diagram in the docs is drawn from them. `decide` refuses
a command without a rule. The actor carries out effects in order; those after a `Log` wait until it
is durable. The rules are in `rules`, one file for each subject.

`python -m bargein.session.decide` prints the table as a Mermaid diagram.
"""

from collections.abc import Callable

import msgspec

from bargein.session.commands import (
    AddGrant,
    AnswerQuestion,
    Ask,
    BackgroundOver,
    Boundary,
    ChildBegan,
    ChildOver,
    Close,
    CloseQuestion,
    Command,
    Compact,
    Continue,
    Detached,
    Dismiss,
    Drain,
    Edit,
    End,
    GatherOver,
    Hide,
    Move,
    Passivate,
    Pause,
    Refuse,
    Resume,
    RevokeGrant,
    RolledBack,
    Send,
    SetMode,
    SetPlace,
    Settled,
    Stop,
    UndoCalls,
    Wake,
    Withdraw,
)
from bargein.session.rules.background import (
    background_over,
    call_detached,
    child_began,
    child_over,
)
from bargein.session.rules.inbox import (
    compact_session,
    continue_busy,
    continue_queue,
    edit_message,
    hide_turn,
    move_message,
    undo_calls,
    withdraw_message,
)
from bargein.session.rules.moves import Decision
from bargein.session.rules.places import set_place
from bargein.session.rules.questions import (
    add_grant,
    answer_question,
    ask_question,
    close_question,
    dismiss_question,
    revoke_grant,
    set_mode,
)
from bargein.session.rules.sending import (
    gather_over,
    send_busy,
    send_ended,
    send_idle,
    send_stopping,
)
from bargein.session.rules.stopping import (
    close_busy,
    close_idle,
    drain_session,
    end_busy,
    end_idle,
    leave_ended,
    leave_memory,
    stop_busy,
    stop_idle,
    stop_stopping,
    wake_up,
)
from bargein.session.rules.turns import (
    at_boundary,
    boundary_stopping,
    pause_turn,
    resume_turn,
    rolled_back,
    turn_settled,
)
from bargein.session.state import Phase, SessionState


def decide(state: SessionState, command: Command) -> Decision:
    rule = TABLE.get((state.phase, type(command)))
    if rule is None:
        name = type(command).__name__.lower()
        return state, (
            Refuse("wrong_state", f"{name} is not possible: the session is {state.phase}"),
        )
    return rule.function(state, command)


class PhaseRule(msgspec.Struct, frozen=True):
    """A function that decides a command, and the phases it may lead to."""

    function: Callable[..., Decision]
    to: tuple[Phase, ...]


_I, _R, _P, _S, _E = Phase.IDLE, Phase.RUNNING, Phase.PAUSED, Phase.STOPPING, Phase.ENDED

TABLE: dict[tuple[Phase, type[Command]], PhaseRule] = {
    (_I, Send): PhaseRule(send_idle, (_R, _I)),
    (_I, GatherOver): PhaseRule(gather_over, (_R, _I)),
    (_I, RolledBack): PhaseRule(rolled_back, (_R, _I, _E)),
    (_I, Stop): PhaseRule(stop_idle, (_I,)),
    (_I, Continue): PhaseRule(continue_queue, (_R, _I)),
    (_I, Compact): PhaseRule(compact_session, (_R, _I)),
    (_I, UndoCalls): PhaseRule(undo_calls, (_R, _I)),
    (_I, Edit): PhaseRule(edit_message, (_I,)),
    (_I, Move): PhaseRule(move_message, (_I,)),
    (_I, Withdraw): PhaseRule(withdraw_message, (_I,)),
    (_I, Hide): PhaseRule(hide_turn, (_I,)),
    (_I, BackgroundOver): PhaseRule(background_over, (_R, _I, _E)),
    (_I, Wake): PhaseRule(wake_up, (_R, _I, _E)),
    (_I, ChildBegan): PhaseRule(child_began, (_I,)),
    (_I, ChildOver): PhaseRule(child_over, (_R, _I, _E)),
    (_I, Ask): PhaseRule(ask_question, (_I,)),
    (_I, SetMode): PhaseRule(set_mode, (_I,)),
    (_I, SetPlace): PhaseRule(set_place, (_I,)),
    (_I, AddGrant): PhaseRule(add_grant, (_I,)),
    (_I, RevokeGrant): PhaseRule(revoke_grant, (_I,)),
    (_I, AnswerQuestion): PhaseRule(answer_question, (_R, _I)),
    (_I, CloseQuestion): PhaseRule(close_question, (_I,)),
    (_I, Dismiss): PhaseRule(dismiss_question, (_I,)),
    (_I, Drain): PhaseRule(drain_session, (_I,)),
    (_I, Close): PhaseRule(close_idle, (_I, _E)),
    (_I, End): PhaseRule(end_idle, (_E, _I)),
    (_I, Passivate): PhaseRule(leave_memory, (_I,)),
    (_R, Send): PhaseRule(send_busy, (_R, _S)),
    (_R, Stop): PhaseRule(stop_busy, (_R, _S)),
    (_R, Boundary): PhaseRule(at_boundary, (_R,)),
    (_R, Settled): PhaseRule(turn_settled, (_I, _R, _E)),
    (_R, Pause): PhaseRule(pause_turn, (_R, _P)),
    (_R, Resume): PhaseRule(resume_turn, (_R,)),
    (_R, Edit): PhaseRule(edit_message, (_R,)),
    (_R, Move): PhaseRule(move_message, (_R,)),
    (_R, Withdraw): PhaseRule(withdraw_message, (_R,)),
    (_R, Detached): PhaseRule(call_detached, (_R,)),
    (_R, BackgroundOver): PhaseRule(background_over, (_R,)),
    (_R, ChildBegan): PhaseRule(child_began, (_R,)),
    (_R, ChildOver): PhaseRule(child_over, (_R,)),
    (_R, Ask): PhaseRule(ask_question, (_R,)),
    (_R, SetMode): PhaseRule(set_mode, (_R,)),
    (_R, SetPlace): PhaseRule(set_place, (_R,)),
    (_R, AddGrant): PhaseRule(add_grant, (_R,)),
    (_R, RevokeGrant): PhaseRule(revoke_grant, (_R,)),
    (_R, AnswerQuestion): PhaseRule(answer_question, (_R,)),
    (_R, CloseQuestion): PhaseRule(close_question, (_R,)),
    (_R, Dismiss): PhaseRule(dismiss_question, (_R,)),
    (_R, Drain): PhaseRule(drain_session, (_R,)),
    (_R, Close): PhaseRule(close_busy, (_S,)),
    (_R, End): PhaseRule(end_busy, (_S,)),
    (_P, Send): PhaseRule(send_busy, (_P, _S)),
    (_P, Stop): PhaseRule(stop_busy, (_P, _S)),
    (_P, Boundary): PhaseRule(at_boundary, (_P,)),
    (_P, Settled): PhaseRule(turn_settled, (_I, _R, _E)),
    (_P, Pause): PhaseRule(pause_turn, (_P,)),
    (_P, Resume): PhaseRule(resume_turn, (_R,)),
    (_P, Edit): PhaseRule(edit_message, (_P,)),
    (_P, Move): PhaseRule(move_message, (_P,)),
    (_P, Withdraw): PhaseRule(withdraw_message, (_P,)),
    (_P, Detached): PhaseRule(call_detached, (_P,)),
    (_P, BackgroundOver): PhaseRule(background_over, (_P,)),
    (_P, ChildBegan): PhaseRule(child_began, (_P,)),
    (_P, ChildOver): PhaseRule(child_over, (_P,)),
    (_P, Ask): PhaseRule(ask_question, (_P,)),
    (_P, SetMode): PhaseRule(set_mode, (_P,)),
    (_P, SetPlace): PhaseRule(set_place, (_P,)),
    (_P, AddGrant): PhaseRule(add_grant, (_P,)),
    (_P, RevokeGrant): PhaseRule(revoke_grant, (_P,)),
    (_P, AnswerQuestion): PhaseRule(answer_question, (_P,)),
    (_P, CloseQuestion): PhaseRule(close_question, (_P,)),
    (_P, Dismiss): PhaseRule(dismiss_question, (_P,)),
    (_P, Drain): PhaseRule(drain_session, (_P,)),
    (_P, Close): PhaseRule(close_busy, (_S,)),
    (_P, End): PhaseRule(end_busy, (_S,)),
    (_S, Send): PhaseRule(send_stopping, (_S,)),
    (_S, Stop): PhaseRule(stop_stopping, (_S,)),
    (_S, Boundary): PhaseRule(boundary_stopping, (_S,)),
    (_S, Settled): PhaseRule(turn_settled, (_I, _R, _E)),
    (_S, Continue): PhaseRule(continue_busy, (_S,)),
    (_S, Edit): PhaseRule(edit_message, (_S,)),
    (_S, Move): PhaseRule(move_message, (_S,)),
    (_S, Withdraw): PhaseRule(withdraw_message, (_S,)),
    (_S, BackgroundOver): PhaseRule(background_over, (_S,)),
    (_S, ChildBegan): PhaseRule(child_began, (_S,)),
    (_S, ChildOver): PhaseRule(child_over, (_S,)),
    (_S, Ask): PhaseRule(ask_question, (_S,)),
    (_S, SetMode): PhaseRule(set_mode, (_S,)),
    (_S, SetPlace): PhaseRule(set_place, (_S,)),
    (_S, AddGrant): PhaseRule(add_grant, (_S,)),
    (_S, RevokeGrant): PhaseRule(revoke_grant, (_S,)),
    (_S, AnswerQuestion): PhaseRule(answer_question, (_S,)),
    (_S, CloseQuestion): PhaseRule(close_question, (_S,)),
    (_S, Dismiss): PhaseRule(dismiss_question, (_S,)),
    (_S, Drain): PhaseRule(drain_session, (_S,)),
    (_S, Close): PhaseRule(close_busy, (_S,)),
    (_S, End): PhaseRule(end_busy, (_S,)),
    (_E, Send): PhaseRule(send_ended, (_E,)),
    (_E, Close): PhaseRule(leave_ended, (_E,)),
    (_E, End): PhaseRule(leave_ended, (_E,)),
    (_E, Passivate): PhaseRule(leave_ended, (_E,)),
}


# The table as a diagram


def mermaid() -> str:
    """Draw the table: one arrow for each move between phases, with its possible commands."""
    moves: dict[tuple[Phase, Phase], list[str]] = {}
    for (phase, command), rule in TABLE.items():
        for to in rule.to:
            if to is not phase:
                moves.setdefault((phase, to), []).append(command.__name__)
    lines = ["stateDiagram-v2", "    [*] --> idle"]
    lines += [f"    {a} --> {b}: {', '.join(names)}" for (a, b), names in moves.items()]
    return "\n".join([*lines, "    ended --> [*]"])


if __name__ == "__main__":
    print(mermaid())  # noqa: T201 - printing is what it is for
