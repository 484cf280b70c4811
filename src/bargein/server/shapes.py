"""The JSON of the API: the bodies of requests and answers. The OpenAPI document is made from them.

A request with an unknown field is refused, because the field may be misspelt.
"""

from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from bargein.contracts.event import Recorded, TurnOutcome
from bargein.contracts.live import ChildView
from bargein.contracts.message import HEARD_CHARACTERS_MAX, HeardSoFar, Mode, QuestionPolicy
from bargein.contracts.model import Image, ModelMessage, Text
from bargein.contracts.output import Output
from bargein.contracts.permission import Grant, GrantScope, May, PermissionMode
from bargein.contracts.receipt import Receipt, Scope
from bargein.contracts.stage import StagedFiles
from bargein.contracts.tool import OpenQuestion
from bargein.server.references import AttachmentRef, ImageRef
from bargein.session.rewinding import Rewind
from bargein.session.state import Lane, Phase

TITLE_CHARACTERS_MAX = 200
ID_CHARACTERS_MAX = 200
MEMBERS_MAX = 1000
ENVIRONMENT_MAX = 5000

Title = Annotated[str, Meta(max_length=TITLE_CHARACTERS_MAX)]
Id = Annotated[str, Meta(min_length=1, max_length=ID_CHARACTERS_MAX)]
Words = Annotated[str, Meta(min_length=1)]
Parts = Annotated[tuple[Text | Image, ...], Meta(min_length=1, max_length=1000)]


class _Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Member(StrEnum):
    """What a member of a shared session may do. `talk` and `write` include stopping, because a
    message can stop too. With `talk` a member can neither approve calls nor take files back."""

    READ = "read"
    TALK = "talk"
    WRITE = "write"


class NewSession(_Asked, frozen=True):
    """`id` is for an admin, who may name a session; otherwise the server chooses."""

    title: Title = ""
    id: Id | None = None


class SessionChange(_Asked, frozen=True):
    """`members`, by principal, replaces the whole list. `mode` is the permission mode from the next
    call on."""

    title: Title | UnsetType = UNSET
    members: Annotated[dict[Id, Member], Meta(max_length=MEMBERS_MAX)] | UnsetType = UNSET
    mode: PermissionMode | UnsetType = UNSET


class GuestWanted(_Asked, frozen=True):
    """Without a name the guest gets one, such as `guest-2`."""

    name: Annotated[str, Meta(max_length=ID_CHARACTERS_MAX)] = ""


class GuestChange(_Asked, frozen=True):
    """Whether a guest may approve calls."""

    approves: bool


class AttachmentAsked(_Asked, frozen=True):
    """`data` is base64."""

    name: Id
    media_type: Id
    data: bytes


class SideQuestion(_Asked, frozen=True):
    """To stop the question, use `interrupt` with the scope `side` and this `id`."""

    text: Words
    id: Id | None = None


class HeardAsked(_Asked, frozen=True):
    """The user has heard or seen the first `characters` code points of the turn's text, without the
    text that an earlier one of these cut off."""

    turn: Id
    characters: Annotated[int, Meta(ge=0, le=HEARD_CHARACTERS_MAX)]

    def heard(self) -> HeardSoFar:
        return HeardSoFar(self.turn, self.characters)


class NewMessage(_Asked, frozen=True):
    """`expected_turn_id` guards the effect on a running turn, never the message. `literal`: the
    text goes to the model even if it reads like a command, such as `stop`. `content` replaces
    `text` for words with images, and is always literal. `output` and `questions` are for the turn
    that takes the message: the form of its answer, and what happens to its questions. `heard` says
    how much of a turn the user has heard or seen; the model sees no more of it."""

    text: Words | UnsetType = UNSET
    mode: Mode = Mode.STEER
    client_message_id: Id | None = None
    expected_turn_id: Id | None = None
    group: Id | None = None
    attachments: Annotated[tuple[AttachmentAsked, ...], Meta(max_length=32)] = ()
    literal: bool = False
    content: Parts | UnsetType = UNSET
    output: Output | None = None
    questions: QuestionPolicy | None = None
    heard: HeardAsked | None = None


class PromptAsked(_Asked, frozen=True):
    """`words` are the arguments as a person writes them after the prompt's name: `name=value`, or
    values in order."""

    words: Annotated[str, Meta(max_length=20_000)] = ""


class InboxChange(_Asked, frozen=True):
    """`before` moves the message before that one; null moves it to the end. `content` replaces
    `text` for words with images."""

    text: Words | UnsetType = UNSET
    before: Id | UnsetType | None = UNSET
    content: Parts | UnsetType = UNSET


