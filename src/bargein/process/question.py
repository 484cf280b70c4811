"""A question to the helper with one answer, on a channel of its own."""

from collections.abc import Callable

from bargein.process.helper import wire
from bargein.process.helper_process import HelperProcess
from bargein.process.watch import Event, Watch

Answer = Callable[[wire.Message | None], object]


class Question:
    """`on_answer` is called once, on the loop: with the answer, or None if there will be none."""

    def __init__(self, watch: Watch, on_answer: Answer) -> None:
        self._watch = watch
        self._on_answer = on_answer
        self._ours, self._theirs = wire.pair()
        self._ours.setblocking(False)

    def ask(self, helper: HelperProcess, message: wire.Message) -> None:
        try:
            helper.order(message, [self._theirs.fileno()])
        except OSError:
            self._ours.close()
            self._watch.loop.call_soon(self._on_answer, None)
            return
        finally:
            self._theirs.close()
        self._watch.add(self._ours.fileno(), Event.READABLE, self._hear)

    def _hear(self) -> None:
        try:
            received = wire.receive(self._ours)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            received = None
        self._watch.remove(self._ours.fileno())
        self._ours.close()
        self._on_answer(received[0] if received is not None else None)
