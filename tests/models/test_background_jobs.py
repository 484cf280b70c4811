"""An answer that the provider makes as a job of its own: it ends there too, however we end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from bargein.cancel import Cancelled, CancelSource, Cause
from bargein.models.dialects.responses import ResponsesDialect
from bargein.models.errors import ModelError, Secret
from bargein.models.http_endpoint import HttpEndpoint
from bargein.models.naming import resolve_model
from bargein.models.settings import ModelSettings
from bargein.testing.fault_server import FaultServer
from bargein.testing.fault_steps import Body, Drop, Hang, Head, Step
from bargein.testing.fault_zoo import whole
from tests.models.harness import HELLO, KEY, collect, endpoint, one_try, text_of

pytestmark = pytest.mark.anyio

CREATED = {"type": "response.created", "response": {"id": "resp_1/x", "status": "queued"}}
DELTA = {"type": "response.output_text.delta", "output_index": 0, "delta": "Hello"}
CANCELLED = (Head(headers={"Content-Type": "application/json"}), Body(b"{}"))


def begun(*then: Step) -> Sequence[Step]:
    events = b"".join(b"data: " + msgspec.json.encode(each) + b"\n\n" for each in (CREATED, DELTA))
    return (Head(), Body(events), *then)


def in_background(url: str) -> HttpEndpoint:
    return replace(endpoint(url, "openai-responses"), dialect=ResponsesDialect(background=True))


async def test_a_stop_cancels_the_job_at_the_provider() -> None:
    async with FaultServer([begun(Hang()), CANCELLED]) as server:
        source = CancelSource("request")
        model = one_try(in_background(server.url))
        async with model.open(HELLO, source.token) as stream:
            assert text_of([await anext(aiter(stream))]) == "Hello"
            source.cancel(Cause.USER_STOP)
            with pytest.raises(Cancelled):
                await anext(aiter(stream))
        asked, cancelled = server.requests
        body = msgspec.json.decode(asked.body)
        assert (body["background"], body["store"], body["stream"]) == (True, True, True)
        assert (cancelled.method, cancelled.path) == ("POST", "/v1/responses/resp_1%2Fx/cancel")
        assert cancelled.headers["authorization"] == f"Bearer {KEY}"


async def test_an_attempt_that_broke_leaves_no_job_behind() -> None:
    """Another attempt would make a second job, and both would be billed."""
    async with FaultServer([begun(Drop()), CANCELLED]) as server:
        with pytest.raises(ModelError):
            await collect(one_try(in_background(server.url)))
        assert [each.path.rpartition("/")[2] for each in server.requests] == ["responses", "cancel"]


async def test_a_job_that_has_ended_is_not_cancelled() -> None:
    async with FaultServer([whole("openai-responses")]) as server:
        await collect(one_try(in_background(server.url)))
        assert len(server.requests) == 1


async def test_a_provider_that_does_not_cancel_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bargein.models.http_attempt.CANCEL_JOB_S", 0.2)
    async with FaultServer([begun(Hang()), (Hang(),)]) as server:
        source = CancelSource("request")
        task = asyncio.create_task(collect(one_try(in_background(server.url)), source.token))
        await (await server.visit(0)).requested.wait_async()
        source.cancel(Cause.USER_STOP)
        with pytest.raises(Cancelled):
            await asyncio.wait_for(task, 20)


def test_it_is_a_name_of_a_model() -> None:
    model = resolve_model("openai-background:gpt-5", ModelSettings(openai_key=Secret(KEY)))
    assert model.name == "openai-background:gpt-5"
