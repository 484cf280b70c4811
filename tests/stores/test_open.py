"""`stores.open`, `look` and `directory_of`: a store by its address."""

# ruff: noqa: ASYNC240  (that a test looks at files holds nobody up)

from __future__ import annotations

from pathlib import Path

import pytest

from bargein import Agent, Engine, stores
from bargein.contracts.store import commit_one
from bargein.errors import UserError
from bargein.models.script import Say
from bargein.models.scripted import ScriptedModel
from bargein.runtime.directory_lock import DirectoryInUse
from bargein.stores.memory import MemoryStore
from bargein.stores.sqlite import SqliteStore
from bargein.stores.sqlite.read_only import ReadOnlyStore
from bargein.testing.store_conformance.scene import made, said, step
from tests.session.world import CONFIG

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("address", "file"),
    [
        ("sqlite:///{here}/s.db", None),
        ("sqlite:///{here}/with%20space.db", "with space.db"),
        ("{here}/plain.db", "plain.db"),
        ("{here}/per%20cent.db", "per%20cent.db"),
        ("./here:is.db", "here:is.db"),
        ("relative.db", "relative.db"),
        ("sqlite:///relative.db", "relative.db"),
    ],
)
async def test_a_file_is_opened_where_its_address_says(
    address: str, file: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # An absolute path begins with a slash of its own, so there are four.
    store = await stores.open(address.format(here=tmp_path), owner="me")
    assert isinstance(store, SqliteStore)
    assert (await made(store, "s")).owner == "me"
    await store.aclose()
    assert [path.name for path in tmp_path.iterdir()] == [file or "s.db"]
    assert stores.directory_of(address.format(here=tmp_path)) == tmp_path


async def test_a_path_is_opened_whatever_it_looks_like(tmp_path: Path) -> None:
    store = await stores.open(tmp_path / "memory:")
    assert isinstance(store, SqliteStore)
    await store.aclose()


@pytest.mark.parametrize("address", ["memory", "memory:"])
async def test_memory_keeps_nothing_and_needs_no_directory(address: str) -> None:
    store = await stores.open(address, owner="me")
    assert isinstance(store, MemoryStore)
    assert store.owner == "me"
    assert stores.directory_of(address) is None
    with pytest.raises(UserError, match="keeps nothing"):
        await stores.look(address)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("mysql://me:secret@host/db", r"mysql://me:\*\*\*@host/db: there is no store mysql"),
        ("postgresql://me:secret@host", r"postgresql://me:\*\*\*@host names no database"),
        ("postgres://me:secret@host/?sslmode=require", "names no database"),
        ("postgresql://me:secret@h/db?direct=a/b", r"me:\*\*\*@h/db\?direct=a/b: direct must be"),
        ("sqlite:", "sqlite: names no file"),
        ("sqlite://host", "sqlite://host names no file"),
        ("sqlite:///", "sqlite:/// names no file"),
        ("sqlite:///directory/", "sqlite:///directory/ names no file"),
        ("", "address is empty"),
    ],
)
async def test_an_address_that_cannot_be_opened_is_named(address: str, said: str) -> None:
    for function in (stores.open, stores.look):
        with pytest.raises(UserError, match=said) as caught:
            await function(address)
        assert "secret" not in str(caught.value)
    with pytest.raises(UserError, match=said):
        stores.directory_of(address)


async def test_a_store_is_looked_at_beside_its_owner_and_where_nothing_may_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.db"
    store = await stores.open(path)
    await commit_one(store, step(await made(store, "s"), said(1), text="hello"))
    for may_be_written in (True, False):
        monkeypatch.setattr(
            "bargein.stores.sqlite.read_only.may_be_written",
            lambda path, answer=may_be_written: answer,
        )
        looking = await stores.look(path)
        assert isinstance(looking, SqliteStore if may_be_written else ReadOnlyStore)
        assert [head.id for head in await looking.sessions(limit=9)] == ["s"]
        assert [found.session for found in await looking.search("hello")] == ["s"]
        assert len(await looking.events("s")) == 1
        await looking.aclose()
    await store.aclose()


async def test_an_engine_keeps_its_sessions_where_its_address_says(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/s.db"

    def engine() -> Engine:
        model = ScriptedModel([[Say("hello")]])
        return Engine(Agent(model=model), store=address, config=CONFIG)

    async with engine() as first:
        session = await first.session("alice")
        assert (await (await session.send("hi")).result()).text == "hello"
        # One process owns the directory, and one engine of it.
        with pytest.raises(DirectoryInUse):
            await engine().__aenter__()
    looking = await stores.look(address)
    assert [head.id for head in await looking.sessions(limit=9)] == ["alice"]
    await looking.aclose()


@pytest.mark.parametrize("address", ["memory", "memory:"])
async def test_an_engine_in_memory_leaves_no_file(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = ScriptedModel([[Say("hello")]])
    async with Engine(Agent(model=model), store=address, config=CONFIG) as engine:
        session = await engine.session("alice")
        assert (await (await session.send("hi")).result()).text == "hello"
    assert list(tmp_path.iterdir()) == []


async def test_an_engine_says_which_address_it_cannot_open() -> None:
    with pytest.raises(UserError, match="postgresql://host names no database"):
        await Engine(Agent(), store="postgresql://host", config=CONFIG).__aenter__()
    with pytest.raises(TypeError, match="sqlite:///path"):
        Engine(Agent(), store=7)  # type: ignore[arg-type]
