"""Every sentence that the model reads about calls, stops and their outcomes. Pure.

The sentences never claim more than is known. For a stopped call they give how long it ran, its
output and whether it may have happened in part; for an abandoned call they say that it may still be
running. Our notes among a user's words stand in square brackets.
"""

from collections.abc import Iterable, Sequence

import msgspec

from bargein.calls.record import CallRecord
from bargein.calls.text import CONTENT_CHARS_MAX, one_line, shortened
from bargein.cancel import Cause, Reason, Token
from bargein.contracts.checkpoint import FilesUndone, FileUndone
from bargein.contracts.message import Message, Mode
from bargein.contracts.model import Image, Text, ToolCall
from bargein.contracts.receipt import Receipt, StepKind, StoppedStep
from bargein.contracts.tool import (
    Approval,
    CallResult,
    CallStatus,
    Effect,
    OpenQuestion,
    ProcessEnd,
    QuestionKind,
    Refused,
    StopDetail,
)
from bargein.errors import BargeinError

Content = tuple[Text | Image, ...]

WHY_CHARACTERS_MAX = 200

_WHY = {
    Cause.USER_STOP: "the user stopped it",
    Cause.REDIRECT: "the user sent something new",
    Cause.ROLLBACK: "the user took the turn back",
    Cause.DEADLINE: "a time limit was reached",
    Cause.BUDGET: "a budget was used up",
    Cause.SHUTDOWN: "the program is shutting down",
    Cause.LEASE_LOST: "another process took the session over",
    Cause.CLIENT_GONE: "its caller went away",
    Cause.PARENT: "the work it belongs to was stopped",
}

_HALF = {
    Effect.NONE: "It changes nothing, so nothing is half done.",
    Effect.IDEMPOTENT: "It may have happened in part or in whole; doing it again is safe.",
    Effect.UNKNOWN: (
        "It may have happened in part or in whole. Check its effects before you repeat it."
    ),
}

_UNCERTAIN = (CallStatus.STOPPED, CallStatus.ABANDONED, CallStatus.UNKNOWN)


# Results


def text_result(status: CallStatus, text: str, summary: str = "") -> CallResult:
    return CallResult(status, (Text(text),), summary or one_line(text))


def finished(value: object) -> CallResult:
    """Make a result of a tool's return value. Raises TypeError if a model cannot be shown it."""
    if isinstance(value, CallResult):
        return value
    return CallResult(CallStatus.FINISHED, content_of(value), "finished")


def content_of(value: object) -> Content:
    if isinstance(value, Text | Image):
        value = (value,)
    if isinstance(value, list | tuple) and value:
        parts = [each for each in value if isinstance(each, Text | Image)]
        if len(parts) == len(value):
            return tuple(_bounded(part) for part in parts)
    if isinstance(value, str):
        return (Text(shortened(value)),)
    if value is None:
        return (Text("Done."),)
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError, UnicodeError) as error:
        raise TypeError(
            f"it returned a {type(value).__name__}, which has no JSON form ({error}); return text, "
            "Text, Image or plain data"
        ) from error
    return (Text(shortened(text)),)


def _bounded(part: Text | Image) -> Text | Image:
    return Text(shortened(part.text)) if isinstance(part, Text) else part


def with_more(result: CallResult, text: str) -> CallResult:
    """Return the result with a sentence of ours after the tool's content."""
    if not text:
        return result
    return msgspec.structs.replace(result, content=(*result.content, Text(text)))


def error_text(error: BaseException) -> str:
    if isinstance(error, BargeinError):
        return str(error)
    detail = str(error)
    return f"{type(error).__name__}: {detail}" if detail else type(error).__name__


def failed(error: BaseException) -> CallResult:
    text = error_text(error)
    return text_result(CallStatus.FAILED, shortened(text), f"failed: {one_line(text)}")


# Not started


def refused(text: str, why: str = "") -> CallResult:
    why = one_line(why or text, WHY_CHARACTERS_MAX)
    return text_result(CallStatus.NOT_STARTED, shortened(text), f"refused: {why}")


def not_started(token: Token) -> CallResult:
    """For a call that a stop prevented."""
    text = f"Not started: {why(token)} before this call began. Nothing happened."
    return text_result(CallStatus.NOT_STARTED, text, "not started")


def never_started() -> CallResult:
    """For a call that its turn never reached."""
    text = "Not started: the turn ended before this call began. Nothing happened."
    return text_result(CallStatus.NOT_STARTED, text, "not started")


def caller_over() -> CallResult:
    return refused("Not started: the work that this call belongs to has already ended.")


def denied(name: str, why: str) -> str:
    reason = f": {why}" if why else ""
    return f"{name}: this call is not allowed{reason}. It was not started; do it another way."


