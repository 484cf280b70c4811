"""From how a call came out to what the model and the user are told of it. Truthful, and pure.

The status says what is known, and the words never more: a call that was stopped says how long it
had run, what it had put out and whether something may have happened half; one that could not be
stopped says that it may still be running.
"""

from collections.abc import Sequence

import msgspec

from bargein.cancel import Cause, Reason, Token
from bargein.contracts.model import Image, Text
from bargein.contracts.tool import CallResult, CallStatus, Effect, ProcessEnd, StopDetail
from bargein.errors import BargeinError
from bargein.tools.output import CONTENT_CHARS_MAX, one_line, shortened
from bargein.tools.record import CallRecord

Content = tuple[Text | Image, ...]

_WHY = {
    Cause.USER_STOP: "the user stopped it",
    Cause.REDIRECT: "the user sent something new",
    Cause.ROLLBACK: "the user took the turn back",
    Cause.DEADLINE: "a time limit was reached",
    Cause.BUDGET: "a budget was used up",
    Cause.SHUTDOWN: "the program is shutting down",
    Cause.LEASE_LOST: "another process took the session over",
    Cause.CLIENT_GONE: "whoever waited for it went away",
    Cause.PARENT: "what it belongs to was stopped",
}

_HALF = {
    Effect.NONE: "It changes nothing, so nothing is half done.",
    Effect.IDEMPOTENT: "It may have happened in part or in whole; doing it again is safe.",
    Effect.UNKNOWN: (
        "It may have happened in part or in whole. Look at what became of it before you repeat it."
    ),
}


def why(token: Token) -> str:
    """In a few words, why the token was cancelled."""
    reason = token.reason
    if reason is None:
        return "it was stopped"
    if reason.cause is Cause.DEADLINE:
        return f"its time limit of {reason.detail} was reached"
    return _why_root(reason.root)


def _why_root(root: Reason) -> str:
    words = _WHY[root.cause]
    return f"{words} ({root.detail})" if root.detail else words


def text_result(status: CallStatus, text: str, summary: str = "") -> CallResult:
    return CallResult(status, (Text(text),), summary or one_line(text))


def finished(value: object) -> CallResult:
    """What a tool returned. Raises TypeError if it cannot be shown to a model."""
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
    """The result with a sentence of ours behind what the tool said."""
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


def not_started(token: Token) -> CallResult:
    text = f"Not started: {why(token)} before this call began. Nothing happened."
    return text_result(CallStatus.NOT_STARTED, text, "not started")


def refused(text: str) -> CallResult:
    return text_result(CallStatus.NOT_STARTED, shortened(text), f"refused: {one_line(text)}")


def stopped(
    title: str,
    effect: Effect,
    record: CallRecord,
    when_stopped: str = "",
    error: BaseException | None = None,
) -> CallResult:
    """`when_stopped` is what the tool promises; a call that ended with an error breaks it."""
    detail = record.stop_detail()
    promised = when_stopped if error is None else ""
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
    detail = record.stop_detail()
    if not detail.survivors:
        # Nobody saw it end, whatever became of the processes it had started.
        detail = msgspec.structs.replace(detail, confirmed=False)
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


def _ended(detail: StopDetail) -> Sequence[str]:
    sentences = []
    if detail.processes:
        sentences.append(f"Ended: {processes_text(detail.processes)}.")
    if detail.survivors:
        sentences.append(f"Could not be ended: {processes_text(detail.survivors)}.")
    elif not detail.confirmed and detail.means:
        sentences.append("Whether something of it is left cannot be told on this system.")
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


def _output_so_far(record: CallRecord) -> str:
    output = shortened(record.output(), CONTENT_CHARS_MAX)
    return f"\nOutput so far:\n{output}" if output.strip() else "\nThere was no output so far."


def _summary(word: str, title: str, detail: StopDetail) -> str:
    number = len(detail.processes)
    processes = f" ({number} process{'es' if number > 1 else ''})" if number else ""
    return f"{one_line(title)} {word}{processes}"
