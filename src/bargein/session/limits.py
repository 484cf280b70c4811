"""All bounds of a session, and how bytes are counted for some of them.

Bytes are those of people's words and files. The count is approximate: text counts one byte for each
character.
"""

from collections.abc import Iterable

import msgspec

from bargein.contracts import grace
from bargein.contracts.event import HistoryImported, MessageAccepted
from bargein.contracts.message import Message
from bargein.contracts.model import AssistantMessage, Image, Text, UserMessage
from bargein.session.state import WaitingMessage


class Limits(msgspec.Struct, frozen=True):
    """The bounds of a session. Those that need explaining:

    - `settle_s`: the grace of an agent after a cancel, and after that of its calls.
    - `call_grace_s`: the grace of a call; the ladder of its tool fits into it.
    - `call_grace_s_max`: the longest grace of a call whose tool asks for more.
    - `store_s`: how long a receipt waits for the store.
    - `linger_s`: how long a write that nobody waits for may wait for others to share its commit.
    - `children_deep_max`: how deep sub-agents may be nested.
    - `children_at_once_max`, `children_per_turn_max`: count all sub-agents of a root session, at
      any depth.
    - `child_margin_s`: how much longer each level waits for its sub-agents than they may take.
    - `waiting_bytes_max`: the bytes of all messages that wait in a session.
    - `said_bytes_max`: the bytes of all messages ever sent to a session, with attachments.
    - `prepare_s`: how long tools may take to be ready at the beginning of a turn.
    """

    settle_s: float = grace.SETTLE_S
    call_grace_s: float = grace.CALL_S
    call_grace_s_max: float = 2.5
    hook_s: float = 5.0
    enrich_s: float = 30.0
    prepare_s: float = 15.0
    store_s: float = 5.0
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
        """The bound of a receipt, whatever the agent, its tools and the store do."""
        return self.settle_s + max(self.children_s(0), self.calls_s) + self.store_s

    def grace_of(self, asked_s: float) -> float:
        """The grace of a call whose tool asks for `asked_s`; 0 if the tool asks for none."""
        return min(asked_s or self.call_grace_s, max(self.call_grace_s, self.call_grace_s_max))

    @property
    def calls_s(self) -> float:
        """How long a turn waits at most for calls that were stopped."""
        return max(self.settle_s, self.call_grace_s_max + grace.MARGIN_S)

    def children_s(self, depth: int) -> float:
        """How long a session at this depth below its root waits for sub-agents that were stopped.
        Each level waits longer than the level below it, so every outcome gets reported."""
        return self.settle_s + max(0, self.children_deep_max - depth) * self.child_margin_s


MESSAGE_BYTES = 512
"""How many bytes a message counts in addition to its content."""


def weight_of(message: Message) -> int:
    files = sum(len(each.data) for each in message.attachments) if message.attachments else 0
    return MESSAGE_BYTES + _content(message.content) + files


def weight_of_event(event: MessageAccepted | HistoryImported) -> int:
    if isinstance(event, MessageAccepted):
        return weight_of(event.message)
    said = [each for each in event.messages if isinstance(each, UserMessage | AssistantMessage)]
    return sum(MESSAGE_BYTES + _content(each.content) for each in said)


def weight_of_waiting(waiting: tuple[WaitingMessage, ...]) -> int:
    return sum(weight_of(each.message) for each in waiting)


def _content(parts: Iterable[object]) -> int:
    size = 0
    for part in parts:
        if isinstance(part, Text):
            size += len(part.text)
        elif isinstance(part, Image):
            size += len(part.data)
    return size