def read_only(name: str) -> Refused:
    return Refused(
        f"{name} may change something, and this session is in plan mode, which is read only. "
        "Nothing happened, and trying it again or another way changes nothing. Continue by "
        "reading, and end with a plan of what you would do. The user, or the agent that gave you "
        "this work, decides whether the mode changes.",
        "plan mode is read only; change the permission mode to let it run",
    )


PLAN_MODE = (
    "[This session is in plan mode: you can read, but not change anything. Find out what is "
    "needed, and end with a plan that the user can decide on.]"
)


def not_approved(answer: str) -> CallResult:
    """For a call that the user denied, perhaps with a reason."""
    said = "" if answer in ("", Approval.DENY) else f" The user answered: {one_line(answer, 500)}"
    told = f"The user did not allow this call; nothing happened.{said}"
    return text_result(CallStatus.NOT_STARTED, told, "not approved")


def not_answered() -> CallResult:
    told = "The program ended before the user answered. An answer will come as a message."
    return text_result(CallStatus.NOT_STARTED, told, "not answered")


NOBODY_APPROVES = "nobody can be asked here, so it was denied. Go on without it."
NOBODY_ANSWERS = "[Nobody can be asked here. Decide yourself, and say what you assumed.]"


# Stopped, abandoned, unknown


def why(token: Token) -> str:
    """Return in a few words why the token was cancelled."""
    reason = token.reason
    if reason is None:
        return "it was stopped"
    if reason.cause is Cause.DEADLINE:
        return f"its time limit of {reason.detail} was reached"
    return _why_root(reason.root)


def _why_root(root: Reason) -> str:
    words = _WHY[root.cause]
    return f"{words} ({root.detail})" if root.detail else words


def stopped(
    title: str, effect: Effect, record: CallRecord, error: BaseException | None = None
) -> CallResult:
    """For a call that stopped in time. `record.when_stopped` is the tool's promise about the state
    of the world; it does not hold after an error."""
    detail = record.stop_detail()
    promised = record.when_stopped if error is None else ""
    sentences = [
        f"Stopped after {record.ran_s():.1f} s: {why(record.token)}.",
        promised or _HALF[effect],
        *_ended(detail),
    ]
    if error is not None:
        sentences.append(f"It ended with {one_line(error_text(error), 200)}.")
    return CallResult(
        CallStatus.STOPPED,
        (Text(" ".join(sentences) + _output_so_far(record)),),
        _summary("stopped", title, detail),
        detail,
    )


def abandoned(title: str, effect: Effect, record: CallRecord, grace_s: float) -> CallResult:
    detail = record.abandoned_detail()
    effects = "" if effect is Effect.NONE else " It may still change things."
    told = (
        f"Told to stop after {record.ran_s():.1f} s ({why(record.token)}), but it did not stop "
        f"within {grace_s:g} s and was given up. It may still be running; its result will not be "
        f"seen.{effects}"
    )
    sentences = [told, *_ended(detail)]
    return CallResult(
        CallStatus.ABANDONED,
        (Text(" ".join(sentences) + _output_so_far(record)),),
        _summary("abandoned", title, detail),
        detail,
    )


def left_behind() -> CallResult:
    """For a call that was still stopping when its turn had to end."""
    told = (
        "It did not stop in time and was given up. It may still be running; its result will not "
        "be seen."
    )
    return text_result(CallStatus.ABANDONED, told, "abandoned")


def unknown_outcome() -> CallResult:
    told = "Outcome unknown: the program ended while this ran. It was not run again."
    return text_result(CallStatus.UNKNOWN, told, "outcome unknown")


def end_not_stored(step: StoppedStep) -> CallResult:
    """For a call whose stop is known only from the receipt."""
    half = "; it may have happened half" if step.effect is not Effect.NONE else ""
    told = f"Its end was not stored. It was {step.status} by a stop{half}."
    return CallResult(step.status, (Text(told),), step.summary, step.detail)


def _ended(detail: StopDetail) -> Sequence[str]:
    sentences = []
    if detail.processes:
        sentences.append(f"Ended: {processes_text(detail.processes)}.")
    if detail.survivors:
        sentences.append(f"Could not be ended: {processes_text(detail.survivors)}.")
    elif not detail.confirmed and detail.means:
        sentences.append("This system cannot tell whether some of its processes still run.")
    return sentences


def processes_text(processes: Sequence[ProcessEnd], shown_max: int = 5) -> str:
    shown = [
        f"{one_line(each.command, 40)} (pid {each.pid}{', ' if each.ended_by else ''}"
        f"{each.ended_by})"
        for each in processes[:shown_max]
    ]
    if len(processes) > shown_max:
        shown.append(f"and {len(processes) - shown_max} more")
    return ", ".join(shown)


