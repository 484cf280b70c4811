"""Malformed, huge, slow and partial requests get a clear answer, and harm nobody else."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import pytest

from bargein.contracts.event import MessageAccepted
from bargein.models.script import Say
from bargein.server.limits import GatewayLimits
from bargein.server.protocol import GatewayProtocol
from tests.server.stage import START_TOKEN, WITHIN_S, Stage, serving
from tests.session.world import HeldStore

pytestmark = pytest.mark.anyio

BODIES = [
    (b"", "bad_request"),
    (b"{", "bad_json"),
    (b"null", "bad_request"),
    (b"[]", "bad_request"),
    (b'"text"', "bad_request"),
    (b"{}", "bad_request"),
    (b'{"text": 5}', "bad_request"),
    (b'{"text": ""}', "bad_request"),
    (b'{"text": "   "}', "bad_request"),
    (b'{"text": "x", "mode": "shout"}', "bad_request"),
    (b'{"text": "x", "colour": "red"}', "bad_request"),
    (b'{"text": "x", "attachments": [{"name": "a", "media_type": "b", "data": "%%"}]}', None),
    (b'{"text": "x", "client_message_id": ""}', "bad_request"),
    (b'{"text": "\xff\xfe"}', "bad_json"),
    (b'{"text": "\\ud800"}', None),
    (b"\xef\xbb\xbf{}", "bad_json"),
    (b"[" * 100_000, None),
    (b'{"text": "x"} {"text": "y"}', "bad_json"),
    (b'{"text": NaN}', "bad_json"),
]


async def test_a_body_that_is_not_right_is_told_what_is_wrong_with_it(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        session = await stage.new_session()
        for body, code in BODIES:
            status, answer = await stage.ask("POST", f"{session}/messages", body)
            assert status == 400, (body[:80], answer)
            assert answer["status"] == status
            assert answer["code"] in ((code,) if code else ("bad_json", "bad_request"))
            assert len(answer["detail"]) > 10
        assert (await stage.get(session))["session"]["last_seq"] == 0


async def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    async with serving([[Say("x")]], tmp_path) as stage:
        session = await stage.new_session()
        for path in (
            "/v1/nothing",
            "/v1/sessions/nobody",
            "/v1/sessions/%00",
            "/v1/sessions/" + "x" * 5000,
            "/v1/sessions/%F0%9F%98%80",
            "/v1/sessions/%ff",
            "/v1/sessions/a/b/c",
            f"{session}/child.1",
            f"{session}/turns/t9",
            "/static/../app.py",
            "/static/%2e%2e/app.py",
        ):
            status, answer = await stage.ask("GET", path)
            assert (status, answer["code"]) == (404, "not_found"), path
        status, answer = await stage.ask("PUT", "/v1/sessions", {})
        assert (status, answer["code"]) == (405, "method_not_allowed")
        assert answer["detail"].endswith("allowed: GET, HEAD, POST")
        for path in (
            f"{session}/turns/t1?wait=maybe",
            "/v1/sessions?limit=x",
            "/v1/sessions?limit=0",
            "/v1/sessions?before=nan_x",
        ):
            status, answer = await stage.ask("GET", path)
            assert status in (400, 404)
            assert answer["detail"]


async def test_a_call_or_question_that_is_not_there_is_too_late(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        session = await stage.new_session()
        receipt = await stage.post(f"{session}/calls/nope/interrupt")
        assert receipt["status"] == "too_late"
        done = await stage.post(f"{session}/questions/nope/answer", {"text": "x"})
        assert done["status"] == "too_late"
        status, answer = await stage.ask("POST", f"{session}/interrupt", {"scope": "call"})
        assert (status, answer["code"]) == (400, "bad_request")


async def test_a_body_that_does_not_come_is_waited_for_only_so_long(tmp_path: Path) -> None:
    async with serving([], tmp_path, limits=GatewayLimits(body_s=0.2)) as stage:
        # Without a body, so that this one cannot come too slowly.
        session = f"/v1/sessions/{(await stage.post('/v1/sessions'))['session']['id']}"
        answer = await raw(stage, f"POST {session}/messages", b"content-length: 100\r\n", b'{"te')
        assert answer.startswith(b"HTTP/1.1 408 ")


async def test_connections_that_say_nothing_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving([], tmp_path) as stage:
        with monkeypatch.context() as patch:
            patch.setattr(GatewayProtocol, "head_s", 0.2)
            for begun in (b"", b"GET / HTTP/1.1\r\nHost: x", b"GET /"):
                with connected(stage) as peer:
                    peer.sendall(begun)
                    assert await anyio.to_thread.run_sync(peer.recv, 1000) == b""
        await stage.get("/v1/me")


async def test_a_connection_that_was_used_has_no_longer_for_its_next_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving([], tmp_path) as stage:
        monkeypatch.setattr(GatewayProtocol, "head_s", 0.2)
        with connected(stage) as peer:
            peer.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = await anyio.to_thread.run_sync(peer.recv, 1000)
            assert answer.startswith(b"HTTP/1.1 200 ")
            peer.sendall(b"GET /healthz HTTP/1.1\r\nHo")
            assert await anyio.to_thread.run_sync(peer.recv, 1000) == b""


async def test_a_head_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        answer = await raw(stage, "GET /v1/me", b"x-long: " + b"x" * 100_000 + b"\r\n")
        assert answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 "))


async def test_what_is_not_http_is_refused_and_harms_nobody(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        for garbage in (b"\x16\x03\x01\x02\x00\x01", b"\x00" * 1000, b"HELO there\r\n\r\n"):
            with connected(stage) as peer:
                peer.sendall(garbage)
                answer = await anyio.to_thread.run_sync(peer.recv, 1000)
                assert not answer or answer.startswith(b"HTTP/1.1 400 ")
        await stage.get("/v1/me")


async def test_one_who_hangs_up_in_the_middle_of_a_body_loses_nobody_else_anything(
    tmp_path: Path,
) -> None:
    async with serving([], tmp_path) as stage:
        session = await stage.new_session()
        for _ in range(20):
            with connected(stage) as peer:
                head = f"POST {session}/messages HTTP/1.1\r\nhost: localhost\r\n"
                head += f"authorization: Bearer {START_TOKEN}\r\ncontent-length: 50\r\n\r\n"
                peer.sendall(head.encode() + b'{"text": "ha')
        assert (await stage.get(f"{session}"))["session"]["last_seq"] == 0


async def test_a_store_that_fails_is_a_503_and_the_message_is_not_there(tmp_path: Path) -> None:
    store = HeldStore()
    async with serving([[Say("x")]], tmp_path, store=store) as stage:
        session = await stage.new_session()
        store.fail_next(MessageAccepted)
        status, answer = await stage.ask("POST", f"{session}/messages", {"text": "a"})
        assert (status, answer["code"]) == (503, "unavailable")
        sent = await stage.post(f"{session}/messages", {"text": "b"})
        turn = await stage.get(f"{session}/turns/{sent['turn']}?wait=true")
        assert turn["messages"] == [sent["message"]]


async def raw(stage: Stage, request: str, headers: bytes = b"", body: bytes = b"") -> bytes:
    with connected(stage) as peer:
        head = f"{request} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {START_TOKEN}\r\n"
        kind = b"content-type: application/json\r\n"
        peer.sendall(head.encode() + kind + headers + b"\r\n" + body)
        answer: bytes = await anyio.to_thread.run_sync(peer.recv, 10_000)
        return answer


def connected(stage: Stage) -> socket.socket:
    where = urlsplit(stage.url)
    assert where.hostname is not None
    peer = socket.create_connection((where.hostname, where.port or 80))
    peer.settimeout(WITHIN_S)
    return peer


async def test_work_after_an_answer_that_fails_ends_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as a ping to a connection that was closed a moment ago, for which uvloop raises this."""

    async def write_to_closed() -> None:
        raise RuntimeError("unable to perform operation; the handler is closed")

    done = anyio.Event()

    async def work() -> None:
        done.set()

    async with serving([], tmp_path) as stage:
        stage.gateway.go_on(write_to_closed())
        await stage.new_session()
        stage.gateway.go_on(work())
        with anyio.fail_after(WITHIN_S):
            await done.wait()
    assert "the handler is closed" in caplog.text
