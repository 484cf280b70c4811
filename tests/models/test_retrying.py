"""Retry and fallback on every loop, with scripted endpoints and a sleep that only records."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from bargein.cancel import Cancelled, CancelSource, Cause, Token
from bargein.contracts.model import (
    EndPart,
    ModelRequest,
    Part,
    RetryingPart,
    StopReason,
    TextPart,
    Usage,
    UsagePart,
)
from bargein.models.errors import KeyRefused, ModelError, ModelUnavailable, RateLimited
from bargein.models.retry import RetryPolicy
from bargein.models.retrying import RetryingModel
from bargein.models.script import Count, Fail, Say, Script, Step, Wait
from bargein.models.scripted import ScriptedEndpoint, ScriptedModel
from tests.conftest import BACKENDS, Backend
from tests.models.harness import HELLO, ManualClock, collect, text_of

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", params=list(BACKENDS))
def anyio_backend(request: pytest.FixtureRequest) -> Backend:
    name: str = request.param
    return BACKENDS[name]


class Sleeps:
    """Sleeps that take no time, unless held."""

    def __init__(self) -> None:
        self.taken: list[float] = []
        self.hold = False
        self.begun = anyio.Event()

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)
        self.begun.set()
        if self.hold:
            await anyio.sleep_forever()


def scripted(*answers: Sequence[Step], name: str = "scripted") -> ScriptedEndpoint:
    return ScriptedEndpoint(Script(answers), name)


def model(
    *endpoints: ScriptedEndpoint, sleeps: Sleeps | None = None, policy: RetryPolicy | None = None
) -> RetryingModel:
    return RetryingModel(endpoints, policy=policy, sleep=sleeps or Sleeps(), random=lambda: 1.0)


async def test_a_fault_is_tried_again_and_told() -> None:
    sleeps = Sleeps()
    endpoint = scripted([Fail(503)], [Say("half"), Fail()], [Say("whole")])
    parts = await collect(model(endpoint, sleeps=sleeps))
    assert sleeps.taken == [0.5, 1.0]
    retries = [part for part in parts if isinstance(part, RetryingPart)]
    assert [(r.attempt, r.delay_s, r.model) for r in retries] == [
        (2, 0.5, "scripted"),
        (3, 1.0, "scripted"),
    ]
    assert "503" in retries[0].cause
    assert text_of(parts) == "halfwhole"
    assert parts[-1] == EndPart(StopReason.END)


async def test_the_retry_is_told_before_the_wait() -> None:
    sleeps = Sleeps()
    sleeps.hold = True
    stream_model = model(scripted([Fail(503)], [Say("x")]), sleeps=sleeps)
    async with stream_model.open(HELLO, CancelSource("request").token) as stream:
        assert isinstance(await anext(stream), RetryingPart)
        assert sleeps.taken == []


async def test_at_the_end_the_error_says_what_was_tried() -> None:
    endpoint = scripted(*[[Fail(500 + n)] for n in range(3)])
    with pytest.raises(ModelUnavailable) as caught:
        await collect(model(endpoint, policy=RetryPolicy(attempts_max=3)))
    assert caught.value.status == 502
    assert len(caught.value.tried) == 2
    assert "500" in str(caught.value)
    assert caught.value.__context__ is None


async def test_what_failed_in_the_same_way_each_time_is_said_once() -> None:
    endpoint = scripted(*[[Fail(503)] for _ in range(3)])
    with pytest.raises(ModelUnavailable, match="tried 3 times") as caught:
        await collect(model(endpoint, policy=RetryPolicy(attempts_max=3)))
    assert str(caught.value).count("503") == 1


async def test_what_will_not_pass_is_not_tried_again() -> None:
    endpoint = scripted([Fail(401)], [Say("never")])
    with pytest.raises(KeyRefused):
        await collect(model(endpoint))
    assert len(endpoint.plays) == 1


async def test_falling_back_when_attempts_are_used_up() -> None:
    sleeps = Sleeps()
    first = scripted([Fail(500)], [Fail(500)], name="first")
    second = scripted([Say("here")], name="second")
    chain = model(first, second, sleeps=sleeps, policy=RetryPolicy(attempts_max=2))
    parts = await collect(chain)
    retries = [part for part in parts if isinstance(part, RetryingPart)]
    assert [(r.attempt, r.model, r.delay_s) for r in retries] == [
        (2, "first", 0.5),
        (3, "second", 0.0),
    ]
    assert text_of(parts) == "here"
    assert sleeps.taken == [0.5]
    assert chain.name == "first,second"


async def test_falling_back_at_once_from_what_will_not_pass() -> None:
    first, second = scripted([Fail(401)], name="a"), scripted([Fail(404)], name="b")
    with pytest.raises(ModelError) as caught:
        await collect(model(first, second))
    assert caught.value.status == 404
    assert caught.value.model == "b"
    assert "401" in caught.value.tried[0]


async def test_the_provider_says_when_to_come_back() -> None:
    sleeps = Sleeps()
    endpoint = scripted([Fail(429, retry_after_s=7)], [Say("x")])
    await collect(model(endpoint, sleeps=sleeps))
    assert sleeps.taken == [7.5]
    far = scripted([Fail(429, retry_after_s=3600)], [Say("x")])
    with pytest.raises(RateLimited):
        await collect(model(far))
    assert len(far.plays) == 1


async def test_the_budget_of_time_ends_it() -> None:
    clock = ManualClock()

    async def sleep(seconds: float) -> None:
        clock.advance(seconds)

    endpoint = scripted(*[[Fail(500)]] * 50)
    tried = RetryingModel(
        [endpoint],
        policy=RetryPolicy(attempts_max=50, total_s=30, delay_max_s=8),
        sleep=sleep,
        random=lambda: 1.0,
    )
    with pytest.raises(ModelUnavailable):
        await collect(tried, CancelSource("request", clock=clock).token)
    assert clock.time - 1000 <= 30
    assert len(endpoint.plays) == 7


async def test_usage_counts_what_failed_too() -> None:
    counted = Count(input_tokens=10, output_tokens=5)
    endpoint = scripted([Say("12345678"), Fail()], [counted, Say("x")])
    retried = model(endpoint)
    async with retried.open(HELLO, CancelSource("request").token) as stream:
        parts = [part async for part in stream]
    assert stream.usage.output_tokens == 2 + 5
    assert stream.usage.estimated
    assert [p.usage for p in parts if isinstance(p, UsagePart)] == [stream.usage]


async def test_a_cancel_ends_the_back_off_and_nothing_follows() -> None:
    sleeps = Sleeps()
    sleeps.hold = True
    endpoint = scripted([Fail(500)], [Say("never")])
    source = CancelSource("request")
    seen: list[Part] = []

    async def consume() -> None:
        async with model(endpoint, sleeps=sleeps).open(HELLO, source.token) as stream:
            seen.append(await anext(stream))
            with pytest.raises(Cancelled) as caught:
                await anext(stream)
            assert caught.value.token is source.token
            with pytest.raises(Cancelled):
                await anext(stream)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(consume)
            await sleeps.begun.wait()
            source.cancel(Cause.USER_STOP)
    assert len(endpoint.plays) == 1
    assert [type(part) for part in seen] == [RetryingPart]


class CancelledWhileFailing:
    """An endpoint whose attempt fails because the request was just cancelled."""

    name = "spiteful"
    context_tokens = None
    price = None
    usage = Usage()

    def __init__(self, source: CancelSource, error: ModelError) -> None:
        self._source = source
        self._error = error

    def attempt(self, request: ModelRequest, token: Token) -> CancelledWhileFailing:
        return self

    async def read(self) -> list[Part]:
        self._source.cancel(Cause.USER_STOP)
        raise self._error

    async def aclose(self) -> None:
        pass


@pytest.mark.parametrize("retryable", [True, False])
async def test_a_failure_that_our_cancel_caused_is_no_failure(retryable: bool) -> None:
    source = CancelSource("request")
    first = CancelledWhileFailing(source, ModelError("cut", retryable=retryable))
    second = scripted([Say("never")], name="second")
    chain = RetryingModel([first, second], sleep=Sleeps())
    async with chain.open(HELLO, source.token) as stream:
        with pytest.raises(Cancelled) as caught:
            await anext(stream)
    assert caught.value.token is source.token
    assert second.plays == []


async def test_a_cancel_before_opening_asks_nobody() -> None:
    endpoint = scripted([Say("never")])
    source = CancelSource("request")
    source.cancel(Cause.USER_STOP)
    with pytest.raises(Cancelled):
        await collect(model(endpoint), source.token)
    assert endpoint.plays == []


async def test_a_cancel_stops_what_is_ready_too() -> None:
    source = CancelSource("request")
    async with ScriptedModel([[Say("a"), Say("b")]]).open(HELLO, source.token) as stream:
        assert await anext(stream) == TextPart("a")
        source.cancel(Cause.USER_STOP)
        with pytest.raises(Cancelled):
            await anext(stream)
    assert stream.usage.output_tokens == 1


async def test_a_cancelled_sibling_harms_nobody() -> None:
    turn = CancelSource("turn")
    one, other = turn.token.child("one"), turn.token.child("other")
    held = ScriptedModel([[Wait("gate"), Say("one")], [Wait("gate"), Say("other")]])
    texts: dict[str, str] = {}

    async def ask(name: str, token: Token) -> None:
        try:
            texts[name] = text_of(await collect(held, token))
        except Cancelled as cancelled:
            texts[name] = f"{cancelled.token.name} cancelled"

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(ask, "one", one.token)
            group.start_soon(ask, "other", other.token)
            await held.gate("gate").reached()
            one.cancel(Cause.USER_STOP)
            held.gate("gate").open()
    assert sorted(texts) == ["one", "other"]
    assert texts["one"] == "one cancelled"
    assert texts["other"] in ("one", "other")


async def test_leaving_the_block_ends_the_answer() -> None:
    held = ScriptedModel([[Say("a"), Wait("never")]])
    async with held.open(HELLO, CancelSource("request").token) as stream:
        assert await anext(stream) == TextPart("a")
    assert held.plays[0].outcome == "closed"
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


def test_a_chain_reads_as_much_as_its_weakest() -> None:
    def known(tokens: int | None) -> ScriptedEndpoint:
        return ScriptedEndpoint(Script([[Say("x")]]), "m", tokens)

    assert RetryingModel([known(None), known(9), known(5)]).context_tokens == 5
    assert RetryingModel([known(None)]).context_tokens is None
    with pytest.raises(ValueError, match="at least one"):
        RetryingModel([])
