"""What the server sends, read back into the engine's own types.

Files come by reference: an attachment in an event has its name and its type, and no bytes. Unknown
fields are ignored, because a newer server may send more.
"""

from typing import Any, Literal, TypeVar

import msgspec

from bargein.contracts.event import Recorded, TurnOutcome
from bargein.contracts.live import ChildView, Live
from bargein.contracts.message import Disposition, Message
from bargein.contracts.model import ModelMessage, ToolSchema
from bargein.contracts.permission import Grant, GrantScope, May, PermissionMode
from bargein.contracts.receipt import Receipt
from bargein.contracts.stage import StagedFiles
from bargein.contracts.tool import OpenQuestion
from bargein.errors import WorldError
from bargein.session.broadcast import Watched
from bargein.session.state import Lane, Phase

T = TypeVar("T")


class HelloFrame(msgspec.Struct, frozen=True, tag="hello"):
    start: str
    version: str
    principal: str


class ReplyFrame(msgspec.Struct, frozen=True, tag="reply"):
    id: str
    status: int
    body: msgspec.Raw


class ShownFrame(msgspec.Struct, frozen=True, tag="shown"):
    watch: str
    shown: msgspec.Raw


class CutFrame(msgspec.Struct, frozen=True, tag="cut_off"):
    reason: str
    detail: str = ""


Frame = HelloFrame | ReplyFrame | ShownFrame | CutFrame


class SentReply(msgspec.Struct, frozen=True):
    disposition: Disposition
    message: str
    turn: str | None = None


class PromptReply(msgspec.Struct, frozen=True):
    text: str


class DoneReply(msgspec.Struct, frozen=True):
    status: Literal["done", "too_late", "accepted"] = "done"
    detail: str = ""
    sent: SentReply | None = None


class WaitingReply(msgspec.Struct, frozen=True):
    message: Message
    lane: Lane
    held: bool


class InboxReply(msgspec.Struct, frozen=True):
    messages: tuple[WaitingReply, ...]


class SessionSummary(msgspec.Struct, frozen=True):
    """A session in a list. Times are seconds since 1970."""

    id: str
    title: str
    owner: str
    access: Literal["read", "write", "own"]
    created_at: float
    updated_at: float
    phase: Phase
    turn: str | None
    waiting: int
    asking: int
    last_seq: int
    background: int = 0
    unreadable: str = ""
    workspace: str = ""


class DetailReply(msgspec.Struct, frozen=True):
    session: SessionSummary
    mode: PermissionMode
    may: May = May()
    questions: tuple[OpenQuestion, ...] = ()
    children: tuple[ChildView, ...] = ()


class SessionPage(msgspec.Struct, frozen=True):
    sessions: tuple[SessionSummary, ...]
    next: str | None = None


class DiffReply(msgspec.Struct, frozen=True):
    diff: str


class StageReply(msgspec.Struct, frozen=True):
    files: StagedFiles | None = None


class ResultReply(msgspec.Struct, frozen=True):
    state: Literal["open", "settled", "gone"]
    turn: str = ""
    outcome: TurnOutcome | None = None
    text: str = ""
    error: str = ""
    receipt: Receipt | None = None


class SettledReply(msgspec.Struct, frozen=True):
    settled: bool


class LogReply(msgspec.Struct, frozen=True):
    events: tuple[Recorded, ...]
    more: bool


class GrantReply(msgspec.Struct, frozen=True):
    grant: Grant
    scope: GrantScope
    by: str
    at: float


class GrantsReply(msgspec.Struct, frozen=True):
    grants: tuple[GrantReply, ...]


class TranscriptReply(msgspec.Struct, frozen=True):
    messages: tuple[ModelMessage, ...]


class StoppedReply(msgspec.Struct, frozen=True):
    receipts: tuple[Receipt, ...]


class PlaceReply(msgspec.Struct, frozen=True):
    """The folder, model and tools of a session."""

    workspace: str = ""
    chosen: str = ""
    model: str = ""
    why: str = ""
    takes_tools: bool = True
    tools: tuple[ToolSchema, ...] = ()


class WatchReply(msgspec.Struct, frozen=True):
    after: int


class Me(msgspec.Struct, frozen=True):
    """The principal that the token stands for, and what the server offers."""

    principal: str
    admin: bool
    read_only: bool
    model: str
    host_tools: bool
    workspace: str = ""
    places: bool = False
    host: bool = False


_frames = msgspec.json.Decoder(Frame)
_recorded = msgspec.json.Decoder(Recorded)
_live = msgspec.json.Decoder(Live | CutFrame)
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def read_frame(text: str) -> Frame:
    try:
        frame: Frame = _frames.decode(text)
        return frame
    except msgspec.DecodeError as error:
        raise not_understood(error) from error


def read_event(content: bytes) -> Watched | CutFrame:
    """Decode an event of a watch, or the frame that ends it."""
    decoder: msgspec.json.Decoder[Any] = _recorded if content.startswith(b'{"seq"') else _live
    found: Watched | CutFrame = _decode(decoder, content)
    return found


def read(kind: type[T], content: bytes) -> T:
    """Decode the body of a reply."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    found: T = _decode(decoder, content)
    return found


def _decode(decoder: msgspec.json.Decoder[Any], content: bytes) -> Any:
    try:
        return decoder.decode(content)
    except msgspec.ValidationError:
        # Seldom: it has a reference in place of a file.
        try:
            return msgspec.convert(_with_empty_files(msgspec.json.decode(content)), decoder.type)
        except msgspec.ValidationError as error:
            raise not_understood(error) from error
    except msgspec.DecodeError as error:
        raise not_understood(error) from error


def _with_empty_files(value: Any) -> Any:
    """Turn references to files into files without bytes."""
    if isinstance(value, list):
        return [_with_empty_files(each) for each in value]
    if not isinstance(value, dict):
        return value
    made = {name: _with_empty_files(each) for name, each in value.items()}
    if "media_type" in made and "size" in made and "data" not in made:
        made["data"] = b""
    return made


def not_understood(error: Exception) -> WorldError:
    return WorldError(
        f"the server sent something that this version does not understand ({error}); use the same "
        "version on both sides",
        retryable=False,
    )
