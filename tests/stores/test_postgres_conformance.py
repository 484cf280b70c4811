"""PostgreSQL passes the shipped conformance suite, the newest version and Debian's."""

from __future__ import annotations

from pathlib import Path

import pytest

from bargein.testing.store_conformance import (
    CHECKS,
    DAMAGE_CHECKS,
    SHARED_CHECKS,
    StoreCheck,
    check_random_operations,
)
from tests import programs
from tests.stores.postgres_kinds import OneDatabase, PostgresStores, server

ALL = [*CHECKS, *SHARED_CHECKS, *DAMAGE_CHECKS]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": True})], ids=["uvloop"])
@pytest.mark.parametrize("check", ALL, ids=str)
async def test_postgres(check: StoreCheck, tmp_path: Path) -> None:
    stores = PostgresStores(tmp_path)
    try:
        await check(stores)
    finally:
        await stores.drop()


@pytest.mark.anyio
@pytest.mark.needs("postgres")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("check", ALL, ids=str)
async def test_postgres_of_debian(check: StoreCheck, tmp_path: Path) -> None:
    stores = PostgresStores(tmp_path)
    stores.on = server(str(Path(programs.find("postgres") or "").parent))
    try:
        await check(stores)
    finally:
        await stores.drop()


def test_postgres_answers_as_a_dictionary_would() -> None:
    check_random_operations(OneDatabase, examples=10)
