"""Permission modes, grants, and who may answer: decided in the pipeline, kept in the log."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest

from bargein.contracts.event import CallEnded, Granted, GrantRevoked, PermissionChanged
from bargein.contracts.permission import Grant, PermissionMode, Reach, Standing
from bargein.contracts.tool import ChildTask, Effect, OpenQuestion, PlannedCall
from bargein.errors import UserError
from bargein.models.script import Answer, Call, Say
from bargein.models.scripted import ScriptedModel
from bargein.session.agent import LoopSettings, loop_agent
from bargein.session.engine import SessionEngine
from bargein.session.permits import PermissionSettings
from bargein.session.session import Forbidden, Session, TooLate
from bargein.stores.grants import GrantsFile
from bargein.stores.memory import MemoryStore
from bargein.tools import Decision, Policy, Rule, ToolContext, ToolRegistry, tool
from tests.session.world import LIMITS, WITHIN_S
from tests.tools.desk import call, text_of

pytestmark = pytest.mark.anyio

ASK = Policy((Rule(Decision.DENY, "run", "never"), Rule(Decision.ASK, why="as a test")))


@tool(effect=Effect.NONE)
async def look() -> str:
    """Read something."""
    return "looked"


@tool(reach=Reach.FILES, granted_by=("path",))
async def edit(path: str, words: str = "") -> str:
    """Change a file."""
    return "edited"


@tool
async def run(command: str) -> str:
    """Run something."""
    return "ran"


@tool(effect=Effect.UNKNOWN, reach=Reach.NOTHING)
async def give(context: ToolContext) -> str:
    """Have a sub-agent do it."""
    reports = await context.delegate([ChildTask("do it")])
    return text_of(reports[0].result)


TOOLS: list[Any] = [look, edit, run, give]


def calling(*calls: tuple[str, dict[str, object]]) -> list[Answer]:
    """A model that makes one call for each message."""
    return [
        answer
        for name, arguments in calls
        for answer in (Answer([Call(name, arguments)]), Answer([Say("Done.")]))
    ]


def engine_of(
    script: list[Answer],
    store: MemoryStore | None = None,
    *,
    policy: Policy = ASK,
    **settings: Any,
) -> SessionEngine:
    model = ScriptedModel(script)
    agent = loop_agent(model, ToolRegistry(TOOLS, policy=policy), LoopSettings())
    permission = PermissionSettings(**settings)
    return SessionEngine(agent, store or MemoryStore(), limits=LIMITS, permission=permission)


async def question_of(session: Session) -> OpenQuestion:
    with anyio.fail_after(WITHIN_S):
        async with aclosing(session.watch(after=0)) as events:
            async for _ in events:
                open_now = await session.questions()
                if open_now:
                    return open_now[0]
    raise AssertionError("nothing was asked")


async def told(session: Session) -> list[str]:
    events = [each.event for each in await session.events()]
    return [text_of(each.result) for each in events if isinstance(each, CallEnded)]


async def say(session: Session, words: str = "go", answer: str | None = None) -> str:
    """Send, answer the question if there has to be one, and give what the model was told."""
    sent = await session.send(words)
    if answer is not None:
        await session.answer((await question_of(session)).id, answer)
    with anyio.fail_after(WITHIN_S):
        await sent.result()
    return (await told(session))[-1]


@pytest.mark.parametrize(
    ("mode", "runs_unasked"),
    [
        (PermissionMode.PLAN, ()),
        (PermissionMode.ASK, ()),
        (PermissionMode.AUTO_EDIT, ("edit",)),
        (PermissionMode.FULL, ("look", "edit", "run")),
    ],
)
async def test_a_mode_decides_what_is_asked(
    mode: PermissionMode, runs_unasked: tuple[str, ...]
) -> None:
    calls: tuple[tuple[str, dict[str, object]], ...] = (
        ("look", {}),
        ("edit", {"path": "a"}),
        ("run", {"command": "x"}),
    )
    async with engine_of(calling(*calls), mode=mode) as engine:
        session = await engine.session("s")
        for name, _ in calls:
            refused = mode is PermissionMode.PLAN and name != "look"
            asked = not refused and name not in runs_unasked
            result = await say(session, answer="allow" if asked else None)
            if refused:
                assert result.startswith(f"{name} may change something")
                assert "plan mode" in result
            else:
                assert result in ("looked", "edited", "ran")


async def test_full_runs_what_is_asked_about_and_not_what_is_refused() -> None:
    script = calling(("run", {"command": "never"}))
    async with engine_of(script, mode=PermissionMode.FULL) as engine:
        assert "is not allowed" in await say(await engine.session("s"))


async def test_a_change_counts_from_the_next_call_on_and_is_in_the_log_with_who_did_it() -> None:
    store = MemoryStore()
    script = calling(("run", {"command": "x"}), ("run", {"command": "x"}))
    async with engine_of(script, store) as engine:
        session = await engine.session("s")
        assert await session.mode() is PermissionMode.ASK
        await session.set_mode("full", by="anna")
        assert await say(session) == "ran"
        await session.set_mode(PermissionMode.PLAN, by="bert")
        assert "plan mode" in await say(session)
        events = [each.event for each in await session.events()]
        changes = [each for each in events if isinstance(each, PermissionChanged)]
        assert [(each.mode, each.by) for each in changes] == [("full", "anna"), ("plan", "bert")]
        with pytest.raises(UserError, match="plan, ask, auto-edit, full"):
            await session.set_mode("reckless")
    async with engine_of([], store) as engine:
        assert await (await engine.session("s")).mode() is PermissionMode.PLAN


async def test_the_model_is_told_of_plan_mode() -> None:
    model = ScriptedModel([Answer([Say("A plan.")]), Answer([Say("Done.")])])
    agent = loop_agent(model, ToolRegistry(), LoopSettings())
    async with SessionEngine(agent, MemoryStore(), limits=LIMITS) as engine:
        session = await engine.session("s")
        await session.set_mode("plan")
        await (await session.send("think")).result()
        await session.set_mode("ask")
        await (await session.send("do")).result()
    assert ["plan mode" in each.system for each in model.requests] == [True, False]


async def test_a_sub_agent_is_never_looser_than_its_parent() -> None:
    script = [
        Answer([Call("give", {})]),
        Answer([Call("run", {"command": "x"})]),
        Answer([Say("It was refused.")]),
        Answer([Say("Done.")]),
    ]
    async with engine_of(script, policy=Policy(), mode=PermissionMode.PLAN) as engine:
        session = await engine.session("s")
        assert "It was refused." in await say(session)
        child = (await session.children())[0].id
        log = [each.event for each in await (await engine.session(child)).events()]
    (end,) = [each for each in log if isinstance(each, CallEnded)]
    assert "plan mode" in text_of(end.result)


async def test_a_grant_for_the_session_holds_after_a_restart_and_for_nothing_else() -> None:
    store = MemoryStore()
    script = calling(("run", {"command": "x"}), ("run", {"command": "x"}))
    async with engine_of(script, store) as engine:
        session = await engine.session("s")
        sent = await session.send("go")
        asked = (await question_of(session)).question
        assert asked.choices == ("allow", "deny", "session")
        assert str(asked.grant) == "run: x"
        await session.answer((await question_of(session)).id, "session", by="anna")
        await sent.result()
        assert await say(session) == "ran"
        events = [each.event for each in await session.events()]
        (granted,) = [each for each in events if isinstance(each, Granted)]
        assert (granted.grant, granted.scope, granted.by) == (asked.grant, "session", "anna")
    script = calling(
        ("run", {"command": "x"}), ("run", {"command": "xy"}), ("run", {"command": "x"})
    )
    async with engine_of(script, store) as engine:
        session = await engine.session("s")
        assert await say(session) == "ran"
        assert "did not allow" in await say(session, answer="deny")
        (grant,) = await session.grants()
        await session.revoke(grant.grant.id)
        assert "did not allow" in await say(session, answer="deny")
        events = [each.event for each in await session.events()]
        assert any(isinstance(each, GrantRevoked) for each in events)


async def test_a_grant_fixes_what_the_tool_says_and_never_less_than_a_danger() -> None:
    policy = Policy((Rule(Decision.ASK, "edit"),), command_tools=("edit",))
    registry = ToolRegistry(TOOLS, policy=policy)
    dangerous = ToolRegistry(TOOLS, policy=Policy(command_tools=("edit",)))

    def grant(where: ToolRegistry, words: str) -> Grant:
        planned = where.plan(call("edit", path="a", words=words))
        assert isinstance(planned, PlannedCall)
        assert planned.approval is not None
        assert planned.approval.grant is not None
        return planned.approval.grant

    assert grant(registry, "hello") == grant(registry, "bye") == Grant("edit", (("path", "a"),))
    first, second = grant(dangerous, "rm -rf build"), grant(dangerous, "rm -rf src")
    assert first != second
    assert ("words", "rm -rf src") in second.arguments
    assert first.why == "it deletes directories"


async def test_always_is_kept_for_the_project_in_the_users_own_directory(tmp_path: Path) -> None:
    file = GrantsFile(tmp_path / "config" / "grants.json")
    here, there = file.project(tmp_path / "here"), file.project(tmp_path / "there")
    script = calling(("run", {"command": "x"}))
    async with engine_of(script, grants=here) as engine:
        assert await say(await engine.session("s"), answer="always") == "ran"
    assert (file.path.stat().st_mode & 0o777, len(here.kept())) == (0o600, 1)
    again = GrantsFile(file.path)
    async with engine_of(
        calling(("run", {"command": "x"})), grants=again.project(tmp_path / "here")
    ) as e:
        assert await say(await e.session("another")) == "ran"
    async with engine_of(calling(("run", {"command": "x"})), grants=there) as engine:
        assert "did not allow" in await say(await engine.session("s"), answer="deny")
    assert again.project(tmp_path / "here").revoke(here.kept()[0].grant.id)
    async with engine_of(calling(("run", {"command": "x"})), grants=here) as engine:
        assert "did not allow" in await say(await engine.session("s"), answer="deny")


async def test_only_whom_a_question_names_can_answer_it() -> None:
    script = calling(("run", {"command": "x"}))
    async with engine_of(script, answerable_by=Standing.APPROVER) as engine:
        session = await engine.session("s")
        sent = await session.send("go")
        asked = await question_of(session)
        assert asked.question.answerable_by is Standing.APPROVER
        with pytest.raises(Forbidden, match="older than the running agent"):
            await session.answer(asked.id, "allow", standing=Standing.WRITER)
        with pytest.raises(Forbidden, match="loosen"):
            await session.set_mode("full", standing=Standing.WRITER)
        await session.set_mode("plan", standing=Standing.WRITER)
        await session.answer(asked.id, "allow", standing=Standing.APPROVER)
        await sent.result()
        assert (await told(session))[-1] == "ran"


async def test_only_the_owner_grants_for_always(tmp_path: Path) -> None:
    grants = GrantsFile(tmp_path / "grants.json").project(tmp_path)
    async with engine_of(calling(("run", {"command": "x"})), grants=grants) as engine:
        session = await engine.session("s")
        sent = await session.send("go")
        asked = await question_of(session)
        with pytest.raises(Forbidden, match="only the owner"):
            await session.answer(asked.id, "always", standing=Standing.APPROVER)
        await session.answer(asked.id, "session", standing=Standing.APPROVER)
        await sent.result()
    assert grants.kept() == ()


def test_a_file_that_cannot_be_read_grants_nothing(tmp_path: Path) -> None:
    file = GrantsFile(tmp_path / "grants.json")
    grants = file.project(tmp_path)
    grant = Grant("run", (("command", "x"),))
    grants.keep(grant, "anna")
    assert grants.covers(grant)
    file.path.write_text("[not this")
    assert not grants.covers(grant)
    with pytest.raises(UserError, match=r"grants\.json cannot be read"):
        grants.kept()


async def test_a_grant_of_the_project_is_revoked_by_the_owner_and_in_the_log(
    tmp_path: Path,
) -> None:
    grants = GrantsFile(tmp_path / "grants.json").project(tmp_path)
    script = calling(("run", {"command": "x"}), ("run", {"command": "x"}))
    async with engine_of(script, grants=grants) as engine:
        session = await engine.session("s")
        assert await say(session, answer="always") == "ran"
        (kept,) = await session.grants("project")
        assert (kept.by, await session.grants()) == ("user", ())
        with pytest.raises(Forbidden, match="only the owner"):
            await session.revoke(kept.grant.id, scope="project", standing=Standing.APPROVER)
        await session.revoke(kept.grant.id, scope="project", by="anna")
        with pytest.raises(TooLate):
            await session.revoke(kept.grant.id, scope="project")
        assert "did not allow" in await say(session, answer="deny")
        (revoked,) = [e.event for e in await session.events() if isinstance(e.event, GrantRevoked)]
        assert (revoked.grant, revoked.by, revoked.scope) == (kept.grant.id, "anna", "project")


async def test_always_where_nothing_can_be_kept_is_once(tmp_path: Path) -> None:
    script = calling(("run", {"command": "x"}), ("run", {"command": "x"}))
    async with engine_of(script) as engine:
        session = await engine.session("s")
        assert await say(session, answer="always") == "ran"
        assert "did not allow" in await say(session, answer="deny")
        assert not any(isinstance(each.event, Granted) for each in await session.events())
        assert "always" not in (await session.may()).choices


async def test_what_plan_refuses_is_told_to_both_with_the_next_step() -> None:
    async with engine_of(calling(("run", {"command": "x"})), mode=PermissionMode.PLAN) as engine:
        session = await engine.session("s")
        told_to_model = await say(session)
        assert "plan mode" in told_to_model
        assert "end with a plan" in told_to_model
        (ended,) = [e.event for e in await session.events() if isinstance(e.event, CallEnded)]
        assert ended.result.summary == (
            "refused: plan mode is read only; change the permission mode to let it run"
        )
