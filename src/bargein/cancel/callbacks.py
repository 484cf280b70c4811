"""Runs the callbacks of users: on one kernel thread, in order, apart from whoever cancelled.

A callback may raise (it is logged, the rest go on) and may even block: when one has run for
`CALLBACK_S_MAX` the thread is given up and another takes over the queue, so the callbacks
behind it are late by that much and never lost. `submit` waits for no lock and may be called from
a signal handler. The thread is there from the first registration on, so that a cancel need not
start one; a process made by a fork has its own.
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
        """Have a thread there before it is needed."""
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
    """One thread. It serves until it is replaced. `job` is odd while a callback runs."""

    __slots__ = ("job", "replaced", "watched")

    def __init__(self) -> None:
        self.job = 0
        self.replaced = False
        self.watched = False


class _Line:
    """The queue of one process, and whoever serves it."""

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
            except BaseException as error:  # boundary: a user's callback harms no other
                accounts.add("callbacks_failed")
                accounts.report(f"on_cancel callback {callback!r}", error)
            accounts.add("callbacks_run")
            worker.job += 1

    def _watch(self, worker: _Worker) -> None:
        # One timer at a time is enough: it looks again for as long as the thread is at work.
        if worker.watched:
            return
        worker.watched = True
        job = worker.job

        def look() -> None:
            # Lowered before looking: a job that begins meanwhile either sees it low and sets
            # its own watch, or is seen here.
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
