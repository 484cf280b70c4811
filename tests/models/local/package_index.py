"""A package index on loopback that sends as much of a wheel as it is told to."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

PIECE_BYTES = 64 * 1024


class PackageIndex:
    """`with PackageIndex(wheel) as index:`; `hold_at` stops the wheel there until `release`,
    `drop_at` cuts the connection there."""

    def __init__(
        self, wheel: Path | None, *, hold_at: int | None = None, drop_at: int | None = None
    ) -> None:
        self.wheel = wheel
        self.hold_at = hold_at
        self.drop_at = drop_at
        self.wheels_asked = 0
        self.held = threading.Event()
        self.client_gone = threading.Event()
        self._go_on = threading.Event()
        index = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
                pass

            def do_GET(self) -> None:
                try:
                    index.answer(self)
                except OSError:
                    index.client_gone.set()

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/simple"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def release(self) -> None:
        self._go_on.set()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        if self.wheel is None or (
            handler.path.startswith("/simple/") is False and (handler.path != f"/{self.wheel.name}")
        ):
            handler.send_error(404)
        elif handler.path.startswith("/simple/"):
            page = f'<!DOCTYPE html><a href="/{self.wheel.name}">{self.wheel.name}</a>'.encode()
            self._head(handler, "text/html", len(page))
            handler.wfile.write(page)
        else:
            self.wheels_asked += 1
            self._send_wheel(handler, self.wheel.read_bytes())

    def _send_wheel(self, handler: BaseHTTPRequestHandler, data: bytes) -> None:
        self._head(handler, "application/octet-stream", len(data))
        for begin in range(0, len(data), PIECE_BYTES):
            if self.drop_at is not None and begin >= self.drop_at:
                handler.close_connection = True
                return
            if self.hold_at is not None and begin >= self.hold_at:
                self.held.set()
                while not self._go_on.wait(0.05):
                    # A client that went away is noticed by writing to it.
                    handler.connection.settimeout(0.01)
                    try:
                        if handler.connection.recv(1) == b"":
                            self.client_gone.set()
                            return
                    except TimeoutError:
                        pass
                    handler.connection.settimeout(None)
            handler.wfile.write(data[begin : begin + PIECE_BYTES])

    def _head(self, handler: BaseHTTPRequestHandler, kind: str, length: int) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(length))
        handler.end_headers()
