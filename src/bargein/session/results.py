"""Who waits for which message: each gets the result of the turn that took it."""

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any, Generic, cast

import msgspec

from bargein.contracts.event import (
    AssistantSaid,
    MessagesTaken,
    MessageWithdrawn,
    Recorded,
    TurnOutcome,
    TurnSettled,
    TurnStarted,
)
from bargein.contracts.model import Text
from bargein.contracts.output_type import OutputType, T, complaint_of
from bargein.contracts.receipt import Receipt
from bargein.errors import BargeinError, UserError
from bargein.session.reply import Promise

__all__ = [
    "MessageGone",
    "NoOutput",
    "ResultSlot",
    "Results",
    "TurnResult",
]

TAKES = (TurnStarted, MessagesTaken)
"""The events by which a turn takes messages."""


class MessageGone(UserError):
    """The message was withdrawn before any turn took it."""


class NoOutput(UserError):
    """The turn has no output: it did not complete, or its answer is not of the type."""


class TurnResult(msgspec.Struct, Generic[T], frozen=True, dict=True):
    """How a turn ended. As text it is what was said; `output` is the answer as a value."""

    turn: str
    outcome: TurnOutcome
    text: str
    error: str = ""
    receipt: Receipt | None = None
    _output_type: OutputType[T] | None = None

    def __str__(self) -> str:
        return self.text

    @cached_property
    def output(self) -> T:
        """The answer as the type that the message or its agent asked for; without one, the text.
        Raises `NoOutput` unless the turn completed with such an answer."""
        if self.outcome is not TurnOutcome.COMPLETED:
            raise NoOutput(
                f"turn {self.turn} has no output, because it {_ENDED[self.outcome]}; look at "
                "`outcome` first, and at `text` for what was said until then"
            )
        if self._output_type is None:
            return cast(T, self.text)
        try:
            return self._output_type.decode(self.text)
        except ValueError as error:
            raise NoOutput(
                f"turn {self.turn} has no output of type {self._output_type.name}: "
                f"{complaint_of(error)}; what was said is in `text`"
            ) from error


_ENDED = {
    TurnOutcome.STOPPED: "was stopped",
    TurnOutcome.FAILED: "failed",
    TurnOutcome.CRASHED: "was cut off by a crash",
}


class ResultSlot(Promise[TurnResult]):
    """Where the result of a message goes. `output_type` is the type that its sender asked for, as
    long as the process lives that has it; the log has its schema."""

    output_type: OutputType[Any] | None = None


class Results:
    """Slots of the messages that are not answered yet, and which of them a turn has taken."""

    def __init__(self) -> None:
        self._slots: dict[str, ResultSlot] = {}
        self._taken: dict[str, list[str]] = {}
        self._withdrawn: set[str] = set()

    def expect(self, message: str) -> ResultSlot:
        """To be asked for while the message waits or its turn is in flight."""
        return self._slots.setdefault(message, ResultSlot())

    def output_type(self, message: str) -> OutputType[Any] | None:
        """Returns the type that the sender of a message asked for, if this process knows it."""
        slot = self._slots.get(message)
        return slot.output_type if slot is not None else None

    def begin(self, message: str, slot: ResultSlot) -> None:
        """A new message. Its id may have been that of one that was never accepted."""
        self._slots[message] = slot

    def forget(self, message: str, slot: ResultSlot) -> None:
        """It was not accepted after all. Its id may be another one's by now."""
        if self._slots.get(message) is slot:
            del self._slots[message]

    def is_open(self, message: str) -> bool:
        """Whether a turn that has not settled has it, or its withdrawal is not durable yet."""
        return message in self._withdrawn or self._is_taken(message)

    def _is_taken(self, message: str) -> bool:
        return any(message in messages for messages in self._taken.values())

    def turn_of(self, message: str) -> str | None:
        """The turn in flight that has taken it."""
        return next((turn for turn, taken in self._taken.items() if message in taken), None)

    def taken(self, turn: str, messages: tuple[str, ...]) -> None:
        self._taken.setdefault(turn, []).extend(messages)

    def settled(self, result: TurnResult) -> None:
        for message in self._taken.pop(result.turn, []):
            slot = self._slots.pop(message, None)
            if slot is not None:
                slot.give(result)

    def being_withdrawn(self, message: str) -> None:
        self._withdrawn.add(message)

    def withdrawn(self, message: str) -> None:
        """And that is durable."""
        self._withdrawn.discard(message)
        slot = self._slots.pop(message, None)
        if slot is not None:
            slot.fail(gone(message))

    def come_back(
        self, turn: str | None, waiting: Collection[str], log: Sequence[Recorded]
    ) -> None:
        """The session begins anew from what is durable: that alone says what was taken, and what
        has become of a message that neither waits nor is in `turn`."""
        self._taken = {}
        self._withdrawn = set()
        for recorded in log:
            event = recorded.event
            if isinstance(event, TAKES) and event.turn == turn:
                self.taken(event.turn, event.messages)
        for message in list(self._slots):
            if message not in waiting and not self._is_taken(message):
                _fill(self._slots.pop(message), message, log)

    def lost(self, error: BargeinError) -> None:
        for slot in self._slots.values():
            slot.fail(error)
        self._slots.clear()
        self._taken.clear()
        self._withdrawn.clear()


def gone(message: str) -> MessageGone:
    return MessageGone(f"{message} was withdrawn before it was answered")


def from_log(message: str, log: Sequence[Recorded]) -> ResultSlot:
    """The result of a message that was answered long ago, or before a restart."""
    slot = ResultSlot()
    _fill(slot, message, log)
    return slot


def _fill(slot: ResultSlot, message: str, log: Sequence[Recorded]) -> None:
    turn, text = "", ""
    for recorded in log:
        event = recorded.event
        if isinstance(event, TAKES) and message in event.messages:
            turn = event.turn
        elif isinstance(event, MessageWithdrawn) and event.message == message:
            slot.fail(gone(message))
        elif isinstance(event, AssistantSaid) and event.turn == turn:
            parts = event.message.content
            text = "".join(part.text for part in parts if isinstance(part, Text)) or text
        elif isinstance(event, TurnSettled) and event.turn == turn:
            slot.give(TurnResult(turn, event.outcome, text, event.error, event.receipt))
    slot.fail(MessageGone(f"what became of {message} is not known"))
