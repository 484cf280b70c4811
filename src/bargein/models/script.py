"""Scripts for the scripted model: plain data, written in Python or in a TOML or JSON file.

A script is a list of answers, and an answer is a list of steps. Each attempt plays one answer: the
first that has not been played and whose `when`, if any, matches the user's last message. In a file,
each step names its kind with `do`:

    repeat = true                       # start over when all answers have been played

    [[answers]]
    when = "weather"                    # a regular expression that ignores case
    steps = [
        { do = "say", text = "Let me look.", pace_s = 0.05 },
        { do = "call", name = "web", arguments = { url = "https://example.com" } },
    ]

    [[answers]]
    steps = [
        { do = "expect", result = "sunny" },
        { do = "fail", status = 529 },
    ]
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import Literal

import msgspec

from bargein.calls import words
from bargein.contracts.model import (
    ModelRequest,
    StopReason,
    Text,
    ToolMessage,
    UserMessage,
)
from bargein.models.errors import ScriptError

FILE_BYTES_MAX = 4 * 1024 * 1024


class _Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do"):
    pass


class Say(_Step, frozen=True, tag="say"):
    """Says text; with `pace_s`, word by word with that pause after each."""

    text: str
    pace_s: float = 0.0


class Think(_Step, frozen=True, tag="think"):
    """Reasons; with a signature, the reasoning is sent back to the provider."""

    text: str
    signature: str | None = None
    pace_s: float = 0.0


class Call(_Step, frozen=True, tag="call"):
    """Calls a tool. Arguments given as text are sent unchanged, valid or not."""

    name: str
    arguments: dict[str, object] | str = {}
    id: str = ""


class Pause(_Step, frozen=True, tag="pause"):
    """Stays silent for a while."""

    seconds: float


class Wait(_Step, frozen=True, tag="wait"):
    """Stays silent until the test opens the gate with that name."""

    gate: str


class Fail(_Step, frozen=True, tag="fail"):
    """Fails with an HTTP status, or with another fault of a connection."""

    status: int | None = None
    fault: Literal["unreachable", "timeout", "broken"] = "broken"
    message: str = "as the script says"
    retry_after_s: float | None = None


class Count(_Step, frozen=True, tag="count"):
    """Sets the usage that the provider reports. Without it, usage is estimated."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0


class Stop(_Step, frozen=True, tag="stop"):
    """Sets the stop reason, if it differs from the one that follows from the steps."""

    reason: StopReason


class Expect(_Step, frozen=True, tag="expect"):
    """Raises `ScriptError` unless the request contains these texts, tools and messages."""

    user: str | None = None
    result: str | None = None
    system: str | None = None
    tools: tuple[str, ...] = ()
    messages: int | None = None

    def check(self, request: ModelRequest) -> None:
        _find("the last user message", self.user, last_user_text(request))
        _find("the last tool results", self.result, _last_results(request))
        _find("the system prompt", self.system, request.system)
        offered = {tool.name for tool in request.tools}
        missing = sorted(set(self.tools) - offered)
        if missing:
            raise ScriptError(
                f"the script expects the tools {missing}; the request offers {sorted(offered)}"
            )
        if self.messages is not None and self.messages != len(request.messages):
            raise ScriptError(
                f"the script expects {self.messages} messages; there are {len(request.messages)}"
            )


@dataclass(frozen=True, slots=True)
class Check:
    """Calls a function with the request; it raises if the request is wrong. Only in Python."""

    function: Callable[[ModelRequest], object]


FileStep = Say | Think | Call | Pause | Wait | Fail | Count | Stop | Expect
Step = FileStep | Check


@dataclass(frozen=True, slots=True)
class Answer:
    steps: Sequence[Step]
    when: str | None = None


class _FileAnswer(msgspec.Struct, forbid_unknown_fields=True):
    steps: list[FileStep]
    when: str | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    answers: list[_FileAnswer]
    repeat: bool = False


class Script:
    """Hands out the answers. One per model; `taken` counts them."""

    def __init__(self, answers: Sequence[Answer | Sequence[Step]], *, repeat: bool = False) -> None:
        self._answers = [a if isinstance(a, Answer) else Answer(a) for a in answers]
        self._repeat = repeat
        self._played = [False] * len(self._answers)
        self.taken = 0
        for number, answer in enumerate(self._answers, 1):
            if answer.when is not None:
                try:
                    re.compile(answer.when)
                except re.error as error:
                    raise ScriptError(
                        f"answer {number}: when = {answer.when!r} is not a regular expression: "
                        f"{error}"
                    ) from None

    @property
    def left(self) -> int:
        """How many answers have not been played."""
        return self._played.count(False)

    def take(self, request: ModelRequest) -> Answer:
        said = _without_notes(last_user_text(request))
        number = self._next(said)
        if number is None and self._repeat:
            self._played = [False] * len(self._answers)
            number = self._next(said)
        if number is None:
            raise ScriptError(
                f"the script has no answer for request {self.taken + 1}, whose last user message "
                f"is {said[:200]!r}; {self.left} of {len(self._answers)} answers are left"
            )
        self._played[number] = True
        self.taken += 1
        return self._answers[number]

    def _next(self, said: str) -> int | None:
        for number, answer in enumerate(self._answers):
            if not self._played[number] and (
                answer.when is None or re.search(answer.when, said, re.IGNORECASE)
            ):
                return number
        return None


NOTES_BEGIN = (words.CUT_OFF, words.STOPPED_BEGINS, words.CRASHED)
STEP_NOTE = re.compile(r"\[[\w.-]+( \([\w./-]+\))?: .*\]")


def _without_notes(said: str) -> str:
    """Returns the user's own words, without the bracketed lines in which the engine tells the model
    how its last turn ended; returns those if there is nothing else."""

    def is_note(line: str) -> bool:
        return line.startswith(NOTES_BEGIN) or STEP_NOTE.fullmatch(line) is not None

    return "\n".join(dropwhile(is_note, said.split("\n"))) or said


def load_script(path: str | Path) -> Script:
    """Reads a script from a file; the suffix says whether it is TOML or JSON."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ScriptError(f"the script {path} cannot be read: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise ScriptError(f"the script {path} is larger than {FILE_BYTES_MAX} bytes")
    decode = msgspec.json.decode if path.suffix == ".json" else msgspec.toml.decode
    try:
        file_data = decode(data, type=_File)
    except (ValueError, msgspec.DecodeError) as error:
        raise ScriptError(f"the script {path} is invalid: {error}") from None
    answers = [Answer(answer.steps, answer.when) for answer in file_data.answers]
    if not answers:
        raise ScriptError(f"the script {path} has no answers")
    return Script(answers, repeat=file_data.repeat)


def last_user_text(request: ModelRequest) -> str:
    for message in reversed(request.messages):
        if isinstance(message, UserMessage):
            return "\n".join(piece.text for piece in message.content if isinstance(piece, Text))
    return ""


def _last_results(request: ModelRequest) -> str:
    for message in reversed(request.messages):
        if isinstance(message, ToolMessage):
            pieces = [piece for result in message.results for piece in result.content]
            return "\n".join(piece.text for piece in pieces if isinstance(piece, Text))
    return ""


def _find(where: str, wanted: str | None, text: str) -> None:
    if wanted is not None and wanted not in text:
        raise ScriptError(f"the script expects {wanted!r} in {where}, which is: {text[:500]!r}")
