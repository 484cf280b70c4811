"""Who may do what: one user can neither see, guess nor stop another's session."""

import sqlite3
import time
from collections.abc import Collection
from pathlib import Path

import anyio
import pytest

from bargein.errors import UserError
from bargein.models.script import Say, Step, Wait
from bargein.server.access import Access, Principal, add_token, revoke_token
from bargein.server.audit import REFUSALS_BURST, REFUSALS_PER_S
from bargein.server.gateway import Settings
from bargein.server.gateway_db import FILE, GatewayDb
from bargein.server.gateway_tables import NewOwner, OwnerRow
from bargein.server.shapes import Member
from bargein.stores.sqlite import SqliteStore
from tests.server.stage import Stage, serving, type_of
from tests.session.world import Gate

pytestmark = pytest.mark.anyio

HOLD: list[Step] = [Say("One "), Wait("hold"), Say("two.")]

# Everything that can be asked of one session.
ASKED = [
    ("GET", "", None),
    ("PATCH", "", {"title": "mine now"}),
    ("DELETE", "", None),
    ("POST", "/messages", {"text": "hi"}),
    ("POST", "/messages", {"text": "stop"}),
    ("POST", "/interrupt", {}),
    ("POST", "/interrupt?wait=false", {"scope": "session"}),
    ("POST", "/pause", {}),
    ("POST", "/resume", {}),
    ("POST", "/continue", {}),
    ("POST", "/calls/c1/interrupt", {}),
    ("POST", "/calls/c1/detach", {}),
    ("POST", "/questions/q1/answer", {"text": "yes"}),
    ("POST", "/accept", {}),
    ("POST", "/hide", {}),
    ("GET", "/messages/m1/attachments/0", None),
    ("GET", "/inbox", None),
    ("PATCH", "/inbox/m1", {"text": "x"}),
    ("DELETE", "/inbox/m1", None),
    ("GET", "/turns/t1", None),
    ("GET", "/transcript", None),
    ("GET", "/events", None),
    ("POST", "/fork", {}),
    ("POST", "/side_questions", {"text": "what?"}),
    ("POST", "/undo", {}),
    ("POST", "/rewind", {"turn": "t1"}),
    ("GET", "/place", None),
    ("PUT", "/place", {"workspace": "/"}),
    ("GET", "/mcp", None),
    ("POST", "/warm", {}),
    ("POST", "/hurry", {}),
    ("POST", "/end", {}),
]
LOOKING = ("GET",)


async def test_anothers_session_is_as_if_there_were_none(tmp_path: Path) -> None:
    async with serving([HOLD], tmp_path, start_token=None) as stage:
        alice, bob = await stage.person("alice"), await stage.person("bob")
        session = await running(stage, alice)
        none = "/v1/sessions/AAAAAAAAAAAAAAAAAAAAAA"
        for method, path, body in ASKED:
            status, answer = await stage.ask(method, session + path, body, token=bob)
            unknown = await stage.ask(method, none + path, body, token=bob)
            assert (status, unknown[0]) == (404, 404), path
            told = answer["detail"].replace(session.rpartition("/")[2], "ID")
            assert told == unknown[1]["detail"].replace(none.rpartition("/")[2], "ID")
        assert (await stage.get("/v1/sessions", token=bob))["sessions"] == []
        assert (await stage.get(session, token=alice))["session"]["phase"] == "running"


