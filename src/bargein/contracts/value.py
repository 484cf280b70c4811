"""Plain data: what is said, what happened, what is stored."""

import msgspec


class Value(msgspec.Struct, frozen=True, gc=False):
    """Holds text, numbers, bytes and other values, and so is never part of a cycle: the collector
    need not look at it. With thousands of sessions that was a third of the work of a message."""
