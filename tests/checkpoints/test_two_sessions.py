"""Two sessions at work in one folder: what only one of them can have done is its own."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from bargein import Agent, Engine
from bargein.checkpoints.plan import WhyKept, plan_undo
from bargein.checkpoints.repository import Repository
from bargein.checkpoints.restore import restore
from bargein.checkpoints.snapshot import take
from bargein.checkpoints.timeline import Stint, Timeline
from bargein.contracts.checkpoint import Span
from bargein.contracts.event import CallStarted, FilesChanged
from bargein.models.script import Answer, Call, Say
from bargein.models.scripted import ScriptedModel
from tests.session.world import WITHIN_S, until, wait_for

pytestmark = pytest.mark.anyio


# --- who was at work when


def test_what_changes_while_one_works_is_its_own() -> None:
    timeline, work = Timeline(), Stint()
    timeline.begins(work, "1")
    assert timeline.ends(work, "2") == (Span("1", "2"),)
    timeline.begins(work := Stint(), "2")
    assert timeline.ends(work, "2") == ()


def test_while_two_work_it_is_shared_and_before_and_after_it_is_not() -> None:
    timeline, first, second = Timeline(), Stint(), Stint()
    timeline.begins(first, "1")
    timeline.begins(second, "2")
    assert timeline.ends(first, "3") == (Span("1", "2"), Span("2", "3", shared=True))
    assert timeline.ends(second, "4") == (Span("2", "3", shared=True), Span("3", "4"))


def test_one_that_works_within_the_time_of_another() -> None:
    timeline, long, short = Timeline(), Stint(), Stint()
    timeline.begins(long, "1")
    timeline.begins(short, "2")
    assert timeline.ends(short, "3") == (Span("2", "3", shared=True),)
    assert timeline.ends(long, "4") == (
        Span("1", "2"),
        Span("2", "3", shared=True),
        Span("3", "4"),
    )


def test_one_without_a_snapshot_makes_what_the_others_do_doubtful() -> None:
    timeline, first, blind = Timeline(), Stint(), Stint()
    timeline.begins(first, "1")
    timeline.begins(blind, None)
    assert timeline.ends(blind, None) == ()
    assert timeline.ends(first, "2") == (Span("1", "2", shared=True),)


def test_one_whose_last_snapshot_fails_leaves_doubt_until_the_next() -> None:
    timeline, first, second = Timeline(), Stint(), Stint()
    timeline.begins(first, "1")
    timeline.begins(second, "2")
    assert timeline.ends(second, None) == ()
    assert timeline.ends(first, "3") == (Span("1", "2"), Span("2", "3", shared=True))


# --- what an undo makes of it


def test_what_others_may_have_done_is_kept_and_named_unless_overruled(tmp_path: Path) -> None:
    root = tmp_path / "work"
    root.mkdir()
    for name in ("own", "both", "same"):
        (root / name).write_text("first")
    (root / "mode").mkdir(mode=0o755)
    (root / "empty").mkdir()
    with Repository.open(tmp_path / "kept", root) as repository:
        start = take(repository)
        (root / "own").write_text("second")
        (root / "both").write_text("second")
        middle = take(repository)
        (root / "both").write_text("third")
        (root / "made").write_text("by whom?")
        (root / "folder").mkdir()
        (root / "mode").chmod(0o700)
        (root / "empty").rmdir()
        end = take(repository)
        spans = [(start, middle), (middle, end)]
        plan = plan_undo(repository, spans, end, shared=spans[1:])
        assert [step.path for step in plan.steps] == [b"own"]
        assert (plan.make, plan.remove, plan.modes) == ((), (), ())
        doubtful = [b"both", b"empty", b"folder", b"made", b"mode"]
        assert plan.kept == tuple((path, WhyKept.SHARED) for path in doubtful)
        restore(repository, plan)
        assert (root / "own").read_text() == "first"
        assert (root / "both").read_text() == "third"
        plan = plan_undo(repository, spans, take(repository), shared=spans[1:], overrule=doubtful)
        restore(repository, plan)
    assert plan.kept == ()
    assert (root / "both").read_text() == "first"
    assert sorted(os.listdir(root)) == ["both", "empty", "mode", "own", "same"]
    assert (root / "mode").stat().st_mode & 0o777 == 0o755


# --- through the engine


async def test_an_undo_in_one_session_keeps_what_the_other_did_meanwhile(tmp_path: Path) -> None:
    root = tmp_path / "work"
    root.mkdir()
    (root / "theirs").write_text("mine\n")
    first = "echo a > a; until [ -e go ]; do sleep 0.01; done; rm go; echo b > b"
    script = [
        Answer([Call("terminal", {"command": first})], when="first"),
        Answer([Call("terminal", {"command": "echo other > theirs; echo c > c"})], when="second"),
        Answer([Say("Done.")], when="second"),
        Answer([Say("Done.")], when="first"),
    ]
    agent = Agent(ScriptedModel(script), workspace=root, mode="full")
    with anyio.fail_after(WITHIN_S):
        async with Engine(agent, home=tmp_path / "home") as engine:
            one, other = await engine.session("one"), await engine.session("other")
            sent = await one.send("first")
            await wait_for(one, CallStarted)
            await until((root / "a").exists)
            await (await other.send("second")).result()
            await wait_for(other, FilesChanged)
            (root / "go").touch()
            await sent.result()
            preview = await one.preview_undo()
            assert preview.files is not None
            fates = {each.path: str(each.fate) for each in preview.files.files}
            assert fates == {"a": "removed", "b": "removed", "c": "kept", "theirs": "kept"}
            await one.undo()
            assert (root / "theirs").read_text() == "other\n"
            undone = await other.undo(overrule=["c", "theirs"])
            assert undone.files is not None
            assert undone.files.kept == ()
    assert (root / "theirs").read_text() == "mine\n"
    assert sorted(os.listdir(root)) == ["theirs"]
