"""The causes of an interrupt: who asks for it, by which means, and what they are told."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from types import FrameType

import anyio
import anyio.to_thread
from anyio.from_thread import BlockingPortal

from bargein import sync
from bargein.cancel import Cause as Why
from bargein.contracts.receipt import Receipt
from tests.interrupt.stage import Act, Stage
from tests.session.world import until


@dataclass(frozen=True)
class Cause:
    """`lands`: it stops a turn that is running. `why` is then in the receipt. `closes`: the engine
    with all its sessions. `takes_time`: it comes from elsewhere, and nobody knows when."""

    name: str
    apply: Act
    lands: bool = True
    why: Why = Why.USER_STOP
    closes: bool = False
    takes_time: bool = False


async def stop(stage: Stage) -> None:
    stage.receipt = await stage.session.interrupt()


async def stop_by_id(stage: Stage) -> None:
    stage.receipt = await stage.session.interrupt(expected_turn="t1")


async def stop_another(stage: Stage) -> None:
    stage.receipt = await stage.session.interrupt(expected_turn="t0")


async def stop_session(stage: Stage) -> None:
    stage.receipt = await stage.session.interrupt(scope="session")


def message(mode: str) -> Act:
    async def apply(stage: Stage) -> None:
        stage.message = await stage.session.send("something else", mode=mode)

    return apply


async def leave_the_block(stage: Stage) -> None:
    """The engine is closed by the row itself, which leaves its block."""


async def give_up_waiting(stage: Stage) -> None:
    """The caller cancels its own wait for the result: nobody is stopped by that."""
    await until(lambda: stage.sent is not None)
    assert stage.sent is not None
    with anyio.move_on_after(0):
        await stage.sent.result()


async def give_up_stopping(stage: Stage) -> None:
    """The caller cancels its own wait for the receipt: the stop goes on."""
    with anyio.CancelScope() as scope:
        scope.cancel()
        await stage.session.interrupt()


async def stop_from_thread(stage: Stage) -> None:
    """The sync facade, in another thread, over the engine that runs here."""
    async with BlockingPortal() as portal:
        engine = object.__new__(sync.Engine)
        engine._inner, engine._portal = stage.world.engine, portal
        facade = sync.Session(engine, stage.session)

        def interrupt() -> Receipt:
            return facade.interrupt()

        stage.receipt = await anyio.to_thread.run_sync(interrupt)


async def press_ctrl_c(stage: Stage) -> None:
    """A real signal, whose handler only calls `interrupt_now`."""
    assert threading.current_thread() is threading.main_thread()
    landed: list[object] = []

    def handler(number: int, frame: FrameType | None) -> None:
        landed.append(stage.session.interrupt_now(by="Ctrl-C"))

    before = signal.signal(signal.SIGINT, handler)
    try:
        os.kill(os.getpid(), signal.SIGINT)
        await until(lambda: landed)
    finally:
        signal.signal(signal.SIGINT, before)


CAUSES = [
    Cause("interrupt", stop),
    Cause("interrupt of this turn", stop_by_id),
    Cause("interrupt of another turn", stop_another, lands=False),
    Cause("interrupt of the session", stop_session),
    Cause("message, interrupt", message("interrupt"), why=Why.REDIRECT),
    Cause("message, rollback", message("rollback"), why=Why.ROLLBACK),
    Cause("engine closes", leave_the_block, why=Why.SHUTDOWN, closes=True),
    Cause("wait for the result cancelled", give_up_waiting, lands=False),
    Cause("wait for the receipt cancelled", give_up_stopping),
    Cause("sync facade in a thread", stop_from_thread, takes_time=True),
    Cause("SIGINT", press_ctrl_c),
]
