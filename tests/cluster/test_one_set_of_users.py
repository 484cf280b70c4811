"""What the nodes of a cluster share beside sessions: tokens, owners, answers, limits."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from bargein.server.access import revoke_token
from bargein.server.limits import GatewayLimits
from tests.cluster.nodes import nodes
from tests.server.stage import WITHIN_S, Stage, type_of
from tests.stores.postgres_kinds import database

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


async def until_known(stage: Stage, token: str) -> None:
    """A new token is known at every node within moments."""
    with anyio.fail_after(WITHIN_S):
        while (await stage.ask("GET", "/v1/me", token=token))[0] == 401:
            pass


async def test_a_token_and_its_sessions_are_for_every_node(tmp_path: Path) -> None:
    async with database() as address, nodes(address, tmp_path, [[], []]) as (one, two):
        alice, bob = await one.person("alice"), await two.person("bob")
        await until_known(two, alice)
        await until_known(one, bob)
        session = await one.new_session(token=alice)
        # At once: nobody waits for a bell.
        assert session.endswith((await two.get("/v1/sessions", token=alice))["sessions"][0]["id"])
        assert (await two.ask("GET", session, token=bob))[0] == 404
        status, answer = await one.ask("PATCH", session, {"members": {"bob": "read"}}, token=alice)
        assert status == 200, answer
        (invited,) = (await two.get("/v1/invitations", token=bob))["sessions"]
        assert session.endswith(invited["id"])
        status, answer = await two.ask("POST", f"{session}/accept", {}, token=bob)
        assert status == 200, answer
        assert (await one.get("/v1/invitations", token=bob))["sessions"] == []
        assert len((await one.get("/v1/sessions", token=bob))["sessions"]) == 1
        status, answer = await two.ask("DELETE", session, token=alice)
        assert status == 204, answer
        for who in (alice, bob):
            assert (await one.get("/v1/sessions", token=who))["sessions"] == []


async def test_a_revoked_token_is_refused_at_every_node(tmp_path: Path) -> None:
    async with database() as address, nodes(address, tmp_path, [[], []]) as (one, two):
        alice = await one.person("alice")
        await until_known(two, alice)
        session = await two.new_session(token=alice)
        async with two.events(f"{session}/events", token=alice) as events:
            assert await revoke_token(one.gateway.db, alice.split("_")[1])
            last = (await events.rest())[-1]
            assert (type_of(last), last["reason"]) == ("cut_off", "revoked")
        assert (await two.ask("GET", "/v1/me", token=alice))[0] == 401


async def test_a_key_makes_one_session_whichever_node_is_asked(tmp_path: Path) -> None:
    async with database() as address, nodes(address, tmp_path, [[], []]) as (one, two):
        alice = await one.person("alice")
        await until_known(two, alice)
        found = set()

        async def make(stage: Stage) -> None:
            key = {"idempotency-key": "once"}
            found.add(await stage.new_session(token=alice, headers=key))

        async with anyio.create_task_group() as group:
            for stage in (one, two, one, two):
                group.start_soon(make, stage)
        assert len(found) == 1


async def test_limits_are_counted_over_all_nodes(tmp_path: Path) -> None:
    limits = GatewayLimits(requests_per_s=0.2, requests_burst=40, streams_max=3)
    async with (
        database() as address,
        nodes(address, tmp_path, [[], []], limits=limits) as (one, two),
    ):
        alice = await one.person("alice")
        await until_known(two, alice)
        session = await one.new_session(token=alice)
        async with (
            one.events(f"{session}/events", token=alice),
            one.events(f"{session}/events", token=alice),
        ):
            with anyio.fail_after(WITHIN_S):
                while two.gateway.uses.streams_elsewhere("alice") < 2:
                    await two.ask("GET", "/v1/openapi.json")
        with anyio.fail_after(WITHIN_S):
            while (await one.ask("GET", "/v1/me", token=alice))[0] == 200:
                pass
            # What was used up at one node is used up at the other.
            while two.gateway.rate._buckets["alice"][0] >= 1:
                await two.ask("GET", "/v1/openapi.json")
        assert (await two.ask("GET", "/v1/me", token=alice))[0] == 429
