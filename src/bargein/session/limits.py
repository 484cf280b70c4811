"""Every bound of a session in one place, and how the bytes are counted that some of them are for.

Bytes are those of people's words and files. They are near enough for a bound: text counts a byte a
character.
"""

from collections.abc import Iterable

import msgspec

from bargein.contracts import grace
from bargein.contracts.event import HistoryImported, MessageAccepted
from bargein.contracts.message import Message
from bargein.contracts.model import AssistantMessage, Image, Text, UserMessage
from bargein.session.state import Waiting


class Limits(msgspec.Struct, frozen=True):
    """`settle_s`: an agent's grace after a cancel, and then its calls'. `call_grace_s`: a
    call's; a tool's own ladder fits into it. `call_grace_s_max`: the longest that a call is given
    whose tool asks for more. `store_s`: how long a receipt waits for the store.
    `linger_s`: how long what nobody waits for may wait to be written with more.
    `children_deep_max`: how deep sub-agents may be nested; `children_at_once_max` and
    `children_per_turn_max` count all of a root session's, at any depth. `child_margin_s`: by how
    much longer each level waits for its sub-agents than they may take themselves.
    `files_s`: how long the end of a turn waits for the snapshot of its files.
    `waiting_bytes_max`: of all messages that wait in a session; `said_bytes_max`: of all that were
    ever sent to it, with their attachments."""

    settle_s: float = grace.SETTLE_S
    call_grace_s: float = grace.CALL_S
    call_grace_s_max: float = 2.5
    hook_s: float = 5.0
    enrich_s: float = 30.0
    store_s: float = 5.0
    files_s: float = 10.0
    gather_s: float = 0.25
    linger_s: float = 0.005
    checkpoint_s: float = 1.0
    idle_s: float = 300.0
    bring_back_first_s: float = 0.05
    bring_back_max_s: float = 5.0
    calls_at_once_max: int = 16
    waiting_max: int = 1000
    waiting_bytes_max: int = 16 * 1024 * 1024
    said_bytes_max: int = 32 * 1024 * 1024
    message_bytes_max: int = 32 * 1024 * 1024
    agent_state_bytes_max: int = 256 * 1024
    watcher_events_max: int = 10_000
    watcher_bytes_max: int = 16 * 1024 * 1024
    remembered_ids_max: int = 1024
    children_deep_max: int = 3
    children_at_once_max: int = 64
    children_per_turn_max: int = 200
    child_margin_s: float = 0.25

    @property
    def receipt_s(self) -> float:
        """A receipt is there within this, whatever the agent, its tools and the store do."""
        return self.settle_s + max(self.children_s(0), self.calls_s) + self.store_s

    def grace_of(self, asked_s: float) -> float:
        """How long a call may take to stop whose tool asks for `asked_s`, or for nothing: 0."""
        return min(asked_s or self.call_grace_s, max(self.call_grace_s, self.call_grace_s_max))

    @property
    def calls_s(self) -> float:
        """How long calls that were stopped are waited for at most."""
        return max(self.settle_s, self.call_grace_s_max + grace.MARGIN_S)

    def children_s(self, depth: int) -> float:
        """How long a session that stands `depth` below its root waits for sub-agents that were
        stopped. Each level outlasts the one below it, so that what became of it is always told."""
        return self.settle_s + max(0, self.children_deep_max - depth) * self.child_margin_s


MESSAGE_BYTES = 512
"""A message counts so much beside its words."""


def weight_of(message: Message) -> int:
    files = sum(len(each.data) for each in message.attachments) if message.attachments else 0
    return MESSAGE_BYTES + _content(message.content) + files


def weight_of_event(event: MessageAccepted | HistoryImported) -> int:
    if isinstance(event, MessageAccepted):
        return weight_of(event.message)
    said = [each for each in event.messages if isinstance(each, UserMessage | AssistantMessage)]
    return sum(MESSAGE_BYTES + _content(each.content) for each in said)


def weight_of_waiting(waiting: tuple[Waiting, ...]) -> int:
    return sum(weight_of(each.message) for each in waiting)


def _content(parts: Iterable[object]) -> int:
    size = 0
    for part in parts:
        if isinstance(part, Text):
            size += len(part.text)
        elif isinstance(part, Image):
            size += len(part.data)
    return size
