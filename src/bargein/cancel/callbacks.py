"""Runs users' callbacks in order on one kernel thread, never on the thread that cancels.

A callback may raise (the error is logged, the others still run) and may even block: when one has
run for `CALLBACK_S_MAX`, another thread takes over the queue, so the callbacks behind it are late
by that much but never lost. `submit` waits for no lock, so a signal handler may call it. The first
registration starts the thread, so that a cancel need not; a forked process has its own.
"""

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

from bargein.cancel import accounts
from bargein.cancel.clock import SYSTEM_CLOCK, Clock

CALLBACK_S_MAX = 1.0

Callback = Callable[[], object]


class Callbacks:
    def __init__(self, clock: Clock, callback_s_max: float) -> None:
        self._clock = clock
        self._callback_s_max = callback_s_max
        self._lines: dict[int, _Line] = {}

    def prepare(self) -> None:
        """Start the thread before it is needed."""
        self._line()

    def submit(self, callback: Callback) -> None:
        self._line().queue.put(callback)

    def _line(self) -> "_Line":
        process = os.getpid()
        line = self._lines.get(process)
        if line is None:
            mine = _Line(self._clock, self._callback_s_max)
            line = self._lines.setdefault(process, mine)
            if line is mine:
                try:
                    mine.start_worker()
                except BaseException:
                    del self._lines[process]
                    raise
        return line


class _Worker:
    """One thread. It runs callbacks until it is replaced. `job` is odd while a callback runs."""

    __slots__ = ("job", "replaced", "watched")

    def __init__(self) -> None:
        self.job = 0
        self.replaced = False
        self.watched = False


class _Line:
    """The queue of one process and the thread that serves it."""

    def __init__(self, clock: Clock, callback_s_max: float) -> None:
        self._clock = clock
        self._callback_s_max = callback_s_max
        self.queue: SimpleQueue[Callback] = SimpleQueue()

    def start_worker(self) -> None:
        worker = _Worker()
        threading.Thread(
            target=self._serve, args=(worker,), name="bargein-callbacks", daemon=True
        ).start()

    def _serve(self, worker: _Worker) -> None:
        while not worker.replaced:
            callback = self.queue.get()
            worker.job += 1
            self._watch(worker)
            try:
                callback()
            except BaseException as error:  # boundary: one callback must not harm another
                accounts.add("callbacks_failed")
                accounts.report(f"on_cancel callback {callback!r}", error)
            accounts.add("callbacks_run")
            worker.job += 1

    def _watch(self, worker: _Worker) -> None:
        # One timer at a time is enough: it sets itself again while the thread is at work.
        if worker.watched:
            return
        worker.watched = True
        job = worker.job

        def look() -> None:
            # Clear `watched` before reading `job`: a job that begins meanwhile either sees it
            # cleared and sets its own watch, or is seen here.
            worker.watched = False
            now_at = worker.job
            if now_at == job:
                worker.replaced = True
                accounts.add("callbacks_overdue")
                self.start_worker()
            elif now_at % 2 == 1:
                self._watch(worker)

        self._clock.call_at(self._clock.now() + self._callback_s_max, look)


CALLBACKS = Callbacks(SYSTEM_CLOCK, CALLBACK_S_MAX)
