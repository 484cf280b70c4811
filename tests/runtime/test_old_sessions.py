"""An engine without a server, such as that of the chat, deletes old sessions if that is set."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from bargein.cli.joining import engine_of_owner
from bargein.runtime.config import load_config
from bargein.runtime.data_directory import SESSIONS_FILE
from bargein.session import retention
from tests.session.world import until

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

DAY_S = 86400.0
SCRIPT = """
repeat = true
[[answers]]
steps = [{ do = "say", text = "done" }]
"""


def sessions(home: Path) -> set[str]:
    with closing(sqlite3.connect(home / SESSIONS_FILE)) as connection:
        return {name for (name,) in connection.execute("SELECT id FROM sessions")}


def age(home: Path, session: str, days: float) -> None:
    with closing(sqlite3.connect(home / SESSIONS_FILE)) as connection:
        at = time.time() - days * DAY_S
        connection.execute("UPDATE sessions SET updated_at = ? WHERE id = ?", (at, session))
        connection.commit()


async def test_sessions_unused_for_long_are_deleted_by_the_engine_of_the_chat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BEGIN_AFTER_S", 0.0)
    home, script = tmp_path / "home", tmp_path / "script.toml"
    script.write_text(SCRIPT)
    environment = {
        "HOME": str(tmp_path),
        "BARGEIN_HOME": str(home),
        "BARGEIN_MODEL": f"scripted:{script}",
        "BARGEIN_RETENTION_SESSIONS_DAYS": "30",
    }
    config = load_config(environment)
    async with engine_of_owner(config, print) as engine:
        for name in ("old", "young"):
            await (await (await engine.session(name)).send("hello")).result()
    assert sessions(home) == {"old", "young"}
    age(home, "old", 31)
    age(home, "young", 29)
    async with engine_of_owner(config, print):
        await until(lambda: sessions(home) == {"young"})
