"""The sentences that a bot says by itself."""

from bargein.calls.receipt_words import NOT_STORED, left_open
from bargein.calls.text import one_line
from bargein.cancel import Cause
from bargein.contracts.chat_commands import ChatCommand
from bargein.contracts.receipt import Receipt, ReceiptStatus
from bargein.contracts.tool import Question
from bargein.contracts.visible import visible
from bargein.session.state import SessionState

SENT_AGAIN = "(This may be a repetition: the connection broke while it was sent.)"
PAIRED = "You are paired. Say something, or /help."
NOT_OPEN = "This question is not open any more."
REPLY_TO_ANSWER = "Reply to this message to answer."
NEXT_ANSWERS = "Your next message answers this."
NOT_YOURS = "You may not answer this question."
UNFINISHED = "The program was restarted while it did this. /status says how things are."
CRASHED = "The program ended in the middle of this answer. Say something to go on."
NOT_FETCHED = "(The files were not fetched, because of a stop.)"
NOTHING_RUNS = "Nothing is running."
NOTHING_RAN = "Nothing was running."
GOES_ON = "What was held goes on."
NOTHING_HELD = "Nothing is held."
NEW = "This is a new conversation."

NAME_CHARACTERS_MAX = 64
STEPS_SHOWN_MAX = 3


def receipt_in_short(receipt: Receipt) -> str:
    """What a stop did, in a line or a few. What it could not promise comes first."""
    if receipt.status is ReceiptStatus.TOO_LATE:
        words = [NOTHING_RUNS]
    elif _held_before_it_ran(receipt):
        words = [NOTHING_RAN]
    else:
        words = [f"Stopped in {receipt.elapsed_ms:.0f} ms."]
        reason = receipt.reason.root if receipt.reason is not None else None
        if reason is not None and reason.cause in (Cause.BUDGET, Cause.DEADLINE):
            words.insert(0, f"{reason.detail}.")
    if not receipt.stored:
        words.append(f"This is {NOT_STORED}.")
    words += [f"{clause[0].upper()}{clause[1:]}." for clause in left_open(receipt)]
    for step in receipt.uncertain[:STEPS_SHOWN_MAX]:
        words.append(f"May have happened half: {one_line(step.summary or step.name)}.")
    for step in receipt.abandoned[:STEPS_SHOWN_MAX]:
        words.append(f"Given up, may still be running: {one_line(step.summary or step.name)}.")
    if receipt.held:
        words.append(_held(receipt))
    return " ".join(words)


def _held_before_it_ran(receipt: Receipt) -> bool:
    """Whether the stop came while words were gathered that no turn had taken yet."""
    return receipt.reason is None and not receipt.steps and bool(receipt.held)


def _held(receipt: Receipt) -> str:
    how = "/continue lets {} go on, and so does your next message."
    count = len(receipt.held)
    if _held_before_it_ran(receipt):
        what = "1 message" if count == 1 else f"{count} messages"
        return f"What was just sent is held ({what}): {how.format('it')}"
    return f"{count} held: {how.format('it' if count == 1 else 'them')}"


def status_in_short(state: SessionState) -> str:
    words = [f"Working on {state.turn}." if state.turn else "Idle."]
    if state.waiting:
        words.append(f"{len(state.waiting)} waiting{', held' if state.held else ''}.")
    if state.background:
        words.append(f"{len(state.background)} in the background.")
    if state.questions:
        words.append(f"{len(state.questions)} questions are open.")
    return " ".join(words)


def inbox_in_short(state: SessionState) -> str:
    if not state.waiting:
        return "Nothing waits."
    lines = [" ".join(each.message.text.split())[:80] for each in state.waiting[:20]]
    return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1))


def question_in_words(question: Question) -> str:
    """The whole of it, with nothing in it that hides."""
    text = visible(question.text)
    return f"{text}\n\n{visible(question.detail)}" if question.detail else text


def edited_in_words(before: str, after: str) -> str:
    """What the model is told of an edit of words that it has seen."""
    return f"I have changed an earlier message of mine. It said:\n{before}\nIt now says:\n{after}"


def spoken_by(name: str, text: str) -> str:
    """Words in a group, with their speaker: a name cannot look like more than a name."""
    plain = visible(" ".join(name.split())).replace(":", " ")[:NAME_CHARACTERS_MAX]
    return f"{plain or 'somebody'}: {text}"


def with_slash(text: str) -> str:
    """`!stop` is `/stop` where people's programs keep slash commands for themselves."""
    word = text.partition(" ")[0]
    is_command = word.startswith("!") and word[1:].casefold() in set(ChatCommand)
    return f"/{text[1:]}" if is_command else text
