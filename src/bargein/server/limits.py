"""Every bound of the gateway in one place, and how the rate of one principal is held."""

import time
from collections.abc import Callable

import msgspec

BUCKETS_MAX = 10_000


class GatewayLimits(msgspec.Struct, frozen=True):
    """Those that say `per principal` count each by itself; one cannot use up another's.

    `drain_s`: how long turns may go on after a SIGTERM. `send_s`: how long one piece of a stream
    may take to go out before its reader counts as gone. `held_bytes_max`: of all requests that come
    and answers that go, per principal; `held_bytes_max_of_all`: of all principals together.
    `memory_bytes_max`: of messages in its sessions that are in memory, per principal.
    `command_bytes_max`: of one message on a WebSocket. `body_bytes_per_s`: of large bodies, per
    principal. `answer_bytes_max`: of one answer that is made of a session's whole log. `heavy_max`:
    searches and such answers that one principal may have asked for; they are done one after the
    other. `connections_max`: per principal. `connections_per_s`: how fast new ones are accepted,
    after a burst, from everybody together. `strangers_max` counts connections on which nobody has
    shown a token yet.
    """

    body_bytes_max: int = 8 * 1024 * 1024
    command_bytes_max: int = 1024 * 1024
    held_bytes_max: int = 16 * 1024 * 1024
    held_bytes_max_of_all: int = 128 * 1024 * 1024
    memory_bytes_max: int = 16 * 1024 * 1024
    body_bytes_per_s: float = 4 * 1024 * 1024
    body_bytes_burst: int = 16 * 1024 * 1024
    answer_bytes_max: int = 8 * 1024 * 1024
    heavy_max: int = 4
    connections_max: int = 512
    connections_per_s: float = 250.0
    connections_burst: int = 64
    strangers_max: int = 512
    strangers_per_address_max: int = 64
    body_s: float = 30.0
    requests_per_s: float = 200.0
    requests_burst: int = 1000
    turns_max: int = 64
    sessions_max: int = 10_000
    invitations_max: int = 1000
    streams_max: int = 256
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

    def take(self, who: str, count: float = 1.0) -> float:
        """Seconds until `count` more are allowed: 0.0 if they are now, and then they are taken."""
        count = min(count, self._burst)
        now = self._now()
        if len(self._buckets) >= BUCKETS_MAX:
            # Whoever is forgotten has a full one again; that is the most it can gain.
            self._buckets.clear()
        left, at = self._buckets.get(who, (float(self._burst), now))
        left = min(self._burst, left + (now - at) * self._per_s)
        if left < count:
            self._buckets[who] = (left, now)
            return (count - left) / self._per_s
        self._buckets[who] = (left - count, now)
        return 0.0
