"""How long each thing may take to stop. The one place where the parts agree on it.

Each outlasts what it waits for, so that whoever is about to say how a stop went is never given up
a moment before: a process, what a call called, a tool's function, the call, the turn. A tool that
needs longer says so (`PlannedCall.grace_s`), and is given it within `Limits.call_grace_s_max`.
"""

from typing import Final

PROCESS_S: Final = 1.0
"""A process: its ladder of signals, which takes less."""

CALLED_S: Final = 1.1
"""What a call has called, from the moment at which both were told to stop."""

TOOL_S: Final = 1.3
"""A tool's function, unless it asks for longer."""

BLIND_S: Final = 0.25
"""A sync function in a thread that was given no token: it hears of no stop, so waiting longer only
makes its user wait. Enough for one that is about to end to say how it went."""

MARGIN_S: Final = 0.2
"""By how much a session outlasts a tool."""

CALL_S: Final = TOOL_S + MARGIN_S
"""A call as its session sees it."""

SETTLE_S: Final = 2.0
"""An agent; and then what is left of its calls."""