def left_running(
    ended: Sequence[ProcessEnd], survivors: Sequence[ProcessEnd], how_to_go_on: str
) -> str:
    """Describe the processes that a finished call left running, and whether they were ended."""
    text = ""
    if ended:
        text += f"\n[left running by it, and ended with it: {processes_text(ended)}; "
        text += f"{how_to_go_on}]"
    if survivors:
        text += f"\n[left running by it, and could not be ended: {processes_text(survivors)}]"
    return text


def _output_so_far(record: CallRecord) -> str:
    output = shortened(record.output(), CONTENT_CHARS_MAX)
    return f"\nOutput so far:\n{output}" if output.strip() else "\nThere was no output so far."


def _summary(word: str, title: str, detail: StopDetail) -> str:
    number = len(detail.processes)
    processes = f" ({number} process{'es' if number > 1 else ''})" if number else ""
    told = f": {detail.told}" if detail.told else ""
    return f"{one_line(title)} {word}{processes}{told}"


# The background


NO_BACKGROUND = (
    "a call made by another call cannot move to the background, where nobody could see it or stop "
    "it alone; use the tool directly"
)


def moved(call_id: str) -> CallResult:
    told = f"Moved to the background as {call_id}. Its outcome will come as a message."
    return CallResult(CallStatus.DETACHED, (Text(told),), "in the background")


def background_news(call_id: str, title: str, result: CallResult) -> Message:
    """Make the message that tells the model the outcome of a call in the background."""
    call = f"{call_id} ({title})" if title else call_id
    came = str(result.status)
    if result.status is CallStatus.FINISHED and result.summary not in ("", came):
        came = f"{came}, {result.summary}"
    words = Text(f"[The call {call} in the background: {came}]")
    return Message(
        id=f"bg-{call_id}", sender="background", mode=Mode.STEER, content=(words, *result.content)
    )


# Questions beside a turn

STILL_RUNNING = "[This call is still running.]"
SIDE_QUESTION = (
    "[A question beside your work, which goes on. Answer it in a few sentences from what you know; "
    "call no tools. Neither the question nor your answer will be part of this conversation.]"
)


# Turns that did not come to their own end


CUT_OFF = "[You were cut off before your last message was finished.]"
STEER_WITHDRAWN = "[A message interrupted you, and the user took it back. Go on.]"
STOPPED_BEGINS = "[Your previous turn"
CRASHED = "[The program ended while you were answering. What you said until then is above.]"
NOT_STORED = (
    "[Your previous turn ended because it could not be stored. What was stored of it is above.]"
)
TAKEN_BACK = "[A turn was taken back. What it did was not undone:]"
UNDOING_CALLS = "[The user asked to undo these calls by other calls:]"
UNDOING_CRASHED = "[The program ended while calls were being undone by other calls:]"
ROLLED_BACK = "A turn was taken back."
FILES_PUT_BACK = "[A turn was taken back, and the files that its calls changed were put back.]"
NOT_PUT_BACK = "[What these calls did besides was not undone:]"
FILES_NAMED_MAX = 20


def taken_back(effects: Sequence[str], files: FilesUndone | None) -> str:
    """Tells the model that a turn was taken back. `files` says what became of its files; None that
    they are as they were."""
    did = [f"[{effect}]" for effect in effects]
    if files is None or not files.files:
        return "\n".join([TAKEN_BACK, *did]) if did else ""
    kept = files.kept
    lines = [FILES_PUT_BACK] if files.changed else [TAKEN_BACK]
    lines += [f"[{each.path} was kept as it is: {each.why}]" for each in kept[:FILES_NAMED_MAX]]
    if len(kept) > FILES_NAMED_MAX:
        lines.append(f"[{len(kept) - FILES_NAMED_MAX} more were kept]")
    return "\n".join([*lines, *([NOT_PUT_BACK, *did] if did else ())])


def rolled_back(effects: Sequence[str], files: FilesUndone | None, error: str) -> str:
    """Tells the model, in a line for files and one for each call, what a rollback did. `files` is
    None if the calls changed none that are known."""
    lines: list[str] = []
    if error:
        lines.append(f"[{ROLLED_BACK} Its files could not be put back: {error}]")
    elif files is not None and not files.files:
        lines.append(f"[{ROLLED_BACK} Its files are as they were before it.]")
    elif files is not None:
        changed, kept = _named(files.changed), _named(files.kept)
        put_back = f"These files were put back: {changed}." if changed else "No file was put back."
        more = f" {files.more} more are not named." if files.more else ""
        stayed = f" These were kept, because somebody changed them since: {kept}." if kept else ""
        lines.append(f"[{ROLLED_BACK} {put_back}{more}{stayed}]")
    did = [f"[{effect}]" for effect in effects]
    if did:
        lines += [NOT_PUT_BACK if lines and not error else TAKEN_BACK, *did]
    return "\n".join(lines)


