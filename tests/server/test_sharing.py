"""Sharing a session is an invitation: it joins a member's list only when accepted."""

from pathlib import Path

import pytest

from bargein.models.script import Say
from bargein.server.limits import GatewayLimits
from bargein.stores.sqlite import SqliteStore
from tests.server.stage import Stage, serving

pytestmark = pytest.mark.anyio


async def listed(stage: Stage, token: str, path: str = "/v1/sessions") -> list[str]:
    found = (await stage.get(path, token=token))["sessions"]
    return [f"/v1/sessions/{each['id']}" for each in found]


async def share(stage: Stage, session: str, token: str, *people: str) -> int:
    members = dict.fromkeys(people, "write")
    return (await stage.ask("PATCH", session, {"members": members}, token=token))[0]


async def test_a_shared_session_is_listed_once_it_is_accepted(tmp_path: Path) -> None:
    async with serving([], tmp_path, start_token=None) as stage:
        alice, bob = await stage.person("alice"), await stage.person("bob")
        session = await stage.new_session(token=alice)
        mine = await stage.new_session(token=bob)
        assert await share(stage, session, alice, "bob") == 200
        assert await listed(stage, bob) == [mine]
        assert await listed(stage, bob, "/v1/invitations") == [session]
        found = await stage.get(session, token=bob)
        assert found["session"]["access"] == "write"
        await stage.post(f"{session}/accept", token=bob)
        assert await listed(stage, bob, "/v1/invitations") == []
        assert set(await listed(stage, bob)) == {session, mine}


async def test_a_reader_may_accept_and_hide_with_a_key(tmp_path: Path) -> None:
    """A request that another node sends on has always a key."""
    async with serving([], tmp_path, start_token=None) as stage:
        alice, bob = await stage.person("alice"), await stage.person("bob")
        session = await stage.new_session(token=alice)
        await stage.ask("PATCH", session, {"members": {"bob": "read"}}, token=alice)
        for act, seen in (("accept", [session]), ("hide", [])):
            for _ in range(2):
                key = {"idempotency-key": act}
                await stage.post(f"{session}/{act}", token=bob, headers=key)
                assert await listed(stage, bob) == seen


async def test_what_was_hidden_stays_hidden_and_can_be_opened(tmp_path: Path) -> None:
    async with serving([], tmp_path, start_token=None) as stage:
        alice, bob = await stage.person("alice"), await stage.person("bob")
        session = await stage.new_session(token=alice)
        await share(stage, session, alice, "bob")
        await stage.post(f"{session}/hide", token=bob)
        for people in ((), ("bob",)):
            await share(stage, session, alice, *people)
            assert await listed(stage, bob) == []
            assert await listed(stage, bob, "/v1/invitations") == []
        assert (await stage.ask("GET", session, token=bob))[0] == 200
        await stage.post(f"{session}/accept", token=bob)
        assert await listed(stage, bob) == [session]
        await share(stage, session, alice)
        assert await listed(stage, bob) == []
        assert (await stage.ask("POST", f"{session}/accept", {}, token=bob))[0] == 404
        await share(stage, session, alice, "bob")
        assert await listed(stage, bob, "/v1/invitations") == [session]
        assert (await stage.ask("POST", f"{session}/accept", {}, token=alice))[0] == 400


async def test_nobody_puts_words_into_the_searches_of_others(tmp_path: Path) -> None:
    async with serving([[Say("found")]] * 2, tmp_path, start_token=None) as stage:
        alice, bob = await stage.person("alice"), await stage.person("bob")
        session = await stage.new_session(token=alice)
        turn = (await stage.post(f"{session}/messages", {"text": "needle"}, token=alice))["turn"]
        await stage.get(f"{session}/turns/{turn}?wait=true", token=alice)
        await share(stage, session, alice, "bob")
        assert (await stage.get("/v1/search?words=needle", token=bob))["found"] == []
        await stage.post(f"{session}/accept", token=bob)
        assert len((await stage.get("/v1/search?words=needle", token=bob))["found"]) == 1


async def test_invitations_count_against_the_one_who_shares(tmp_path: Path) -> None:
    limits = GatewayLimits(invitations_max=3)
    async with serving([], tmp_path, limits=limits, start_token=None) as stage:
        alice, bob = await stage.person("alice"), await stage.person("bob")
        one, other = [await stage.new_session(token=alice) for _ in range(2)]
        assert await share(stage, one, alice, "bob", "carol") == 200
        assert await share(stage, other, alice, "bob", "carol") == 429
        assert await share(stage, other, alice, "bob") == 200
        await stage.post(f"{one}/accept", token=bob)
        assert await share(stage, other, alice, "bob", "carol") == 200
        assert await share(stage, other, alice, "bob", "carol", "dave") == 429
        assert await share(stage, other, alice) == 200


async def test_consents_outlive_a_restart_and_go_with_the_session(tmp_path: Path) -> None:
    session = alice = bob = ""
    for life in range(2):
        store = await SqliteStore.open(tmp_path / "sessions.sqlite3")
        try:
            async with serving([], tmp_path, store=store, start_token=None) as stage:
                if not life:
                    alice, bob = await stage.person("alice"), await stage.person("bob")
                    session = await stage.new_session(token=alice)
                    await share(stage, session, alice, "bob")
                    await stage.post(f"{session}/accept", token=bob)
                assert await listed(stage, bob) == [session]
                if life:
                    assert (await stage.ask("DELETE", session, token=alice))[0] == 204
                    kept = await stage.db.run(
                        lambda c: c.execute("SELECT count(*) FROM consents").fetchone()
                    )
                    assert kept == (0,)
        finally:
            await store.aclose()
