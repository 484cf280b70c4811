"""Rules for work beside the turn: calls in the background, sub-agents, open questions."""

from bargein.calls.words import is_yes, late_answer
from bargein.contracts.event import (
    BackgroundEnded,
    CallDetached,
    CallEnded,
    ChildEnded,
    ChildStarted,
    Event,
    MessageAccepted,
    QuestionAsked,
    QuestionClosed,
    TurnOutcome,
)
from bargein.contracts.message import Disposition, Message, Mode
from bargein.contracts.model import Text
from bargein.contracts.permission import Standing
from bargein.session.commands import (
    AnswerQuestion,
    Ask,
    BackgroundOver,
    ChildBegan,
    ChildOver,
    CloseQuestion,
    Detached,
    Dismiss,
    Done,
    GiveAnswer,
    Log,
    Refuse,
    Send,
)
from bargein.session.rules.moves import Decision, change, hold, leave, start_next, wait_in
from bargein.session.rules.sending import send_in_any
from bargein.session.state import Child, Lane, Pending, Phase, SessionState

NEEDED = {
    Standing.WRITER: "somebody who may write to the session",
    Standing.APPROVER: "somebody whose account is older than the running agent",
    Standing.OWNER: "the owner",
}

QUESTIONS_LEFT_OPEN_MAX = 50
"""How many questions may stay open after a restart ended their turns. Beyond that the oldest is
closed."""


# The background


def call_detached(state: SessionState, detached: Detached) -> Decision:
    if detached.turn != state.turn:
        return state, (Refuse("fenced", f"{detached.turn} is over"),)
    state = change(state, background=(*state.background, detached.call))
    turn, call = detached.turn, detached.call
    return state, (Log((CallDetached(turn, call), CallEnded(turn, call, detached.result))), Done())


def background_over(state: SessionState, over: BackgroundOver) -> Decision:
    if over.call not in state.background:
        return state, ()
    background = tuple(each for each in state.background if each != over.call)
    state = change(state, background=background)
    ended = BackgroundEnded(over.call, over.result)
    if over.message is None:
        state, ends, leaves = leave(state)
        return state, (Log((ended, *ends)), Done(), *leaves)
    return news(state, ended, over.message, begins_turn=over.begins_turn)


def news(state: SessionState, ended: Event, message: Message, *, begins_turn: bool) -> Decision:
    """Accept the outcome of background work as a message. It joins the running turn, without
    cutting a request short, or starts a turn. Held messages stay held, because this is not the
    user's permission to continue. The outcome of work that somebody stopped or a restart lost
    starts no turn either: it is held, unless other messages wait that start a turn anyway."""
    joins = state.phase in (Phase.RUNNING, Phase.PAUSED)
    alone = not joins and not state.waiting
    state = wait_in(state, message, Lane.STEER if joins else Lane.NEXT)
    holds: tuple[Event, ...] = ()
    if alone and not begins_turn:
        state, holds = hold(state)
    state, events, starts = start_next(state)
    state, ends, leaves = leave(state)
    accepted = MessageAccepted(message, Disposition.QUEUED)
    return state, (Log((ended, accepted, *holds, *events, *ends)), Done(), *starts, *leaves)


# Sub-agents


def child_began(state: SessionState, began: ChildBegan) -> Decision:
    if state.closing or state.ending:
        return state, (Refuse("closing", "the session is about to end"),)
    child = Child(began.child, began.call, began.detached)
    started = ChildStarted(began.turn, began.call, began.child, began.task, began.detached)
    return change(state, children=(*state.children, child)), (Log((started,)), Done())


def child_over(state: SessionState, over: ChildOver) -> Decision:
    if all(each.id != over.child for each in state.children):
        return state, (Done(),)
    state = change(state, children=tuple(c for c in state.children if c.id != over.child))
    ended = ChildEnded(over.child, over.outcome, over.summary)
    if over.message is not None:
        begins_turn = over.outcome is not TurnOutcome.STOPPED and not over.lost
        return news(state, ended, over.message, begins_turn=begins_turn)
    state, ends, leaves = leave(state)
    return state, (Log((ended, *ends)), Done(), *leaves)


# Questions


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
    needed = pending.asked.question.answerable_by
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
