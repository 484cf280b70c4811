"""Who waits for which message: each gets the result of the turn that took it."""

import msgspec

from bargein.contracts.event import TurnOutcome
from bargein.contracts.message import Message
from bargein.contracts.receipt import Receipt
from bargein.errors import BargeinError, UserError
from bargein.session.slot import Slot


class MessageGone(UserError):
    """The message was withdrawn before any turn took it."""


class TurnResult(msgspec.Struct, frozen=True):
    """How a turn ended. As text it is what was said."""

    turn: str
    outcome: TurnOutcome
    text: str
    error: str = ""
    receipt: Receipt | None = None

    def __str__(self) -> str:
        return self.text


class Results:
    """Slots of messages that were sent in this life of the session and are not answered yet."""

    def __init__(self) -> None:
        self._waiting: dict[str, Slot[TurnResult]] = {}
        self._taken: dict[str, list[Slot[TurnResult]]] = {}

    def expect(self, message: str) -> Slot[TurnResult]:
        return self._waiting.setdefault(message, Slot())

    def taken(self, turn: str, messages: tuple[Message, ...]) -> None:
        slots = self._taken.setdefault(turn, [])
        for message in messages:
            slot = self._waiting.pop(message.id, None)
            if slot is not None:
                slots.append(slot)

    def settled(self, result: TurnResult) -> None:
        for slot in self._taken.pop(result.turn, []):
            slot.give(result)

    def withdrawn(self, message: str) -> None:
        slot = self._waiting.pop(message, None)
        if slot is not None:
            slot.fail(MessageGone(f"{message} was withdrawn before it was answered"))

    def lost(self, error: BargeinError) -> None:
        for slot in [
            *self._waiting.values(),
            *(s for taken in self._taken.values() for s in taken),
        ]:
            slot.fail(error)
        self._waiting.clear()
        self._taken.clear()
