"""Search finds what the caller may see, and never a word of anybody else's."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import anyio
import pytest

from bargein.contracts.event import TextCheckpoint
from bargein.contracts.store import Commit, Found, Store, commit_one
from bargein.models.script import Answer, Say, Script
from bargein.server.limits import GatewayLimits
from bargein.stores.memory import MemoryStore
from bargein.stores.sqlite import SqliteStore
from tests.server.stage import Json, Stage, serving
from tests.session.world import until

pytestmark = pytest.mark.anyio

ANSWERS = Script([Answer([Say("The parrot sleeps.")])], repeat=True)


async def said(stage: Stage, token: str, text: str) -> str:
    """A session in which this was said and answered; its id."""
    session = await stage.new_session(token=token)
    sent = await stage.post(f"{session}/messages", {"text": text}, token=token)
    await stage.get(f"{session}/turns/{sent['turn']}?wait=true", token=token)
    return session.rpartition("/")[2]


async def search(stage: Stage, token: str, words: str, **query: object) -> list[Json]:
    more = "".join(f"&{name}={value}" for name, value in query.items())
    found: list[Json] = (await stage.get(f"/v1/search?words={quote(words)}{more}", token=token))[
        "found"
    ]
    return found


async def say_below(store: Store, root: str, text: str) -> str:
    """A sub-agent of a session, in which something was said."""
    head = await store.head(root)
    assert head is not None
    name = f"{root}/t1_1_1.1"
    under = await store.create(name, root=root, at=2e9, epoch=head.epoch)
    assert under is not None
    events = (TextCheckpoint("t1", text),)
    await commit_one(store, Commit(name, root, head.epoch, 0, 2e9, events, b"", text=text))
    return name


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_it_tells_where_the_words_are(tmp_path: Path, kind: str) -> None:
    store = MemoryStore() if kind == "memory" else await SqliteStore.open(tmp_path / "s.sqlite3")
    async with serving(ANSWERS, tmp_path, store=store, start_token=None) as stage:
        alice = await stage.person("alice")
        one = await said(stage, alice, "My Norwegian friend is tired")
        two = await said(stage, alice, "And a second talk")
        await stage.ask("PATCH", f"/v1/sessions/{two}", {"title": "Birds"}, token=alice)
        (hit,) = await search(stage, alice, "norw FRIEND")
        assert (hit["session"], hit["root"]) == (one, one)
        assert hit["excerpt"] == "My Norwegian friend is tired"
        events = await stage.engine.store.events(one, after=hit["seq"] - 1, limit=1)
        assert "Norwegian" in repr(events[0].event)
        answers = await search(stage, alice, "parrot")
        assert (answers[0]["session"], answers[0]["title"]) == (two, "Birds")
        assert {each["session"] for each in answers} == {one, two}
        assert len(await search(stage, alice, "parrot", limit=1)) == 1
        below = await say_below(stage.engine.store, one, "the sub-agent speaks")
        (hit,) = await search(stage, alice, "sub agent")
        assert (hit["session"], hit["root"]) == (below, one)
        assert await search(stage, alice, "nowhere") == []
    await store.aclose()


async def test_nobody_sees_a_word_of_anothers(tmp_path: Path) -> None:
    async with serving(ANSWERS, tmp_path, start_token=None) as stage:
        alice, bob = await stage.person("alice"), await stage.person("bob")
        mine = await said(stage, alice, "a secret of alice")
        other = await said(stage, alice, "another secret of alice")
        below = await say_below(stage.engine.store, other, "a secret below")
        bobs = await said(stage, bob, "a secret of bob")

        async def seen(token: str, **query: object) -> set[str]:
            return {each["session"] for each in await search(stage, token, "secret", **query)}

        assert await seen(alice) == {mine, other, below}
        assert await seen(bob) == {bobs}
        bound = await stage.person("alice", sessions=(mine,))
        assert await seen(bound) == {mine}
        # The newer ones of others do not push it out.
        assert await seen(bound, limit=1) == {mine}
        foreign = await stage.person("bob", sessions=(mine, other))
        assert await seen(foreign) == set()
        child = await stage.person("alice", sessions=(below,))
        assert await seen(child) == set()
        looking = await stage.person("alice", read_only=True)
        assert await seen(looking) == {mine, other, below}
        admin = await stage.person("root", admin=True)
        assert await seen(admin) == {mine, other, below, bobs}
        some = await stage.person("root", admin=True, sessions=(other,))
        assert await seen(some) == {other, below}

        share = {"members": {"bob": "read"}}
        await stage.ask("PATCH", f"/v1/sessions/{other}", share, token=alice)
        assert await seen(bob) == {bobs}
        await stage.post(f"/v1/sessions/{other}/accept", token=bob)
        assert await seen(bob) == {bobs, other, below}
        await stage.ask("PATCH", f"/v1/sessions/{other}", {"members": {}}, token=alice)
        assert await seen(bob) == {bobs}
        await stage.ask("DELETE", f"/v1/sessions/{bobs}", token=bob)
        assert await seen(bob) == set()


class SlowSearch(MemoryStore):
    """A search takes until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.looking = anyio.Event()
        self.let_go = anyio.Event()

    async def search(
        self, words: str, *, limit: int = 50, roots: frozenset[str] | None = None
    ) -> list[Found]:
        found = await super().search(words, limit=limit, roots=roots)
        self.looking.set()
        await self.let_go.wait()
        return found


