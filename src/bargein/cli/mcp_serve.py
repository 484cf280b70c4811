"""`bargein mcp serve`: offers the agent of this folder as a tool, over standard input and output.

The client is answered while the engine still opens. The end of standard input, SIGTERM and Ctrl-C
stop every turn that the client asked for, and end the program when all of it has settled.
"""

import os
import sys
from contextlib import aclosing
from functools import partial
from pathlib import Path
from secrets import token_hex

import anyio

from bargein import __version__
from bargein.cancel import arm_quit_watchdog, disarm_quit_watchdog
from bargein.cancel._loops import call_if_open, loop_caller
from bargein.cli.chat.any_engine import AnyEngine
from bargein.cli.granted import obey_mode_flag
from bargein.cli.joining import engine_of_owner
from bargein.cli.run import Notices
from bargein.cli.signals import heard
from bargein.errors import UserError, WorldError
from bargein.mcp_server.pipes import LineOutbox, own_streams, read_lines, write_lines
from bargein.mcp_server.server import McpAgentServer
from bargein.runtime.config import Config
from bargein.session.any_session import AnySession

PREFIX = "mcp-"
"""Clients continue sessions of clients alone; the user's own are not theirs to read."""
QUIT_S = 20.0
STOPPED = 130

ABOUT = """\
Delegates a task to the Bargein agent, which works in the folder {folder} with tools of its own:
commands, Python, files, search and the web. It answers when the task is done. Cancel the request
to stop it: everything that it started ends with it. The result names the session; give it to
continue."""


async def serve(config: Config) -> int:
    if sys.stdin.isatty():
        print("bargein mcp serve: an MCP client starts this; docs/mcp.md says how", file=sys.stderr)
    with own_streams() as (reading, writing), anyio.CancelScope() as scope:
        leave = partial(call_if_open, loop_caller(), scope.cancel)

        def interrupt(presses: int) -> None:
            if presses > 2:
                os._exit(STOPPED)
            leave()

        with heard(on_interrupt=interrupt, on_leave=lambda number: leave()):
            await _serve(config, reading, writing)
    disarm_quit_watchdog()
    return 0


async def _serve(config: Config, reading: int, writing: int) -> None:
    outbox = LineOutbox()
    opening = _Opening(config)
    about = ABOUT.format(folder=Path.cwd())
    server = McpAgentServer(opening.session, outbox.send, version=__version__, about=about)

    async def write() -> None:
        try:
            await write_lines(writing, outbox)
        except WorldError:
            # The client has gone; what it asked for ends as after the end of its messages.
            tasks.cancel_scope.cancel()

    async def end_if_unread() -> None:
        await outbox.overflowed.wait()
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as around:
        around.start_soon(opening.run)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            tasks.start_soon(end_if_unread)
            async with aclosing(read_lines(reading)) as lines:
                await server.serve(lines)
            tasks.cancel_scope.cancel()
        arm_quit_watchdog(QUIT_S)
        around.cancel_scope.cancel()


class _Opening:
    """The engine, which opens beside the first messages."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._engine: AnyEngine | None = None
        self._opened = anyio.Event()

    async def run(self) -> None:
        async with engine_of_owner(self._config, Notices()) as engine:
            here = str(Path.cwd())
            if engine.attached_to and not engine.has_places and engine.workspace != here:
                raise UserError(
                    f"{engine.attached_to} works in {engine.workspace or 'no folder'}, and not in "
                    f"{here}; start this there, or set BARGEIN_HOME to another directory"
                )
            self._engine = engine
            self._opened.set()
            await anyio.sleep_forever()

    async def session(self, name: str | None) -> AnySession:
        await self._opened.wait()
        assert self._engine is not None
        if name is None:
            session = await self._engine.session(f"{PREFIX}{token_hex(6)}")
            await obey_mode_flag(self._config, session)
            return session
        if name.startswith(PREFIX):
            session = await self._engine.session(name)
            if await session.position():
                await obey_mode_flag(self._config, session)
                return session
        raise UserError(
            f"there is no session {name!r} of an MCP client; leave it out for a new one"
        )