class InterruptBody(_Asked, frozen=True):
    """`reason` is for people, and goes into the audit log. `start` is for a stop that is sent again
    because its answer was lost: it names the server's start (`start` of `GET /me`) when the stop
    was first sent. In a later start the stop reaches nothing, because what ran then is over.
    `heard` says how much of a turn the user has heard or seen; it counts even if there is nothing
    to stop."""

    scope: Scope = Scope.TURN
    target: Id | None = None
    expected_turn_id: Id | None = None
    reason: Title = ""
    start: Id | None = None
    heard: HeardAsked | None = None


class CallInterrupt(_Asked, frozen=True):
    reason: Title = ""


class Answer(_Asked, frozen=True):
    text: str


class History(_Asked, frozen=True):
    """A conversation from elsewhere, for a session that has not begun."""

    messages: tuple[ModelMessage, ...]
    instructions: str = ""


class UndoWanted(_Asked, frozen=True):
    """`files`: whether to put files back; without it they are if snapshots are taken. `overrule`
    has paths that go back even if somebody changed them since."""

    files: bool | None = None
    overrule: tuple[str, ...] = ()


class PreviewWanted(_Asked, frozen=True):
    """Previews a rewind to before `turn`; without `turn`, an undo of the last turn."""

    turn: Id | None = None
    overrule: tuple[str, ...] = ()


class UndoCallsWanted(_Asked, frozen=True):
    """Undoes these `calls`; without them, all of the last turn that offers any."""

    calls: tuple[Id, ...] | None = None


class RewindWanted(_Asked, frozen=True):
    """Without `what`, both conversation and files go back if snapshots are taken, and otherwise the
    conversation alone."""

    turn: Id
    what: Rewind | None = None
    overrule: tuple[str, ...] = ()


class ForkWanted(_Asked, frozen=True):
    """Forks after `turn`; without it, after the last turn that is over."""

    turn: Id | None = None


class DiffWanted(_Asked, frozen=True):
    """Shows what `turn` changed; without it, the last turn that changed files."""

    turn: Id | None = None


class AcceptWanted(_Asked, frozen=True):
    """Without `paths`: everything that is staged. `overrule` are paths that change although
    somebody changed them meanwhile."""

    paths: tuple[str, ...] = ()
    overrule: tuple[str, ...] = ()


class DiscardWanted(_Asked, frozen=True):
    """Without `paths`: everything that is staged."""

    paths: tuple[str, ...] = ()


class StageWanted(_Asked, frozen=True):
    """`on`: the session works in a copy of its folder from its next turn on."""

    on: bool


class StageView(msgspec.Struct, frozen=True):
    """What is staged; nothing if the session is not staged."""

    files: StagedFiles | None = None


class StopAll(_Asked, frozen=True):
    """Stops these `sessions`; without them, all that run. The `scope` `session` stops their
    background calls too."""

    sessions: tuple[Id, ...] | None = None
    reason: Title = ""
    scope: Literal["turn", "session"] = "turn"


class PlaceWanted(_Asked, frozen=True):
    """`workspace` is an absolute path. Without `model` the folder's settings decide. `staged`: the
    session works in a copy of the folder; without it, that stays as it is. `environment` has the
    user's variables for the agent there, such as keys of providers."""

    workspace: Annotated[str, Meta(min_length=1, max_length=4096)]
    model: Annotated[str, Meta(max_length=1000)] = ""
    staged: bool | None = None
    environment: Annotated[dict[str, str], Meta(max_length=ENVIRONMENT_MAX)] = {}


class LeaveWanted(_Asked, frozen=True):
    """`connected`: the caller itself has a connection, which is not counted."""

    connected: bool = False


class PromptWanted(_Asked, frozen=True):
    """A prompt of an MCP server, such as `mcp__git__review`, and the words after its name."""

    name: Id
    words: str = ""


class Nothing(_Asked, frozen=True):
    """An empty body; it may be left out."""


class NewTicket(_Asked, frozen=True):
    """`after` is the event after which the socket goes on. It is checked here, because a browser
    cannot read why a handshake was refused."""

    after: int | None = None


def _empty() -> msgspec.Raw:
    return msgspec.Raw(b"{}")


class Command(_Asked, frozen=True):
    """A command on a WebSocket: runs an operation by its name."""

    id: Id
    do: str
    params: dict[str, str] = {}
    query: dict[str, str] = {}
    body: msgspec.Raw = msgspec.field(default_factory=_empty)
    key: str | None = None


# Answers


