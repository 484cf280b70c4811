"""Rules for questions and permissions: ask, answer, close; the mode, and what approvals granted."""

from bargein.calls.words import is_yes, late_answer
from bargein.contracts.event import (
    Event,
    Granted,
    GrantRevoked,
    PermissionChanged,
    QuestionAsked,
    QuestionClosed,
)
from bargein.contracts.message import Message, Mode
from bargein.contracts.model import Text
from bargein.contracts.permission import GrantScope, KeptGrant, Standing
from bargein.contracts.tool import Question, QuestionKind
from bargein.session.commands import (
    AddGrant,
    AnswerQuestion,
    Ask,
    CloseQuestion,
    Dismiss,
    Done,
    GiveAnswer,
    Log,
    Refuse,
    RevokeGrant,
    Send,
    SetMode,
)
from bargein.session.rules.moves import Decision, change
from bargein.session.rules.sending import send_in_any
from bargein.session.state import Pending, SessionState

NEEDED = {
    Standing.GUEST: "somebody whom the session is shared with",
    Standing.WRITER: "somebody who may write to the session",
    Standing.APPROVER: "somebody whose account is older than the running agent",
    Standing.OWNER: "the owner",
}

QUESTIONS_LEFT_OPEN_MAX = 50
"""How many questions may stay open after a restart ended their turns. Beyond that the oldest is
closed."""

GRANTS_MAX = 200
"""How many grants a session keeps. Beyond that it forgets the oldest and asks about it again."""


def ask_question(state: SessionState, ask: Ask) -> Decision:
    if state.closing or state.ending:
        return state, (Refuse("closing", "the session is about to end"),)
    left = [each for each in state.questions if not each.live]
    dropped = left[: max(0, len(left) + 1 - QUESTIONS_LEFT_OPEN_MAX)]
    kept = tuple(each for each in state.questions if each not in dropped)
    asked = ask.asked
    events: tuple[Event, ...] = (
        *(QuestionClosed(each.asked.id) for each in dropped),
        QuestionAsked(asked.turn, asked.id, asked.question, asked.call_id),
    )
    return change(state, questions=(*kept, Pending(asked))), (Log(events), Done())


def answer_question(state: SessionState, answer: AnswerQuestion) -> Decision:
    pending = state.question(answer.question)
    if pending is None:
        return state, (Refuse("too_late", f"question {answer.question} is not open any more"),)
    needed = standing_for(pending.asked.question)
    if not answer.standing.covers(needed):
        why = f"question {answer.question} can only be answered by {NEEDED[needed]}"
        return state, (Refuse("forbidden", why),)
    state = without_question(state, answer.question)
    closed = QuestionClosed(answer.question, answer.text, answer.by)
    if pending.live:
        given = GiveAnswer(answer.question, answer.text, answer.by)
        return state, (Log((closed,)), given, Done())
    # The call that asked is gone. The answer becomes a message that also repeats the question.
    words = Text(late_answer(pending.asked, answer.text))
    allows = pending.asked if is_yes(pending.asked, answer.text) else None
    message = Message(f"m{state.messages + 1}", answer.by, Mode.STEER, (words,), allows=allows)
    state, effects = send_in_any(state, Send(message, state.turn))
    return state, tuple(
        Log((closed, *each.events)) if isinstance(each, Log) else each for each in effects
    )


def standing_for(question: Question) -> Standing:
    """Returns the standing that an answer needs. A guest answers what allows nothing."""
    allows = question.kind is QuestionKind.APPROVAL
    needed = question.answerable_by
    return Standing.GUEST if needed is Standing.WRITER and not allows else needed


def close_question(state: SessionState, close: CloseQuestion) -> Decision:
    pending = state.question(close.question)
    if pending is None:
        return state, (Done(),)
    if close.shut_down and state.closing and not state.ending:
        # The user did not close it, the program ends: it can be answered after the restart.
        kept = tuple(
            Pending(each.asked, live=False) if each is pending else each for each in state.questions
        )
        return change(state, questions=kept), (Done(),)
    closed = QuestionClosed(close.question, close.answer, close.by)
    return without_question(state, close.question), (Log((closed,)), Done())


def dismiss_question(state: SessionState, dismiss: Dismiss) -> Decision:
    pending = state.question(dismiss.question)
    if pending is None or pending.live:
        why = "is not open any more" if pending is None else "has a waiting call; stop that instead"
        return state, (Refuse("too_late", f"question {dismiss.question} {why}"),)
    closed = QuestionClosed(dismiss.question, None, dismiss.by)
    return without_question(state, dismiss.question), (Log((closed,)), Done())


def without_question(state: SessionState, question: str) -> SessionState:
    left = tuple(each for each in state.questions if each.asked.id != question)
    return change(state, questions=left)


# Permissions


def set_mode(state: SessionState, command: SetMode) -> Decision:
    if state.permission is command.mode:
        return state, (Done(),)
    changed = PermissionChanged(command.mode, command.by)
    return change(state, permission=command.mode), (Log((changed,)), Done())


def add_grant(state: SessionState, command: AddGrant) -> Decision:
    granted = Granted(command.grant, command.scope, command.by)
    if command.scope is GrantScope.SESSION:
        if any(each.grant == command.grant for each in state.grants):
            return state, (Done(),)
        kept = KeptGrant(command.grant, command.by, command.at)
        state = change(state, grants=(*state.grants, kept)[-GRANTS_MAX:])
    return state, (Log((granted,)), Done())


def revoke_grant(state: SessionState, command: RevokeGrant) -> Decision:
    revoked = GrantRevoked(command.grant, command.by, command.scope)
    if command.scope is GrantScope.PROJECT:
        return state, (Log((revoked,)), Done())
    left = tuple(each for each in state.grants if each.grant.id != command.grant)
    if len(left) == len(state.grants):
        return state, (Refuse("too_late", f"there is no grant {command.grant} in this session"),)
    return change(state, grants=left), (Log((revoked,)), Done())
