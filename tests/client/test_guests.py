"""Guests of a shared chat: how they come in, what they may do, and how they are out again."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest

from bargein.client import Client, Disconnected, Forbidden, Unauthenticated
from bargein.client.address import parse_address
from bargein.client.commands import Resend
from bargein.client.joining import join
from bargein.client.session import Session
from bargein.client.wire import read
from bargein.cluster.certificate import certificate_of, fingerprint_of, make_pem
from bargein.contracts.event import MessageAccepted
from bargein.contracts.guests import Invited, Joined, SharedView, Unshared
from bargein.errors import UserError
from bargein.mcp.overview import McpOverview, ServerStatus
from bargein.models.script import Answer, Say
from bargein.runtime.data_directory import DOOR_FILE
from bargein.server.gateway import Settings
from bargein.server.guests import FILE, Guests, open_file, parse_place
from tests.server.program import Program
from tests.server.stage import WITHIN_S, serving
from tests.session.world import until

pytestmark = pytest.mark.anyio

SCRIPT = """
repeat = true
[[answers]]
when = "count"
steps = [{ do = "say", text = "for ever" }, { do = "pause", seconds = 600.0 }]
[[answers]]
steps = [{ do = "say", text = "done" }]
"""


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BARGEIN_SHARE_ADDRESS", "127.0.0.1")


async def ask(client: Client, do: str, body: Mapping[str, Any], **params: str) -> bytes:
    return await client.connection.ask(do, params=params, body=body, again=Resend.SAME)


async def invite(client: Client, session: Session, name: str = "") -> Invited:
    return read(Invited, await ask(client, "invite_guest", {"name": name}, session=session.id))


async def joined_by(invited: Invited) -> Joined:
    return await join(parse_address(invited.address, invited.shared.fingerprint))


def as_guest(invited: Invited, token: str) -> Client:
    return Client(
        invited.shared.address,
        token=token,
        fingerprint=invited.shared.fingerprint,
        patience_s=WITHIN_S,
    )


def door_of(home: Path) -> Client:
    return Client(f"unix:{home / DOOR_FILE}", patience_s=WITHIN_S)


async def accepted(session: Session) -> list[tuple[str, str]]:
    return [
        (each.event.message.sender, each.event.message.text)
        for each in await session.events()
        if isinstance(each.event, MessageAccepted)
    ]


async def test_a_guest_comes_in_once_joins_the_running_turn_and_stops_it(tmp_path: Path) -> None:
    with Program(tmp_path, SCRIPT):
        async with door_of(tmp_path) as owner:
            session = await owner.new_session()
            other = await owner.new_session()
            await session.send("count")
            invited = await invite(owner, session, "Anna")
            assert invited.name == "Anna"
            assert invited.shared.waiting == ("Anna",)
            anna = await joined_by(invited)
            assert (anna.principal, anna.session) == ("Anna", session.id)
            with pytest.raises(Unauthenticated, match="each works once"):
                await joined_by(invited)
            async with as_guest(invited, anna.token) as client:
                assert [each.id for each in await client.sessions()] == [session.id]
                theirs = await client.session(session.id)
                with pytest.raises(UserError):
                    await client.session(other.id)
                with pytest.raises(Forbidden):
                    await client.new_session()
                with pytest.raises(Forbidden):
                    await invite(client, theirs)
                with pytest.raises(Forbidden, match="change files"):
                    await theirs.undo()
                receipt = await theirs.interrupt()
                assert (receipt.status, receipt.by) == ("stopped", "Anna")
                sent = await theirs.send("hello from the phone")
                assert (await sent.result()).text == "done"
            assert ("Anna", "hello from the phone") in await accepted(session)


async def test_only_guests_come_in_at_that_address(tmp_path: Path) -> None:
    with Program(tmp_path, SCRIPT) as program:
        async with door_of(tmp_path) as owner:
            session = await owner.new_session()
            invited = await invite(owner, session)
            assert invited.name == "guest"
            assert (await invite(owner, session)).name == "guest-2"
            token = program.headers["authorization"].removeprefix("Bearer ")
            with pytest.raises(Forbidden, match="only guests"):
                async with as_guest(invited, token):
                    raise AssertionError


async def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    with Program(tmp_path, SCRIPT):
        async with door_of(tmp_path) as owner:
            session = await owner.new_session()
            for name in ("operator", "user"):
                with pytest.raises(UserError, match="somebody else's name"):
                    await invite(owner, session, name)
            first = await invite(owner, session, "Anna")
            again = await invite(owner, session, "Anna")
            with pytest.raises(Unauthenticated):
                await joined_by(first)
            await joined_by(again)
            with pytest.raises(UserError, match="somebody else's name"):
                await invite(owner, session, "Anna")


async def test_unshare_puts_everybody_out_and_closes_the_address(tmp_path: Path) -> None:
    with Program(tmp_path, SCRIPT):
        async with door_of(tmp_path) as owner:
            session = await owner.new_session()
            await session.send("count")
            invited, unused = await invite(owner, session), await invite(owner, session, "Bob")
            guest = await joined_by(invited)
            async with as_guest(invited, guest.token) as client:
                theirs = await client.session(session.id)

                async def watch() -> None:
                    async with aclosing(theirs.watch(after=0)) as events:
                        async for _ in events:
                            seen.set()

                async def until_out() -> None:
                    with pytest.raises(Unauthenticated):
                        await watch()

                seen = anyio.Event()
                with anyio.fail_after(WITHIN_S):
                    async with anyio.create_task_group() as group:
                        group.start_soon(until_out)
                        await seen.wait()
                        out = await ask(owner, "unshare_session", {}, session=session.id)
                        assert read(Unshared, out).guests == ("guest",)
            with pytest.raises(Disconnected):
                await joined_by(unused)
            shared = await ask(owner, "list_guests", {}, session=session.id)
            assert read(SharedView, shared) == SharedView()
            # The turn was not theirs alone.
            assert (await session.interrupt()).status == "stopped"


async def test_after_kill_9_the_next_owner_lets_the_same_guests_in(tmp_path: Path) -> None:
    with Program(tmp_path, SCRIPT) as program:
        async with door_of(tmp_path) as owner:
            session = await owner.new_session()
            await session.send("done")
            invited, unused = await invite(owner, session), await invite(owner, session, "Bob")
            guest = await joined_by(invited)
            client = as_guest(invited, guest.token)
            async with client:
                theirs = await client.session(session.id)
                program.kill()
                with Program(tmp_path, SCRIPT) as again:
                    # Guests are nobody for whom the operator's own token would not be made.
                    assert "None" not in again.headers["authorization"]
                    # The same client, address, certificate and token.
                    sent = await theirs.send("still here")
                    with anyio.fail_after(WITHIN_S):
                        assert (await sent.result()).text == "done"
                    assert (await joined_by(unused)).principal == "Bob"
                    assert ("guest", "still here") in await accepted(theirs)
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    assert unused.address.partition("=")[2] not in (tmp_path / FILE).read_text()
    assert guest.token not in (tmp_path / FILE).read_text()


async def test_a_server_for_one_principal_alone_admits_its_guests(tmp_path: Path) -> None:
    sole = Settings(sole_principal="operator")
    async with serving([Answer([Say("done")])], tmp_path, settings=sole) as stage:
        stage.gateway.guests = guests = Guests(stage.gateway, tmp_path, address="127.0.0.1")
        guests.begin(stage.server)
        session = (await stage.new_session()).rpartition("/")[2]
        address, shared = await guests.invite(session, "Anna")
        anna = await join(parse_address(address, shared.fingerprint))
        stranger = await stage.person("Bob", sessions=(session,))
        path = f"/v1/sessions/{session}"
        assert (await stage.get(path, token=anna.token))["session"]["id"] == session
        assert (await stage.ask("GET", path, token=stranger))[0] == 403
        await guests.let_approve(session, "Anna", approves=True)
        assert guests.view(session).guests[0].approves
        await stage.ask("DELETE", path)
        assert guests.view(session) == SharedView()
        assert (await stage.ask("GET", path, token=anna.token))[0] == 401
        with pytest.raises(Disconnected):
            await join(parse_address(address, shared.fingerprint))


class OwnersServers:
    """An `McpSource` with one server, and what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def mcp_overview(self, principal: str | None = None) -> McpOverview:
        return McpOverview((ServerStatus("secrets", "not started", "https://intern.example/mcp"),))

    async def mcp_prompt(self, name: str, words: str = "", principal: str = "") -> str:
        self.asked.append(principal)
        return "the text"


