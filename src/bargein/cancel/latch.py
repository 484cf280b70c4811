"""Something that happens once, and is waited for: by anybody in the loop, for a time or for good.

`anyio.Event` with `anyio.move_on_after` around it does the same at three times the cost, most of it
for a scope that nobody else ever cancels. On the way of every stop there are several.
"""

import anyio.lowlevel

from bargein.cancel._loops import Alarm, new_alarm


class Waited:
    """Those who wait for something. For most nobody ever does: there is nothing to call when it is
    made."""

    _alarms: list[Alarm] | None = None

    def _begin(self, timeout_s: float | None = None) -> Alarm:
        """For one who waits: to be awaited, and then given to `_end`, whatever has happened."""
        alarm = new_alarm()
        if timeout_s is not None:
            alarm.ring_after(timeout_s)
        if self._alarms is None:
            self._alarms = [alarm]
        else:
            self._alarms.append(alarm)
        return alarm

    def _end(self, alarm: Alarm) -> None:
        if self._alarms is not None:
            self._alarms.remove(alarm)
        alarm.end()

    def _wake_all(self) -> None:
        if self._alarms is not None:
            for alarm in self._alarms:
                alarm.ring()


class Latch(Waited):
    is_set = False

    def set(self) -> None:
        self.is_set = True
        self._wake_all()

    def wait_no_longer(self, seconds: float) -> None:
        """Whoever waits for it now does so for this long from now, whatever time they had."""
        for alarm in self._alarms or ():
            alarm.ring_after(seconds)

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Until it is set, or the time is over; whether it is set."""
        if self.is_set:
            await anyio.lowlevel.checkpoint()
            return True
        alarm = self._begin(timeout_s)
        try:
            await alarm
        finally:
            self._end(alarm)
        return self.is_set