class Sent(msgspec.Struct, frozen=True):
    """If the text was a command, it was obeyed and there is no message: `command` names it, `reply`
    is the result in words, and `receipt` is that of a stop."""

    disposition: Literal["started", "steering", "interrupting", "queued", "duplicate", "obeyed"]
    message: str | None = None
    turn: str | None = None
    command: Literal["stop", "status", "help"] | None = None
    reply: str = ""
    receipt: Receipt | None = None


class FilesDiff(msgspec.Struct, frozen=True):
    """The changes of a turn to files, as `git diff` shows them."""

    diff: str


class Done(msgspec.Struct, frozen=True):
    """`too_late`: the thing to change is over or gone, and nothing was changed."""

    status: Literal["done", "too_late", "accepted"] = "done"
    detail: str = ""


class AnswerDone(Done, frozen=True):
    """`sent` is set if a restart had left the question open. Then the answer begins a turn, and
    `sent` is its message."""

    sent: Sent | None = None


class MessageRef(msgspec.Struct, frozen=True):
    """A message without the bytes of its attachments; `get_attachment` returns those."""

    id: str
    sender: str
    mode: Mode
    content: tuple[Text | ImageRef, ...]
    attachments: tuple[AttachmentRef, ...] = ()
    client_id: str | None = None
    group: str | None = None
    allows: OpenQuestion | None = None


class AttachmentView(msgspec.Struct, frozen=True):
    """`data` is base64."""

    name: str
    media_type: str
    data: bytes


class InboxEntry(msgspec.Struct, frozen=True):
    message: MessageRef
    lane: Lane
    held: bool


class Inbox(msgspec.Struct, frozen=True):
    held: bool
    messages: tuple[InboxEntry, ...]


class RunningCall(msgspec.Struct, frozen=True):
    """`detached`: the call runs in the background. `running_s`: how long it has run, in seconds."""

    id: str
    name: str
    title: str
    detached: bool = False
    running_s: float = 0.0


class SessionView(msgspec.Struct, frozen=True):
    """`access` is what the caller may do here. `waiting` counts messages, `asking` open questions,
    `background` calls that run without a turn. `last_seq` is the id of the last event. `workspace`
    is the session's own folder, if it has one. `unreadable` is empty, or says why the session
    cannot be read; then it takes no messages and can only be deleted."""

    id: str
    title: str
    owner: str
    access: Literal["read", "write", "own"]
    created_at: float
    updated_at: float
    phase: Phase
    turn: str | None
    waiting: int
    held: bool
    asking: int
    last_seq: int
    background: int = 0
    unreadable: str = ""
    workspace: str = ""


class SessionDetail(msgspec.Struct, frozen=True):
    """`mode` is the permission mode. `may` says what the caller may do about the mode, questions
    and grants."""

    session: SessionView
    mode: PermissionMode = PermissionMode.ASK
    may: May = May()
    members: dict[str, Member] = {}
    calls: tuple[RunningCall, ...] = ()
    questions: tuple[OpenQuestion, ...] = ()
    children: tuple[ChildView, ...] = ()


class GrantView(msgspec.Struct, frozen=True):
    """What an approval allows for longer than one call. `text` describes all of it without hidden
    characters: show that to people; `grant` is the same for programs. `why` is the reason for
    asking. `revocable`: the caller may revoke it."""

    id: str
    scope: GrantScope
    tool: str
    text: str
    why: str
    by: str
    at: float
    revocable: bool
    grant: Grant


class GrantList(msgspec.Struct, frozen=True):
    """The grants of the session, then those of the project, both oldest first."""

    grants: tuple[GrantView, ...]


class SessionList(msgspec.Struct, frozen=True):
    """`next` goes into `?before=` to get the next page; null on the last page."""

    sessions: tuple[SessionView, ...]
    next: str | None = None


class Hit(msgspec.Struct, frozen=True):
    """A text that has all the words. `session` may be a child of `root`, `title` is the root's,
    `seq` is the event, and `excerpt` has the words with some text around them."""

    session: str
    root: str
    title: str
    seq: int
    excerpt: str


class Hits(msgspec.Struct, frozen=True):
    found: tuple[Hit, ...]


class TurnView(msgspec.Struct, frozen=True):
    turn: str
    state: Literal["running", "settled"]
    messages: tuple[str, ...]
    started_at: float
    text: str = ""
    outcome: TurnOutcome | None = None
    error: str = ""
    receipt: Receipt | None = None
    settled_at: float | None = None


class ResultView(msgspec.Struct, frozen=True):
    """How the turn that took a message ended. `open`: it has not ended yet, or no turn has taken
    the message yet. `gone`: no turn ever will; `error` says why."""

    state: Literal["open", "settled", "gone"]
    turn: str = ""
    outcome: TurnOutcome | None = None
    text: str = ""
    error: str = ""
    receipt: Receipt | None = None