async def test_a_guest_learns_nothing_of_the_owners_mcp_servers_and_starts_none(
    tmp_path: Path,
) -> None:
    async with serving([], tmp_path) as stage:
        stage.gateway.mcp = servers = OwnersServers()
        stage.gateway.guests = guests = Guests(stage.gateway, tmp_path, address="127.0.0.1")
        guests.begin(stage.server)
        session = (await stage.new_session()).rpartition("/")[2]
        address, shared = await guests.invite(session, "Anna")
        anna = await join(parse_address(address, shared.fingerprint))
        prompt = "/v1/mcp/prompts/mcp__secrets__all"
        assert (await stage.get("/v1/mcp", token=anna.token))["servers"] == []
        assert (await stage.ask("POST", prompt, {}, token=anna.token))[0] == 404
        assert servers.asked == []
        assert len((await stage.get("/v1/mcp"))["servers"]) == 1
        assert await stage.post(prompt, {}) == {"text": "the text"}


@pytest.mark.parametrize("broken", ["{", '{"place": {"host": "127.0.0.1", "port": 0, "pem": "x"}}'])
async def test_a_file_that_cannot_be_read_keeps_nobody_from_working(
    tmp_path: Path, broken: str
) -> None:
    with Program(tmp_path, SCRIPT):
        async with door_of(tmp_path) as owner:
            session = await owner.new_session()
    shared = f'}}, "sessions": {{"{session.id}": {{}}}}}}'
    (tmp_path / FILE).write_text(broken.replace("}}", shared))
    with Program(tmp_path, SCRIPT) as program:
        async with door_of(tmp_path) as owner:
            session = await owner.session(session.id)
            assert (await (await session.send("hello")).result()).text == "done"
        assert "guests of shared chats cannot come in" in program.log


