from collections.abc import Iterator
from pathlib import Path

import pytest

from bargein.channels.contract import ChatAddress, Person, Update
from bargein.channels.rows import (
    ChannelHealth,
    Heard,
    KnownChat,
    Ledger,
    MemoryRows,
    Piece,
    Row,
    Rows,
)
from bargein.channels.rows_sqlite import SqliteRows

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "sqlite"])
def rows(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rows]:
    if request.param == "memory":
        yield MemoryRows()
        return
    opened = SqliteRows.of_home(tmp_path)
    yield opened
    opened.close()


async def test_rows_are_found_by_kind_and_by_the_beginning_of_their_key(rows: Rows) -> None:
    await rows.put([Row("a", "x1", b"1"), Row("a", "x2", b"2"), Row("a", "y", b"3")])
    await rows.put([Row("b", "x1", b"4"), Row("a", "x1", b"5"), Row("a", "y", None)])
    assert await rows.get("a", "x1") == b"5"
    assert await rows.get("a", "y") is None
    assert await rows.scan("a", "x") == [("x1", b"5"), ("x2", b"2")]
    assert await rows.scan("b") == [("x1", b"4")]


async def test_old_rows_of_a_kind_are_forgotten(rows: Rows) -> None:
    await rows.put([Row("heard", "x", b"1"), Row("chat", "x", b"2")])
    await rows.forget("heard", 0.0)
    assert await rows.get("heard", "x") == b"1"
    await rows.forget("heard", 1e12)
    assert await rows.get("heard", "x") is None
    assert await rows.get("chat", "x") == b"2"


async def test_the_rows_of_one_channel_are_not_those_of_another(rows: Rows) -> None:
    one, other = Ledger(rows, "one"), Ledger(rows, "one1")
    chat = ChatAddress("c")
    await one.hear(chat, "k", Heard("s", "m1", "hello"))
    await one.keep_chat(KnownChat(chat, open=True))
    await one.keep_piece("s", Piece("t1.0.0", "t1", "text"))
    assert await one.heard(chat, "k") == Heard("s", "m1", "hello")
    assert await other.heard(chat, "k") is None
    assert not await other.open_chats()
    assert not await other.pieces("s")
    await one.settle(KnownChat(chat, seq=7), "s", ["t1.0.0"])
    assert not await one.pieces("s")
    assert (await one.chat(chat)).seq == 7
    assert not await one.open_chats()


async def test_what_was_written_is_there_after_a_restart(tmp_path: Path) -> None:
    first = SqliteRows.of_home(tmp_path)
    await first.put([Row("a", "x", b"1")])
    first.close()
    again = SqliteRows.of_home(tmp_path)
    assert await again.get("a", "x") == b"1"
    again.close()


async def test_a_channel_that_is_removed_leaves_nothing(rows: Rows) -> None:
    one, other = Ledger(rows, "one"), Ledger(rows, "one1")
    chat = ChatAddress("c")
    for ledger in (one, other):
        await ledger.hear(chat, "k", Heard("s", "m1", "hello"))
        await ledger.keep_chat(KnownChat(chat, open=True))
        update = Update("k", chat, Person("1"), text="Hi")
        await ledger.note([("2", update), ("1", update)], [], cursor="7")
        await ledger.keep_health(ChannelHealth(True))
    assert [number for number, _ in await one.noted()] == ["1", "2"]
    await one.note([], ["1"])
    assert [number for number, _ in await one.noted()] == ["2"]
    await one.forget_all()
    assert not await one.noted()
    assert not await one.cursor()
    assert await one.heard(chat, "k") is None
    assert not (await one.health()).running
    assert await other.cursor() == "7"
    assert len(await other.noted()) == 2
