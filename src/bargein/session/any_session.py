"""The methods that a session in this process and a session over the wire have in common.

A terminal, a channel or a router is written once, against `AnySession`. `bargein.Session` and
`bargein.client.Session` both have its methods. No method names the speaker: in this process it is
the user, and over the wire the principal of the client's token.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, Unpack, overload

from bargein.contracts.budget import Spent
from bargein.contracts.checkpoint import FilesUndone
from bargein.contracts.event import Recorded
from bargein.contracts.live import ChildView
from bargein.contracts.message import HeardSoFar
from bargein.contracts.model import ModelMessage
from bargein.contracts.permission import GrantScope, KeptGrant, May, PermissionMode
from bargein.contracts.place import SessionPlace
from bargein.contracts.receipt import Receipt, Scope
from bargein.contracts.stage import StagedFiles
from bargein.contracts.tool import OpenQuestion
from bargein.session.broadcast import Watched
from bargein.session.results import TurnResult
from bargein.session.rewinding import Rewind
from bargein.session.sending import AnySendOptions, Content, Sent
from bargein.session.session import InboxItem
from bargein.session.side_question import SideAnswer
from bargein.session.state import SessionState
from bargein.session.streaming import TurnStream
from bargein.session.undo import Undone
from bargein.session.undoing_calls import CallsBeingUndone

U = TypeVar("U")


class AskedStop(Protocol):
    """A stop that was asked for."""

    @property
    def landed(self) -> bool:
        """Whether a turn is being stopped, as far as it is known here."""
        ...

    async def receipt(self) -> Receipt:
        """Wait until what was stopped is over, and say what became of it."""
        ...


class AnySession(Protocol):
    """The methods are those of `bargein.Session`, where they are described."""

    @property
    def id(self) -> str: ...

    @overload
    async def send(self, content: Content, **options: Unpack[AnySendOptions]) -> Sent[Any]: ...

    @overload
    async def send(
        self, content: Content, *, output: type[U], **options: Unpack[AnySendOptions]
    ) -> Sent[U]: ...

    @overload
    async def send(
        self, content: Content, *, output: object, **options: Unpack[AnySendOptions]
    ) -> Sent[Any]: ...

    @overload
    def stream(self, content: Content, **options: Unpack[AnySendOptions]) -> TurnStream[Any]: ...

    @overload
    def stream(
        self, content: Content, *, output: type[U], **options: Unpack[AnySendOptions]
    ) -> TurnStream[U]: ...

    @overload
    def stream(
        self, content: Content, *, output: object, **options: Unpack[AnySendOptions]
    ) -> TurnStream[Any]: ...

    async def result(self, message: str) -> TurnResult[Any]: ...

    async def interrupt(
        self,
        *,
        scope: Scope | str = Scope.TURN,
        target: str | None = None,
        expected_turn: str | None = None,
        heard: HeardSoFar | None = None,
    ) -> Receipt: ...

    def interrupt_now(
        self, *, expected_turn: str | None = None, heard: HeardSoFar | None = None
    ) -> AskedStop: ...

    async def side_question(
        self, question: str, *, question_id: str | None = None
    ) -> SideAnswer: ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def detach(self, call_id: str) -> None: ...

    async def questions(self) -> tuple[OpenQuestion, ...]: ...

    async def answer(self, question: str, text: str) -> Sent[Any] | None: ...

    async def mode(self) -> PermissionMode: ...

    async def set_mode(self, mode: PermissionMode | str) -> PermissionMode: ...

    async def may(self) -> May: ...

    async def grants(
        self, scope: GrantScope | str = GrantScope.SESSION
    ) -> tuple[KeptGrant, ...]: ...

    async def revoke(self, grant: str, *, scope: GrantScope | str = GrantScope.SESSION) -> None: ...

    async def dismiss(self, question: str) -> None: ...

    async def children(self) -> tuple[ChildView, ...]: ...

    async def inbox(self) -> tuple[InboxItem, ...]: ...

    async def edit(self, message: str, content: Content) -> None: ...

    async def move(self, message: str, *, before: str | None = None) -> None: ...

    async def withdraw(self, message: str) -> None: ...

    async def continue_(self) -> None: ...

    async def undo(self, *, files: bool | None = None, overrule: Sequence[str] = ()) -> Undone: ...

    async def preview_undo(
        self, turn: str | None = None, *, overrule: Sequence[str] = ()
    ) -> Undone: ...

    async def rewind(
        self, turn: str, what: Rewind | str | None = None, *, overrule: Sequence[str] = ()
    ) -> Undone: ...

    async def redo(self) -> FilesUndone: ...

    async def undo_calls(self, calls: Sequence[str] | None = None) -> CallsBeingUndone: ...

    async def diff(self, turn: str | None = None) -> str: ...

    async def staged(self) -> StagedFiles | None: ...

    async def set_staged(self, on: bool = True) -> None: ...

    async def accept_staged(
        self, paths: Sequence[str] = (), *, overrule: Sequence[str] = ()
    ) -> StagedFiles: ...

    async def undo_accept(self) -> StagedFiles: ...

    async def discard_staged(self, paths: Sequence[str] = ()) -> StagedFiles: ...

    async def compact(self) -> TurnResult[Any]: ...

    async def rename(self, title: str) -> None: ...

    async def place(self) -> SessionPlace | None: ...

    async def set_place(
        self, place: SessionPlace, *, environment: Mapping[str, str] | None = None
    ) -> None: ...

    async def end(self) -> None: ...

    async def settled(self) -> None: ...

    async def begin_with(
        self, history: Sequence[ModelMessage], *, instructions: str = ""
    ) -> None: ...

    async def fork(self, turn: str | None = None) -> str: ...

    async def position(self) -> int: ...

    async def state(self) -> SessionState: ...

    async def usage(self) -> Spent: ...

    async def events(self, *, after: int = 0) -> list[Recorded]: ...

    def log(self) -> AsyncGenerator[Recorded, None]: ...

    async def transcript(self) -> tuple[ModelMessage, ...]: ...

    def watch(self, *, after: int | None = None) -> AsyncGenerator[Watched, None]: ...

    def watch_many(self, *, after: int | None = None) -> AsyncGenerator[list[Watched], None]: ...
