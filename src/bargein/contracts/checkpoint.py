"""Snapshots of the workspace, as a session uses them: saved around calls, and taken back.

A session knows snapshots by their ids alone. `bargein.checkpoints` takes them; `runtime` joins the
two.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from bargein.contracts.value import Value
from bargein.errors import WorldError

FILES_NAMED_MAX = 500


class CheckpointError(WorldError):
    """A snapshot, an undo or a diff could not be made. No file was changed."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message, retryable=retryable)


class Span(Value, frozen=True):
    """The ids of the snapshots before and after something changed files. `shared`: calls of other
    sessions were at work in the folder too, so that nobody knows who changed what."""

    before: str
    after: str
    shared: bool = False


class FileFate(StrEnum):
    CHANGED_BACK = "changed back"
    BROUGHT_BACK = "brought back"
    REMOVED = "removed"
    KEPT = "kept"


class FileUndone(Value, frozen=True):
    """What an undo does with one path. `why` explains why it is kept. A name that is no text is
    shown with backslashes."""

    path: str
    fate: FileFate
    why: str = ""


class FilesUndone(Value, frozen=True):
    """What an undo does with the files, or would do. `more` counts those that are not named.
    `span` is around the undo itself, for a redo; None if nothing changed."""

    files: tuple[FileUndone, ...] = ()
    more: int = 0
    span: Span | None = None

    @property
    def changed(self) -> tuple[FileUndone, ...]:
        return tuple(each for each in self.files if each.fate is not FileFate.KEPT)

    @property
    def kept(self) -> tuple[FileUndone, ...]:
        return tuple(each for each in self.files if each.fate is FileFate.KEPT)


class FolderWork(Protocol):
    """A group of calls that may change files. Its methods may raise `CheckpointError`; it counts
    as begun or ended all the same."""

    async def begins(self) -> None:
        """Takes the snapshot before the calls start."""
        ...

    async def ends(self) -> tuple[Span, ...]:
        """Takes the snapshot after them. Returns the spans in which files changed; none if there
        is no snapshot of before."""
        ...


class Checkpoints(Protocol):
    """The snapshots of one workspace. Every method may raise `CheckpointError`. Cancelling one ends
    the wait; an undo that has begun goes on to its end."""

    async def save(self) -> str:
        """Takes a snapshot and returns its id."""
        ...

    def work(self) -> FolderWork: ...

    async def preview(self, spans: Sequence[Span], overrule: Sequence[str] = ()) -> FilesUndone:
        """Says what `undo` would do, and changes nothing."""
        ...

    async def undo(self, spans: Sequence[Span], overrule: Sequence[str] = ()) -> FilesUndone:
        """Takes back the changes of these spans, which are in the order in which they happened.
        `overrule` names paths that go back although somebody changed them since."""
        ...

    async def diff(self, spans: Sequence[Span]) -> str:
        """What changed in these spans, as git shows it, within a bound."""
        ...
