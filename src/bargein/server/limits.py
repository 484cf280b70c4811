"""Every bound of the gateway, and the three ways it is kept: a rate, a budget of bytes, a share.

`Rate` bounds how often something happens. `ByteBudget` bounds the bytes of requests and answers
that are in memory: each principal has a budget, and all of them together have one. Each body or
answer takes its share as a `Hold`. What does not fit is refused with 429 (or 503 if the server as a
whole is full), before it is in memory if its size is known. The first `FREE_BYTES` of each are
free, so that a stop gets through however much of the budget is used. All of this is for one event
loop; nothing here waits.
"""

import time
from collections import Counter
from collections.abc import Callable
from typing import Self

import msgspec

from bargein.server.problems import Code, Problem

BUCKETS_MAX = 10_000
FREE_BYTES = 4096


class GatewayLimits(msgspec.Struct, frozen=True):
    """A bound per principal counts each principal alone: nobody can use up another's.

    - `drain_s`: how long turns may go on after a SIGTERM.
    - `send_s`: how long sending one piece of a stream may take before its reader counts as gone.
    - `held_bytes_max`: bytes of requests and answers in transit, per principal;
      `held_bytes_max_of_all`: the same for all principals together.
    - `memory_bytes_max`: bytes of messages in sessions that are in memory, per principal.
    - `command_bytes_max`: bytes of one message on a WebSocket.
    - `body_bytes_per_s`: bytes of large bodies, per principal.
    - `answer_bytes_max`: bytes of one answer that is built from a session's whole log.
    - `heavy_max`: searches and such answers under way, per principal. They run one after the other.
    - `connections_max`: per principal. `connections_per_s`: how fast new connections are accepted
      after a burst, all clients together.
    - `strangers_max`: connections on which nobody has shown a token yet.
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
    """A token bucket for each principal: `burst` at once, then `per_s`."""

    def __init__(self, per_s: float, burst: int, now: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._burst = burst
        self._now = now
        self._buckets: dict[str, tuple[float, float]] = {}
        self.taken: Counter[str] | None = None
        """What was taken, if somebody set a counter to tell other nodes."""

    def take(self, who: str, count: float = 1.0) -> float:
        """Takes `count` and returns 0.0, or takes nothing and returns the seconds to wait."""
        count = min(count, self._burst)
        now = self._now()
        if len(self._buckets) >= BUCKETS_MAX:
            # A principal that is forgotten starts with a full bucket, and gains no more than that.
            self._buckets.clear()
        left, at = self._buckets.get(who, (float(self._burst), now))
        left = min(self._burst, left + (now - at) * self._per_s)
        if left < count:
            self._buckets[who] = (left, now)
            return (count - left) / self._per_s
        self._buckets[who] = (left - count, now)
        if self.taken is not None:
            self.taken[who] += round(count)
        return 0.0

    def charge(self, who: str, count: float) -> None:
        """Takes what was used at another node, also if there is not as much left."""
        now = self._now()
        left, at = self._buckets.get(who, (float(self._burst), now))
        left = min(self._burst, left + (now - at) * self._per_s) - count
        self._buckets[who] = (max(left, -float(self._burst)), now)


class ByteBudget:
    """Counts the bytes held for each principal (`held`) and for all of them."""

    def __init__(self, *, each_max: int, all_max: int) -> None:
        self._each_max = each_max
        self._all_max = all_max
        self._all = 0
        self.held: Counter[str] = Counter()
        self.count = 0
        """How many bodies and answers are held, including those small enough to be free."""

    def take(self, who: str, size: int) -> None:
        """Raises `Problem`, and takes nothing, if it does not fit."""
        mine = self.held[who] + size
        if mine > self._each_max:
            self._clear(who)
            raise Problem(
                Code.TOO_MANY,
                f"{mine} bytes of requests and answers are on their way for {who}, and at most "
                f"{self._each_max} may be; send fewer at once, and read the answers",
                retry_after_s=1,
            )
        if self._all + size > self._all_max:
            self._clear(who)
            raise Problem(
                Code.UNAVAILABLE,
                "the server holds too many bytes of requests and answers; try again",
                retry_after_s=1,
            )
        self.held[who] = mine
        self._all += size

    def give_back(self, who: str, size: int) -> None:
        self.held[who] -= size
        self._all -= size
        self._clear(who)

    def _clear(self, who: str) -> None:
        if not self.held[who]:
            del self.held[who]


class Hold:
    """The share of one body or answer: `size` bytes of a principal's budget until released."""

    def __init__(self, budget: ByteBudget, who: str) -> None:
        self._budget = budget
        self._who = who
        self._counted = 0
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def add(self, size: int) -> None:
        self.resize(self.size + size)

    def resize(self, size: int) -> None:
        self._budget.count += (size > 0) - (self.size > 0)
        self.size = size
        counted = max(0, size - FREE_BYTES)
        if counted > self._counted:
            self._budget.take(self._who, counted - self._counted)
        elif counted < self._counted:
            self._budget.give_back(self._who, self._counted - counted)
        self._counted = counted

    def release(self) -> None:
        self.resize(0)
