"""Limits the calls for one chat: all of them, previews and typing too, come out of one bucket. And
limits the calls of a bot in all chats together, where the platform does."""

import anyio

from bargein.channels.contract import ChatRate, Crowded


class Bucket:
    def __init__(self, rate: ChatRate) -> None:
        self._rate = rate
        self._tokens = float(rate.burst)
        self._at = anyio.current_time()
        self._held_until = 0.0

    def hold(self, seconds: float) -> None:
        """The platform asks for silence: it gets none of our calls for so long."""
        self._held_until = max(self._held_until, anyio.current_time() + seconds)

    @property
    def is_held(self) -> bool:
        return self._held_until > anyio.current_time()

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


class Pace:
    """The calls in all chats together, for a platform that counts them. A call too many is refused
    here and never made; each gets a time of its own to come back, so that they do not come
    together. Hints, such as previews, leave a third of the calls to the others."""

    def __init__(self, per_s: float) -> None:
        self._gap_s = 1 / per_s
        self._burst = max(1, int(per_s))
        self._bucket = Bucket(ChatRate(per_s, self._burst))
        self._next = {True: 0.0, False: 0.0}

    def hold(self, seconds: float) -> None:
        """The platform refuses calls in every chat for so long."""
        self._bucket.hold(seconds)

    def admit(self, *, hint: bool = False) -> None:
        wait_s = self._bucket.wait_s(self._burst // 3 if hint else 0)
        if wait_s <= 0:
            self._bucket.take()
            return
        now = anyio.current_time()
        self._next[hint] = max(self._next[hint] + self._gap_s, now + wait_s)
        raise Crowded(self._next[hint] - now)
