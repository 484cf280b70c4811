"""One principal's limits are its own: size, rate, turns, streams."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bargein.models.script import Say, Step, Wait
from bargein.server.limits import GatewayLimits, Rate
from tests.server.stage import START_TOKEN, serving

pytestmark = pytest.mark.anyio

HOLD: list[Step] = [Say("One "), Wait("hold"), Say("two.")]


async def test_a_body_that_is_too_large_is_refused_with_or_without_a_length(tmp_path: Path) -> None:
    async with serving([], tmp_path, limits=GatewayLimits(body_bytes_max=1000)) as stage:
        session = await stage.new_session()
        body = b'{"text": "' + b"x" * 2000 + b'"}'
        status, answer = await stage.ask("POST", f"{session}/messages", body)
        assert (status, answer["code"]) == (413, "too_large")
        assert "1000" in answer["detail"]

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield b"x" * 100

        headers = {"authorization": f"Bearer {START_TOKEN}", "content-type": "application/json"}
        async with stage.http.post(
            stage.url + f"{session}/messages", data=pieces(), headers=headers
        ) as response:
            assert response.status == 413


async def test_too_many_requests_of_one_are_refused_and_not_felt_by_another(
    tmp_path: Path,
) -> None:
    limits = GatewayLimits(requests_per_s=0.01, requests_burst=5)
    async with serving([], tmp_path, limits=limits, start_token=None) as stage:
        alice, bob = await stage.person("alice"), await stage.person("bob")
        told = [(await stage.ask("GET", "/v1/me", token=alice))[0] for _ in range(8)]
        assert told == [200] * 5 + [429] * 3
        async with stage.http.get(
            f"{stage.url}/v1/me", headers={"authorization": f"Bearer {alice}"}
        ) as response:
            assert 10 <= int(response.headers["retry-after"]) <= 100
        assert (await stage.ask("GET", "/v1/me", token=bob))[0] == 200


async def test_turns_at_once_are_bounded_for_each(tmp_path: Path) -> None:
    limits = GatewayLimits(turns_max=2)
    async with serving([HOLD] * 4, tmp_path, limits=limits, start_token=None) as stage:
        alice, bob = await stage.person("alice"), await stage.person("bob")
        sessions = [await stage.new_session(token=alice) for _ in range(4)]
        for session in sessions[:2]:
            await stage.post(f"{session}/messages", {"text": "x"}, token=alice)
        status, answer = await stage.ask(
            "POST", f"{sessions[2]}/messages", {"text": "x"}, token=alice
        )
        assert (status, answer["code"]) == (429, "too_many")
        # One that joins a turn starts none.
        await stage.post(f"{sessions[0]}/messages", {"text": "y", "mode": "queue"}, token=alice)
        other = await stage.new_session(token=bob)
        await stage.post(f"{other}/messages", {"text": "x"}, token=bob)
        await stage.post(f"{sessions[1]}/interrupt", token=alice)
        await stage.post(f"{sessions[2]}/messages", {"text": "x"}, token=alice)


async def test_streams_and_sessions_are_bounded_for_each(tmp_path: Path) -> None:
    limits = GatewayLimits(streams_max=1, sessions_max=1)
    async with serving([], tmp_path, limits=limits) as stage:
        session = await stage.new_session()
        async with stage.events(f"{session}/events"):
            status, answer = await stage.ask("GET", f"{session}/events")
            assert (status, answer["code"]) == (429, "too_many")
        status, answer = await stage.ask("POST", "/v1/sessions", {})
        assert (status, answer["code"]) == (429, "too_many")


def test_a_bucket_fills_again_with_time() -> None:
    now = 0.0
    rate = Rate(2.0, 3, lambda: now)
    assert [rate.take("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    now = 0.5
    assert (rate.take("a"), rate.take("a")) == (0.0, 0.5)
    assert rate.take("b") == 0.0
    now = 100.0
    assert [rate.take("a") for _ in range(4)][-1] > 0
