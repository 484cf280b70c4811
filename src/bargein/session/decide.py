"""`decide(state, command) -> state, effects`: the whole behaviour of a session, without I/O.

`TABLE` has a rule for each phase and command that may meet. Each rule names the phases it may lead
to; a test checks that, and the picture in the docs is drawn from it. `decide` refuses what is not
in the table. Effects are carried out in order; those after a `Log` wait until it is durable. The
rules are in `rules`, a file for each subject.
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


class Transition(msgspec.Struct, frozen=True):
    """A function that decides, and the phases it may lead to."""

    function: Callable[..., Decision]
    to: tuple[Phase, ...]


_I, _R, _P, _S, _E = Phase.IDLE, Phase.RUNNING, Phase.PAUSED, Phase.STOPPING, Phase.ENDED

TABLE: dict[tuple[Phase, type[Command]], Transition] = {
    (_I, Send): Transition(send_idle, (_R, _I)),
    (_I, GatherOver): Transition(gather_over, (_R, _I)),
    (_I, Stop): Transition(stop_idle, (_I,)),
    (_I, Continue): Transition(continue_queue, (_R, _I)),
    (_I, Compact): Transition(compact_session, (_R, _I)),
    (_I, Edit): Transition(edit_message, (_I,)),
    (_I, Move): Transition(move_message, (_I,)),
    (_I, Withdraw): Transition(withdraw_message, (_I,)),
    (_I, Hide): Transition(hide_turn, (_I,)),
    (_I, BackgroundOver): Transition(background_over, (_R, _I, _E)),
    (_I, Wake): Transition(wake_up, (_R, _I, _E)),
    (_I, ChildBegan): Transition(child_began, (_I,)),
    (_I, ChildOver): Transition(child_over, (_R, _I, _E)),
    (_I, Ask): Transition(ask_question, (_I,)),
    (_I, SetMode): Transition(set_mode, (_I,)),
    (_I, AddGrant): Transition(add_grant, (_I,)),
    (_I, RevokeGrant): Transition(revoke_grant, (_I,)),
    (_I, AnswerQuestion): Transition(answer_question, (_R, _I)),
    (_I, CloseQuestion): Transition(close_question, (_I,)),
    (_I, Dismiss): Transition(dismiss_question, (_I,)),
    (_I, Drain): Transition(drain_session, (_I,)),
    (_I, Close): Transition(close_idle, (_I, _E)),
    (_I, End): Transition(end_idle, (_E, _I)),
    (_I, Passivate): Transition(leave_memory, (_I,)),
    (_R, Send): Transition(send_busy, (_R, _S)),
    (_R, Stop): Transition(stop_busy, (_R, _S)),
    (_R, Boundary): Transition(at_boundary, (_R,)),
    (_R, Settled): Transition(turn_settled, (_I, _R, _E)),
    (_R, Pause): Transition(pause_turn, (_R, _P)),
    (_R, Resume): Transition(resume_turn, (_R,)),
    (_R, Edit): Transition(edit_message, (_R,)),
    (_R, Move): Transition(move_message, (_R,)),
    (_R, Withdraw): Transition(withdraw_message, (_R,)),
    (_R, Detached): Transition(call_detached, (_R,)),
    (_R, BackgroundOver): Transition(background_over, (_R,)),
    (_R, ChildBegan): Transition(child_began, (_R,)),
    (_R, ChildOver): Transition(child_over, (_R,)),
    (_R, Ask): Transition(ask_question, (_R,)),
    (_R, SetMode): Transition(set_mode, (_R,)),
    (_R, AddGrant): Transition(add_grant, (_R,)),
    (_R, RevokeGrant): Transition(revoke_grant, (_R,)),
    (_R, AnswerQuestion): Transition(answer_question, (_R,)),
    (_R, CloseQuestion): Transition(close_question, (_R,)),
    (_R, Dismiss): Transition(dismiss_question, (_R,)),
    (_R, Drain): Transition(drain_session, (_R,)),
    (_R, Close): Transition(close_busy, (_S,)),
    (_R, End): Transition(end_busy, (_S,)),
    (_P, Send): Transition(send_busy, (_P, _S)),
    (_P, Stop): Transition(stop_busy, (_P, _S)),
    (_P, Boundary): Transition(at_boundary, (_P,)),
    (_P, Settled): Transition(turn_settled, (_I, _R, _E)),
    (_P, Pause): Transition(pause_turn, (_P,)),
    (_P, Resume): Transition(resume_turn, (_R,)),
    (_P, Edit): Transition(edit_message, (_P,)),
    (_P, Move): Transition(move_message, (_P,)),
    (_P, Withdraw): Transition(withdraw_message, (_P,)),
    (_P, Detached): Transition(call_detached, (_P,)),
    (_P, BackgroundOver): Transition(background_over, (_P,)),
    (_P, ChildBegan): Transition(child_began, (_P,)),
    (_P, ChildOver): Transition(child_over, (_P,)),
    (_P, Ask): Transition(ask_question, (_P,)),
    (_P, SetMode): Transition(set_mode, (_P,)),
    (_P, AddGrant): Transition(add_grant, (_P,)),
    (_P, RevokeGrant): Transition(revoke_grant, (_P,)),
    (_P, AnswerQuestion): Transition(answer_question, (_P,)),
    (_P, CloseQuestion): Transition(close_question, (_P,)),
    (_P, Dismiss): Transition(dismiss_question, (_P,)),
    (_P, Drain): Transition(drain_session, (_P,)),
    (_P, Close): Transition(close_busy, (_S,)),
    (_P, End): Transition(end_busy, (_S,)),
    (_S, Send): Transition(send_stopping, (_S,)),
    (_S, Stop): Transition(stop_stopping, (_S,)),
    (_S, Boundary): Transition(boundary_stopping, (_S,)),
    (_S, Settled): Transition(turn_settled, (_I, _R, _E)),
    (_S, Continue): Transition(continue_busy, (_S,)),
    (_S, Edit): Transition(edit_message, (_S,)),
    (_S, Move): Transition(move_message, (_S,)),
    (_S, Withdraw): Transition(withdraw_message, (_S,)),
    (_S, BackgroundOver): Transition(background_over, (_S,)),
    (_S, ChildBegan): Transition(child_began, (_S,)),
    (_S, ChildOver): Transition(child_over, (_S,)),
    (_S, Ask): Transition(ask_question, (_S,)),
    (_S, SetMode): Transition(set_mode, (_S,)),
    (_S, AddGrant): Transition(add_grant, (_S,)),
    (_S, RevokeGrant): Transition(revoke_grant, (_S,)),
    (_S, AnswerQuestion): Transition(answer_question, (_S,)),
    (_S, CloseQuestion): Transition(close_question, (_S,)),
    (_S, Dismiss): Transition(dismiss_question, (_S,)),
    (_S, Drain): Transition(drain_session, (_S,)),
    (_S, Close): Transition(close_busy, (_S,)),
    (_S, End): Transition(end_busy, (_S,)),
    (_E, Send): Transition(send_ended, (_E,)),
    (_E, Close): Transition(leave_ended, (_E,)),
    (_E, End): Transition(leave_ended, (_E,)),
    (_E, Passivate): Transition(leave_ended, (_E,)),
}
