"""The real program in a process of its own: `bargein serve`, as a user starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

MAIN = "from bargein.cli.main import main; raise SystemExit(main())"
START_S = 40.0

Json = dict[str, Any]


class Runtime(msgspec.Struct):
    url: str
    token: str | None
    pid: int


class Program:
    """`with Program(home, SCRIPT, ...)`: running when it is entered, gone when it is left. Without
    a script it asks the model that `model_url` speaks for."""

    def __init__(
        self, home: Path, script: str | None, *more: str, model_url: str | None = None
    ) -> None:
        self.home = home
        self._command = [sys.executable, "-c", MAIN, "serve", "--port", "0"]
        if script is not None:
            file = home / "script.toml"
            file.write_text(script)
            self._command += ["--scripted", str(file)]
        self._command += more
        self._environment = {**os.environ, "BARGEIN_HOME": str(home)}
        self._has_tools = model_url is not None
        if model_url is not None:
            self._environment |= {
                "BARGEIN_MODEL": "openai:m",
                "OPENAI_BASE_URL": f"{model_url}/v1",
                "OPENAI_API_KEY": "none",
                "NO_PROXY": "127.0.0.1",
            }

    def __enter__(self) -> Self:
        runtime = self.home / "gateway.json"
        runtime.unlink(missing_ok=True)
        # Where nothing hides the data directory from commands, the token of a start is not in it.
        # A token of its own lasts for the programs that come later, too.
        own_token = self.home.with_name(f"{self.home.name}-token")
        if self._has_tools and not own_token.exists():
            own_token.write_text(self._make_token())
        self._log = open(self.home / "log", "ab")
        # Commands cannot work in the data directory.
        work = self.home.with_name(f"{self.home.name}-work")
        work.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            self._command, env=self._environment, cwd=work, stderr=self._log
        )
        end = time.monotonic() + START_S
        while not runtime.exists() or not runtime.stat().st_size:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < end, self.log
            time.sleep(0.02)
        told = msgspec.json.decode(runtime.read_bytes(), type=Runtime)
        self.url = told.url.rstrip("/")
        token = own_token.read_text() if own_token.exists() else told.token
        self.headers = {"authorization": f"Bearer {token}"}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._log.close()

    def _make_token(self) -> str:
        command = [sys.executable, "-c", MAIN, "token", "add", "alice"]
        done = subprocess.run(
            command, env=self._environment, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    @property
    def log(self) -> str:
        return (self.home / "log").read_text()

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    async def ask(
        self, http: aiohttp.ClientSession, method: str, path: str, body: object = None
    ) -> tuple[int, Json]:
        data = msgspec.json.encode(body if body is not None else {})
        headers = {**self.headers, "content-type": "application/json"}
        async with http.request(method, self.url + path, data=data, headers=headers) as response:
            content = await response.read()
            return response.status, msgspec.json.decode(content) if content else {}
