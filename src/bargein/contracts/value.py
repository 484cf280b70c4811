"""Plain data: what is said, what happened, what is stored."""

import msgspec


class Value(msgspec.Struct, frozen=True, gc=False):
    """Holds text, numbers, bytes and other values, and so is never part of a cycle: the collector
    need not look at it. With thousands of sessions that was a third of the work of a message.

    To ask `isinstance` of what is something else takes longer than a call (the class of these
    classes is not `type`). Where each message is asked for it, `type(it) is ...` is asked."""
