"""`bargein cluster status`, and the store in `bargein sessions` and `bargein doctor`."""

from __future__ import annotations

import time
from pathlib import Path

import anyio.from_thread
import pytest

from bargein.cli.program import run
from bargein.contracts.store import commit_one
from bargein.server.gateway_db import FILE, GatewayDb
from bargein.stores.postgres import PostgresStore
from bargein.testing.store_conformance.scene import made, said, step
from tests.stores.postgres_kinds import give_back, server, sql, take_database


def test_nodes_are_shown_with_their_lives(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert run(["cluster", "status"]) == 2
    assert "set BARGEIN_STORE" in capsys.readouterr().err

    async def prepare() -> tuple[str, PostgresStore]:
        address = await take_database(server())
        store = await PostgresStore.open(address, owner="one", node_address="http://one:1")
        head = await made(store, "alice", at=time.time())
        await commit_one(store, step(head, said(1), unfinished=True, text="hello", at=time.time()))
        async with sql(address) as connection:
            await connection.execute(
                "INSERT INTO bargein.nodes (id, address, version, lease_until, dead) VALUES "
                "('two', '', '0', clock_timestamp(), true), "
                "('three', '', '0', clock_timestamp() - interval '5 s', false)"
            )
        return address, store

    with anyio.from_thread.start_blocking_portal() as portal:
        address, store = portal.call(prepare)
        monkeypatch.setenv("BARGEIN_STORE", address)
        assert run(["cluster", "status"]) == 0
        shown = capsys.readouterr()
        lines = {line.split("  ")[0]: line for line in shown.out.splitlines()}
        assert "alive, lease" in lines["one"]
        assert "1 at work" in lines["one"]
        assert "http://one:1" in lines["one"]
        assert "dead" in lines["two"]
        assert "silent, lease over" in lines["three"]
        assert "NOT DURABLE" in shown.err, "the tests' server does not sync"
        assert run(["sessions"]) == 0
        assert "alice" in capsys.readouterr().out
        assert run(["sessions", "search", "hel"]) == 0
        assert "alice: hello" in capsys.readouterr().out
        run(["doctor"])
        assert f"store: {address}, 1 session; NOT DURABLE" in capsys.readouterr().out
        home = tmp_path / "home"
        home.mkdir()
        GatewayDb.open(home / FILE).close()
        monkeypatch.setenv("BARGEIN_HOME", str(home))
        assert run(["backup", str(tmp_path / "copy")]) == 0
        assert f"The sessions are NOT in it: they are in {address}" in capsys.readouterr().err
        portal.call(store.aclose)
        portal.call(give_back, server(), address)
