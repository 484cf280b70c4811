"""A client that goes away while its turn is settling: the turn settles once, with one receipt, and
nobody takes it for an error. The sockets are real; what makes it long is a tool that takes its time
to stop, or a store that holds the last commit."""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import msgspec
import pytest

from bargein.cancel import Cause
from bargein.contracts.event import TurnOutcome, TurnSettled
from bargein.contracts.receipt import Receipt
from bargein.models.script import Call, Say, Step, Wait
from bargein.session.session import Session
from bargein.testing.engine_invariants import check_log
from tests.server.stage import START_TOKEN, WITHIN_S, Json, Script, Stage, serving
from tests.server.test_openai import until_nothing_is_kept
from tests.session.world import HeldStore, until

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
HOLD: list[Step] = [Say("One "), Wait("hold"), Say("two.")]
ASK: Json = {"messages": [{"role": "user", "content": "Hello"}]}
RESET = struct.pack("ii", 1, 0)


class Slow:
    """A tool that is asked to stop, and stops when the test lets it."""

    def __init__(self) -> None:
        self.began = anyio.Event()
        self.told = anyio.Event()
        self.may = anyio.Event()

    async def slow(self) -> str:
        """Takes long."""
        self.began.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.told.set()
            with anyio.CancelScope(shield=True):
                await self.may.wait()
        return ""


class Client:
    """Sends one request on its own connection, and reads nothing."""

    def __init__(self, stage: Stage, path: str, body: Json, *, key: str | None = None) -> None:
        where = urlsplit(stage.url)
        assert where.hostname is not None
        self._stage = stage
        self._socket = socket.create_connection((where.hostname, where.port or 80))
        content = msgspec.json.encode(body)
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        head += f"authorization: Bearer {START_TOKEN}\r\ncontent-length: {len(content)}\r\n"
        head += f"idempotency-key: {key}\r\n" if key is not None else ""
        self._socket.sendall(f"{head}\r\n".encode() + content)

    async def leave(self, *, reset: bool) -> None:
        """Disconnects, and returns when the server has noticed."""
        open_before = len(self._stage.server.server_state.connections)
        if reset:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._socket.close()
        await until(lambda: len(self._stage.server.server_state.connections) < open_before)


@asynccontextmanager
async def settling(
    script: Script,
    home: Path,
    caplog: pytest.LogCaptureFixture,
    *tools: Callable[..., object],
) -> AsyncIterator[tuple[Stage, HeldStore, str]]:
    """A server with one session. What was logged meanwhile has no warning in it."""
    caplog.set_level(logging.INFO)
    store = HeldStore()
    async with serving(script, home, store=store, tools=tools) as stage:
        session = await stage.new_session()
        yield stage, store, session.rpartition("/")[2]
    told = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert told == []


async def check_settled_once(stage: Stage, session: str, cause: Cause | None) -> TurnSettled:
    """The end of the first turn; `cause` of its stop, None for one that ended by itself."""
    await until(lambda: not stage.gateway.streams)
    with anyio.fail_after(WITHIN_S):
        await Session(stage.engine, session).settled()
    log = await stage.engine.store.events(session)
    check_log(log, session)
    (settled,) = (each.event for each in log if isinstance(each.event, TurnSettled))
    assert settled.turn == "t1"
    if cause is None:
        assert (settled.outcome, settled.receipt) == (TurnOutcome.COMPLETED, None)
    else:
        assert settled.outcome is TurnOutcome.STOPPED
        assert settled.receipt is not None
        assert settled.receipt.reason is not None
        assert settled.receipt.reason.cause is cause
    return settled


def told_as(receipt: Receipt | None) -> object:
    return msgspec.json.decode(msgspec.json.encode(receipt))


async def check_next_works(stage: Stage, session: str) -> None:
    answer = await stage.post(CHAT, {**ASK, "metadata": {"session": session}})
    assert answer["choices"][0]["message"]["content"] == "Next."


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("reset", [True, False])
async def test_while_it_settles_by_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, stream: bool, reset: bool
) -> None:
    async with settling([[Say("Done.")], [Say("Next.")]], tmp_path, caplog) as world:
        stage, store, session = world
        store.hold(TurnSettled)
        client = Client(stage, CHAT, {**ASK, "stream": stream, "metadata": {"session": session}})
        await store.reached.wait()
        await client.leave(reset=reset)
        store.release()
        await check_settled_once(stage, session, None)
        await check_next_works(stage, session)


