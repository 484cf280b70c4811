"""A child process's link to us: a Unix socket over which it can send requests.

Each request is its own connection, so a child may ask from several threads at once, and a child
that dies hangs up on all of them. Only a child that has the secret gets an answer. The secret
reaches the child through its standard input; no argument, environment or file contains it.

Closing the link gives answers in progress a moment to end by themselves, then cancels them: a call
that is stopped along with the child ends by its own ladder, and its outcome counts. The link owns
all its answering tasks; none outlives it.
"""

import asyncio
import hmac
import os
import secrets
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from bargein.cancel import shield
from bargein.tools import frames
from bargein.tools.frames import BrokenFrame, Message

ANSWERS_MAX = 32
_END_S = 0.1
# Without links, so that a sandbox can show a folder in it.
_TEMPORARY = os.path.realpath(tempfile.gettempdir())

HungUp = Callable[[], Awaitable[None]]
Answer = Callable[[Message, HungUp], Awaitable[Message]]
"""Answers one request. `await hung_up()` returns when the child no longer waits for the answer."""


class ChildLink:
    """`patience_s` returns how long answers may still take when the link closes."""

    def __init__(self, answer: Answer, patience_s: Callable[[], float]) -> None:
        self._answer = answer
        self._patience_s = patience_s
        self._secret = secrets.token_urlsafe(24)
        self._slots = asyncio.Semaphore(ANSWERS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._folder: Path | None = None
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> Message:
        """What the child needs to send requests."""
        assert self._folder is not None
        return {"path": str(self._folder / "link"), "secret": self._secret}

    @property
    def folder(self) -> str:
        """The child must be able to reach this folder."""
        assert self._folder is not None
        return str(self._folder)

    async def __aenter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="bargein-", dir=_TEMPORARY))
        try:
            self._server = await asyncio.start_unix_server(
                self._begin, self._folder / "link", limit=1 << 20
            )
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        assert self._folder is not None
        self._server.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        patience_s = max(_END_S, self._patience_s())
        with shield(patience_s + 2 * _END_S):
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=patience_s)
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=_END_S)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer), name="answer to a child")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            message = await _read(reader)
            given = str(message.pop("secret", "")).encode()
            if hmac.compare_digest(given, self._secret.encode()):
                async with self._slots:
                    answer = await self._answer(message, lambda: _hung_up(reader))
                writer.write(frames.encode(answer))
                await writer.drain()
        except (BrokenFrame, ConnectionError, asyncio.IncompleteReadError):
            pass  # the child sent an invalid request or did not wait for the answer
        finally:
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Message:
    length = frames.length_of(await reader.readexactly(frames.HEADER.size))
    return frames.decode(await reader.readexactly(length))


async def _hung_up(reader: asyncio.StreamReader) -> None:
    """Waits until the other side closes its end; ignores anything else it sends."""
    try:
        while await reader.read(1 << 16):
            pass
    except ConnectionError:
        pass