def _named(files: Sequence[FileUndone]) -> str:
    shown = ", ".join(each.path for each in files[:FILES_NAMED_MAX])
    left = len(files) - FILES_NAMED_MAX
    return f"{shown} and {left} more" if left > 0 else shown


def undone_by_calls(calls: Iterable[tuple[ToolCall, ToolCall, CallResult | None]]) -> str:
    """Tells the model how the calls ended that undo others. Each comes after the call that it
    undoes."""
    lines = [UNDOING_CALLS]
    for undone, call, result in calls:
        status = CallStatus.NOT_STARTED if result is None else result.status
        half = "; it may have happened half" if status in _UNCERTAIN else ""
        lines.append(f"[{undone.name} ({undone.id}), by {call.name}: {status}{half}]")
    return "\n".join(lines)


def moved_note(before: str, now: str) -> str:
    """Tells model and user that a session goes on at another machine, and its files do not."""
    return (
        f"[This session goes on at another machine: {now}. Files that were changed before are on "
        f"{before}; files and commands are those of {now} from now on.]"
    )


def stop_note(receipt: Receipt) -> str:
    """Describe a stop, for the start of the user's next message."""
    root = receipt.reason.root if receipt.reason is not None else None
    first = f"[Your previous turn was stopped before it ended ({root.cause if root else ''}).]"
    if root is not None and root.cause in (Cause.BUDGET, Cause.DEADLINE):
        used, _, _ = root.detail.partition(";")
        first = f"[Your previous turn was ended by its budget: {used}. The user was told.]"
    return "\n".join([first, *map(step_line, _calls(receipt.steps))])


def hidden_note(steps: Iterable[StoppedStep]) -> str:
    """Describe the effects of a turn that was rolled back: the model does not see the turn, but its
    effects remain."""
    effects = [step for step in _calls(steps) if step.effect is not Effect.NONE]
    return "\n".join([TAKEN_BACK, *map(step_line, effects)]) if effects else ""


def step_line(step: StoppedStep) -> str:
    half = step.effect is not Effect.NONE and step.status in _UNCERTAIN
    doubt = "; it may have happened half" if half else ""
    return f"[{step.name} ({step.call_id}): {step.status}{doubt}]"


def _calls(steps: Iterable[StoppedStep]) -> list[StoppedStep]:
    return [step for step in steps if step.kind is StepKind.TOOL]


# Answers that came after a restart


def is_yes(asked: OpenQuestion, answer: str) -> bool:
    return asked.question.kind is QuestionKind.APPROVAL and allows(answer)


def allows(answer: str) -> bool:
    return answer in (Approval.ALLOW, Approval.SESSION, Approval.ALWAYS)


def late_answer(asked: OpenQuestion, answer: str) -> str:
    """Give the model the answer to a question that a restart had left open."""
    what = "You had asked the user"
    if asked.question.kind is QuestionKind.APPROVAL:
        what = "You needed the user's approval for a call, which was not started"
        if is_yes(asked, answer):
            what += "; make the same call again if it is still wanted"
    return f"[{what}, before the program ended: {asked.question.text}]\n[The answer:] {answer}"


# What is not in the request


SUMMARY_BEGINS = "[The earlier part of this conversation was shortened. This is its summary:]"
SUMMARY_ENDS = "[The summary ends here. What follows is as it was said.]"
DROPPED = (
    "[The earlier part of this conversation is left out: it was too long, and no summary of it "
    "could be made ({why}). Ask the user for what you need of it.]"
)
INSTRUCTIONS_UNREAD = "[Further instructions could not be read.]"


def attached_file(name: str, kind: str) -> str:
    return f"[The user attached the {kind} {name}:]"


def not_described(name: str, media_type: str = "") -> str:
    """Name an attachment that the model cannot be shown."""
    if media_type:
        return f"[attachment {name}, {media_type}, not described]"
    return f"[attachment {name}: could not be described]"


# The form of an answer


OUTPUT_ASKED_FOR = (
    "The last thing you say in this turn must be one JSON value and nothing else: no words around "
    "it, no code fence. It must fit this JSON Schema, named {name}:\n{schema}"
)
OUTPUT_UNFIT = (
    "[Your answer does not fit what was asked for: {why}. Give the whole answer again, as JSON "
    "alone that fits the schema.]"
)
