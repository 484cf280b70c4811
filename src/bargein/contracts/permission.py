"""What an agent may do unasked, what the user has granted, and who may answer. Plain data.

The pipeline of calls (`bargein.calls.permission`) decides by these, and nothing else does.
"""

import hashlib
from enum import StrEnum
from typing import Protocol

from bargein.contracts.value import Value


class PermissionMode(StrEnum):
    """How much a session asks, from the tightest to the loosest."""

    PLAN = "plan"
    """Read only: calls that may change something are refused."""
    ASK = "ask"
    """The rules decide what is asked about. The default."""
    AUTO_EDIT = "auto-edit"
    """Edits of files in the workspace run unasked; the rest as in `ask`."""
    FULL = "full"
    """Nothing is asked. What the rules refuse stays refused."""

    @property
    def looseness(self) -> int:
        return list(PermissionMode).index(self)


def tightest(*modes: PermissionMode) -> PermissionMode:
    return min(modes, key=lambda mode: mode.looseness)


class Reach(StrEnum):
    """What a call can change by itself."""

    NOTHING = "nothing"
    FILES = "files"
    """Files inside the workspace, and nothing else."""
    ANYTHING = "anything"


class Standing(StrEnum):
    """How far somebody who speaks to a session is trusted, from the least. A surface says who
    speaks; the question says who may answer."""

    WRITER = "writer"
    """May send messages to the session."""
    APPROVER = "approver"
    """Was known before the agent began to run, so that the agent cannot have made them up."""
    OWNER = "owner"
    """The person whose program this is: at the terminal, or as an admin of the server."""

    def covers(self, needed: "Standing") -> bool:
        order = list(Standing)
        return order.index(self) >= order.index(needed)


class GrantScope(StrEnum):
    SESSION = "session"
    PROJECT = "project"


class Grant(Value, frozen=True):
    """A rule that an approval can make: calls of `tool` with exactly these arguments run unasked,
    if they would be asked about for the same reason. Arguments that are not named may differ."""

    tool: str
    arguments: tuple[tuple[str, str], ...] = ()
    why: str = ""

    @property
    def id(self) -> str:
        text = "\0".join([self.tool, self.why, *(part for pair in self.arguments for part in pair)])
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]

    def __str__(self) -> str:
        if len(self.arguments) == 1:
            return f"{self.tool}: {self.arguments[0][1]}"
        named = ", ".join(f"{name}: {text}" for name, text in self.arguments)
        return f"{self.tool} ({named})" if named else self.tool


class KeptGrant(Value, frozen=True):
    """A grant, who made it, and when in seconds since 1970."""

    grant: Grant
    by: str
    at: float


class May(Value, frozen=True):
    """What somebody may do about the permissions of a session. Surfaces offer this and no more.

    `answers`: the questions whose `answerable_by` is one of these can be answered. `choices`: the
    answers to approvals that can be given, of those that the question has. `modes`: those that the
    session can be changed to. `revokes`: grants of these scopes can be revoked, and those of the
    project are listed."""

    answers: tuple[Standing, ...] = ()
    choices: tuple[str, ...] = ()
    modes: tuple[PermissionMode, ...] = ()
    revokes: tuple[GrantScope, ...] = ()


class ProjectGrants(Protocol):
    """The grants of one project that outlive its sessions. Quick, and safe to call in the loop."""

    def covers(self, grant: Grant) -> bool: ...

    def keep(self, grant: Grant, by: str) -> None: ...

    def kept(self) -> tuple[KeptGrant, ...]: ...

    def revoke(self, grant_id: str) -> bool:
        """Returns False if there is no such grant."""
        ...


class Permits(Protocol):
    """What a session permits now: asked by the pipeline at each call."""

    @property
    def mode(self) -> PermissionMode: ...

    def covers(self, grant: Grant) -> bool:
        """Whether the user has granted this, for the session or for the project."""
        ...
