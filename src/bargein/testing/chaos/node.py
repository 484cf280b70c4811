"""One node of the chaos: an engine in a process of its own, driven by lines of JSON.

`python -m bargein.testing.chaos.node ADDRESS NAME EFFECTS LEASE_S`. Each line asks for a send, a
stop or to continue; each answer is a line with the same number. Its tool has an effect: a line in a
file outside the database, written in one step.
"""

import asyncio
import os
import select
import signal
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec

from bargein.cancel import Token
from bargein.cluster.node import open_node
from bargein.contracts.model import (
    CallPart,
    EndPart,
    ModelRequest,
    Part,
    StopReason,
    TextPart,
    ToolMessage,
    Usage,
)
from bargein.contracts.store import OwnedElsewhere
from bargein.errors import BargeinError
from bargein.runtime.agent import Agent
from bargein.runtime.config import load_config
from bargein.runtime.engine import Engine
from bargein.session.elsewhere import OPERATION
from bargein.session.limits import Limits
from bargein.session.reply import SessionGone
from bargein.stores.postgres import PostgresStore
from bargein.stores.postgres.lease import LeaseTimes
from bargein.tools import ToolContext

WORD_S = 0.01
ASK_S = 5.0
EFFECT_S = 0.02
DRAIN_S = 5.0


class _Talker:
    """A model that says some words, calls the tool once, and says that it is done."""

    name = "scripted talker"
    context_tokens = None

    @asynccontextmanager
    async def open(self, request: ModelRequest, token: Token) -> AsyncIterator["_Talk"]:
        yield _Talk(token, done=isinstance(request.messages[-1], ToolMessage))

    async def aclose(self) -> None:
        pass


class _Talk:
    usage = Usage()

    def __init__(self, token: Token, *, done: bool) -> None:
        self._token = token
        self._done = done

    async def __aiter__(self) -> AsyncIterator[Part]:
        for word in ("Done. ", "All of it.") if self._done else ("I ", "will."):
            with self._token.scope():
                await anyio.sleep(WORD_S)
            self._token.check()
            yield TextPart(word)
        if not self._done:
            yield CallPart(0, f"call-{os.urandom(6).hex()}", "append", "{}")
        yield EndPart(StopReason.END if self._done else StopReason.TOOL_CALLS)


class _Node:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def answer(self, asked: dict[str, Any]) -> None:
        number = asked["number"]
        try:
            try:
                said = await self._do(asked)
            except OwnedElsewhere as owner:
                said = await self._ask(asked, owner)
        except OwnedElsewhere as owner:
            said = {"elsewhere": owner.owner}
        except BargeinError as error:
            said = {"error": f"{type(error).__name__}: {error}"}
        _say({"number": number, **said})

    async def _ask(self, asked: dict[str, Any], owner: OwnedElsewhere) -> dict[str, Any]:
        """Has the node that has the session do it. Sends are once by their key."""
        elsewhere = self._engine.core.elsewhere
        assert elsewhere is not None
        body = OPERATION + msgspec.json.encode(asked)
        answer = await elsewhere.ask(asked["session"], owner, body, within_s=ASK_S)
        if answer is None:
            return await self._do(asked)
        said: dict[str, Any] = msgspec.json.decode(answer)
        return said

    async def perform(self, key: str, body: bytes) -> bytes:
        """What another node asks for."""
        try:
            return msgspec.json.encode(await self._do(msgspec.json.decode(body)))
        except (OwnedElsewhere, SessionGone):
            raise
        except BargeinError as error:
            return msgspec.json.encode({"error": f"{type(error).__name__}: {error}"})

    async def _do(self, asked: dict[str, Any]) -> dict[str, Any]:
        session = await self._engine.session(asked["session"])
        if asked["do"] == "continue":
            await session.continue_()
            return {"status": "continued"}
        if asked["do"] == "send":
            sent = await session.send(
                asked["text"], mode=asked["mode"], client_id=asked["key"], sender="client"
            )
            return {"message": sent.message}
        receipt = await session.interrupt(by="client")
        return {"status": str(receipt.status), "turn": receipt.target, "stored": receipt.stored}


def _say(line: dict[str, Any]) -> None:
    os.write(1, msgspec.json.encode(line) + b"\n")


async def _nothing(session: str, after: int | None) -> AsyncGenerator[bytes, None]:
    """Nobody watches through another node here."""
    return
    yield b""


async def live(address: str, name: str, effects: str, lease_s: float) -> None:
    def append(context: ToolContext) -> str:
        """Have an effect."""
        began = time.monotonic()
        # Not `time.sleep`, which fails when the library that sets the clock moves it back.
        select.select([], [], [], EFFECT_S)
        file = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        line = [context.session_id, context.call_id, name, began, time.monotonic()]
        os.write(file, msgspec.json.encode(line) + b"\n")
        os.close(file)
        return "appended"

    times = LeaseTimes(renew_s=lease_s / 6, lasts_s=lease_s, fence_s=lease_s * 0.75)
    store = await PostgresStore.open(address, lease=times)
    agent = Agent(model=_Talker(), tools=[append], titles=False)
    limits = Limits(bring_back_first_s=0.05, bring_back_max_s=0.5)
    engine = Engine(agent, store=store, config=load_config({}), limits=limits)
    node = _Node(engine)
    async with (
        engine,
        open_node(engine.core, watch=_nothing, perform=node.perform),
        anyio.create_task_group() as group,
    ):
        group.start_soon(_leave_on_sigterm, engine, group.cancel_scope)
        _say({"ready": name})
        async for line in await _lines():
            group.start_soon(node.answer, msgspec.json.decode(line))
        group.cancel_scope.cancel()
    await store.aclose()


async def _lines() -> asyncio.StreamReader:
    """What is asked, line by line. Waiting for it can be cancelled."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def _leave_on_sigterm(engine: Engine, life: anyio.CancelScope) -> None:
    """As `bargein serve` does: turns end by themselves, then others take over what waits."""
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            with anyio.move_on_after(DRAIN_S):
                await engine.core.drain()
            life.cancel()


def main() -> None:
    address, name, effects, lease_s = sys.argv[1:]
    anyio.run(live, address, name, effects, float(lease_s), backend_options={"use_uvloop": True})


if __name__ == "__main__":
    main()