async def test_nobody_without_a_token_is_told_anything(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        session = await stage.new_session()
        for method, path, body in ASKED:
            for token in (None, "", "wrong", "bgn_000000000000_wrong", "bgn_é_x", "bgn__"):
                status, answer = await stage.ask(method, session + path, body, token=token)
                assert (status, answer["code"]) == (401, "unauthenticated"), (path, token)
                told = "the token is not known here" if token else "no token was shown"
                assert answer["detail"].startswith(told), (path, token)
        status, _ = await stage.ask(
            "GET", "/v1/sessions", token=None, headers={"authorization": "Basic YTpi"}
        )
        assert status == 401


async def test_a_read_only_token_may_look_and_not_touch(tmp_path: Path) -> None:
    async with serving([HOLD], tmp_path, start_token=None) as stage:
        alice = await stage.person("alice")
        looking = await stage.person("alice", read_only=True)
        session = await running(stage, alice)
        for method, path, body in ASKED:
            if method in LOOKING:
                continue
            status, answer = await stage.ask(method, session + path, body, token=looking)
            assert (status, answer["code"]) == (403, "forbidden"), path
        status, _ = await stage.ask("POST", "/v1/sessions", {}, token=looking)
        assert status == 403
        view = await stage.get(session, token=looking)
        assert (view["session"]["access"], view["session"]["phase"]) == ("read", "running")
        async with stage.events(f"{session}/events?after=0", token=looking) as events:
            await events.until("turn_started")


async def test_a_token_may_be_bound_to_some_sessions(tmp_path: Path) -> None:
    async with serving([], tmp_path, start_token=None) as stage:
        alice = await stage.person("alice")
        one, other = [await stage.new_session(token=alice) for _ in range(2)]
        bound = await stage.person("alice", sessions=(one.rpartition("/")[2],))
        await stage.get(one, token=bound)
        assert (await stage.ask("GET", other, token=bound))[0] == 404
        assert (await stage.ask("POST", "/v1/sessions", {}, token=bound))[0] == 403
        listed = (await stage.get("/v1/sessions", token=bound))["sessions"]
        assert [f"/v1/sessions/{each['id']}" for each in listed] == [one]


async def test_a_revoked_token_is_worth_nothing_at_once(tmp_path: Path) -> None:
    """Revoked by another connection to the file, as `bargein token revoke` does it."""
    async with serving([], tmp_path, start_token=None) as stage:
        alice = await stage.person("alice")
        session = await stage.new_session(token=alice)
        async with stage.events(f"{session}/events", token=alice) as events:
            elsewhere = GatewayDb.open(tmp_path / FILE)
            try:
                assert await revoke_token(elsewhere, alice.split("_")[1])
                assert not await revoke_token(elsewhere, alice.split("_")[1])
            finally:
                elsewhere.close()
            status, answer = await stage.ask("GET", session, token=alice)
            assert (status, answer["code"]) == (401, "unauthenticated")
            last = (await events.rest())[-1]
        assert (type_of(last), last["reason"]) == ("cut_off", "revoked")


async def test_an_expired_token_is_refused(tmp_path: Path) -> None:
    async with serving([], tmp_path, start_token=None) as stage:
        old = await stage.person("alice", expires_at=time.time() - 1)
        status, answer = await stage.ask("GET", "/v1/sessions", token=old)
        assert (status, answer["code"]) == (401, "unauthenticated")
        assert "expired" in answer["detail"]


async def test_secrets_are_kept_hashed_only(tmp_path: Path) -> None:
    async with serving([], tmp_path, start_token=None) as stage:
        token = await stage.person("alice")
        secret = token.split("_", 2)[2]
        assert len(secret) >= 43
        await stage.get("/v1/sessions", token=token)
    check_files(tmp_path, secret.encode())


def check_files(home: Path, secret: bytes) -> None:
    for file in home.iterdir():
        assert secret not in file.read_bytes()
        assert file.stat().st_mode & 0o077 == 0


async def test_whoever_may_send_to_a_shared_session_may_stop_it(tmp_path: Path) -> None:
    async with serving([HOLD], tmp_path, start_token=None) as stage:
        alice, bob, eve = [await stage.person(name) for name in ("alice", "bob", "eve")]
        session = await running(stage, alice)
        await share(stage, session, alice, {"bob": "write", "eve": "read"})
        status, _ = await stage.ask("POST", f"{session}/interrupt", token=eve)
        assert status == 403
        status, _ = await stage.ask("POST", f"{session}/messages", {"text": "stop"}, token=eve)
        assert status == 403
        change = {"members": {"bob": "write"}}
        assert (await stage.ask("PATCH", session, change, token=bob))[0] == 403
        assert (await stage.ask("DELETE", session, token=bob))[0] == 403
        receipt = await stage.post(f"{session}/interrupt", token=bob)
        assert (receipt["status"], receipt["by"]) == ("stopped", "bob")
        await stage.post(f"{session}/accept", token=eve)
        listed = (await stage.get("/v1/sessions", token=eve))["sessions"]
        assert [each["access"] for each in listed] == ["read"]
        await share(stage, session, alice, {})
        assert (await stage.ask("GET", session, token=bob))[0] == 404
        assert (await stage.get("/v1/sessions", token=bob))["sessions"] == []


async def test_every_message_and_stop_carries_its_principal(tmp_path: Path) -> None:
    async with serving([HOLD, [Say("x")]], tmp_path, start_token=None) as stage:
        alice, bob = await stage.person("alice"), await stage.person("bob")
        session = await running(stage, alice)
        await share(stage, session, alice, {"bob": "write"})
        body = {"text": "no, this", "mode": "interrupt"}
        await stage.post(f"{session}/messages", body, token=bob)
        async with stage.events(f"{session}/events?after=0", token=alice) as events:
            settled = await events.until("turn_settled")
            senders = [
                each["event"]["message"]["sender"]
                for each in events.seen
                if type_of(each) == "message_accepted"
            ]
        assert senders == ["alice", "bob"]
        assert settled["event"]["receipt"]["by"] == "bob"


async def test_owners_and_members_are_the_same_after_a_restart(tmp_path: Path) -> None:
    session = alice = bob = ""
    for life in range(2):
        store = await SqliteStore.open(tmp_path / "sessions.sqlite3")
        async with serving([], tmp_path, store=store, start_token=None) as stage:
            if not life:
                alice, bob = await stage.person("alice"), await stage.person("bob")
                session = await stage.new_session(token=alice)
                await share(stage, session, alice, {"bob": "read"})
            assert (await stage.get(session, token=alice))["session"]["access"] == "own"
            assert (await stage.get(session, token=bob))["session"]["access"] == "read"
            eve = await stage.person(f"eve{life}")
            assert (await stage.ask("GET", session, token=eve))[0] == 404
        await store.aclose()


async def test_a_server_with_the_tools_of_its_machine_lets_only_its_one_principal_in(
    tmp_path: Path,
) -> None:
    settings = Settings(host_tools=True, sole_principal="alice")
    async with serving([], tmp_path, start_token=None, settings=settings) as stage:
        alice, bob = await stage.person("alice"), await stage.person("bob")
        assert (await stage.get("/v1/me", token=alice))["host_tools"] is True
        status, answer = await stage.ask("GET", "/v1/me", token=bob)
        assert (status, answer["code"]) == (403, "forbidden")
        assert "alice" in answer["detail"]


async def test_the_audit_log_cannot_be_changed_or_shortened(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        await stage.new_session()
        assert (await stage.get("/v1/admin/audit"))["entries"]
        connection = sqlite3.connect(tmp_path / FILE)
        try:
            for change in ("DELETE FROM audit", "UPDATE audit SET principal = 'nobody'"):
                with pytest.raises(sqlite3.IntegrityError, match="only be added to"):
                    connection.execute(change)
        finally:
            connection.close()


async def test_one_who_tries_tokens_cannot_fill_the_audit_log(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        began = time.monotonic()
        for _ in range(60):
            await stage.ask("GET", "/v1/me", token="wrong")
        most = REFUSALS_BURST + REFUSALS_PER_S * (time.monotonic() - began) + 1
        entries = (await stage.get("/v1/admin/audit"))["entries"]
        refused = [each for each in entries if each["status"] == 401]
        assert 1 <= len(refused) <= most < 60
        assert refused[0]["address"] == "127.0.0.1"


async def test_a_name_that_cannot_be_a_principal_is_refused(tmp_path: Path) -> None:
    db = GatewayDb.open(tmp_path / FILE)
    try:
        for name in ("", "x" * 101, "a\nb"):
            with pytest.raises(UserError, match="principal's name"):
                await add_token(db, name)
    finally:
        db.close()


async def running(stage: Stage, token: str) -> str:
    session = await stage.new_session(token=token)
    await stage.post(f"{session}/messages", {"text": "count"}, token=token)
    await stage.model.gate("hold").reached()
    return session


async def share(stage: Stage, session: str, token: str, members: dict[str, str]) -> None:
    status, answer = await stage.ask("PATCH", session, {"members": members}, token=token)
    assert status == 200, answer
    assert answer["members"] == members


async def test_what_was_read_before_a_change_does_not_undo_it(tmp_path: Path) -> None:
    """Another node's change makes this one read, while the owner removes a member here."""

    class Slow(GatewayDb):
        gate: Gate | None = None

        async def owners(self, sessions: Collection[str] | None = None) -> list[OwnerRow]:
            found = await super().owners(sessions)
            if self.gate is not None:
                await self.gate()
            return found

    db = Slow.open(tmp_path / FILE)
    access, bob = Access(db), Principal("bob")
    for session in ("s", "other"):
        await db.own(NewOwner(session, "alice", 1.0))
        await db.share(session, {"bob": "write"})
    await access.load()
    for read in (access.load, lambda: access.refresh(("s", "other"))):
        access.share("s", {"bob": Member.WRITE})
        gate = db.gate = Gate()
        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await gate.reached.wait()
            access.share("s", {})
            gate.opened.set()
        assert access.right(bob, "s") is None
        assert access.right(bob, "other") == "write"
    db.close()


async def test_only_who_sees_all_sessions_takes_the_grace_from_every_stop(tmp_path: Path) -> None:
    async with serving([], tmp_path, start_token=None) as stage:
        alice, admin = await stage.person("alice"), await stage.person("root", admin=True)
        session = await stage.new_session(token=alice)
        for token, expected in ((alice, 403), (admin, 200)):
            status, _ = await stage.ask("POST", f"{session}/hurry", {}, token=token)
            assert status == expected
