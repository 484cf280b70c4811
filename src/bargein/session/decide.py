"""`decide(state, command) -> state, effects`: the whole behaviour of a session, without I/O.

`TABLE` has a rule for each command that is possible in a phase. Each rule lists the phases it may
lead to; a test checks the lists, and the diagram in the docs is drawn from them. `decide` refuses
a command without a rule. The actor carries out effects in order; those after a `Log` wait until it
is durable. The rules are in `rules`, one file for each subject.
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
    Send,
    SetMode,
    Settled,
    Stop,
    Wake,
    Withdraw,
)
from bargein.session.rules.background import (
    answer_question,
    ask_question,
    background_over,
    call_detached,
    child_began,
    child_over,
    close_question,
    dismiss_question,
)
from bargein.session.rules.inbox import (
    compact_session,
    continue_busy,
    continue_queue,
    edit_message,
    hide_turn,
    move_message,
    withdraw_message,
)
from bargein.session.rules.moves import Decision
from bargein.session.rules.permission import add_grant, revoke_grant, set_mode
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


class Rule(msgspec.Struct, frozen=True):
    """A function that decides a command, and the phases it may lead to."""

    function: Callable[..., Decision]
    to: tuple[Phase, ...]


_I, _R, _P, _S, _E = Phase.IDLE, Phase.RUNNING, Phase.PAUSED, Phase.STOPPING, Phase.ENDED

TABLE: dict[tuple[Phase, type[Command]], Rule] = {
    (_I, Send): Rule(send_idle, (_R, _I)),
    (_I, GatherOver): Rule(gather_over, (_R, _I)),
    (_I, Stop): Rule(stop_idle, (_I,)),
    (_I, Continue): Rule(continue_queue, (_R, _I)),
    (_I, Compact): Rule(compact_session, (_R, _I)),
    (_I, Edit): Rule(edit_message, (_I,)),
    (_I, Move): Rule(move_message, (_I,)),
    (_I, Withdraw): Rule(withdraw_message, (_I,)),
    (_I, Hide): Rule(hide_turn, (_I,)),
    (_I, BackgroundOver): Rule(background_over, (_R, _I, _E)),
    (_I, Wake): Rule(wake_up, (_R, _I, _E)),
    (_I, ChildBegan): Rule(child_began, (_I,)),
    (_I, ChildOver): Rule(child_over, (_R, _I, _E)),
    (_I, Ask): Rule(ask_question, (_I,)),
    (_I, SetMode): Rule(set_mode, (_I,)),
    (_I, AddGrant): Rule(add_grant, (_I,)),
    (_I, RevokeGrant): Rule(revoke_grant, (_I,)),
    (_I, AnswerQuestion): Rule(answer_question, (_R, _I)),
    (_I, CloseQuestion): Rule(close_question, (_I,)),
    (_I, Dismiss): Rule(dismiss_question, (_I,)),
    (_I, Drain): Rule(drain_session, (_I,)),
    (_I, Close): Rule(close_idle, (_I, _E)),
    (_I, End): Rule(end_idle, (_E, _I)),
    (_I, Passivate): Rule(leave_memory, (_I,)),
    (_R, Send): Rule(send_busy, (_R, _S)),
    (_R, Stop): Rule(stop_busy, (_R, _S)),
    (_R, Boundary): Rule(at_boundary, (_R,)),
    (_R, Settled): Rule(turn_settled, (_I, _R, _E)),
    (_R, Pause): Rule(pause_turn, (_R, _P)),
    (_R, Resume): Rule(resume_turn, (_R,)),
    (_R, Edit): Rule(edit_message, (_R,)),
    (_R, Move): Rule(move_message, (_R,)),
    (_R, Withdraw): Rule(withdraw_message, (_R,)),
    (_R, Detached): Rule(call_detached, (_R,)),
    (_R, BackgroundOver): Rule(background_over, (_R,)),
    (_R, ChildBegan): Rule(child_began, (_R,)),
    (_R, ChildOver): Rule(child_over, (_R,)),
    (_R, Ask): Rule(ask_question, (_R,)),
    (_R, SetMode): Rule(set_mode, (_R,)),
    (_R, AddGrant): Rule(add_grant, (_R,)),
    (_R, RevokeGrant): Rule(revoke_grant, (_R,)),
    (_R, AnswerQuestion): Rule(answer_question, (_R,)),
    (_R, CloseQuestion): Rule(close_question, (_R,)),
    (_R, Dismiss): Rule(dismiss_question, (_R,)),
    (_R, Drain): Rule(drain_session, (_R,)),
    (_R, Close): Rule(close_busy, (_S,)),
    (_R, End): Rule(end_busy, (_S,)),
    (_P, Send): Rule(send_busy, (_P, _S)),
    (_P, Stop): Rule(stop_busy, (_P, _S)),
    (_P, Boundary): Rule(at_boundary, (_P,)),
    (_P, Settled): Rule(turn_settled, (_I, _R, _E)),
    (_P, Pause): Rule(pause_turn, (_P,)),
    (_P, Resume): Rule(resume_turn, (_R,)),
    (_P, Edit): Rule(edit_message, (_P,)),
    (_P, Move): Rule(move_message, (_P,)),
    (_P, Withdraw): Rule(withdraw_message, (_P,)),
    (_P, Detached): Rule(call_detached, (_P,)),
    (_P, BackgroundOver): Rule(background_over, (_P,)),
    (_P, ChildBegan): Rule(child_began, (_P,)),
    (_P, ChildOver): Rule(child_over, (_P,)),
    (_P, Ask): Rule(ask_question, (_P,)),
    (_P, SetMode): Rule(set_mode, (_P,)),
    (_P, AddGrant): Rule(add_grant, (_P,)),
    (_P, RevokeGrant): Rule(revoke_grant, (_P,)),
    (_P, AnswerQuestion): Rule(answer_question, (_P,)),
    (_P, CloseQuestion): Rule(close_question, (_P,)),
    (_P, Dismiss): Rule(dismiss_question, (_P,)),
    (_P, Drain): Rule(drain_session, (_P,)),
    (_P, Close): Rule(close_busy, (_S,)),
    (_P, End): Rule(end_busy, (_S,)),
    (_S, Send): Rule(send_stopping, (_S,)),
    (_S, Stop): Rule(stop_stopping, (_S,)),
    (_S, Boundary): Rule(boundary_stopping, (_S,)),
    (_S, Settled): Rule(turn_settled, (_I, _R, _E)),
    (_S, Continue): Rule(continue_busy, (_S,)),
    (_S, Edit): Rule(edit_message, (_S,)),
    (_S, Move): Rule(move_message, (_S,)),
    (_S, Withdraw): Rule(withdraw_message, (_S,)),
    (_S, BackgroundOver): Rule(background_over, (_S,)),
    (_S, ChildBegan): Rule(child_began, (_S,)),
    (_S, ChildOver): Rule(child_over, (_S,)),
    (_S, Ask): Rule(ask_question, (_S,)),
    (_S, SetMode): Rule(set_mode, (_S,)),
    (_S, AddGrant): Rule(add_grant, (_S,)),
    (_S, RevokeGrant): Rule(revoke_grant, (_S,)),
    (_S, AnswerQuestion): Rule(answer_question, (_S,)),
    (_S, CloseQuestion): Rule(close_question, (_S,)),
    (_S, Dismiss): Rule(dismiss_question, (_S,)),
    (_S, Drain): Rule(drain_session, (_S,)),
    (_S, Close): Rule(close_busy, (_S,)),
    (_S, End): Rule(end_busy, (_S,)),
    (_E, Send): Rule(send_ended, (_E,)),
    (_E, Close): Rule(leave_ended, (_E,)),
    (_E, End): Rule(leave_ended, (_E,)),
    (_E, Passivate): Rule(leave_ended, (_E,)),
}
