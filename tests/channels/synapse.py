"""A real homeserver for tests: Synapse, in an environment of its own (tests/programs.py)."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import programs

START_S = 60.0
MANY = {"per_second": 10_000, "burst_count": 10_000}

CONFIG = {
    "server_name": "localhost",
    "report_stats": False,
    "trusted_key_servers": [],
    "enable_registration": True,
    "enable_registration_without_verification": True,
    "registration_shared_secret": "test",
    "macaroon_secret_key": "test",
    "form_secret": "test",
    "bcrypt_rounds": 4,
    "presence": {"enabled": False},
    "rc_message": MANY,
    "rc_registration": MANY,
    "rc_login": {"address": MANY, "account": MANY, "failed_attempts": MANY},
    "rc_joins": {"local": MANY, "remote": MANY},
    "rc_joins_per_room": MANY,
    "rc_invites": {"per_room": MANY, "per_user": MANY, "per_issuer": MANY},
    "rc_room_creation": MANY,
    "rc_presence": {"per_user": MANY},
}


@contextmanager
def homeserver(folder: Path) -> Iterator[str]:
    """Yields the address of a homeserver at which anybody can register."""
    python = programs.find("synapse")
    assert python is not None
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    config = {
        **CONFIG,
        "pid_file": str(folder / "pid"),
        "media_store_path": str(folder / "media"),
        "signing_key_path": str(folder / "signing.key"),
        "log_config": None,
        "database": {"name": "sqlite3", "args": {"database": str(folder / "synapse.db")}},
        "listeners": [
            {
                "port": port,
                "type": "http",
                "bind_addresses": ["127.0.0.1"],
                "resources": [{"names": ["client", "media"]}],
            }
        ],
    }
    path = folder / "homeserver.yaml"
    path.write_text(json.dumps(config))  # YAML reads JSON
    command = [python, "-m", "synapse.app.homeserver", "-c", str(path)]
    subprocess.run([*command, "--generate-keys"], check=True, cwd=folder, capture_output=True)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        address = f"http://127.0.0.1:{port}"
        _wait(address, process, folder / "log")
        yield address
    finally:
        process.kill()
        process.wait()


def _wait(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.05)
    raise AssertionError(f"Synapse did not start:\n{log.read_text()[-3000:]}")
