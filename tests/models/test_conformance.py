"""The contract of every model, checked on every model: three over HTTP and the scripted one.

A fake that passes here may stand in for the real ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import pytest

from bargein.cancel import Cancelled, CancelSource, Cause
from bargein.contracts.model import (
    EndPart,
    Model,
    ModelStream,
    Part,
    RetryingPart,
    TextPart,
    UsagePart,
)
from bargein.models.errors import ModelError
from bargein.models.retry import RetryPolicy
from bargein.models.retrying import RetryingModel
from bargein.models.script import Count, Fail, Say, Step, Wait
from bargein.models.scripted import ScriptedModel
from bargein.testing.fault_answers import HELLO as HELLO_PARTS
from bargein.testing.fault_answers import events_of
from bargein.testing.fault_server import FaultServer
from bargein.testing.fault_steps import Body, Drop, Gate, Hang, Head, Reply
from bargein.testing.fault_zoo import refusal, whole
from tests.models.harness import DIALECTS, HELLO, endpoint, text_of

pytestmark = pytest.mark.anyio

QUICK = RetryPolicy(attempts_max=2, delay_first_s=0.0)


@dataclass
class Stage:
    """A model that says "Hel", is held, fails, or says "Hello, wörld", as the maker was told."""

    model: Model
    asked: Callable[[], int]


Maker = Callable[[str], AbstractAsyncContextManager[Stage]]


def over_http(dialect: str) -> Maker:
    @asynccontextmanager
    async def make(play: str) -> AsyncIterator[Stage]:
        begin = Body(b"".join(events_of(dialect, HELLO_PARTS[:1])))
        replies: dict[str, list[Reply]] = {
            "whole": [whole(dialect)],
            "held": [[Head(), begin, Gate("never"), Hang()]],
            "fails once": [[Head(), begin, Drop()], whole(dialect)],
            "fails": [refusal(503, "busy")],
            "refused": [refusal(401, "no")],
        }
        async with FaultServer(replies[play]) as server:
            model = RetryingModel([endpoint(server.url, dialect)], policy=QUICK)
            yield Stage(model, lambda: len(server.visits))

    return make


@asynccontextmanager
async def scripted(play: str) -> AsyncIterator[Stage]:
    count = Count(input_tokens=11, output_tokens=3)
    answer: list[Step] = [Say("Hel"), Say("lo, wörld"), count]
    answers: dict[str, list[list[Step]]] = {
        "whole": [answer],
        "held": [[Say("Hel"), Wait("never")]],
        "fails once": [[Say("Hel"), Fail()], answer],
        "fails": [[Fail(503)], [Fail(503)]],
        "refused": [[Fail(401)]],
    }
    model = ScriptedModel(answers[play], policy=QUICK)
    yield Stage(model, lambda: len(model.plays))


MAKERS: dict[str, Maker] = {name: over_http(name) for name in DIALECTS} | {"scripted": scripted}


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Maker:
    name: str = request.param
    return MAKERS[name]


async def read(stream: ModelStream, into: list[Part]) -> None:
    async for part in stream:
        into.append(part)  # noqa: PERF401 - what came before a failure is looked at


async def test_a_whole_answer(make: Maker) -> None:
    parts: list[Part] = []
    async with make("whole") as stage:
        async with stage.model.open(HELLO, CancelSource("request").token) as stream:
            await read(stream, parts)
            with pytest.raises(StopAsyncIteration):
                await anext(aiter(stream))
        assert text_of(parts) == "Hello, wörld"
        assert [type(part) for part in parts[-2:]] == [UsagePart, EndPart]
        assert parts[-2] == UsagePart(stream.usage)
        assert (stream.usage.input_tokens, stream.usage.output_tokens) == (11, 3)
        assert not stream.usage.estimated
        assert stage.asked() == 1
        await stage.model.aclose()
        await stage.model.aclose()


async def test_a_cancel_comes_out_as_itself_and_keeps_what_was_said(make: Maker) -> None:
    source = CancelSource("request")
    async with make("held") as stage:
        async with stage.model.open(HELLO, source.token) as stream:
            iterator = aiter(stream)
            assert await anext(iterator) == TextPart("Hel")
            waiting = asyncio.ensure_future(anext(iterator))
            await asyncio.sleep(0)
            source.cancel(Cause.USER_STOP)
            with pytest.raises(Cancelled) as caught:
                await waiting
            assert caught.value.token is source.token
            assert stream.usage.estimated
            assert stream.usage.output_tokens == 1
            with pytest.raises(Cancelled):
                await anext(iterator)
        assert stream.usage.output_tokens == 1
        assert stage.asked() == 1


async def test_what_is_cancelled_beforehand_asks_nothing(make: Maker) -> None:
    source = CancelSource("request")
    source.cancel(Cause.USER_STOP)
    async with make("whole") as stage:
        async with stage.model.open(HELLO, source.token) as stream:
            with pytest.raises(Cancelled):
                await anext(aiter(stream))
        assert stage.asked() == 0


async def test_a_fault_is_told_and_tried_again(make: Maker) -> None:
    parts: list[Part] = []
    async with make("fails once") as stage:
        async with stage.model.open(HELLO, CancelSource("request").token) as stream:
            await read(stream, parts)
        kinds = [type(part) for part in parts]
        retry = kinds.index(RetryingPart)
        assert text_of(parts[:retry]) == "Hel"
        assert text_of(parts[retry:]) == "Hello, wörld"
        assert stage.asked() == 2
        assert stream.usage.output_tokens == 1 + 3


async def test_a_fault_surfaces_when_retries_end(make: Maker) -> None:
    parts: list[Part] = []
    async with make("fails") as stage:
        async with stage.model.open(HELLO, CancelSource("request").token) as stream:
            with pytest.raises(ModelError) as caught:
                await read(stream, parts)
        assert caught.value.status == 503
        assert caught.value.model == stage.model.name
        assert [type(part) for part in parts] == [RetryingPart]
        assert stage.asked() == 2


async def test_a_refusal_is_not_tried_again(make: Maker) -> None:
    parts: list[Part] = []
    async with make("refused") as stage:
        async with stage.model.open(HELLO, CancelSource("request").token) as stream:
            with pytest.raises(ModelError):
                await read(stream, parts)
        assert parts == []
        assert stage.asked() == 1


async def test_two_requests_at_once_do_not_know_each_other(make: Maker) -> None:
    one, other = CancelSource("one"), CancelSource("other")
    parts: list[Part] = []
    async with (
        make("held") as first,
        make("whole") as second,
        first.model.open(HELLO, one.token) as held,
        second.model.open(HELLO, other.token) as good,
    ):
        iterator = aiter(held)
        await anext(iterator)
        waiting = asyncio.ensure_future(anext(iterator))
        async for part in good:
            parts.append(part)
            one.cancel(Cause.USER_STOP)
        with pytest.raises(Cancelled):
            await waiting
    assert text_of(parts) == "Hello, wörld"


async def test_leaving_early_is_no_error(make: Maker) -> None:
    async with make("held") as stage:
        async with stage.model.open(HELLO, CancelSource("request").token) as stream:
            async for _ in stream:
                break
        assert stage.asked() == 1
