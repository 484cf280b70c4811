"""A stage: a copy of the workspace in which a session works, until its changes are accepted.

A session knows its stage by this Protocol alone. `bargein.checkpoints` keeps it; `runtime` joins
the two.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from bargein.contracts.checkpoint import Span
from bargein.contracts.value import Value


class StagedFate(StrEnum):
    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"
    KEPT = "kept"


class StagedFile(Value, frozen=True):
    """What an acceptance, or a discarding, does with one path. `why` explains why it is kept. The
    path of a folder ends with a slash; a name that is no text is shown with backslashes."""

    path: str
    fate: StagedFate
    why: str = ""


class StagedFiles(Value, frozen=True):
    """What an acceptance, or a discarding, does with the files, or would do. `more` counts those
    that are not named. `diff` shows everything that is staged, as git does. `span` is around an
    acceptance; None if it changed nothing."""

    files: tuple[StagedFile, ...] = ()
    more: int = 0
    diff: str = ""
    span: Span | None = None

    @property
    def changed(self) -> tuple[StagedFile, ...]:
        return tuple(each for each in self.files if each.fate is not StagedFate.KEPT)

    @property
    def kept(self) -> tuple[StagedFile, ...]:
        return tuple(each for each in self.files if each.fate is StagedFate.KEPT)


class SessionStage(Protocol):
    """The stage of one session. Every method may raise `CheckpointError`. A change of files that
    has begun goes on to its end."""

    async def look(self) -> StagedFiles:
        """Says what an acceptance of everything would do, and changes nothing."""
        ...

    async def accept(self, paths: Sequence[str] = (), overrule: Sequence[str] = ()) -> StagedFiles:
        """Changes the workspace: these paths and what is below them, or everything. A path that
        somebody changed there meanwhile is kept, unless `overrule` names it."""
        ...

    async def take_back(self, span: Span) -> StagedFiles:
        """Takes an acceptance back: what it changed in the workspace is staged again."""
        ...

    async def discard(self, paths: Sequence[str]) -> StagedFiles:
        """Takes these paths of the stage, and what is below them, back."""
        ...

    async def begin_anew(self) -> None:
        """Drops everything that is staged, and copies the workspace again."""
        ...

    async def refresh(self) -> int:
        """Brings to the stage what others changed in the workspace and the session did not. Returns
        how many paths changed."""
        ...

    async def drop(self) -> None:
        """Removes the stage with everything that is staged."""
        ...