async def test_a_session_that_is_gone_is_not_shared_after_a_start(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        guests = Guests(stage.gateway, tmp_path, address="127.0.0.1")
        guests.begin(stage.server)
        session = (await stage.new_session()).rpartition("/")[2]
        await guests.invite(session, "Anna")
        guests.close()
        stage.gateway.access.disown(session)
        again = Guests(stage.gateway, tmp_path, address="127.0.0.1")
        again.begin(stage.server)
        assert again.view(session) == SharedView()
        assert not open_file(tmp_path).read().sessions


async def test_another_program_at_the_port_is_named(tmp_path: Path) -> None:
    with Program(tmp_path, SCRIPT) as program:
        async with door_of(tmp_path) as owner:
            session = await owner.new_session()
            await session.send("done")
            invited = await invite(owner, session)
            program.kill()
            with (
                socket.create_server(("127.0.0.1", int(invited.shared.address.split(":")[2][:-1]))),
                Program(tmp_path, SCRIPT),
            ):
                with pytest.raises(UserError, match=r"cannot listen on 127\.0\.0\.1"):
                    await invite(owner, session)
                # It ends the sharing; the next one may be elsewhere.
                await ask(owner, "unshare_session", {}, session=session.id)
                again = await invite(owner, session)
                assert again.shared.address != invited.shared.address
                await joined_by(again)


async def test_a_guest_who_joins_does_not_bring_back_a_member_who_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, waits = anyio.Event(), anyio.Event()
    async with serving([], tmp_path) as stage:
        stage.gateway.guests = guests = Guests(stage.gateway, tmp_path, address="127.0.0.1")
        guests.begin(stage.server)
        path = await stage.new_session()
        session = path.rpartition("/")[2]
        await stage.ask("PATCH", path, {"members": {"bob": "write"}})
        address, shared = await guests.invite(session, "Anna")
        share = stage.db.share

        async def share_slowly(session: str, members: Mapping[str, str]) -> None:
            if not members:
                waits.set()
                await goes_on.wait()
            await share(session, members)

        monkeypatch.setattr(stage.db, "share", share_slowly)
        async with anyio.create_task_group() as group:
            group.start_soon(stage.ask, "PATCH", path, {"members": {}})
            await waits.wait()
            group.start_soon(join, parse_address(address, shared.fingerprint))
            with anyio.fail_after(WITHIN_S):
                await until(lambda: any(row.principal == "Anna" for row in stage.db.tokens()))
            goes_on.set()
        assert (await stage.get(path))["members"] == {"Anna": "talk"}
        (row,) = await stage.db.owners({session})
        assert row.members == {"Anna": "talk"}


def test_no_key_is_ever_in_a_file_that_commands_see(monkeypatch: pytest.MonkeyPatch) -> None:
    pem = make_pem("bargein", ["127.0.0.1"])
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    certificate = certificate_of(pem)
    assert certificate.fingerprint == fingerprint_of(pem)


def test_an_address_to_listen_at_is_an_ip_address() -> None:
    assert parse_place("192.168.1.20") == ("192.168.1.20", 0)
    assert parse_place("192.168.1.20:8485") == ("192.168.1.20", 8485)
    assert parse_place("[::1]:8485") == ("::1", 8485)
    assert parse_place("::1") == ("::1", 0)
    for wrong in ("example.org", "127.0.0.1:70000", "127.0.0.1:x", ":80"):
        with pytest.raises(UserError, match=r"share\.address is"):
            parse_place(wrong)
