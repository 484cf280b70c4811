"""Opens the browser for a sign-in, and listens on a port of this machine for its return.

The terminal always shows the address, and a browser is opened if there is one. A person whose
browser is on another machine can paste its last address into the terminal. Only an answer with the
state of this sign-in counts; any other is refused, and the waiting goes on.
"""

import asyncio
import os
import secrets
import socket
import webbrowser
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import parse_qs, urlsplit

import anyio

from bargein.errors import UserError

PATH: Final = "/callback"
REQUEST_BYTES_MAX: Final = 16 << 10
REQUEST_S: Final = 10.0
PATIENCE_S: Final = 300.0
LINE_CHARS_MAX: Final = 8192

_DONE: Final = "You are signed in, or were refused: the terminal says which. Close this window."


class LoopbackBrowser:
    """`visit` opens an address and returns the one that the browser came back to."""

    def __init__(self, port: int, say: Callable[[str], object], *, opens_browser: bool) -> None:
        self.redirect = f"http://127.0.0.1:{port}{PATH}"
        self._say = say
        self._opens_browser = opens_browser
        self._state = ""
        self._came: str | None = None
        self._changed = anyio.Event()

    async def visit(self, url: str) -> str:
        """Raises `UserError` if nobody comes back in time."""
        self._state = _state_in(url)
        self._came, self._changed = None, anyio.Event()
        self._say(f"Open this address to sign in:\n\n  {url}\n")
        if self._opens_browser:
            # It starts a program, which may take its time.
            await asyncio.to_thread(webbrowser.open, url)
        with anyio.move_on_after(PATIENCE_S):
            await self._changed.wait()
        if self._came is None:
            raise UserError(f"nobody came back from the sign-in within {PATIENCE_S:g} s; try again")
        return self._came

    def take(self, address: str) -> bool:
        """An address that a browser came back to. Returns whether it is of this sign-in."""
        given = _state_in(address)
        if not self._state or not secrets.compare_digest(given.encode(), self._state.encode()):
            return False
        self._came = address
        self._changed.set()
        return True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one request of a browser."""
        try:
            with anyio.move_on_after(REQUEST_S):
                first = (await reader.readuntil(b"\r\n")).decode("latin-1").split()
                target = first[1] if len(first) == 3 and first[0] == "GET" else ""
                taken = urlsplit(target).path == PATH and self.take(f"http://127.0.0.1{target}")
                status, body = ("200 OK", _DONE) if taken else ("404 Not Found", "Nothing is here.")
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()
                )
                await writer.drain()
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # not a browser
        finally:
            writer.close()


def _state_in(url: str) -> str:
    try:
        return parse_qs(urlsplit(url).query).get("state", [""])[0]
    except ValueError:
        return ""


@asynccontextmanager
async def loopback_browser(
    say: Callable[[str], object], *, opens_browser: bool, typed: int | None = None
) -> AsyncIterator[LoopbackBrowser]:
    """`typed` is a terminal's descriptor, in which an address may be pasted."""
    listening = socket.create_server(("127.0.0.1", 0))
    port: int = listening.getsockname()[1]
    browser = LoopbackBrowser(port, say, opens_browser=opens_browser)
    server = await asyncio.start_server(browser.serve, sock=listening, limit=REQUEST_BYTES_MAX)
    loop = asyncio.get_running_loop()

    def read_typed() -> None:
        assert typed is not None
        line = os.read(typed, LINE_CHARS_MAX).decode("utf-8", "replace").strip()
        if not line:
            loop.remove_reader(typed)
        elif not browser.take(line):
            say("That is not the address that this sign-in leads to.")

    if typed is not None:
        loop.add_reader(typed, read_typed)
    try:
        async with server:
            yield browser
    finally:
        if typed is not None:
            loop.remove_reader(typed)
