"""The log and the audit log name the principal, address, id and number of requests."""

import io
import json
import logging
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from bargein.contracts.event import Recorded, TurnOutcome, TurnSettled, TurnStarted
from bargein.contracts.live import AnswerVoid
from bargein.server import readiness
from bargein.server.access import add_token, revoke_token
from bargein.server.gateway import Settings
from bargein.server.logs import STRANGERS_LINES_BURST, log_to
from bargein.server.observing import FAILURES_BURST, Failures, Observers
from bargein.server.proxy import forwarded
from tests.server.stage import Json, Stage, serving

pytestmark = pytest.mark.anyio

TRUSTED = Settings(trusted_proxies=("127.0.0.1/32", "10.0.0.0/8"))


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """The server's log, as it goes to a file."""
    root, stream = logging.getLogger("bargein"), io.StringIO()
    before = (root.handlers, root.propagate, root.level)
    log_to(stream)
    yield stream
    root.handlers, root.propagate = before[:2]
    root.setLevel(before[2])
    for name in ("uvicorn", "uvicorn.error"):
        logging.getLogger(name).handlers = []
        logging.getLogger(name).propagate = True


def lines(log: io.StringIO) -> list[Json]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


async def entries(stage: Stage, action: str) -> list[Json]:
    found = (await stage.get("/v1/admin/audit"))["entries"]
    return [each for each in found if each["action"] == action]


async def test_refusals_are_logged_at_a_bounded_rate(tmp_path: Path, log: io.StringIO) -> None:
    async with serving([], tmp_path) as stage:
        for number in range(200):
            path = ("/v1/sessions", "/v1/models")[number % 2]
            assert (await stage.ask("GET", path, token="wrong"))[0] == 401
        assert (await stage.ask("GET", "/v1/me"))[0] == 200
        written = lines(log)
        refused = [each for each in written if each.get("status") == 401]
        assert 0 < len(refused) <= STRANGERS_LINES_BURST + 20
        assert any(each["event"] == "whoami" for each in written)
        figures = stage.gateway.metrics.render(stage.gateway.now()).decode()
        assert 'bargein_refusals_total{code="unauthenticated"} 200.0' in figures


async def test_what_is_not_http_is_logged_at_a_bounded_rate(
    tmp_path: Path, log: io.StringIO
) -> None:
    async with serving([], tmp_path) as stage:
        host, port = stage.url.removeprefix("http://").split(":")
        for _ in range(100):
            async with await anyio.connect_tcp(host, int(port)) as stream:
                await stream.send(b"\x16\x03\x01 what is this\r\n\r\n")
                await stream.receive()
        assert 0 < len(lines(log)) <= STRANGERS_LINES_BURST + 20


async def test_each_request_has_an_id_of_its_own(tmp_path: Path, log: io.StringIO) -> None:
    async with serving([], tmp_path) as stage:
        seen = set()
        for path in ("/v1/me", "/v1/me", "/nowhere", "/healthz"):
            headers = {"x-request-id": "mine", "authorization": "Bearer wrong"}
            async with stage.http.get(stage.url + path, headers=headers) as response:
                seen.add(response.headers["x-request-id"])
        assert len(seen) == 4
        assert "mine" not in seen
        assert {each["request"] for each in lines(log) if "status" in each} <= seen


async def test_an_id_and_an_address_are_taken_from_a_trusted_proxy_alone(
    tmp_path: Path, log: io.StringIO
) -> None:
    told = {"x-request-id": "proxys-1", "x-forwarded-for": "6.6.6.6, 203.0.113.9, 10.1.1.1"}
    for settings, address in ((TRUSTED, "203.0.113.9"), (Settings(), "127.0.0.1")):
        home = tmp_path / address
        home.mkdir()
        async with serving([], home, settings=settings) as stage:
            await stage.post("/v1/sessions", {}, headers=told)
            (made,) = await entries(stage, "create_session")
            assert made["address"] == address
            (line,) = [each for each in lines(log) if each["event"] == "create_session"]
            assert (line["request"] == "proxys-1") == (settings is TRUSTED)
            log.seek(0)
            log.truncate()


