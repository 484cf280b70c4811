"""A `Latch` is set once. Any task in the loop may wait for it, with or without a time limit.

`anyio.Event` inside `anyio.move_on_after` does the same at three times the cost, mostly for a scope
that nothing else ever cancels. Every stop waits for several latches.
"""

import anyio.lowlevel

from bargein.cancel._loops import Alarm, LoopTimer, new_alarm, ring, ring_after


class Waited:
    """Keeps the waiting tasks. Most objects are never waited for, so creating one calls nothing."""

    _alarms: list[Alarm] | None = None
    _timers: dict[Alarm, LoopTimer] | None = None

    def _begin(self, timeout_s: float | None = None) -> Alarm:
        """Return an alarm. The caller awaits it, and in every case passes it to `_end`."""
        alarm = new_alarm()
        if self._alarms is None:
            self._alarms = [alarm]
        else:
            self._alarms.append(alarm)
        if timeout_s is not None:
            self._ring_after(alarm, timeout_s)
        return alarm

    def _ring_after(self, alarm: Alarm, seconds: float) -> None:
        if self._timers is None:
            self._timers = {}
        elif alarm in self._timers:
            self._timers[alarm].cancel()
        self._timers[alarm] = ring_after(alarm, seconds)

    def _end(self, alarm: Alarm) -> None:
        if self._alarms is not None:
            self._alarms.remove(alarm)
        if self._timers is not None and alarm in self._timers:
            self._timers.pop(alarm).cancel()

    def _wake_all(self) -> None:
        if self._alarms is not None:
            for alarm in self._alarms:
                ring(alarm)


class Latch(Waited):
    is_set = False

    def set(self) -> None:
        self.is_set = True
        self._wake_all()

    def wait_no_longer(self, seconds: float) -> None:
        """Make all current waits end this long from now, whatever limit they had."""
        for alarm in self._alarms or ():
            self._ring_after(alarm, seconds)

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is set or the time is over. Returns whether it is set."""
        if self.is_set:
            await anyio.lowlevel.checkpoint()
            return True
        alarm = self._begin(timeout_s)
        try:
            await alarm
        finally:
            self._end(alarm)
        return self.is_set
