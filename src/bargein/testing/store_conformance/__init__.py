"""Checks that a store keeps the contract of `bargein.contracts.store`.

Say how your store is opened, and run every check on it. With pytest:

    class MyStores(StoreUnderTest):
        async def open(self, owner: str) -> Store:
            return await MyStore.open(self.directory / "data", owner=owner)

        async def open_backup(self, path: Path, owner: str) -> Store:
            return await MyStore.open(path, owner=owner)

    @pytest.mark.anyio
    @pytest.mark.parametrize("check", CHECKS, ids=str)
    async def test_my_store(check: StoreCheck, tmp_path: Path) -> None:
        await check(MyStores(tmp_path))

A check raises AssertionError and says what it found. It needs no pytest: `await check(stores)` runs
in any event loop that anyio knows. If several owners can use your store at the same time, run
`SHARED_CHECKS` too; if your `StoreUnderTest` has `damage_event`, `DAMAGE_CHECKS`.
`check_random_operations` compares a store with a dictionary for as long as you like; it needs
Hypothesis, from the extra `testing`.
"""

from bargein.testing.store_conformance.commits import COMMIT_CHECKS
from bargein.testing.store_conformance.large import LARGE_CHECKS
from bargein.testing.store_conformance.lists import LIST_CHECKS, SEARCH_CHECKS
from bargein.testing.store_conformance.owners import OWNER_CHECKS, SHARED_CHECKS
from bargein.testing.store_conformance.random_operations import check_random_operations
from bargein.testing.store_conformance.scene import Scene, StoreCheck, StoreUnderTest
from bargein.testing.store_conformance.unreadable import DAMAGE_CHECKS, UNREADABLE_CHECKS

__all__ = [
    "CHECKS",
    "DAMAGE_CHECKS",
    "SEARCH_CHECKS",
    "SHARED_CHECKS",
    "Scene",
    "StoreCheck",
    "StoreUnderTest",
    "check_random_operations",
]

CHECKS: tuple[StoreCheck, ...] = (
    *OWNER_CHECKS,
    *COMMIT_CHECKS,
    *LARGE_CHECKS,
    *LIST_CHECKS,
    *SEARCH_CHECKS,
    *UNREADABLE_CHECKS,
)
"""Every store passes these."""
