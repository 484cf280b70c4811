"""Two servers on one PostgreSQL, as an operator starts them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio.from_thread

from tests.stores.postgres_kinds import give_back, server, take_database


class Served:
    def __init__(self, process: subprocess.Popen[bytes], home: Path) -> None:
        self.process = process
        told = home / "gateway.json"
        deadline = time.monotonic() + 30
        while not told.exists() and time.monotonic() < deadline:
            assert process.poll() is None, "the server ended"
            time.sleep(0.05)
        found = json.loads(told.read_text())
        self._url, self._token = found["url"], found["token"]

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        request = urllib.request.Request(
            f"{self._url}v1{path}",
            method=method,
            data=json.dumps(body or {}).encode() if method != "GET" else None,
            headers={"authorization": f"Bearer {self._token}", "content-type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())


@contextmanager
def served(home: Path, address: str, script: Path) -> Iterator[Served]:
    home.mkdir()
    command = [sys.executable, "-m", "bargein", "serve", "--port", "0", "--scripted", str(script)]
    with (home.parent / f"{home.name}.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--store", address, "--drain", "1"],
            env={**os.environ, "BARGEIN_HOME": str(home)},
            cwd=home.parent,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
    try:
        yield Served(process, home)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def test_two_servers_share_sessions_and_either_stops_them(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"answers": [{"steps": [{"do": "wait", "gate": "hold"}]}]}))
    with anyio.from_thread.start_blocking_portal() as portal, ExitStack() as stack:
        address = portal.call(take_database, server())
        stack.callback(portal.call, give_back, server(), address)
        one = stack.enter_context(served(tmp_path / "one", address, script))
        two = stack.enter_context(served(tmp_path / "two", address, script))
        status, made = one.ask("POST", "/sessions")
        assert status == 201, made
        session = made["session"]["id"]
        status, sent = one.ask("POST", f"/sessions/{session}/messages", {"text": "go"})
        assert status == 202, sent
        # The other one sends it to the node that has the session.
        later = {"text": "me too", "mode": "queue"}
        status, queued = two.ask("POST", f"/sessions/{session}/messages", later)
        assert (status, queued["disposition"]) == (202, "queued"), queued
        status, receipt = two.ask("POST", f"/sessions/{session}/interrupt")
        assert (status, receipt["status"]) == (200, "stopped"), receipt
        status, shown = one.ask("GET", f"/sessions/{session}/turns/{receipt['target']}")
        assert status == 200
        assert shown["outcome"] == "stopped", shown