async def test_a_share_that_ends_during_the_search_shows_nothing_more(tmp_path: Path) -> None:
    store = SlowSearch()
    async with serving(ANSWERS, tmp_path, store=store, start_token=None) as stage:
        alice, bob = await stage.person("alice"), await stage.person("bob")
        session = await said(stage, alice, "a secret")
        share = {"members": {"bob": "read"}}
        await stage.ask("PATCH", f"/v1/sessions/{session}", share, token=alice)
        await stage.post(f"/v1/sessions/{session}/accept", token=bob)
        found: list[list[Json]] = []

        async def look() -> None:
            found.append(await search(stage, bob, "secret"))

        async with anyio.create_task_group() as group:
            group.start_soon(look)
            await store.looking.wait()
            await stage.ask("PATCH", f"/v1/sessions/{session}", {"members": {}}, token=alice)
            store.let_go.set()
        assert found == [[]]


def count_of(stage: Stage, who: str) -> int:
    queue = stage.gateway.heavy_queues.get(who)
    return queue.count if queue is not None else 0


async def test_nobody_fills_the_line_of_searches(tmp_path: Path) -> None:
    store = SlowSearch()
    limits = GatewayLimits(heavy_max=2)
    async with serving(ANSWERS, tmp_path, store=store, limits=limits, start_token=None) as stage:
        alice, bob = await stage.person("alice"), await stage.person("bob")
        found: list[list[Json]] = []

        async def look(token: str) -> None:
            found.append(await search(stage, token, "x"))

        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(look, alice)
            await until(lambda: count_of(stage, "alice") == 2)
            status, answer = await stage.ask("GET", "/v1/search?words=x", token=alice)
            assert (status, answer["code"]) == (429, "too_many")
            group.start_soon(look, bob)
            await until(lambda: count_of(stage, "bob") == 1)
            store.let_go.set()
        assert found == [[], [], []]
        assert await search(stage, alice, "x") == []
        assert not stage.gateway.heavy_queues


@pytest.mark.parametrize("query", ["", "?words=", "?words=%20%20", "?words=" + "x" * 201])
async def test_without_words_it_is_refused(tmp_path: Path, query: str) -> None:
    async with serving([], tmp_path) as stage:
        status, answer = await stage.ask("GET", f"/v1/search{query}")
        assert (status, answer["code"]) == (400, "bad_request")
        assert "?words=" in answer["detail"]
        assert (await stage.ask("GET", "/v1/search?words=x", token="wrong"))[0] == 401
        for odd in ('"', "*", "%00", "%ff", "a%22OR%22b", "'--"):
            assert await stage.get(f"/v1/search?words={odd}") == {"found": []}
