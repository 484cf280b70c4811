"""The SQLite store keeps the contract; and what is particular to a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from bargein.contracts.store import Store
from bargein.stores.backup import restore_backup
from bargein.stores.sqlite import SqliteStore
from tests.stores.conformance import Opener, StoreConformance


class SqliteOpener:
    def __init__(self, directory: Path, *, full_text: bool = True) -> None:
        self.directory = directory
        self.full_text = full_text

    async def open(self) -> Store:
        return await SqliteStore.open(self.directory / "store.db", full_text=self.full_text)

    async def open_backup(self, path: Path) -> Store:
        restore_backup(path, self.directory / "restored.db")
        return await SqliteStore.open(self.directory / "restored.db", full_text=self.full_text)


class TestSqlite(StoreConformance):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return SqliteOpener(tmp_path)


class TestSqliteWithoutFullText(StoreConformance):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return SqliteOpener(tmp_path, full_text=False)
