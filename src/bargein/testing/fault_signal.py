"""A flag that threads and tasks of any asyncio loop can wait for."""

import asyncio
import threading
import time


class Signal:
    """Set once, by anyone. `at_ns` is the monotonic time at which that happened."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self.at_ns = 0

    def set(self) -> bool:
        """Returns True for the call that set it."""
        with self._lock:
            if self._event.is_set():
                return False
            self.at_ns = time.monotonic_ns()
            self._event.set()
            waiters, self._waiters = self._waiters, []
        for loop, future in waiters:
            try:
                loop.call_soon_threadsafe(_resolve, future)
            except RuntimeError:
                # That loop is closed, so nothing waits in it.
                pass
        return True

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Blocks this thread."""
        return self._event.wait(timeout_s)

    async def wait_async(self, timeout_s: float | None = 10.0) -> None:
        """Waits in a task; raises TimeoutError, so that a test never hangs."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if self._event.is_set():
                return
            self._waiters.append((loop, future))
        async with asyncio.timeout(timeout_s):
            await future


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
