"""A model that plays a script: for our tests, demonstrations and users' own tests.

It keeps the contract of every model, with retries and fallback, because only its attempts are its
own. It runs on asyncio, and on trio with a virtual clock. Gates let a test stop it at an exact
place:

    model = ScriptedModel([[Say("One "), Wait("hold"), Say("two")]])
    ...
    await model.gate("hold").reached()      # it has said "One " and waits
    model.gate("hold").open()

`model.plays` records each request and how its answer ended. For one event loop.
"""

import random as random_module
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import anyio
import anyio.lowlevel
import msgspec

from bargein.cancel import Cancelled, Token
from bargein.contracts.model import (
    CallPart,
    EndPart,
    ModelRequest,
    Part,
    ReasoningPart,
    StopReason,
    TextPart,
    Usage,
    UsagePart,
)
from bargein.models import explain
from bargein.models.costs import Price, input_chars, tokens_of
from bargein.models.errors import ModelError, ModelTimeout, ModelUnreachable, StreamBroken
from bargein.models.retry import RetryPolicy
from bargein.models.retrying import RetryingModel
from bargein.models.script import (
    Answer,
    Call,
    Check,
    Count,
    Expect,
    Fail,
    Pause,
    Say,
    Script,
    Step,
    Stop,
    Think,
    Wait,
    load_script,
)

_FAULTS = {"unreachable": ModelUnreachable, "timeout": ModelTimeout, "broken": StreamBroken}
_WORDS = re.compile(r"\S+\s*|\s+")


class Gate:
    """A place in the script where it waits for `open`. Once open, it stays open."""

    def __init__(self) -> None:
        self._reached = anyio.Event()
        self._opened = anyio.Event()

    def open(self) -> None:
        self._opened.set()

    async def reached(self) -> None:
        """Waits until the script has arrived here."""
        await self._reached.wait()

    async def pass_through(self) -> None:
        self._reached.set()
        await self._opened.wait()


@dataclass(slots=True)
class Play:
    """One attempt: the request, the parts of the answer, and how it ended."""

    request: ModelRequest
    parts: list[Part] = field(default_factory=list)
    outcome: Literal["playing", "ended", "failed", "cancelled", "closed"] = "playing"


