"""The bytes that the server holds for each principal: bodies that come, answers that go.

Each principal has a budget, and all of them together have one. What is over it is refused with 429,
before it is in memory where its size is known. The first `FREE_BYTES` of everything are free, so
that a stop is heard however much of the budget is used.
"""

from collections import Counter
from typing import Self

from bargein.server.problems import Code, Problem

FREE_BYTES = 4096


class Holdings:
    def __init__(self, *, each_max: int, all_max: int) -> None:
        self._each_max = each_max
        self._all_max = all_max
        self._all = 0
        self.held: Counter[str] = Counter()
        self.count = 0
        """How many bodies and answers are on their way, also those that are free."""

    def take(self, who: str, size: int) -> None:
        """Raises if it is too much, and then nothing was taken."""
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
                "too many bytes are on their way for all who use this server; try again",
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
    """Something of `size` bytes that is held for a principal, until it is released."""

    def __init__(self, holdings: Holdings, who: str) -> None:
        self._holdings = holdings
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
        self._holdings.count += (size > 0) - (self.size > 0)
        self.size = size
        counted = max(0, size - FREE_BYTES)
        if counted > self._counted:
            self._holdings.take(self._who, counted - self._counted)
        elif counted < self._counted:
            self._holdings.give_back(self._who, self._counted - counted)
        self._counted = counted

    def release(self) -> None:
        self.resize(0)
