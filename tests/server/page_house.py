"""A whole gateway in a thread of its own, for a browser to visit: a scripted model with gates, real
commands, data on disk. It can be restarted on the same port and the same data."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio

from bargein.contracts.event import Recorded
from bargein.mcp import McpServer
from bargein.models.script import Answer, Script, Step
from bargein.models.scripted import ScriptedModel
from bargein.models.settings import ModelSettings
from bargein.runtime.agent import Agent
from bargein.runtime.config import Config
from bargein.runtime.engine import Engine
from bargein.server.access import Access, add_token, revoke_token
from bargein.server.app import build_app
from bargein.server.gateway import Gateway, Settings
from bargein.server.gateway_db import FILE, GatewayDb
from bargein.server.running import GatewayServer, listen
from bargein.session.engine import SessionEngine
from bargein.stores.grants import GrantsFile
from bargein.tools import Tool, tool
from bargein.tools.todo import todo_tool

T = TypeVar("T")

START_TOKEN = "the-token-of-these-tests"
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}
WITHIN_S = 50.0


def booking(booked: list[str]) -> Tool[..., Any]:
    """A tool with an effect that is not in files."""

    def release(seat: str, result: str) -> str:
        """Release a seat."""
        booked.append(f"released {seat}, {result}")
        return "released"

    @tool(undo=release)
    def book(seat: str) -> str:
        """Book a seat."""
        booked.append(f"booked {seat}")
        return "number 7"

    return book


@dataclass
class House:
    """`answers` is what the model says; set it before a test talks, see `say`. `booked` is what the
    tool `book` did, and the function that undoes it."""

    home: Path
    workspace: Path
    port: int = 0
    mcp: Sequence[McpServer] = ()
    model: ScriptedModel = field(default_factory=lambda: ScriptedModel([]))
    booked: list[str] = field(default_factory=list)
    _loop: asyncio.AbstractEventLoop | None = None
    _thread: threading.Thread | None = None
    _server: GatewayServer | None = None
    _gateway: Gateway | None = None
    _place: socket.socket | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def script(self, *answers: Answer | Sequence[Step]) -> None:
        """Sets what the model says from now on."""
        self.model.endpoint.script = Script(list(answers))

    def open_gate(self, name: str) -> None:
        self._call(lambda: self.model.gate(name).open())

    def wait_for_gate(self, name: str) -> None:
        """Waits until the model has reached this gate."""
        self.run(self.model.gate(name).reached)

    def events(self, session: str) -> list[Recorded]:
        async def read() -> list[Recorded]:
            return await self.engine.store.events(session)

        return self.run(read)

    def rename_many(self, session: str, times: int) -> None:
        """Adds so many events to the log of a session."""

        async def rename() -> None:
            opened = await self.engine.session(session)
            for number in range(times):
                await opened.rename(f"Number {number}")

        self.run(rename)

    def new_token(self, principal: str, *, read_only: bool = False) -> str:
        async def add() -> str:
            assert self._gateway is not None
            row, token = await add_token(self._gateway.db, principal, read_only=read_only)
            assert row.principal == principal
            return token

        return self.run(add)

    def revoke(self, token: str) -> None:
        async def revoke() -> bool:
            assert self._gateway is not None
            return await revoke_token(self._gateway.db, token.split("_")[1])

        assert self.run(revoke)

    def streams(self, principal: str) -> int:
        """Returns how many streams this principal has open."""
        assert self._gateway is not None
        return sum(each.principal.name == principal for each in set(self._gateway.streams))

    @property
    def engine(self) -> SessionEngine:
        assert self._gateway is not None
        return self._gateway.engine

    def run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run an async function in the server's loop, and wait for it."""
        assert self._loop is not None
        future: Future[T] = asyncio.run_coroutine_threadsafe(function(), self._loop)
        return future.result(WITHIN_S)

    def _call(self, function: Callable[[], object]) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(function)

    # Its life

    def start(self) -> None:
        if self._place is None:
            # Bound and never listening, so that nobody else is given the port between two lives.
            self._place = socket.socket()
            self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._place.bind(("127.0.0.1", 0))
            self.port = self._place.getsockname()[1]
        listening = listen("127.0.0.1", self.port)
        ready = threading.Event()
        self._thread = threading.Thread(
            target=anyio.run,
            args=(self._main, listening, ready),
            # As in production; asyncio's own loses a connection that comes as the server closes.
            kwargs={"backend_options": {"use_uvloop": True}},
            name="gateway under test",
        )
        self._thread.start()
        assert ready.wait(WITHIN_S), "the server did not start"

    def stop(self) -> None:
        """Ends the server as the program would: cuts streams and stops turns. The data and the port
        stay for the next start."""
        assert self._server is not None
        assert self._gateway is not None
        server, gateway = self._server, self._gateway

        def leave() -> None:
            gateway.cut_streams()
            server.should_exit = True

        self._call(leave)
        assert self._thread is not None
        self._thread.join(WITHIN_S)
        assert not self._thread.is_alive(), "the server did not stop"

    def close(self) -> None:
        try:
            self.stop()
        finally:
            if self._place is not None:
                self._place.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def _main(self, listening: socket.socket, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            agent = Agent(
                model=self.model,
                workspace=self.workspace,
                tools=[booking(self.booked), todo_tool()],
                sub_agents={},
                asks=True,
                mcp=self.mcp,
            )
            config = Config(self.home, ModelSettings(), ENVIRONMENT)
            grants = GrantsFile(self.home.with_name(f"{self.home.name}-grants.json"))
            engine = await stack.enter_async_context(
                Engine(agent, home=self.home, config=config, grants=grants.project(self.workspace))
            )
            db = GatewayDb.open(self.home / FILE)
            stack.callback(db.close)
            access = Access(db, start_token=START_TOKEN)
            settings = Settings(model="scripted")
            self._gateway = Gateway(engine.core, db, access, settings=settings, mcp=engine)
            self._server = GatewayServer(self._gateway, build_app(self._gateway))
            stack.callback(listening.close)
            async with anyio.create_task_group() as group:
                group.start_soon(self._tell_when_listening, ready)
                await self._server.run_until_left([listening])
                group.cancel_scope.cancel()

    async def _tell_when_listening(self, ready: threading.Event) -> None:
        assert self._server is not None
        await self._server.listening.wait()
        ready.set()
