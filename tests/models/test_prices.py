"""Costs of requests are known exactly or not at all."""

from __future__ import annotations

import pytest

from bargein.cancel import CancelSource
from bargein.contracts.model import ModelRequest, Text, Usage, UserMessage
from bargein.errors import UserError
from bargein.models.costs import FREE, Price, price_of
from bargein.models.errors import Secret
from bargein.models.http_endpoint import HttpEndpoint
from bargein.models.naming import resolve_model
from bargein.models.retry import RetryPolicy
from bargein.models.retrying import RetryingModel
from bargein.models.script import Answer, Count, Fail, Say, Script
from bargein.models.scripted import ScriptedEndpoint, ScriptedModel
from bargein.models.settings import ModelSettings, settings_from_environment

REQUEST = ModelRequest((UserMessage((Text("hello"),)),))
DEAR = Price(2.0, 8.0, 0.5)


def priced(name: str, **settings: object) -> Price | None:
    keys = ModelSettings(openai_key=Secret("k"), anthropic_key=Secret("k"), **settings)  # type: ignore[arg-type]
    endpoint = resolve_model(name, keys).endpoints[0]
    assert isinstance(endpoint, HttpEndpoint)
    return endpoint.price


def test_cached_input_has_its_own_price() -> None:
    usage = Usage(1_000_000, 500_000, 400_000)
    assert DEAR.of(usage) == pytest.approx(0.6 * 2.0 + 0.4 * 0.5 + 0.5 * 8.0)
    assert Price(2.0, 8.0).of(usage) == pytest.approx(2.0 + 4.0)


def test_a_price_is_of_the_exact_name_with_or_without_a_date() -> None:
    assert price_of("gpt-5-mini") == price_of("gpt-5-mini-2025-08-07") is not None
    assert price_of("claude-sonnet-4-5-20250929") == price_of("claude-sonnet-4-5") is not None
    assert price_of("gpt-5-something-new") is None
    assert price_of("gpt-5.9") is None


def test_a_price_is_known_at_the_providers_own_address_alone() -> None:
    assert priced("openai:gpt-5") == Price(1.25, 10.0, 0.125)
    assert priced("openai:gpt-5@http://127.0.0.1:9/v1") is None
    assert priced("openai:unheard-of") is None
    assert priced("openai:unheard-of", price=DEAR) == DEAR


def test_a_price_can_be_set() -> None:
    assert settings_from_environment({"BARGEIN_PRICE": "2, 8, 0.5"}).price == DEAR
    assert settings_from_environment({"BARGEIN_PRICE": "0,0"}).price == FREE
    for wrong in ("2", "a,b", "1,-1", "1,nan", "1,2,3,4", "inf,1"):
        with pytest.raises(UserError, match="BARGEIN_PRICE"):
            settings_from_environment({"BARGEIN_PRICE": wrong})


async def used(model: RetryingModel) -> Usage:
    with CancelSource("request") as source:
        async with model.open(REQUEST, source.token) as stream:
            async for _ in stream:
                pass
            return stream.usage


@pytest.mark.anyio
async def test_a_request_tells_what_it_cost() -> None:
    answer = Answer([Say("hi"), Count(1000, 100, 400)])
    usage = await used(ScriptedModel([answer], price=DEAR))
    assert usage.cost == pytest.approx(DEAR.of(Usage(1000, 100, 400)))
    assert (await used(ScriptedModel([answer]))).cost is None


@pytest.mark.anyio
async def test_each_try_is_charged_at_its_own_models_price() -> None:
    first = ScriptedEndpoint(Script([[Say("half of it"), Fail(status=400)]]), "a", price=DEAR)
    second = ScriptedEndpoint(Script([[Say("hi"), Count(10, 10)]]), "b", price=Price(1, 1))
    usage = await used(RetryingModel([first, second], policy=RetryPolicy(attempts_max=1)))
    failed = Usage(usage.input_tokens - 10, usage.output_tokens - 10)
    assert failed.input_tokens > 0
    assert usage.cost == pytest.approx(DEAR.of(failed) + 20 / 1e6)


@pytest.mark.anyio
async def test_one_try_of_unknown_price_makes_the_sum_unknown() -> None:
    first = ScriptedEndpoint(Script([[Say("half of it"), Fail(status=400)]]), "a")
    second = ScriptedEndpoint(Script([[Say("hi"), Count(10, 10)]]), "b", price=DEAR)
    model = RetryingModel([first, second])
    assert model.unpriced == ("a",)
    assert (await used(model)).cost is None


@pytest.mark.anyio
async def test_a_try_that_reached_nobody_has_cost_nothing() -> None:
    first = ScriptedEndpoint(Script([[Fail(fault="unreachable")]]), "a")
    second = ScriptedEndpoint(Script([[Say("hi"), Count(10, 10)]]), "b", price=DEAR)
    model = RetryingModel([first, second], policy=RetryPolicy(attempts_max=1))
    assert (await used(model)).cost == pytest.approx(DEAR.of(Usage(10, 10)))
