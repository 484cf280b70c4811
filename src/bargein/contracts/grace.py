"""How long each thing may take to stop. All parts take these figures from here.

Each waits longer than the thing inside it: a process, a nested call, a tool's function, the call,
the turn. So nothing is abandoned just before it can report how its stop went. A tool that needs
longer sets `PlannedCall.grace_s` and gets it, up to `Limits.call_grace_s_max`.
"""

from typing import Final

PROCESS_S: Final = 1.0
"""A process. Its ladder of signals takes less than this."""

CALLED_S: Final = 1.1
"""A call made by another call, counted from the stop of both."""

TOOL_S: Final = 1.3
"""A tool's function, unless the tool asks for longer."""

BLIND_S: Final = 0.25
"""A sync function in a thread without a token. It cannot notice a stop, so waiting longer would
only delay the user. This is enough for a function that is about to return."""

MARGIN_S: Final = 0.2
"""How much longer than its tool a session waits."""

CALL_S: Final = TOOL_S + MARGIN_S
"""A call, as its session waits for it."""

SETTLE_S: Final = 2.0
"""An agent, and after it the calls it left behind."""
