"""The program, which gets a signal at one step of its loop: `stepped.py STEP SIGNAL ARGUMENTS...`

A step is a task that is about to run, has come to wait for something, or has ended. So the moment
does not depend on how fast the machine is.
"""

import asyncio
import signal
import sys
from collections.abc import Coroutine, Generator
from contextvars import Context
from typing import Any, cast

from bargein.cli.main import main


class Steps:
    """Sends the signal at the `wanted` one of them."""

    def __init__(self, wanted: int, number: signal.Signals) -> None:
        self._left = wanted
        self._number = number

    def count(self) -> None:
        self._left -= 1
        if self._left == 0:
            signal.raise_signal(self._number)

    def of(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        """A task factory."""

        async def run() -> Any:
            return await _Stepped(coroutine, self)

        return asyncio.Task(run(), loop=loop, **options)


class _Stepped:
    def __init__(self, coroutine: Coroutine[Any, Any, Any], steps: Steps) -> None:
        self._coroutine = coroutine
        self._steps = steps

    def __await__(self) -> Generator[Any, Any, Any]:
        value, error = None, None
        while True:
            self._steps.count()
            try:
                if error is None:
                    waited_for = self._coroutine.send(value)
                else:
                    waited_for = self._coroutine.throw(error)
            except StopIteration as end:
                self._steps.count()
                return end.value
            self._steps.count()
            value, error = None, None
            try:
                value = yield waited_for
            except BaseException as thrown:  # boundary: handed on to the coroutine
                error = thrown


def send_at(steps: Steps) -> None:
    """Have every loop that is run from now on take its tasks from there."""
    run = asyncio.Runner.run

    def run_stepped(
        self: asyncio.Runner, coro: Coroutine[Any, Any, Any], *, context: Context | None = None
    ) -> Any:
        self.get_loop().set_task_factory(cast(Any, steps.of))
        return run(self, coro, context=context)

    asyncio.Runner.run = run_stepped  # type: ignore[method-assign]


if __name__ == "__main__":
    send_at(Steps(int(sys.argv[1]), signal.Signals[sys.argv[2]]))
    sys.argv[:3] = [sys.argv[0]]
    raise SystemExit(main())
