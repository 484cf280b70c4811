"""Streams: nothing missed, nothing twice, and no reader delays another."""

import socket
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest

from bargein.models.script import Say, Step, Wait
from bargein.server.limits import GatewayLimits
from bargein.session.limits import Limits
from bargein.stores.sqlite import SqliteStore
from tests.server.stage import LIMITS, START_TOKEN, WITHIN_S, Json, Script, Stage, serving, type_of
from tests.session.world import until

pytestmark = pytest.mark.anyio

HOLD: list[Step] = [Say("One "), Wait("hold"), Say("two.")]


async def started(stage: Stage) -> str:
    session = await stage.new_session()
    await stage.post(f"{session}/messages", {"text": "count"})
    await stage.model.gate("hold").reached()
    return session


def places(events: list[Json]) -> list[int]:
    return [each["id"] for each in events if "id" in each]


async def test_a_stream_goes_on_where_it_was(tmp_path: Path) -> None:
    async with serving([HOLD], tmp_path) as stage:
        session = await started(stage)
        async with stage.events(f"{session}/events?after=0") as events:
            await events.until("turn_started")
            seen = places(events.seen)
        stage.model.gate("hold").open()
        async with stage.events(f"{session}/events", last_event_id=seen[-1]) as events:
            await events.until("turn_settled")
            rest = places(events.seen)
        assert seen + rest == list(range(1, rest[-1] + 1))


async def test_the_header_wins_over_the_address_a_browser_began_with(tmp_path: Path) -> None:
    async with serving([[Say("x")]], tmp_path) as stage:
        session = await stage.new_session()
        await stage.post(f"{session}/messages", {"text": "x"})
        await stage.get(f"{session}/turns/t1?wait=true")
        async with stage.events(f"{session}/events?after=0", last_event_id=2) as events:
            first = await events.next()
        assert first["id"] == 3


async def test_one_who_comes_in_the_middle_of_a_text_is_told_it_from_its_beginning(
    tmp_path: Path,
) -> None:
    async with serving([HOLD], tmp_path) as stage:
        session = await started(stage)
        async with stage.events(f"{session}/events") as events:
            so_far = await events.next()
            assert (type_of(so_far), so_far["text"]) == ("answer_so_far", "One ")
            stage.model.gate("hold").open()
            assert (await events.until("text_delta"))["text"] == "two."
            said = await events.until("assistant_said")
            assert said["event"]["message"]["content"][0]["text"] == "One two."


