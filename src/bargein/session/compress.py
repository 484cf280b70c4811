"""Summarises the older part of a conversation that has become too long for the model.

It runs as a step of the turn, under the turn's token. Nothing changes until the summary is stored:
if it is stopped or the program ends, the transcript is as before. The log keeps every word; the
event only says which part the summary replaces.

The last message of the user stays as it was said, and so do the newest steps, as many as fit into a
share of the model's context. A call is never separated from its result.

If the model cannot be reached, the turn fails and nothing is lost. If the model refuses or answers
without a summary, the conversation continues uncompressed as long as it fits. When it no longer
fits, the older part is left out, and a note in its place tells the model so.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from bargein.calls.words import DROPPED
from bargein.contracts.event import Compressed
from bargein.contracts.model import (
    Image,
    Model,
    ModelMessage,
    ModelRequest,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from bargein.errors import WorldError
from bargein.session.token_estimate import (
    tokens_of_message,
    tokens_of_text,
    whole,
)
from bargein.session.turn import Turn

KEEP_SHARE = 0.25
SUMMARY_SHARE = 0.125
SUMMARY_TOKENS_MAX = 4000
SUMMARY_TOKENS_MIN = 32
RESULT_CHARACTERS_MAX = 2000
WORDS_CHARACTERS_MAX = 8000

INSTRUCTIONS = """\
You are given the record of a conversation between a user and an assistant that works with tools.
Write down what the assistant needs in order to go on with the work as if it had read the record:
what the user wants and has decided, in their own words where these matter; what was done, with the
names of files, commands and identifiers; what was found out; what failed; what is unfinished, and
what may have happened half. Leave out what no longer matters. Write only this, to nobody."""

Shown = Sequence[tuple[ModelMessage, int]]
MakeRequest = Callable[[], ModelRequest]


class Cut(NamedTuple):
    """`older` are the messages to summarise. `before` and `keeps` are as in `Compressed`."""

    older: tuple[ModelMessage, ...]
    before: int
    keeps: int | None


class Compressor:
    """Compresses for one turn. `model` returns the model to ask; `at_share` is the share of its
    context that may be used before it compresses; `failure` says why the last try made no
    summary."""

    def __init__(self, turn: Turn, model: Callable[[], Model], *, at_share: float) -> None:
        self._turn = turn
        self._model = model
        self._at_share = at_share
        self.failure = ""

    async def fit(self, make_request: MakeRequest) -> ModelRequest:
        """Return the request, after a compression if it would be too long."""
        request = make_request()
        limit = self._model().context_tokens
        if limit is None:
            return request
        expected = self._turn.expected_tokens(request)
        if expected <= limit * self._at_share or (self.failure and expected <= limit):
            return request
        must = expected > limit
        if await self.compress(limit, must=must):
            await self._between_steps()
            return make_request()
        return request

    async def refit(self, request: ModelRequest) -> bool:
        """Compress because the provider reports that `request` is too long. Returns False if that
        is impossible."""
        expected = self._turn.expected_tokens(request)
        limit = min(self._model().context_tokens or expected, expected)
        if not await self.compress(limit, must=True):
            return False
        await self._between_steps()
        return True

    async def _between_steps(self) -> None:
        """Take messages that arrived during the summary, and check the budgets that it used."""
        await self._turn.boundary()
        self._turn.check_budget()

    async def compress(self, limit_tokens: int, *, must: bool) -> bool:
        """Summarise the older part. Returns False if there is nothing to gain, or if the model made
        no summary and the conversation still fits. `must`: it does not fit, so leave the older part
        out if there is no summary."""
        summary, shown = self._turn.shown()
        summary_tokens = int(min(SUMMARY_TOKENS_MAX, limit_tokens * SUMMARY_SHARE))
        summary_tokens = max(summary_tokens, SUMMARY_TOKENS_MIN)
        cut = cut_of(shown, keep_tokens=limit_tokens * KEEP_SHARE)
        before_tokens = sum(tokens_of_message(message) for message, _ in shown)
        before_tokens += tokens_of_text(summary)
        if cut is None:
            return False
        older_tokens = sum(map(tokens_of_message, cut.older))
        if older_tokens <= summary_tokens:
            return False
        room = max(limit_tokens - 2 * summary_tokens, summary_tokens)
        record = record_of(summary, cut.older, characters_max=int(room * 3))
        request = ModelRequest(
            messages=(UserMessage((Text(record),)),),
            system=INSTRUCTIONS,
            output_tokens_max=summary_tokens,
        )
        made = await self._summarise(request)
        if not made and not must:
            return False
        text = made or DROPPED.format(why=self.failure)
        after_tokens = before_tokens - older_tokens + tokens_of_text(text) - tokens_of_text(summary)
        await self._turn.compress(
            Compressed(
                turn=self._turn.id,
                before=cut.before,
                summary=text,
                keeps=cut.keeps,
                dropped=not made,
                tokens_before=whole(before_tokens),
                tokens_after=whole(after_tokens),
            )
        )
        return True

    async def _summarise(self, request: ModelRequest) -> str:
        """Return the summary; if there is none, return "" and set `failure` to the reason."""
        try:
            made = await self._turn.ask_for_summary(self._model(), request)
        except WorldError as error:
            if error.retryable:
                raise
            self.failure = str(error)
            return ""
        self.failure = "" if made else f"{self._model().name} said nothing"
        return made


def cut_of(shown: Shown, *, keep_tokens: float) -> Cut | None:
    """Choose where to cut, keeping as much as fits; None if everything fits."""
    seqs = [seq for _, seq in shown]
    place, kept_tokens = len(shown), 0.0
    for index in range(len(shown) - 1, -1, -1):
        message = shown[index][0]
        kept_tokens += tokens_of_message(message)
        if kept_tokens > keep_tokens:
            break
        # Messages of one event, such as an imported history, stay together.
        if not isinstance(message, ToolMessage) and seqs.index(seqs[index]) == index:
            place = index
    of_user = [n for n, (message, _) in enumerate(shown) if isinstance(message, UserMessage)]
    keeps = of_user[-1] if of_user and of_user[-1] < place else None
    if keeps is not None and seqs.count(seqs[keeps]) > 1:
        keeps = None
    older = tuple(message for n, (message, _) in enumerate(shown[:place]) if n != keeps)
    if not older:
        return None
    before = shown[place][1] if place < len(shown) else shown[-1][1] + 1
    return Cut(older, before, None if keeps is None else shown[keeps][1])


def record_of(summary: str, messages: Sequence[ModelMessage], *, characters_max: int) -> str:
    """Write the older part as text to summarise, with long results shortened. If that is still too
    long, the middle is left out, and the text says so."""
    pieces = [f"Summary of what was said before:\n{summary}"] if summary else []
    names: dict[str, str] = {}
    for message in messages:
        pieces += _lines(message, names)
    left_out = 0
    while len(pieces) > 1 and sum(map(len, pieces)) > characters_max:
        pieces.pop(len(pieces) // 2)
        left_out += 1
    if left_out:
        pieces.insert(len(pieces) // 2 + 1, f"[{left_out} parts are left out here]")
    return _shortened("\n\n".join(pieces), max(characters_max, 100))


def _lines(message: ModelMessage, names: dict[str, str]) -> list[str]:
    if isinstance(message, ToolMessage):
        return [
            f"{'Error' if each.is_error else 'Result'} of {names.get(each.call_id, 'a call')}:\n"
            f"{_shortened(_words(each.content), RESULT_CHARACTERS_MAX)}"
            for each in message.results
        ]
    if isinstance(message, UserMessage):
        return [f"User:\n{_shortened(_words(message.content), WORDS_CHARACTERS_MAX)}"]
    lines = []
    for part in message.content:
        if isinstance(part, Text):
            lines.append(f"Assistant:\n{_shortened(part.text, WORDS_CHARACTERS_MAX)}")
        elif isinstance(part, ToolCall):
            names[part.id] = part.name
            arguments = _shortened(part.arguments, RESULT_CHARACTERS_MAX)
            lines.append(f"Assistant called {part.name} with {arguments}")
    return lines


def _words(content: Sequence[Text | Image]) -> str:
    return "\n".join(part.text if isinstance(part, Text) else "[an image]" for part in content)


def _shortened(text: str, characters_max: int) -> str:
    """Return the beginning and the end, and how much is missing between them."""
    if len(text) <= characters_max:
        return text
    head = characters_max * 2 // 3
    tail = characters_max - head
    missing = len(text) - head - tail
    return f"{text[:head]}\n[{missing} characters are left out]\n{text[len(text) - tail :]}"
