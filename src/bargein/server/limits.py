"""Every bound of the gateway in one place, and how the rate of one principal is held."""

import time
from collections.abc import Callable

import msgspec

BUCKETS_MAX = 10_000


class GatewayLimits(msgspec.Struct, frozen=True):
    """Those that say `per principal` count each by itself; one cannot use up another's.

    `drain_s`: how long turns may go on after a SIGTERM. `send_s`: how long one piece of a stream
    may take to go out before its reader counts as gone. `unread_max`: how many events may wait for
    one reader. `bodies_bytes_max`: of all bodies together that are still coming, per principal.
    """

    body_bytes_max: int = 8 * 1024 * 1024
    bodies_bytes_max: int = 128 * 1024 * 1024
    body_s: float = 30.0
    requests_per_s: float = 200.0
    requests_burst: int = 1000
    turns_max: int = 64
    sessions_max: int = 10_000
    streams_max: int = 256
    searches_max: int = 4
    unread_max: int = 2000
    send_s: float = 20.0
    ping_s: float = 15.0
    wait_s_max: float = 300.0
    replies_kept_s: float = 24 * 3600.0
    reply_bytes_max: int = 256 * 1024
    drain_s: float = 20.0
    quit_s: float = 15.0
    page_max: int = 200


class Rate:
    """A bucket for each principal: `burst` at once, then `per_s`."""

    def __init__(self, per_s: float, burst: int, now: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._burst = burst
        self._now = now
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, who: str) -> float:
        """Seconds until one more is allowed: 0.0 if it is now, and then it is taken."""
        now = self._now()
        if len(self._buckets) >= BUCKETS_MAX:
            # Whoever is forgotten has a full one again; that is the most it can gain.
            self._buckets.clear()
        left, at = self._buckets.get(who, (float(self._burst), now))
        left = min(self._burst, left + (now - at) * self._per_s)
        if left < 1.0:
            self._buckets[who] = (left, now)
            return (1.0 - left) / self._per_s
        self._buckets[who] = (left - 1.0, now)
        return 0.0
