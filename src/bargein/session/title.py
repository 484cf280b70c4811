"""Gives a session a title: from the model while nothing else runs, or its first words.

After a turn has settled, a session without a title gets one in the background. A new turn stops
that, so that a title never delays an answer. It is tried again after that turn, a few times; then
the first words of the first message become the title. They also do after a stop by the user, and
if the model fails or takes too long. Nothing waits for a title.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from bargein.cancel import CancelSource, Cause, Outcome, Reason
from bargein.contracts.budget import Purpose
from bargein.contracts.event import SessionTitled, TurnOutcome
from bargein.contracts.model import (
    AssistantMessage,
    Model,
    ModelMessage,
    ModelRequest,
    Text,
    ToolMessage,
    UserMessage,
)
from bargein.errors import UserError
from bargein.session.reply import Reply
from bargein.session.side_request import OpenRequest, make_side_request
from bargein.session.state import Phase

if TYPE_CHECKING:
    from bargein.session.actor import Actor

TITLE_S = 20.0
TITLE_GRACE_S = 0.5
TITLE_TOKENS_MAX = 1000
TITLE_CHARACTERS_MAX = 80
RENAME_CHARACTERS_MAX = 200
WORDS_CHARACTERS_MAX = 60
SHOWN_CHARACTERS_MAX = 2000
TRIES_MAX = 3

INSTRUCTIONS = """\
Give the conversation below a title of at most six words, in the language of the user. It names what
the user is after. Write the title alone: no quotation marks, no full stop, nothing else."""

BY_MODEL = "model"
BY_WORDS = "words"


class Titles(msgspec.Struct, frozen=True):
    """How sessions get titles. `model` returns the model to ask; None uses the first words."""

    model: Callable[[], Model] | None = None


class Titler:
    """Makes the title of one session. Any thread may call `stop`."""

    def __init__(self, actor: "Actor", titles: Titles | None, title: str) -> None:
        self._actor = actor
        self.titles = titles
        self._titled = bool(title)
        self._source: CancelSource | None = None
        self._tries = 0

    def turn_settled(self, outcome: TurnOutcome) -> None:
        """Begin to make a title, if the session needs one and does nothing else."""
        state = self._actor.state
        busy = state.busy or state.closing or self._source is not None or state.phase is Phase.ENDED
        words = self._actor.logbook.transcript.first_words
        if self.titles is None or self._titled or busy or not words:
            return
        if self.titles.model is None or outcome is not TurnOutcome.COMPLETED:
            self._title(_first_words(words), BY_WORDS)
            return
        self._tries += 1
        self._source = self._actor.lifetime.token.child("title", timeout_s=TITLE_S)
        self._actor.spawn(partial(self._make, self.titles.model(), self._source, words))

    def stop(self, reason: Reason) -> None:
        source = self._source
        if source is not None:
            source.cancel(reason)

    def rename(self, title: str, by: str) -> Reply:
        title = " ".join(title.split())
        if not title or len(title) > RENAME_CHARACTERS_MAX:
            raise UserError(
                f"the title has {len(title)} characters; give it 1 to {RENAME_CHARACTERS_MAX}"
            )
        self.stop(Reason(Cause.REDIRECT, "renamed"))
        self._titled = True
        return self._actor.write(SessionTitled(title, by))

    async def _make(self, model: Model, source: CancelSource, words: str) -> None:
        request = _request(self._actor.logbook.transcript.messages())
        asked = OpenRequest("", model, Purpose.TITLE)
        with source:
            outcome: Outcome[str] = await self._actor.owner.run(
                partial(make_side_request, model, request, source.token, asked),
                token=source.token,
                grace_s=TITLE_GRACE_S,
                name="title",
            )
        self._source = None
        if self._actor.gone.is_set:
            return
        self._actor.log(asked.used)
        cause = source.token.reason.root.cause if source.token.reason is not None else None
        # After a new turn or a restart there is another try. Without a running turn there may be
        # none: an album that is still gathered may be held.
        comes_again = cause is Cause.SHUTDOWN or (
            cause is Cause.REDIRECT and self._actor.state.busy
        )
        if self._titled or (comes_again and self._tries < TRIES_MAX):
            return
        title = _cleaned(outcome.value or "")
        if title:
            self._title(title, BY_MODEL)
        else:
            self._title(_first_words(words), BY_WORDS)

    def _title(self, title: str, by: str) -> None:
        self._titled = True
        self._actor.log(SessionTitled(title, by))


def _request(messages: tuple[ModelMessage, ...]) -> ModelRequest:
    """Make a request with the first message of the user and the first answer."""
    lines: list[str] = []
    for kind, who in ((UserMessage, "User"), (AssistantMessage, "Assistant")):
        found = next((m for m in messages if isinstance(m, kind) and _text(m)), None)
        if found is not None:
            lines.append(f"{who}:\n{_text(found)[:SHOWN_CHARACTERS_MAX]}")
    return ModelRequest(
        messages=(UserMessage((Text("\n\n".join(lines) or "(nothing)"),)),),
        system=INSTRUCTIONS,
        output_tokens_max=TITLE_TOKENS_MAX,
    )


def _text(message: ModelMessage) -> str:
    if isinstance(message, ToolMessage):
        return ""
    return "\n".join(part.text for part in message.content if isinstance(part, Text)).strip()


def _cleaned(said: str) -> str:
    lines = (" ".join(line.split()) for line in said.splitlines())
    title = next((line for line in lines if line), "").strip("\"'`*#“”„«» ")
    return title if len(title) <= TITLE_CHARACTERS_MAX else _cut(title, TITLE_CHARACTERS_MAX)


def _first_words(words: str) -> str:
    return _cut(" ".join(words.split()), WORDS_CHARACTERS_MAX)


def _cut(text: str, characters_max: int) -> str:
    if len(text) <= characters_max:
        return text
    head, _, _ = text[:characters_max].rpartition(" ")
    return (head or text[: characters_max - 1]) + "…"
