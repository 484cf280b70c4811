"""The way to the process of the snapshots: in order, through cancels and deaths."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest

from bargein.cancel import CancelSource
from bargein.checkpoints.keeper import Keeper
from bargein.checkpoints.plan import plan_undo
from bargein.checkpoints.repository import Repository
from bargein.checkpoints.restore import STAGE, _fill, _write_journal
from bargein.checkpoints.snapshot import take
from bargein.contracts.checkpoint import CheckpointError, FileFate, Span
from bargein.process import Containment, open_containment
from tests.session.world import WITHIN_S, a_while

pytestmark = pytest.mark.anyio


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    (made / "a").write_text("first")
    return made


@asynccontextmanager
async def keeper_of(root: Path, *, request_s: float = 120.0) -> AsyncIterator[Keeper]:
    async with await open_containment() as containment:

        async def contained() -> Containment:
            return containment

        with CancelSource("test") as source, anyio.fail_after(WITHIN_S):
            kept = root.parent / "kept"
            keeper = Keeper(root, kept, contained, source, request_s=request_s)
            try:
                yield keeper
            finally:
                await keeper.aclose()


async def test_many_requests_at_once_get_their_own_answers(root: Path) -> None:
    async with keeper_of(root) as keeper:
        before = await keeper.save()
        (root / "a").write_text("second")
        after = await keeper.save()
        spans = [Span(before, after)]
        diffs: list[str] = []
        saved: list[str] = []

        async def look() -> None:
            diffs.append(await keeper.diff(spans))

        async def save() -> None:
            saved.append(await keeper.save())

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(look)
                group.start_soon(save)
        assert all("+second" in each for each in diffs)
        assert set(saved) == {after}


async def test_a_cancelled_request_leaves_no_answer_for_the_next(root: Path) -> None:
    async with keeper_of(root) as keeper:
        before = await keeper.save()
        (root / "a").write_text("second")
        after = await keeper.save()
        for wait_s in (0.0, 0.001, 0.005, 0.02):
            with anyio.move_on_after(wait_s):
                await keeper.save()
            assert "+second" in await keeper.diff([Span(before, after)])


async def test_an_undo_that_has_begun_goes_on_to_its_end(root: Path) -> None:
    async with keeper_of(root) as keeper:
        before = await keeper.save()
        (root / "a").write_text("second")
        after = await keeper.save()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await keeper.undo([Span(before, after)])
        assert (root / "a").read_text() == "first"
        assert not [name for name in os.listdir(root) if name.startswith(STAGE)]


async def test_after_its_death_there_is_another(root: Path) -> None:
    async with keeper_of(root) as keeper:
        first = await keeper.save()
        assert keeper._service is not None
        os.kill(keeper._service.pid, signal.SIGKILL)
        with anyio.fail_after(WITHIN_S):
            while keeper._service.exit is None:  # noqa: ASYNC110 - the exit tells nobody else
                await anyio.sleep(0.01)
        assert await keeper.save() == first


async def test_what_still_waits_when_it_is_closed_starts_no_other(root: Path) -> None:
    async with keeper_of(root) as keeper:
        await keeper.save()

        async def save() -> None:
            with suppress(CheckpointError):
                await keeper.save()

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(save)
            await a_while()
            await keeper.aclose()
        assert keeper._service is None
        with pytest.raises(CheckpointError, match="are closed"):
            await keeper.save()


async def test_one_that_takes_too_long_is_ended_and_says_so(root: Path) -> None:
    async with keeper_of(root, request_s=0.0) as keeper:
        with pytest.raises(CheckpointError, match="took more than 0 s"):
            await keeper.save()
        assert keeper._service is None


async def test_it_finishes_the_undo_that_another_began(root: Path) -> None:
    kept = root.parent / "kept"
    with Repository.open(kept, root) as repository:
        before = take(repository)
        (root / "a").write_text("second")
        after = take(repository)
        plan = plan_undo(repository, [(before, after)], after)
        stage = os.fsencode(f"{STAGE}1")
        os.mkdir(root / os.fsdecode(stage))
        _fill(repository, os.fsencode(root) + b"/" + stage, plan)
        _write_journal(repository, stage, plan)
    async with keeper_of(root) as keeper:
        assert await keeper.save() == before.id
    assert (root / "a").read_text() == "first"
    assert os.listdir(root) == ["a"]


async def test_a_workspace_is_the_same_by_any_name(root: Path) -> None:
    (root.parent / "link").symlink_to(root)
    async with keeper_of(root) as keeper:
        first = await keeper.save()
    async with keeper_of(root.parent / "link") as keeper:
        assert keeper.workspace == str(root)
        assert await keeper.save() == first
    assert len(os.listdir(root.parent / "kept")) == 1


async def test_only_what_is_named_is_overruled_and_only_when_asked(root: Path) -> None:
    (root / "b").write_text("first")
    async with keeper_of(root) as keeper:
        before = await keeper.save()
        for name in "ab":
            (root / name).write_text("second")
        spans = [Span(before, await keeper.save())]
        for name in "ab":
            (root / name).write_text("mine")
        preview = await keeper.preview(spans, ["a"])
        assert [(each.path, each.fate) for each in preview.files] == [
            ("b", FileFate.KEPT),
            ("a", FileFate.CHANGED_BACK),
        ]
        assert preview.span is None
        assert (root / "a").read_text() == "mine"
        undone = await keeper.undo(spans, ["a"])
        assert undone.files == preview.files
    assert ((root / "a").read_text(), (root / "b").read_text()) == ("first", "mine")
