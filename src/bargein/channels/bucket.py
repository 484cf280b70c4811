"""Limits the calls for one chat: all of them, previews and typing too, come out of one bucket."""

import anyio

from bargein.channels.contract import ChatRate


class Bucket:
    def __init__(self, rate: ChatRate) -> None:
        self._rate = rate
        self._tokens = float(rate.burst)
        self._at = anyio.current_time()
        self._held_until = 0.0

    def hold(self, seconds: float) -> None:
        """The platform asks for silence: it gets none of our calls for so long."""
        self._held_until = max(self._held_until, anyio.current_time() + seconds)

    def wait_s(self, left: int = 0) -> float:
        """How long until a call may be made, so that `left` more could be made at once after it.
        0 if it may be made now."""
        now = anyio.current_time()
        grown = self._tokens + (now - self._at) * self._rate.per_s
        self._tokens, self._at = min(float(self._rate.burst), grown), now
        missing = min(1 + left, self._rate.burst) - self._tokens
        return max(missing / self._rate.per_s, self._held_until - now, 0.0)

    def take(self) -> None:
        self._tokens -= 1