@pytest.mark.parametrize("stream", [True, False])
async def test_while_it_settles_for_somebody_elses_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    async with settling([HOLD, [Say("Next.")]], tmp_path, caplog) as (stage, store, session):
        client = Client(stage, CHAT, {**ASK, "stream": stream, "metadata": {"session": session}})
        await stage.model.gate("hold").reached()
        store.hold(TurnSettled)
        receipts: list[Json] = []

        async def stop() -> None:
            receipts.append(await stage.post(f"/v1/sessions/{session}/interrupt"))

        async with anyio.create_task_group() as group:
            group.start_soon(stop)
            await store.reached.wait()
            await client.leave(reset=True)
            store.release()
        settled = await check_settled_once(stage, session, Cause.USER_STOP)
        assert receipts == [told_as(settled.receipt)]
        await check_next_works(stage, session)


@pytest.mark.parametrize("stream", [True, False])
async def test_while_others_stop_what_its_leaving_has_stopped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    """Three clients stop the same turn, and two of them do not wait."""
    tool = Slow()
    script: Script = [[Call("slow", {})], [Say("Next.")]]
    async with settling(script, tmp_path, caplog, tool.slow) as (stage, _, session):
        client = Client(stage, CHAT, {**ASK, "stream": stream, "metadata": {"session": session}})
        await tool.began.wait()
        await client.leave(reset=True)
        await tool.told.wait()
        await (await stopping(stage, session, key="impatient")).leave(reset=False)
        receipts: list[Json] = []

        async def stop() -> None:
            receipts.append(await stage.post(f"/v1/sessions/{session}/interrupt"))

        async with anyio.create_task_group() as group:
            group.start_soon(stop)
            await until(lambda: len(stage.server.server_state.tasks) == 3)
            tool.may.set()
        settled = await check_settled_once(stage, session, Cause.CLIENT_GONE)
        assert receipts == [told_as(settled.receipt)]
        await check_next_works(stage, session)


async def stopping(stage: Stage, session: str, *, key: str) -> Client:
    """One who waits for the receipt of a stop."""
    client = Client(stage, f"/v1/sessions/{session}/interrupt", {"reason": "enough"}, key=key)
    await until(lambda: ("operator", key) in stage.gateway.keys._under_way)
    return client


@pytest.mark.parametrize("reset", [True, False])
async def test_one_who_stops_and_does_not_wait_for_the_receipt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, reset: bool
) -> None:
    async with settling([HOLD, [Say("Next.")]], tmp_path, caplog) as (stage, store, session):
        sent = await stage.post(f"/v1/sessions/{session}/messages", {"text": "go"})
        await stage.model.gate("hold").reached()
        store.hold(TurnSettled)
        client = await stopping(stage, session, key="stop-1")
        await store.reached.wait()
        await client.leave(reset=reset)
        store.release()
        turn = await stage.get(f"/v1/sessions/{session}/turns/{sent['turn']}?wait=true")
        settled = await check_settled_once(stage, session, Cause.USER_STOP)
        assert turn["receipt"] == told_as(settled.receipt)
        # Whoever asks again, after its connection broke, is told of the one stop that there was.
        again = await stage.post(
            f"/v1/sessions/{session}/interrupt",
            {"reason": "enough"},
            headers={"idempotency-key": "stop-1"},
        )
        assert again == turn["receipt"]
        await check_next_works(stage, session)


@pytest.mark.parametrize("stream", [True, False])
async def test_of_a_session_without_a_name_nothing_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    async with settling([HOLD, [Say("Next.")]], tmp_path, caplog) as (stage, store, session):
        await stage.ask("DELETE", f"/v1/sessions/{session}")
        store.hold(TurnSettled)
        client = Client(stage, CHAT, {**ASK, "stream": stream})
        await stage.model.gate("hold").reached()
        await client.leave(reset=True)
        await store.reached.wait()
        store.release()
        await until_nothing_is_kept(stage)
        settled = [
            event
            for commit in store.commits
            for event in commit.events
            if isinstance(event, TurnSettled)
        ]
        assert [each.outcome for each in settled] == [TurnOutcome.STOPPED]
        answer = await stage.post(CHAT, ASK)
        assert answer["choices"][0]["message"]["content"] == "Next."
