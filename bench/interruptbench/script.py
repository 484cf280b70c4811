"""What the model server plays: scripts, found by a mark in the user's last message.

A message that carries `mark("r7")` is answered by the script "r7", whatever else a system writes
around it. The steps are for the requests of one turn, in order: step 0 answers the message itself,
step 1 the results of step 0's calls, and so on; the last step stands for all that follow.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

MARK = re.compile(r"@@([\w.-]+)@@")
WORD = re.compile(r"@@[\w.-]+@@|LATE-[\w.-]+")


class Call(msgspec.Struct, frozen=True):
    """A tool call, by the name and arguments that the system under test knows it by."""

    name: str
    arguments: dict[str, object]


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """One answer: silence, headers, silence, parts at a pace, then the calls."""

    parts: int = 1
    pace_s: float = 0.0
    before_headers_s: float = 0.0
    after_headers_s: float = 0.0
    calls: tuple[Call, ...] = ()

    @property
    def length_s(self) -> float:
        return self.before_headers_s + self.after_headers_s + self.pace_s * max(0, self.parts - 1)


class Script(msgspec.Struct, frozen=True, omit_defaults=True):
    """`strict`: a request whose transcript is not well formed is refused, as providers do."""

    id: str
    steps: tuple[Step, ...]
    strict: bool = False

    def step(self, number: int) -> Step:
        return self.steps[min(number, len(self.steps) - 1)]


def mark(script: str) -> str:
    return f"@@{script}@@"


def answer_text(script: str) -> str:
    """The last part of a script's answer: who reads it has read the whole answer."""
    return f"done-{script}"


class Message(msgspec.Struct, frozen=True):
    """A message of a request, as far as the server looks at it."""

    role: str
    content: object = None
    tool_calls: list[dict[str, object]] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        if isinstance(self.content, list):
            texts = [part.get("text") for part in self.content if isinstance(part, dict)]
            return "\n".join(text for text in texts if isinstance(text, str))
        return ""

    @property
    def call_ids(self) -> list[str]:
        return [str(call.get("id")) for call in self.tool_calls or []]


def find_script(messages: Sequence[Message]) -> tuple[str, int]:
    """The mark in the last marked message of the user, and how many rounds of calls came since."""
    rounds = 0
    for message in reversed(messages):
        found = MARK.findall(message.text) if message.role == "user" else []
        if found:
            return found[-1], rounds
        rounds += bool(message.tool_calls)
    return "", 0


def words_of(messages: Sequence[Message]) -> list[str]:
    """All marks and late results that the model is shown."""
    return sorted({word for message in messages for word in WORD.findall(message.text)})


def transcript_problems(messages: Sequence[Message]) -> list[str]:
    """What a strict provider refuses: each call has exactly one result, right behind it."""
    problems: list[str] = []
    owed: list[str] = []
    for message in messages:
        if message.role == "tool":
            if message.tool_call_id in owed:
                owed.remove(message.tool_call_id)
            else:
                problems.append(f"a result for {message.tool_call_id!r}, which no call awaits")
            continue
        problems += [f"call {call!r} has no result" for call in owed]
        owed = message.call_ids
        problems += [f"call id {call!r} twice" for call in set(owed) if owed.count(call) > 1]
    return problems + [f"call {call!r} has no result" for call in owed]
