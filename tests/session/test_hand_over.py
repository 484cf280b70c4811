"""A session is given up to another node while somebody asks for it here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from bargein.contracts.mail import Letter
from bargein.contracts.store import SessionHead
from bargein.session.engine import SessionEngine
from bargein.session.turn import Turn
from bargein.stores.memory import MemoryStore
from tests.session.world import LIMITS, WITHIN_S, Gate

pytestmark = pytest.mark.anyio


class NoMail:
    def open(self, receive: Callable[[Letter], object]) -> None:
        pass

    async def post(self, recipient: str, letter: Letter) -> None:
        raise AssertionError("nobody writes here")


class SharedStore(MemoryStore):
    """A `LeasedStore` whose only owner is this one. The next look at a head waits at the gate."""

    mail = NoMail()
    gate: Gate | None = None

    def __init__(self) -> None:
        super().__init__()
        self.released: Callable[[str], None] = lambda session: None

    def on_lost(self, call: Callable[[], object]) -> None:
        pass

    def on_deadline(self, call: Callable[[float], object]) -> None:
        pass

    async def orphans(self) -> list[str]:
        await anyio.sleep_forever()
        raise AssertionError

    async def head(self, session: str) -> SessionHead | None:
        gate, self.gate = self.gate, None
        if gate is not None:
            await gate()
        return await super().head(session)

    async def release(self, session: str, *, epoch: int) -> bool:
        self.released(session)
        return True


async def test_a_session_that_comes_back_meanwhile_is_not_given_up() -> None:
    async def agent(turn: Turn) -> None:
        pass

    store = SharedStore()
    async with SessionEngine(agent, store, limits=LIMITS) as engine:
        session = await engine.session("s")
        released: list[bool] = []
        store.released = lambda root: released.append(engine.actor_in_memory(root) is None)
        engine.let_go("s")
        gate = store.gate = Gate()
        found: list[object] = []

        async def asks() -> None:
            found.append(await session.state())

        async def run(function: Callable[[], Awaitable[object]]) -> None:
            await function()

        with anyio.fail_after(WITHIN_S):
            async with anyio.create_task_group() as group:
                group.start_soon(run, lambda: engine.hand_over("s"))
                await gate.reached.wait()
                group.start_soon(asks)
                await anyio.wait_all_tasks_blocked()
                gate.opened.set()
        assert released == [True]
        assert found
