"""The messages that the model sees, updated event by event. Always well formed (law 5).

Each call of an assistant message has exactly one result, in the message right after it. Results are
collected in any order until the last has arrived; anything said meanwhile comes after them. Hidden
turns are left out. Consecutive words of the user are one message.

If an answer was cut off, the user's next message says so, as with any stop, and never the answer
itself: a small model would take such a note for its own way of speaking and repeat it.

What the user did not hear of an answer is left out (`AnswerHeard`), and the next message says that
too. A summary of words that turn out unheard is given up, because it may repeat them.

A summary replaces the older part without removing it: the visible messages are computed from
everything that was said and the last compression. So taking back a turn takes back its compression.
"""

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from bargein.calls.words import CUT_OFF, SUMMARY_BEGINS, SUMMARY_ENDS
from bargein.contracts.event import (
    AnswerHeard,
    AssistantSaid,
    CallEnded,
    Compressed,
    Event,
    HistoryImported,
    Recorded,
    TurnHidden,
    TurnSettled,
    TurnStarted,
    UserSaid,
)
from bargein.contracts.model import (
    AssistantMessage,
    ModelMessage,
    Reasoning,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from bargein.contracts.tool import CallResult
from bargein.errors import UserError
from bargein.session.token_estimate import tokens_of_message

UNHEARD = AssistantMessage(())
"""Takes the place of an answer of which the user heard nothing, and is never shown."""


class _Begin(NamedTuple):
    """How many messages and compressions there were when a turn began."""

    messages: int
    compressions: int


class _Compression(NamedTuple):
    """The model sees the summary, the message at `keeps`, and all messages from `cut` on."""

    summary: str
    cut: int
    keeps: int | None


class Transcript:
    """`first_words` are the first words of the user, even if their turn was hidden. `instructions`
    came with an imported history."""

    def __init__(self) -> None:
        self.first_words = ""
        self.instructions = ""
        self._messages: list[ModelMessage] = []
        # For each message, the place in the log where it begins.
        self._seqs: list[int] = []
        # Entry n is the sum for the first n messages. Entries for the last messages may be missing.
        self._token_sums: list[float] = [0.0]
        self._given: tuple[ModelMessage, ...] | None = None
        self._compressions: list[_Compression] = []
        self._turn_begins_at: dict[str, _Begin] = {}
        self._settled_begin_at: dict[str, _Begin] = {}
        self._calls: tuple[ToolCall, ...] = ()
        self._results: dict[str, ToolResult] = {}
        self._said_meanwhile: list[tuple[UserSaid | AssistantSaid, int]] = []
        # The number of messages up to and including an answer that was cut off.
        self._cut_off_at: int | None = None
        # For a turn whose answer was streaming when the user stopped listening: how much of that
        # answer was heard.
        self._heard_ahead: dict[str, int] = {}
        # Whether a message is empty, because the user heard nothing of it.
        self._has_unheard = False

    @classmethod
    def of(cls, log: Iterable[Recorded]) -> "Transcript":
        transcript = cls()
        for recorded in log:
            transcript.apply(recorded.event, recorded.seq)
        return transcript

    @property
    def open_calls(self) -> tuple[ToolCall, ...]:
        """The calls of the last assistant message that have no result yet."""
        return tuple(call for call in self._calls if call.id not in self._results)

    def messages(self) -> tuple[ModelMessage, ...]:
        """Return the messages for a request. Call it only while no call is open. It returns the
        same object until something is added."""
        if self._given is None:
            head, begin = self._head()
            # The usual case is a plain copy, because there may be ten thousand messages.
            self._given = (*head, *self._messages[begin:]) if head else tuple(self._messages)
            if self._has_unheard:
                self._given = tuple(message for message in self._given if message != UNHEARD)
        return self._given

    def messages_now(self, still_running: str) -> tuple[ModelMessage, ...]:
        """Return the messages even while calls are open; these get `still_running` as their
        result."""
        if not self._calls:
            return self.messages()
        unknown = (Text(still_running),)
        results = tuple(
            self._results.get(call.id) or ToolResult(call.id, unknown) for call in self._calls
        )
        return (*self.messages(), ToolMessage(results))

    def tokens_of(self, messages: tuple[ModelMessage, ...]) -> float:
        """Estimate the tokens of messages. For the result of `messages()` it uses running sums, so
        that a long conversation takes no longer than a short one."""
        if messages is not self._given:
            return sum(map(tokens_of_message, messages))
        sums = self._token_sums
        for message in self._messages[len(sums) - 1 :]:
            sums.append(sums[-1] + tokens_of_message(message))
        head, begin = self._head()
        return sum(map(tokens_of_message, head)) + sums[-1] - sums[begin]

    def _head(self) -> tuple[tuple[ModelMessage, ...], int]:
        """Return the messages in place of the compressed part, and the index from which messages
        are shown as they are."""
        if not self._compressions:
            return (), 0
        summary, cut, keeps = self._compressions[-1]
        place, begin = (cut, cut + 1) if keeps is None else (keeps, cut)
        if place == len(self._messages):
            return (UserMessage((Text(summary),)),), place
        first = self._messages[place]
        if isinstance(first, UserMessage):
            # Some providers refuse two messages of the user in a row.
            return (UserMessage((Text(summary), *first.content)),), begin
        return (UserMessage((Text(summary),)), first), begin

    def shown(self) -> tuple[str, tuple[tuple[ModelMessage, int], ...]]:
        """Return the summary, if there is one, and the messages that are shown as they were said,
        each with its place in the log."""
        every = tuple(zip(self._messages, self._seqs, strict=True))
        summary = ""
        if self._compressions:
            summary, cut, keeps = self._compressions[-1]
            every = (() if keeps is None else (every[keeps],)) + every[cut:]
        if self._has_unheard:
            every = tuple(each for each in every if each[0] != UNHEARD)
        return summary, every

    def apply(self, event: Event, seq: int) -> None:
        if isinstance(event, TurnStarted):
            self._turn_begins_at[event.turn] = _Begin(len(self._messages), len(self._compressions))
        elif isinstance(event, HistoryImported):
            self.instructions = event.instructions
            for message in event.messages:
                self._append(message, seq)
        elif isinstance(event, AnswerHeard):
            self._hear(event)
        elif isinstance(event, AssistantSaid) and event.turn in self._heard_ahead:
            self.apply(_heard_part(event, self._heard_ahead.pop(event.turn))[0], seq)
        elif self._calls and isinstance(event, UserSaid | AssistantSaid):
            self._said_meanwhile.append((event, seq))
        elif isinstance(event, UserSaid):
            self._add_user(UserMessage(event.content), seq)
        elif isinstance(event, AssistantSaid):
            self._add_assistant(event, seq)
        elif isinstance(event, Compressed):
            self._compress(event)
        elif isinstance(event, CallEnded):
            self._add_result(event.call_id, event.result, seq)
        elif isinstance(event, TurnSettled | TurnHidden):
            self._end_turn(event)

    def _hear(self, event: AnswerHeard) -> None:
        """Shorten what a turn said to what the user heard of it."""
        begins = self._settled_begin_at | self._turn_begins_at
        begin = begins.get(event.turn)
        if begin is None:
            return
        number = _number(event.turn)
        after = [each.messages for turn, each in begins.items() if _number(turn) > number]
        left = event.characters
        for place in range(begin.messages, min(after, default=len(self._messages))):
            message = self._messages[place]
            if isinstance(message, AssistantMessage):
                heard, left = _heard_of(message, left)
                if heard != message:
                    self._replace_heard(place, heard)
        for place, (said, seq) in enumerate(self._said_meanwhile):
            if isinstance(said, AssistantSaid) and said.turn == event.turn:
                part, left = _heard_part(said, left)
                self._said_meanwhile[place] = (part, seq)
        if event.streaming:
            self._heard_ahead[event.turn] = left

    def _replace_heard(self, place: int, heard: AssistantMessage) -> None:
        self._messages[place] = heard
        self._has_unheard = self._has_unheard or heard == UNHEARD
        del self._token_sums[place + 1 :]
        self._given = None
        if place == len(self._messages) - 1:
            self._cut_off_at = len(self._messages)
        valid = next(
            (n for n, each in enumerate(self._compressions) if each.cut > place),
            len(self._compressions),
        )
        if valid < len(self._compressions):
            del self._compressions[valid:]
            for begins in (self._turn_begins_at, self._settled_begin_at):
                for turn, begin in begins.items():
                    fewer = min(begin.compressions, valid)
                    begins[turn] = _Begin(begin.messages, fewer)

    def _end_turn(self, event: TurnSettled | TurnHidden) -> None:
        self._heard_ahead.pop(event.turn, None)
        if isinstance(event, TurnHidden):
            begin, hidden = self._settled_begin_at.pop(event.turn, None), True
        else:
            begin, hidden = self._turn_begins_at.pop(event.turn, None), event.hidden
        if begin is None:
            return
        if hidden:
            self._hide_from(begin)
        else:
            self._settled_begin_at[event.turn] = begin

    def _append(self, message: ModelMessage, seq: int) -> None:
        self._messages.append(message)
        self._seqs.append(seq)
        self._given = None

    def _add_user(self, message: UserMessage, seq: int) -> None:
        if not self.first_words:
            texts = (part.text.strip() for part in message.content if isinstance(part, Text))
            self.first_words = next((text for text in texts if text), "")
        if self._cut_off_at == len(self._messages):
            message = UserMessage((Text(CUT_OFF), *message.content))
        last = self._messages[-1] if self._messages else None
        begins = [begin.messages for begin in self._turn_begins_at.values()]
        # Words of another turn stay separate, so that hiding that turn removes only its own. Words
        # after a summary stay separate too, because the summary replaces only what came before.
        begins += [compression.cut for compression in self._compressions[-1:]]
        if isinstance(last, UserMessage) and len(self._messages) not in begins:
            self._messages[-1] = UserMessage(last.content + message.content)
            del self._token_sums[len(self._messages) :]
            self._given = None
        else:
            self._append(message, seq)

    def _compress(self, event: Compressed) -> None:
        cut = bisect_left(self._seqs, event.before)
        keeps = None if event.keeps is None else bisect_left(self._seqs, event.keeps)
        summary = (
            event.summary if event.dropped else f"{SUMMARY_BEGINS}\n{event.summary}\n{SUMMARY_ENDS}"
        )
        self._compressions.append(_Compression(summary, cut, keeps))
        self._given = None

    def _add_assistant(self, said: AssistantSaid, seq: int) -> None:
        content = said.message.content
        if not content:
            return
        self._append(AssistantMessage(content), seq)
        self._cut_off_at = len(self._messages) if said.partial else None
        self._calls = tuple(part for part in content if isinstance(part, ToolCall))
        self._results = {}

    def _add_result(self, call_id: str, result: CallResult, seq: int) -> None:
        if call_id in self._results or all(call.id != call_id for call in self._calls):
            return
        self._results[call_id] = ToolResult(call_id, result.content, result.is_error)
        if len(self._results) == len(self._calls):
            results = tuple(self._results[call.id] for call in self._calls)
            meanwhile = self._said_meanwhile
            # Places in the log must not decrease: if something was said meanwhile, the results get
            # the place of their calls.
            self._append(ToolMessage(results), self._seqs[-1] if meanwhile else seq)
            self._close_calls()
            for said, said_at in meanwhile:
                self.apply(said, said_at)

    def _close_calls(self) -> None:
        self._calls, self._results, self._said_meanwhile = (), {}, []

    def _hide_from(self, begin: _Begin) -> None:
        del self._messages[begin.messages :]
        if self._cut_off_at is not None and self._cut_off_at > begin.messages:
            self._cut_off_at = None
        del self._seqs[begin.messages :]
        del self._compressions[begin.compressions :]
        del self._token_sums[begin.messages + 1 :]
        # Later turns without words of their own, such as those that undo calls, are not hidden.
        for turn, later in self._settled_begin_at.items():
            if later.messages > begin.messages:
                self._settled_begin_at[turn] = begin
        self._given = None
        self._close_calls()


def _number(turn: str) -> int:
    return int(turn[1:])


def _heard_of(message: AssistantMessage, characters: int) -> tuple[AssistantMessage, int]:
    """Return a message with only so many characters of its text, and how many are left over. Calls
    stay; if there are none and no text is left, nothing stays."""
    content: list[Text | Reasoning | ToolCall] = []
    for part in message.content:
        if isinstance(part, Text):
            text, characters = part.text[:characters], max(0, characters - len(part.text))
            if text.strip():
                content.append(part if text == part.text else Text(text))
        else:
            content.append(part)
    said = any(isinstance(part, Text) for part in message.content)
    if said and all(isinstance(part, Reasoning) for part in content):
        return UNHEARD, characters
    return AssistantMessage(tuple(content)), characters


def _heard_part(said: AssistantSaid, characters: int) -> tuple[AssistantSaid, int]:
    message, left = _heard_of(said.message, characters)
    cut = message != said.message
    said = msgspec.structs.replace(said, message=message, partial=said.partial or cut)
    return said, left


def check_history(messages: Iterable[ModelMessage]) -> None:
    """Refuse a history that a provider would refuse: each call needs exactly one result, right
    after it."""
    calls: list[str] = []
    for number, message in enumerate(messages, 1):
        results: list[str] = []
        if isinstance(message, ToolMessage):
            results = [each.call_id for each in message.results]
        if sorted(results) != sorted(calls):
            raise UserError(
                f"message {number} of the history has results for the calls {results}; it needs "
                f"exactly one for each of {calls}"
            )
        calls = []
        if isinstance(message, AssistantMessage):
            calls = [part.id for part in message.content if isinstance(part, ToolCall)]
    if calls:
        raise UserError(
            f"the history ends without the results of the calls {calls}; add a ToolMessage with "
            "them"
        )


def kept_of(message: AssistantMessage) -> AssistantMessage:
    """Return the part of a cut-off answer that may be kept: its text and signed reasoning. Its
    calls were incomplete or never started, and the provider would refuse them."""
    kept = tuple(
        part
        for part in message.content
        if (isinstance(part, Text) and part.text.strip())
        or (isinstance(part, Reasoning) and part.signature is not None)
    )
    return AssistantMessage(kept)
