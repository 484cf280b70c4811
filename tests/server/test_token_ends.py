"""Streams end with their token: at the moment it expires, and as soon as it is revoked, without
polling."""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import aiohttp
import anyio
import pytest

from bargein.models.script import Say, Step, Wait
from bargein.server import gateway
from bargein.server.access import revoke_token
from bargein.server.bell import BELL, ring
from bargein.server.gateway_db import FILE, GatewayDb
from tests.server.stage import WITHIN_S, Json, Stage, serving, type_of
from tests.session.world import until

pytestmark = pytest.mark.anyio

HOLD: list[Step] = [Say("One "), Wait("hold"), Say("two.")]
ASK: Json = {"messages": [{"role": "user", "content": "Hello"}]}
# Long enough for a busy machine to open something with it.
VALID_S = 3.0


async def events(stage: Stage, session: str, token: str) -> tuple[str, str]:
    async with stage.events(f"{session}/events", token=token) as reader:
        last = (await reader.rest())[-1]
    return type_of(last), last["reason"]


async def socket(stage: Stage, session: str, token: str) -> tuple[str, str]:
    headers = {"authorization": f"Bearer {token}"}
    async with stage.http.ws_connect(stage.url + f"{session}/socket", headers=headers) as ws:
        last: Json = {}
        async for message in ws:
            last = message.json()
        assert ws.close_code == aiohttp.WSCloseCode.POLICY_VIOLATION
    return type_of(last), last["reason"]


async def completion(stage: Stage, session: str, token: str) -> tuple[str, str]:
    status, answer = await stage.ask("POST", "/v1/chat/completions", ASK, token=token)
    assert (status, answer["error"]["code"]) == (401, "unauthenticated")
    await until(lambda: stage.model.plays[0].outcome == "cancelled")
    return "cut_off", "revoked" if "revoked" in answer["error"]["message"] else ""


Opening = Callable[[Stage, str, str], Awaitable[tuple[str, str]]]
OPEN: list[Opening] = [events, socket, completion]


@pytest.mark.parametrize("opening", OPEN, ids=lambda each: each.__name__)
async def test_it_ends_when_its_token_expires(
    tmp_path: Path, opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody looks again: the moment itself is known.
    monkeypatch.setattr(gateway, "LOOK_EVERY_S", 3600.0)
    async with serving([HOLD], tmp_path, start_token=None) as stage:
        session = await stage.new_session(token=await stage.person("alice"))
        expires_at = time.time() + VALID_S
        alice = await stage.person("alice", expires_at=expires_at)
        with anyio.fail_after(WITHIN_S):
            assert await opening(stage, session, alice) == ("cut_off", "revoked")
        assert time.time() > expires_at - 0.1


@pytest.mark.parametrize("opening", OPEN, ids=lambda each: each.__name__)
async def test_it_ends_when_its_token_is_revoked_elsewhere(
    tmp_path: Path, opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "LOOK_EVERY_S", 3600.0)
    async with serving([HOLD], tmp_path, start_token=None) as stage:
        alice = await stage.person("alice")
        session = await stage.new_session(token=alice)
        ended: list[tuple[str, str]] = []

        async def read() -> None:
            ended.append(await opening(stage, session, alice))

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await until(lambda: stage.gateway.streams)
            elsewhere = GatewayDb.open(tmp_path / FILE)
            try:
                assert await revoke_token(elsewhere, alice.split("_")[1])
            finally:
                elsewhere.close()
            await until(lambda: ended)
        assert ended == [("cut_off", "revoked")]


async def test_others_go_on(tmp_path: Path) -> None:
    async with serving([HOLD], tmp_path, start_token=None) as stage:
        alice, other = await stage.person("alice"), await stage.person("alice")
        session = await stage.new_session(token=alice)
        async with stage.events(f"{session}/events", token=alice) as reader:
            await until(lambda: stage.gateway.streams)
            await revoke_token(stage.gateway.db, other.split("_")[1])
            expiring = await stage.person("alice", expires_at=time.time() + VALID_S)
            assert await events(stage, session, expiring) == ("cut_off", "revoked")
            await stage.post(f"{session}/messages", {"text": "still here"}, token=alice)
            await reader.until("turn_started")


async def test_the_bell_is_the_owners_and_leaves_with_the_server(tmp_path: Path) -> None:
    bell = tmp_path / BELL
    # One that a server left behind which was killed, and one that is something else.
    for leave_behind in (lambda: os.mkfifo(bell), lambda: bell.write_text("not a pipe")):
        leave_behind()
        async with serving([], tmp_path) as stage:
            await until(lambda: stat.S_ISFIFO(bell.stat().st_mode))
            assert bell.stat().st_mode & 0o077 == 0
            await stage.get("/v1/me")
        assert not bell.exists()


async def test_a_database_that_cannot_be_read_for_a_while_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving([HOLD], tmp_path, start_token=None) as stage:
        alice = await stage.person("alice")
        session = await stage.new_session(token=alice)
        async with stage.events(f"{session}/events", token=alice) as reader:
            await until(lambda: stage.gateway.streams)
            with closing(sqlite3.connect(tmp_path / FILE)) as file:
                file.execute("ALTER TABLE tokens RENAME TO away")
                ring(tmp_path / FILE)
                await until(lambda: "no such table: tokens" in caplog.text)
                status, answer = await stage.ask("GET", "/v1/me", token=alice)
                assert (status, answer["code"]) == (503, "unavailable")
                file.execute("ALTER TABLE away RENAME TO tokens")
            await stage.get("/v1/me", token=alice)
            await revoke_token(stage.gateway.db, alice.split("_")[1])
            last = (await reader.rest())[-1]
        assert (type_of(last), last["reason"]) == ("cut_off", "revoked")
