"""One child, from the first request that needs it until it is gone.

Plain state, read and written on the loop. `decided` is set once: the child serves, or `failure`
says why not. `gone` is set last, when nothing of the child is left.
"""

import asyncio
import secrets

import anyio

from bargein.cancel import CancelSource, Cause, Reason
from bargein.models.errors import Secret
from bargein.models.local.errors import LocalModelError
from bargein.models.local.handshake import Facts
from bargein.models.local.notices import WhyStopped
from bargein.process import Exit, Process


class ChildLife:
    """`source` governs the process: cancelling it ends the child early."""

    def __init__(self, name: str) -> None:
        self.source = CancelSource(f"{name}, its process")
        self.key = Secret(secrets.token_urlsafe(32))
        self.users = 0
        self.used_until = self.source.token.clock.now()
        self.process: Process | None = None
        self.facts: Facts | None = None
        self.failure: LocalModelError | None = None
        self.why_stopped: WhyStopped | None = None
        self.death: Exit | None = None
        self.decided = anyio.Event()
        self.gone = anyio.Event()
        self._exited: asyncio.Future[Exit] | None = None
        self._wakened: asyncio.Future[None] | None = None

    def began(self, process: Process) -> None:
        self.process = process
        self._exited = asyncio.ensure_future(process.wait())

    async def changed(self, timeout_s: float | None) -> None:
        """Waits until `wake` was called, the process has ended, or the time is over.

        A loop checks the state and then calls this. It misses nothing, because nothing else runs in
        between.
        """
        assert self._exited is not None
        self._wakened = asyncio.get_running_loop().create_future()
        either: set[asyncio.Future[Exit] | asyncio.Future[None]] = {self._exited, self._wakened}
        await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)

    def wake(self) -> None:
        if self._wakened is not None and not self._wakened.done():
            self._wakened.set_result(None)

    def join(self) -> None:
        self.users += 1
        self.wake()

    def leave(self) -> None:
        """Removes one user. A start that nobody waits for any more is cancelled."""
        self.users -= 1
        self.used_until = self.source.token.clock.now()
        if self.users == 0 and not self.decided.is_set():
            self.source.cancel(Reason(Cause.CLIENT_GONE, "nobody waits for it any more"))
        self.wake()

    def end(self, why: WhyStopped) -> None:
        if self.death is None and not self.gone.is_set():
            self.why_stopped = self.why_stopped or why
            self.source.cancel(Reason(Cause.SHUTDOWN, f"the local model is stopped: {why}"))

    async def stop_process(self) -> None:
        if self.process is not None:
            await self.process.stop()
        if self._exited is not None:
            self._exited.cancel()
            await asyncio.wait({self._exited})


class Lease:
    """The use of a serving child. Call `release` as soon as possible; twice is fine."""

    def __init__(self, life: ChildLife) -> None:
        assert life.facts is not None
        self.facts = life.facts
        self.key = life.key
        self._life = life
        self._released = False

    @property
    def alone(self) -> bool:
        """Whether this is the only user of the child."""
        return self._life.users == 1

    async def died(self, patience_s: float) -> Exit | None:
        """Returns how the child died, if it has died by itself or does so within the time."""
        with anyio.move_on_after(patience_s):
            await self._life.gone.wait()
        return self._life.death

    def condemn(self) -> None:
        """Ends a child that does not answer; the next request gets another."""
        self._life.end(WhyStopped.HUNG)

    def release(self) -> None:
        if not self._released:
            self._released = True
            self._life.leave()
