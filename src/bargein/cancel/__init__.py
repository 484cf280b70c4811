"""Reliable cancellation, for any program with work to stop. It does not depend on agents.

The tree of tokens alone defines what belongs to what. An owner holds a `CancelSource`; the work
gets its read-only `Token`. A cancel is final and reaches exactly the token and its descendants. It
sets all flags first and then delivers, ancestors first. It may come from any thread or signal
handler. How it reaches the work:

- a task: `with token.scope():`, an anyio cancel scope that absorbs only its own token;
- a coroutine that may ignore it: `await run_abandonable(...)` under a `TaskOwner`;
- a thread: `await run_thread(...)`, bounded whatever the function does;
- a loop of your own: `token.check()`, `token.sleep(s)`, `is_interrupted()`;
- anything else: `token.on_cancel(callback)`.
"""

from bargein.cancel.accounts import Abandoned, Counts, TooManyAbandoned, abandoned, counts
from bargein.cancel.clock import (
    SYSTEM_CLOCK,
    Clock,
    SystemClock,
    Timer,
    arm_quit_watchdog,
    disarm_quit_watchdog,
)
from bargein.cancel.context import (
    as_current,
    current_token,
    in_empty_context,
    is_interrupted,
    start_thread,
)
from bargein.cancel.outcome import Outcome, Status
from bargein.cancel.reason import Cancelled, Cause, Reason
from bargein.cancel.scope import TokenScope
from bargein.cancel.shield import shield
from bargein.cancel.tasks import TaskOwner, run_abandonable
from bargein.cancel.threads import run_thread
from bargein.cancel.token import CancelSource, Token, TokenEnded, bridge
from bargein.cancel.tree import Link, Registration

__all__ = [
    "SYSTEM_CLOCK",
    "Abandoned",
    "CancelSource",
    "Cancelled",
    "Cause",
    "Clock",
    "Counts",
    "Link",
    "Outcome",
    "Reason",
    "Registration",
    "Status",
    "SystemClock",
    "TaskOwner",
    "Timer",
    "Token",
    "TokenEnded",
    "TokenScope",
    "TooManyAbandoned",
    "abandoned",
    "arm_quit_watchdog",
    "as_current",
    "bridge",
    "counts",
    "current_token",
    "disarm_quit_watchdog",
    "in_empty_context",
    "is_interrupted",
    "run_abandonable",
    "run_thread",
    "shield",
    "start_thread",
]