@pytest.mark.parametrize(
    ("header", "value", "address"),
    [
        ("x-forwarded-for", "6.6.6.6, 203.0.113.9", "203.0.113.9"),
        ("x-forwarded-for", "203.0.113.9, 10.0.0.1, 10.0.0.2", "203.0.113.9"),
        ("x-forwarded-for", "10.0.0.3, 10.0.0.2", "10.0.0.3"),
        ("x-forwarded-for", "203.0.113.9:1234", "203.0.113.9"),
        ("x-forwarded-for", "6.6.6.6, nonsense, 10.0.0.1", "10.0.0.1"),
        ("x-forwarded-for", "", ""),
        ("forwarded", "for=6.6.6.6, for=203.0.113.9;proto=https", "203.0.113.9"),
        ("forwarded", 'for="[2001:db8::1]:80";by=10.0.0.1', "2001:db8::1"),
        ("forwarded", "for=6.6.6.6, for=unknown, for=10.0.0.1", "10.0.0.1"),
        ("forwarded", 'for="6.6.6.6, for=203.0.113.9', "203.0.113.9"),
        ("forwarded", "", ""),
    ],
)
def test_a_chain_of_proxies_is_read_from_its_end(header: str, value: str, address: str) -> None:
    """Both headers are there, and only the one that the operator named is read."""
    other = "forwarded" if header == "x-forwarded-for" else "x-forwarded-for"
    headers = [(header.encode(), value.encode()), (other.encode(), b"for=7.7.7.7")]
    origin = forwarded(headers, header, TRUSTED.is_proxy)  # type: ignore[arg-type]
    assert origin.address == address


async def test_the_audit_log_says_what_was_made_and_who_was_let_in(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        session = await stage.new_session()
        (made,) = await entries(stage, "create_session")
        assert made["session"] == session.rpartition("/")[2]
        members = {"members": {"bob": "write", "carol": "read"}}
        await stage.ask("PATCH", session, members)
        await stage.ask("PATCH", session, {"members": {}})
        shared, ended = await entries(stage, "change_session")
        assert shared["detail"] == "shared with 2: bob (write), carol (read)"
        assert ended["detail"] == "shared with nobody"
        row, text = await add_token(stage.gateway.db, "bob", read_only=True)
        assert await revoke_token(stage.gateway.db, row.id)
        assert not await revoke_token(stage.gateway.db, row.id)
        (added,) = await entries(stage, "add_token")
        (revoked,) = await entries(stage, "revoke_token")
        assert (added["target"], added["detail"]) == (f"{row.id} for bob", "read-only")
        assert (revoked["target"], revoked["address"]) == (row.id, "local")
        assert text.rpartition("_")[2] not in json.dumps([added, revoked])


def test_failures_of_providers_are_logged(log: io.StringIO) -> None:
    observe = Observers(Failures().observe)
    observe("s", Recorded(1, 0.0, TurnStarted("t1", ())))
    observe("s", AnswerVoid("t1", "openai:m answered 503", 0.5, "openai:m"))
    settled = TurnSettled("t1", TurnOutcome.FAILED, error="no answer; Bearer abcdef")
    observe("s", Recorded(3, 0.0, settled))
    observe("s", Recorded(4, 0.0, TurnSettled("t2", TurnOutcome.COMPLETED)))
    retried, failed = lines(log)
    assert (retried["level"], retried["session"], retried["turn"]) == ("warning", "s", "t1")
    assert "answered 503" in retried["event"]
    assert retried["model"] == "openai:m"
    assert "no answer" in failed["event"]
    assert "abcdef" not in failed["event"]
    observe("s", Recorded(5, 0.0, TurnStarted("t3", ())))
    for _ in range(1000):
        observe("s", AnswerVoid("t3", "x", 0.5, "m"))
    assert len(lines(log)) <= FAILURES_BURST + 10


async def test_it_is_not_ready_while_its_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "KEPT_S", 0.0)
    async with serving([], tmp_path) as stage:
        assert (await stage.ask("GET", "/readyz", token=None))[0] == 200
        monkeypatch.setattr(readiness, "ROOM_BYTES", 2**62)
        status, answer = await stage.ask("GET", "/readyz", token=None)
        assert (status, answer["code"]) == (503, "unavailable")
        assert "bytes left" in answer["detail"]
        assert (await stage.ask("GET", "/healthz", token=None))[0] == 200
        monkeypatch.setattr(readiness, "ROOM_BYTES", 0)
        assert (await stage.ask("GET", "/readyz", token=None))[0] == 200


def test_a_disk_without_room_is_seen_by_writing_to_it(tmp_path: Path) -> None:
    """A real file system, one page larger than the probe. Needs the right to mount."""
    place = tmp_path / "full"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "none", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a file system")
    try:
        assert readiness.room_problem(place) is None
        assert list(place.iterdir()) == []
        (place / "filling").write_bytes(bytes(31 * 1024 * 1024))
        problem = readiness.room_problem(place)
        assert problem is not None
        assert problem.status == 503
    finally:
        subprocess.run(["umount", str(place)], check=True)
    assert readiness.room_problem(tmp_path / "nowhere") is not None
