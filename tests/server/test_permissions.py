"""Grants over the API: who sees, makes and revokes them, and what the audit log says of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from bargein.contracts.message import QuestionPolicy
from bargein.contracts.permission import Standing
from bargein.models.script import Answer, Call, Say
from bargein.server.gateway import Settings
from bargein.session.permits import PermissionSettings
from bargein.stores.grants import FolderGrants, GrantsFile
from bargein.tools import Decision, Policy, Rule, tool
from tests.server.stage import WITHIN_S, Json, Stage, serving
from tests.server.test_socket import talking
from tests.server.test_trail import entries

pytestmark = pytest.mark.anyio

ASK = Policy((Rule(Decision.ASK, why="as a test"),))


@tool
async def run(command: str) -> str:
    """Run something."""
    return "ran"


def calls(*commands: str) -> list[Answer]:
    return [
        answer
        for command in commands
        for answer in (Answer([Call("run", {"command": command})]), Answer([Say("Done.")]))
    ]


@asynccontextmanager
async def granting(
    home: Path, *commands: str, answerable_by: Standing = Standing.WRITER
) -> AsyncIterator[tuple[Stage, FolderGrants]]:
    kept = GrantsFile(home / "grants.json").project(home)
    settings = PermissionSettings(answerable_by=answerable_by, grants=kept)
    script = calls(*commands)
    async with serving(script, home, tools=[run], policy=ASK, permission=settings) as stage:
        yield stage, kept


async def asked(stage: Stage, session: str) -> Json:
    """The open question, when there is one."""
    with anyio.fail_after(WITHIN_S):
        async with stage.events(f"{session}/events?after=0") as events:
            await events.until("question_asked")
    (question,) = (await stage.get(session))["questions"]
    return dict(question)


async def allow(stage: Stage, session: str, answer: str, **more: Any) -> tuple[int, Json]:
    await stage.post(f"{session}/messages", {"text": "go"})
    question = await asked(stage, session)
    return await stage.ask(
        "POST", f"{session}/questions/{question['id']}/answer", {"text": answer}, **more
    )


async def test_grants_are_listed_revoked_and_audited(tmp_path: Path) -> None:
    async with granting(tmp_path, "x\u202ey") as (stage, _):
        session = await stage.new_session()
        assert (await allow(stage, session, "session"))[0] == 200
        (grant,) = (await stage.get(f"{session}/grants"))["grants"]
        assert grant["text"] == "run: x<U+202E>y"
        assert (grant["scope"], grant["by"], grant["revocable"]) == ("session", "operator", True)
        assert (grant["why"], grant["tool"]) == ("as a test", "run")
        assert grant["at"] > 0
        gone = await stage.ask("DELETE", f"{session}/grants/{grant['id']}")
        assert gone == (200, {"status": "done", "detail": ""})
        assert (await stage.get(f"{session}/grants"))["grants"] == []
        status, late = await stage.ask("DELETE", f"{session}/grants/{grant['id']}")
        assert (status, late["status"]) == (200, "too_late")
        (answered,) = await entries(stage, "answer_question")
        assert answered["detail"] == "session: run: x<U+202E>y"
        revoked, _ = await entries(stage, "revoke_grant")
        assert (revoked["principal"], revoked["target"]) == ("operator", grant["id"])
        assert revoked["detail"] == "session: run: x<U+202E>y"


async def test_the_same_over_a_websocket(tmp_path: Path) -> None:
    async with granting(tmp_path, "x") as (stage, kept):
        session = await stage.new_session()
        await allow(stage, session, "always")
        async with talking(stage, session) as talker:
            await talker.say("1", "list_grants")
            (grant,) = (await talker.reply("1"))["body"]["grants"]
            assert grant["scope"] == "project"
            more = {"params": {"grant": grant["id"]}, "query": {"scope": "project"}}
            await talker.say("2", "revoke_grant", **more)
            assert (await talker.reply("2"))["body"]["status"] == "done"
            told = await talker.seen("grant_revoked")
            assert told["event"]["scope"] == "project"
        assert kept.kept() == ()
        assert (await entries(stage, "answer_question"))[0]["detail"] == "always: run: x"
        assert (await entries(stage, "revoke_grant"))[0]["detail"] == "project: run: x"


async def test_what_holds_everywhere_is_made_seen_and_revoked_by_admins_alone(
    tmp_path: Path,
) -> None:
    async with granting(tmp_path, "x", "x") as (stage, kept):
        ann = await stage.person("ann")
        session = await stage.new_session(token=ann)
        status, problem = await allow(stage, session, "always", token=ann)
        assert (status, problem["code"]) == (403, "forbidden")
        assert "only the owner can always allow something" in problem["detail"]
        assert (await allow_open(stage, session, "always"))[0] == 200
        (grant,) = kept.kept()
        mine = (await stage.get(f"{session}/grants", token=ann))["grants"]
        assert mine == []
        (seen,) = (await stage.get(f"{session}/grants"))["grants"]
        assert seen["id"] == grant.grant.id
        path = f"{session}/grants/{grant.grant.id}?scope=project"
        status, problem = await stage.ask("DELETE", path, token=ann)
        assert (status, problem["code"]) == (403, "forbidden")
        assert kept.kept() == (grant,)
        assert (await stage.ask("DELETE", path))[1]["status"] == "done"
        assert kept.kept() == ()
        status, problem = await stage.ask("DELETE", f"{session}/grants/x?scope=world")
        assert status == 400
        assert "session, project" in problem["detail"]


async def allow_open(stage: Stage, session: str, answer: str) -> tuple[int, Json]:
    (question,) = (await stage.get(session))["questions"]
    path = f"{session}/questions/{question['id']}/answer"
    return await stage.ask("POST", path, {"text": answer})


async def test_the_server_says_what_each_may_do(tmp_path: Path) -> None:
    async with granting(tmp_path, answerable_by=Standing.APPROVER) as (stage, _):
        ann, rob = await stage.person("ann"), await stage.person("rob")
        stage.gateway.access.fix_approvers()
        eve = await stage.person("eve")
        session = await stage.new_session()
        members = {"ann": "write", "rob": "read", "eve": "write"}
        await stage.ask("PATCH", session, {"members": members})

        async def may(token: str | None = None) -> Json:
            more = {} if token is None else {"token": token}
            return dict((await stage.get(session, **more))["may"])

        every = ["plan", "ask", "auto-edit", "full"]
        assert await may() == {
            "answers": ["guest", "writer", "approver", "owner"],
            "choices": ["allow", "deny", "session", "always"],
            "modes": every,
            "revokes": ["session", "project"],
        }
        assert await may(ann) == {
            "answers": ["guest", "writer", "approver"],
            "choices": ["allow", "deny", "session"],
            "modes": every,
            "revokes": ["session"],
        }
        # Made while the agent could have made it: it may tighten, and no more.
        assert (await may(eve))["answers"] == ["guest", "writer"]
        assert (await may(eve))["modes"] == ["plan", "ask"]
        assert set(map(tuple, (await may(rob)).values())) == {()}
        assert (await stage.ask("PATCH", session, {"mode": "full"}, token=eve))[0] == 403
        assert (await stage.ask("PATCH", session, {"mode": "plan"}, token=rob))[0] == 403
        assert (await stage.ask("DELETE", f"{session}/grants/x", token=rob))[0] == 403
        assert (await stage.ask("PATCH", session, {"mode": "plan"}, token=eve))[0] == 200
        assert (await may(eve))["modes"] == ["plan"]
        (changed,) = [e for e in await entries(stage, "change_session") if e["status"] == 200][-1:]
        assert (changed["principal"], changed["detail"]) == ("eve", "mode plan")


async def test_strangers_find_no_grants(tmp_path: Path) -> None:
    async with granting(tmp_path) as (stage, _):
        session = await stage.new_session()
        mallory = await stage.person("mallory")
        for method, path in (("GET", "grants"), ("DELETE", "grants/x?scope=project")):
            assert (await stage.ask(method, f"{session}/{path}", token=mallory))[0] == 404


async def test_one_who_may_talk_approves_nothing_until_allowed_to(tmp_path: Path) -> None:
    async with granting(tmp_path, "x", "y") as (stage, _):
        tom = await stage.person("tom")
        session = await stage.new_session()
        await stage.ask("PATCH", session, {"members": {"tom": "talk"}})
        may = (await stage.get(session, token=tom))["may"]
        assert (may["answers"], may["modes"]) == (["guest"], ["plan", "ask"])
        await stage.post(f"{session}/messages", {"text": "go"}, token=tom)
        question = await asked(stage, session)
        answering = f"{session}/questions/{question['id']}/answer"
        for words in ("allow", "always", "no, because"):
            status, problem = await stage.ask("POST", answering, {"text": words}, token=tom)
            assert (status, problem["code"]) == (403, "forbidden")
            assert "/share approve tom" in problem["detail"]
        body: Json
        for path, body in (
            ("/undo", {}),
            ("/undo/calls", {}),
            ("/redo", {}),
            ("/history", {"messages": []}),
            ("/messages", {"text": "no, start over", "mode": "rollback"}),
        ):
            status, problem = await stage.ask("POST", session + path, body, token=tom)
            assert (status, problem["code"]) == (403, "forbidden"), path
            assert "not change files or the past" in problem["detail"]
        await stage.ask("PATCH", session, {"members": {"tom": "write"}})
        assert (await stage.ask("POST", answering, {"text": "allow"}, token=tom))[0] == 200
        # A question that allows nothing is answered like a message.
        assert (await stage.ask("POST", f"{session}/interrupt", {}, token=tom))[0] == 200


@pytest.mark.parametrize("asked", [None, "allow"])
async def test_one_who_may_talk_has_no_call_allowed_by_the_openai_side(
    tmp_path: Path, asked: str | None
) -> None:
    script = [Answer([Say("Hi.")]), *calls("x", "y")]
    everything = Settings(openai_questions=QuestionPolicy.ALLOW)
    async with serving(script, tmp_path, tools=[run], policy=ASK, settings=everything) as stage:
        tom = await stage.person("tom")
        first = await stage.post("/v1/responses", {"input": "hello"})
        (listed,) = (await stage.get("/v1/sessions"))["sessions"]
        session = f"/v1/sessions/{listed['id']}"
        await stage.ask("PATCH", session, {"members": {"tom": "talk"}})
        metadata = {} if asked is None else {"questions": asked}
        chat = {"messages": [{"role": "user", "content": "go"}]}
        body: Json
        for path, body in (
            ("/v1/chat/completions", chat | {"metadata": {"session": listed["id"], **metadata}}),
            ("/v1/responses", {"input": "go", "previous_response_id": first["id"]}),
        ):
            given = {"metadata": metadata} | body
            status, answer = await stage.ask("POST", path, given, token=tom)
            assert (status, answer["error"]["code"]) == (403, "forbidden"), answer
            assert "tom may read and talk here, and approves nothing" in answer["error"]["message"]
        assert len(stage.model.plays) == 1
        refusing = {"input": "go", "previous_response_id": first["id"]}
        refusing |= {"metadata": {"questions": "refuse"}}
        await stage.post("/v1/responses", refusing, token=tom)
        assert (await stage.post("/v1/responses", {"input": "go"}))["status"] == "completed"
