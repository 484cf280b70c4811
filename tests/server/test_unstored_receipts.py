"""A stop that the store could not write: each surface shows that its receipt is not stored."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.sync_api import expect

from bargein.contracts.store import Commit, SessionHead, StoreFailed
from bargein.models.script import Say, Step, Wait
from tests.server.page_house import House
from tests.server.page_visit import Visit
from tests.server.stage import Json, Stage, serving
from tests.server.test_socket import talking
from tests.session.world import HeldStore

HOLD: list[Step] = [Say("One "), Wait("hold"), Say("two.")]
WORDS = "not stored: the disk did not take it"


class SmallDisk(HeldStore):
    """Full while `full` is set: no write of any kind, reading goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.before_commit = self._refuse

    async def _refuse(self, operation: str, session: str) -> None:
        if self.full:
            raise StoreFailed("the disk is full, as the test says", retryable=True)


@asynccontextmanager
async def running(home: Path) -> AsyncIterator[tuple[Stage, SmallDisk, str]]:
    """A session whose turn runs."""
    store = SmallDisk()
    async with serving([HOLD], home, store=store) as stage:
        session = await stage.new_session()
        await stage.post(f"{session}/messages", {"text": "count"})
        await stage.model.gate("hold").reached()
        yield stage, store, session
        store.full = False


def is_unstored(receipt: Json) -> bool:
    return (receipt["status"], receipt.get("stored")) == ("stopped", False)


@pytest.mark.anyio
async def test_the_api_answers_a_stop_with_a_receipt_that_is_not_stored(tmp_path: Path) -> None:
    async with running(tmp_path) as (stage, store, session):
        store.full = True
        assert is_unstored(await stage.post(f"{session}/interrupt", {}))


@pytest.mark.anyio
async def test_typed_words_that_stop_are_answered_so_too(tmp_path: Path) -> None:
    async with running(tmp_path) as (stage, store, session):
        store.full = True
        answer = await stage.post(f"{session}/messages", {"text": "stop"})
        assert is_unstored(answer["receipt"])
        assert answer["reply"].startswith("stopped in ")
        assert WORDS in answer["reply"]


@pytest.mark.anyio
async def test_a_socket_answers_a_stop_with_a_receipt_that_is_not_stored(tmp_path: Path) -> None:
    async with (
        running(tmp_path) as (stage, store, session),
        talking(stage, session, after=0) as talker,
    ):
        store.full = True
        await talker.say("1", "interrupt", {})
        reply = await talker.reply("1")
        assert reply["status"] == 200
        assert is_unstored(reply["body"])


@pytest.fixture
def full_disk(house: House, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Append to it, and the store of the house takes nothing any more; until the test ends."""
    full: list[bool] = []
    store = house.engine.store
    commit, claim = store.commit, store.claim

    def check() -> None:
        if full:
            raise StoreFailed("the disk is full, as the test says", retryable=True)

    async def commit_if_there_is_room(commits: Sequence[Commit]) -> list[Exception | None]:
        check()
        return await commit(commits)

    async def claim_if_there_is_room(session: str) -> SessionHead | None:
        check()
        return await claim(session)

    monkeypatch.setattr(store, "commit", commit_if_there_is_room)
    monkeypatch.setattr(store, "claim", claim_if_there_is_room)
    yield full
    full.clear()


@pytest.mark.parametrize("how", ["key", "words"])
def test_the_page_says_so(house: House, visit: Visit, full_disk: list[bool], how: str) -> None:
    house.script([Say("On and on"), Wait(how), Say(" to the end.")])
    visit.say("Talk")
    expect(visit.answers).to_have_text(["On and on"])
    full_disk.append(True)
    if how == "key":
        visit.page.keyboard.press("Escape")
    else:
        visit.say("stop")
    # What is typed has an answer of its own, beside the receipt of the turn.
    expect(visit.page.locator(".toast").filter(has_text=WORDS).first).to_be_visible()