class ScriptedModel(RetryingModel):
    """`answers` is a script, or a list of answers or of lists of steps."""

    def __init__(
        self,
        answers: Script | Sequence[Answer | Sequence[Step]],
        *,
        name: str = "scripted",
        context_tokens: int | None = None,
        price: Price | None = None,
        policy: RetryPolicy | None = None,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self.script = answers if isinstance(answers, Script) else Script(answers)
        self.endpoint = ScriptedEndpoint(self.script, name, context_tokens, sleep, price)
        super().__init__([self.endpoint], policy=policy, sleep=sleep, random=random)

    @classmethod
    def from_file(cls, path: str | Path, *, name: str = "scripted") -> "ScriptedModel":
        return cls(load_script(path), name=name)

    @property
    def plays(self) -> list[Play]:
        return self.endpoint.plays

    @property
    def requests(self) -> list[ModelRequest]:
        return [play.request for play in self.plays]

    def gate(self, name: str) -> Gate:
        return self.endpoint.gate(name)


class ScriptedEndpoint:
    """An `Endpoint`; combine several in a `RetryingModel` to test fallback."""

    def __init__(
        self,
        script: Script,
        name: str = "scripted",
        context_tokens: int | None = None,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        price: Price | None = None,
    ) -> None:
        self.name = name
        self.context_tokens = context_tokens
        self.price = price
        self.script = script
        self.sleep = sleep
        self.plays: list[Play] = []
        self._gates: dict[str, Gate] = {}

    def gate(self, name: str) -> Gate:
        return self._gates.setdefault(name, Gate())

    def attempt(self, request: ModelRequest, token: Token) -> "ScriptedAttempt":
        return ScriptedAttempt(self, request, token)

    async def aclose(self) -> None:
        """Does nothing: nothing is held between requests."""


_Move = Part | Pause | Wait | ModelError


class ScriptedAttempt:
    """An `Attempt` that plays one answer."""

    def __init__(self, endpoint: ScriptedEndpoint, request: ModelRequest, token: Token) -> None:
        self._endpoint = endpoint
        self._token = token
        self._play = Play(request)
        self._moves: Iterator[_Move] | None = None
        self._usage: Usage | None = None
        self._output_chars = 0
        self._stop: StopReason | None = None

    @property
    def usage(self) -> Usage:
        if self._usage is not None and self._play.outcome == "ended":
            return self._usage
        if not self._play.parts:
            return Usage()
        return self._estimate()

    async def read(self) -> Sequence[Part]:
        if self._token.cancelled:
            raise self._stopped()
        if self._moves is None:
            self._endpoint.plays.append(self._play)
            answer = self._endpoint.script.take(self._play.request)
            self._moves = self._moves_of(answer)
        for move in self._moves:
            if isinstance(move, Pause | Wait):
                with self._token.scope():
                    await self._hold(move)
            elif isinstance(move, ModelError):
                self._play.outcome = "failed"
                raise move
            else:
                # Yield to the loop for each part, as parts from a network would.
                with self._token.scope():
                    await anyio.lowlevel.checkpoint()
                if not self._token.cancelled:
                    self._play.parts.append(move)
                    if isinstance(move, EndPart):
                        self._play.outcome = "ended"
                    return [move]
            if self._token.cancelled:
                raise self._stopped()
        raise AssertionError("an answer was read after its end")

    async def aclose(self) -> None:
        if self._play.outcome == "playing":
            self._play.outcome = "cancelled" if self._token.cancelled else "closed"

    async def _hold(self, move: Pause | Wait) -> None:
        if isinstance(move, Pause):
            await self._endpoint.sleep(move.seconds)
        else:
            await self._endpoint.gate(move.gate).pass_through()

    def _stopped(self) -> Cancelled:
        self._play.outcome = "cancelled"
        return Cancelled(self._token)

    def _estimate(self) -> Usage:
        read = tokens_of(input_chars(self._play.request))
        return Usage(read, tokens_of(self._output_chars), estimated=True)

    def _moves_of(self, answer: Answer) -> Iterator[_Move]:
        """Yields the answer as parts and pauses."""
        calls = 0
        for step in answer.steps:
            match step:
                case Say(text=text, pace_s=pace_s):
                    yield from self._words(text, pace_s, TextPart)
                case Think(text=text, pace_s=pace_s, signature=signature):
                    yield from self._words(text, pace_s, ReasoningPart)
                    if signature is not None:
                        yield ReasoningPart("", signature)
                case Call():
                    yield from self._call(step, calls)
                    calls += 1
                case Pause() | Wait():
                    yield step
                case Fail():
                    yield self._fault(step)
                case _:
                    self._note(step)
        if self._usage is None:
            self._usage = self._estimate()
        yield UsagePart(self._usage)
        yield EndPart(self._stop or (StopReason.TOOL_CALLS if calls else StopReason.END))

    def _note(self, step: Expect | Check | Count | Stop) -> None:
        match step:
            case Expect():
                step.check(self._play.request)
            case Check(function=function):
                function(self._play.request)
            case Count():
                self._usage = Usage(step.input_tokens, step.output_tokens, step.cached_input_tokens)
            case Stop(reason=reason):
                self._stop = reason

    def _words(
        self, text: str, pace_s: float, kind: type[TextPart] | type[ReasoningPart]
    ) -> Iterator[_Move]:
        if not pace_s:
            self._output_chars += len(text)
            if text:
                yield kind(text)
            return
        for word in _WORDS.findall(text):
            self._output_chars += len(word)
            yield kind(word)
            yield Pause(pace_s)

    def _call(self, step: Call, number: int) -> Iterator[_Move]:
        arguments = step.arguments
        if not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments).decode()
        self._output_chars += len(arguments)
        yield CallPart(number, step.id or f"call_{len(self._endpoint.plays)}_{number}", step.name)
        yield CallPart(number, arguments=arguments)

    def _fault(self, step: Fail) -> ModelError:
        name = self._endpoint.name
        if step.status is not None:
            target = explain.Target(name, "a script", "OPENAI_BASE_URL", "OPENAI_API_KEY")
            error = explain.from_status(target, step.status, {}, step.message.encode())
        else:
            kind = _FAULTS[step.fault]
            error = kind(f"{name}: {step.message}", retryable=True, model=name, host="a script")
        error.retry_after_s = step.retry_after_s
        return error
