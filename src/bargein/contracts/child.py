"""Sub-agents, as whoever watches their parent sees them."""

from enum import StrEnum

import msgspec

from bargein.contracts.event import TurnOutcome

__all__ = [
    "ChildState",
    "ChildView",
]


class ChildState(StrEnum):
    RUNNING = "running"
    ENDED = "ended"


class ChildView(msgspec.Struct, frozen=True):
    """A sub-agent of a session. `id` is a session of its own: it is watched, steered and stopped
    by it. `outcome` and `summary` are there once it has ended."""

    id: str
    task: str
    state: ChildState
    detached: bool = False
    call_id: str = ""
    outcome: TurnOutcome | None = None
    summary: str = ""