class SettledView(msgspec.Struct, frozen=True):
    """Whether nothing runs in the session, and nothing waits that would run by itself."""

    settled: bool


class PromptText(msgspec.Struct, frozen=True):
    text: str


class LogPage(msgspec.Struct, frozen=True):
    """Events of the log in their order. `more`: there are later ones."""

    events: tuple[Recorded, ...]
    more: bool


class TranscriptView(msgspec.Struct, frozen=True):
    messages: tuple[ModelMessage, ...]


class Whoami(msgspec.Struct, frozen=True):
    """`token` is the public id of the caller's token; empty for the start token. `start` names this
    start of the server. `workspace`, for admins, is the folder that the agent works in. `places`:
    each session can have a folder and a model of its own. `host`: this is a host, which a terminal
    starts again if it is gone; a server is started again by its operator."""

    principal: str
    admin: bool
    read_only: bool
    model: str
    host_tools: bool
    token: str = ""
    start: str = ""
    workspace: str = ""
    places: bool = False
    host: bool = False


class Ticket(msgspec.Struct, frozen=True):
    """Opens one socket of one session, once, within `valid_s`."""

    ticket: str
    valid_s: float


class RunningSession(msgspec.Struct, frozen=True):
    """`background` counts the calls that run without the turn; `background_calls` names them."""

    id: str
    owner: str
    phase: Phase
    turn: str | None
    waiting: int
    calls: tuple[str, ...]
    background: int
    background_calls: tuple[str, ...] = ()


class ChannelView(msgspec.Struct, frozen=True):
    """A chat platform. `running`: the server can read it. `error` is the last error, and `error_at`
    its time. `chats` counts the chats with something going on, `unsent` the messages that wait to
    be sent."""

    name: str
    running: bool
    error: str
    error_at: float
    chats: int
    unsent: int


class Running(msgspec.Struct, frozen=True):
    """`channels` are the chat platforms that this server reads."""

    sessions: tuple[RunningSession, ...]
    streams: int
    draining: bool
    channels: tuple[ChannelView, ...] = ()


class TokenView(msgspec.Struct, frozen=True):
    """A bearer token without its secret. `sessions` is set if it is limited to these sessions."""

    id: str
    principal: str
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    read_only: bool
    admin: bool
    sessions: tuple[str, ...] | None
    note: str


class TokenList(msgspec.Struct, frozen=True):
    tokens: tuple[TokenView, ...]


class NodeView(msgspec.Struct, frozen=True):
    """A node that shares the database. `lease_s` is how long its lease still lasts, by the
    database's clock; `unfinished` counts its sessions with unfinished work. `here` is true for the
    node that answers."""

    id: str
    address: str
    version: str
    dead: bool
    lease_s: float
    joined_at: float
    unfinished: int
    here: bool


class NodeList(msgspec.Struct, frozen=True):
    """`failover` says what a failover of the database can lose. Without a shared database there are
    no nodes, and it is empty."""

    nodes: tuple[NodeView, ...]
    failover: str


class Stopped(msgspec.Struct, frozen=True):
    receipts: tuple[Receipt, ...]


class AuditEntry(msgspec.Struct, frozen=True):
    """`number` only rises. `status` is the answer's."""

    number: int
    at: float
    principal: str
    token: str
    address: str
    action: str
    session: str
    target: str
    status: int
    detail: str


class AuditPage(msgspec.Struct, frozen=True):
    entries: tuple[AuditEntry, ...]


class Health(msgspec.Struct, frozen=True):
    status: Literal["ok", "ready", "draining"]


# On a stream, beside the events


CutReason = Literal[
    "too_slow", "shutting_down", "session_gone", "revoked", "unreadable", "unavailable"
]


class CutOff(msgspec.Struct, frozen=True, tag="cut_off"):
    """The last frame of a stream that the server ends. `after` is the place to go on from."""

    reason: CutReason
    detail: str
    after: int


class Pong(msgspec.Struct, frozen=True):
    """The reply to `ping` on a WebSocket. `at` is the server's clock."""

    at: float


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first frame on a connection's WebSocket. `start` names this start of the server."""

    start: str
    version: str
    principal: str


class WatchBegun(msgspec.Struct, frozen=True):
    """The reply to `watch`: its events begin after this one."""

    after: int


class SocketReply(msgspec.Struct, frozen=True, tag="reply"):
    """On a WebSocket: the answer to the command with this id; `body` is as over HTTP."""

    id: str
    status: int
    body: msgspec.Raw