async def test_a_place_that_is_not_in_the_log_is_refused(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        session = await stage.new_session()
        for after in ("99", "-1", "x", "1e3", "9" * 40):
            status, answer = await stage.ask("GET", f"{session}/events?after={after}")
            assert (status, answer["code"]) == (400, "bad_request")
            assert after[:20] in answer["detail"]


async def test_a_reader_that_goes_away_stops_nothing(tmp_path: Path) -> None:
    async with serving([HOLD], tmp_path) as stage:
        session = await started(stage)
        async with stage.events(f"{session}/events?after=0") as events:
            await events.until("turn_started")
            assert len(stage.gateway.streams) == 1
        await until(lambda: not stage.gateway.streams)
        stage.model.gate("hold").open()
        turn = await stage.get(f"{session}/turns/t1?wait=true")
        assert (turn["outcome"], turn["text"]) == ("completed", "One two.")


async def test_everything_once_also_across_restarts_of_the_server(tmp_path: Path) -> None:
    """The server starts three times on one directory; one reader reconnects each time."""
    seen: list[Json] = []
    session = ""
    for life in range(3):
        store = await SqliteStore.open(tmp_path / "sessions.sqlite3")
        try:
            async with serving([[Say(f"life {life}")], HOLD], tmp_path, store=store) as stage:
                session = session or await stage.new_session()
                last = places(seen)[-1] if seen else 0
                async with stage.events(f"{session}/events", last_event_id=last) as events:
                    await stage.post(f"{session}/messages", {"text": f"{life}", "mode": "queue"})
                    await stage.post(f"{session}/messages", {"text": "hold", "mode": "queue"})
                    await stage.model.gate("hold").reached()
                    await events.until("step_over")
                    await events.until("text_delta")
                    # In the middle of a text, and of a turn, the server goes.
                    stage.gateway.cut_streams()
                    await events.rest()
                    seen += events.seen
                    assert type_of(seen[-1]) == "cut_off"
                    assert seen[-1]["reason"] == "shutting_down"
                    assert seen[-1]["after"] == places(seen)[-1]
        finally:
            await store.aclose()
    told = places(seen)
    assert told == list(range(1, told[-1] + 1))
    # Each life settled the turn that the one before left; its words are kept.
    outcomes = [e["event"]["outcome"] for e in seen if type_of(e) == "turn_settled"]
    assert outcomes == ["completed", "stopped", "completed", "stopped", "completed"]


async def test_a_session_that_is_deleted_ends_its_streams(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        session = await stage.new_session()
        async with stage.events(f"{session}/events") as events:
            await stage.ask("DELETE", session)
            last = (await events.rest())[-1]
        assert (type_of(last), last["reason"]) == ("cut_off", "session_gone")


async def test_a_slow_reader_is_cut_off_with_a_reason_and_felt_by_nobody(tmp_path: Path) -> None:
    """It reads nothing while far more than fits goes by; the other reader gets all of it.

    Each message waits until the other reader has seen the last turn settle: on a busy machine that
    reader, too, would fall behind by more than the limit.
    """
    text = "x" * 40_000
    script: Script = [[Say(text)] for _ in range(200)]
    engine_limits = Limits(**{**_fields(LIMITS), "watcher_events_max": 50})
    limits = GatewayLimits(send_s=4.0)
    async with serving(script, tmp_path, engine_limits=engine_limits, limits=limits) as stage:
        session = await stage.new_session()
        async with stage.events(f"{session}/events?after=0") as quick:
            with slow_reader(stage, f"{session}/events?after=0"):
                await until(lambda: len(stage.gateway.streams) == 2)
                for number in range(200):
                    body = {"text": str(number), "mode": "queue"}
                    await stage.post(f"{session}/messages", body)
                    await quick.until("turn_settled")
                await until(lambda: len(stage.gateway.streams) == 1)
        told = places(quick.seen)
        assert told == list(range(1, told[-1] + 1))


async def test_a_socket_that_reads_nothing_is_cut_off(tmp_path: Path) -> None:
    text = "x" * 40_000
    script: Script = [[Say(text)] for _ in range(200)]
    upgrade = (
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    )
    async with serving(script, tmp_path, limits=GatewayLimits(send_s=0.5)) as stage:
        session = await stage.new_session()
        with slow_reader(stage, f"{session}/socket?after=0", upgrade):
            await until(lambda: len(stage.gateway.streams) == 1)
            for number in range(200):
                await stage.post(f"{session}/messages", {"text": str(number), "mode": "queue"})
            await (await stage.engine.session(session.rpartition("/")[2])).settled()
            await until(lambda: not stage.gateway.streams)


async def test_a_reader_that_was_too_slow_can_go_on_where_it_was(tmp_path: Path) -> None:
    text = "x" * 40_000
    engine_limits = Limits(**{**_fields(LIMITS), "watcher_events_max": 20})
    script = [[Say(text)] for _ in range(150)]
    async with serving(script, tmp_path, engine_limits=engine_limits) as stage:
        session = await stage.new_session()
        async with stage.events(f"{session}/events?after=0") as events:
            for number in range(150):
                await stage.post(f"{session}/messages", {"text": str(number), "mode": "queue"})
            await (await stage.engine.session(session.rpartition("/")[2])).settled()
            seen = await events.rest()
        assert (type_of(seen[-1]), seen[-1]["reason"]) == ("cut_off", "too_slow")
        told = places(seen)
        while len(told) < 600:
            path = f"{session}/events?after={seen[-1].get('after', told[-1])}"
            async with stage.events(path) as events:
                with anyio.move_on_after(1):
                    await events.rest()
                seen = events.seen or seen
                told += places(events.seen)
        assert told == list(range(1, told[-1] + 1))


async def test_a_quiet_stream_is_kept_open(tmp_path: Path) -> None:
    async with serving([[Say("x")]], tmp_path, limits=GatewayLimits(ping_s=0.02)) as stage:
        session = await stage.new_session()
        async with stage.events(f"{session}/events") as events:
            with anyio.fail_after(WITHIN_S):
                await events.until_pinged(2)
            await stage.post(f"{session}/messages", {"text": "x"})
            await events.until("turn_settled")


def _fields(limits: Limits) -> Json:
    return {name: getattr(limits, name) for name in Limits.__struct_fields__}


class slow_reader:  # noqa: N801 - reads as a phrase
    """A connection that asks for a stream and then reads nothing."""

    def __init__(self, stage: Stage, path: str, headers: str = "") -> None:
        where = urlsplit(stage.url)
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.connect((where.hostname, where.port))
        request = (
            f"GET {path} HTTP/1.1\r\nHost: {where.netloc}\r\n"
            f"Authorization: Bearer {START_TOKEN}\r\n{headers}\r\n"
        )
        self._socket.sendall(request.encode())

    def __enter__(self) -> None: ...

    def __exit__(self, *args: object) -> None:
        self._socket.close()
