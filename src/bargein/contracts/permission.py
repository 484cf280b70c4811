"""Permission modes, grants, and who may answer a question. Plain data.

Only the pipeline of calls decides with these (`bargein.calls.pipeline.decide`).
"""

import hashlib
from enum import StrEnum
from typing import Protocol

from bargein.contracts.value import Value


class PermissionMode(StrEnum):
    """How often a session asks before it runs a call, from the tightest mode to the loosest."""

    PLAN = "plan"
    """Read only: a call that may change something is refused."""
    ASK = "ask"
    """The policy's rules decide which calls need approval. The default."""
    AUTO_EDIT = "auto-edit"
    """Edits of files in the workspace run without approval; everything else as in `ask`."""
    FULL = "full"
    """No call needs approval. Calls that the rules refuse stay refused."""

    @property
    def looseness(self) -> int:
        return list(PermissionMode).index(self)


def tightest(*modes: PermissionMode) -> PermissionMode:
    return min(modes, key=lambda mode: mode.looseness)


class Reach(StrEnum):
    """How much a call can change by itself."""

    NOTHING = "nothing"
    FILES = "files"
    """Files inside the workspace, and nothing else."""
    ANYTHING = "anything"


class Standing(StrEnum):
    """How far a person who speaks to a session is trusted, from the least to the most. A surface
    knows the person's standing; a question names the standing that an answer needs."""

    GUEST = "guest"
    """May send messages to a session that the owner has shared, and approves nothing."""
    WRITER = "writer"
    """May send messages to the session."""
    APPROVER = "approver"
    """Had an account before the agent started, so the agent cannot have created it."""
    OWNER = "owner"
    """The person who runs the program: at the terminal, or as an admin of the server."""

    def covers(self, needed: "Standing") -> bool:
        order = list(Standing)
        return order.index(self) >= order.index(needed)


class GrantScope(StrEnum):
    SESSION = "session"
    PROJECT = "project"


class Grant(Value, frozen=True):
    """A rule that an approval can make: calls of `tool` with exactly these arguments no longer need
    approval for the reason `why`. Arguments that are not listed may have any value."""

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
    """What a person may change about the permissions of a session. Surfaces offer this and no more.

    `answers`: the person may answer questions whose `answerable_by` is one of these. `choices`: to
    an approval, the person may give these answers, if the question has them. `modes`: the person
    may change the session to these. `revokes`: the person may revoke grants of these scopes, and
    sees the project's grants if that is one of them."""

    answers: tuple[Standing, ...] = ()
    choices: tuple[str, ...] = ()
    modes: tuple[PermissionMode, ...] = ()
    revokes: tuple[GrantScope, ...] = ()


class ProjectGrants(Protocol):
    """The grants of one project that outlive its sessions. Quick enough for the event loop."""

    def covers(self, grant: Grant) -> bool: ...

    def keep(self, grant: Grant, by: str) -> None: ...

    def kept(self) -> tuple[KeptGrant, ...]: ...

    def revoke(self, grant_id: str) -> bool:
        """Returns False if there is no such grant."""
        ...


class Permits(Protocol):
    """What a session permits now. The pipeline consults it before each call."""

    @property
    def mode(self) -> PermissionMode: ...

    def covers(self, grant: Grant) -> bool:
        """Whether the user made this grant, for the session or for the project."""
        ...
