"""Observers of an engine: they see what changes in every session, and each session is read once.

`Observers` is the `observe` function of an engine. It calls each observer with a session's id and
one change of its picture. An observer must not wait, and never sees the words that stream. Metrics
and traces are observers; `Failures`, below, logs failures of providers and turns.
"""

import logging
from collections.abc import Callable

from bargein.contracts.event import Recorded, TurnOutcome
from bargein.server.limits import Rate
from bargein.session.broadcast import Watched
from bargein.view import WORDS, AnswerVoided, Change, Picture, TurnClosed

_log = logging.getLogger("bargein.server")

FAILURES_PER_S = 5.0
FAILURES_BURST = 50
CAUSE_CHARACTERS_MAX = 500

Observer = Callable[[str, Change], None]


class Observers:
    """Keeps a picture of each session while something goes on in it."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers
        self._pictures: dict[str, Picture] = {}

    def __call__(self, session: str, shown: Watched) -> None:
        if isinstance(shown, WORDS):
            return
        picture = self._pictures.get(session)
        if picture is None:
            if not isinstance(shown, Recorded):
                # Only abandoned work still reports from this session.
                return
            picture = self._pictures[session] = Picture(session, turns_max=1)
        for change in picture.apply(shown):
            for observe in self._observers:
                observe(session, change)
        if picture.is_at_rest:
            del self._pictures[session]


class Failures:
    """Logs failures at a bounded rate, because a provider that is down fails every turn.

    A line has the session, the turn, the model and the provider's error, and nothing of a message.
    The first line after a gap also has the count of lines that were left out.
    """

    def __init__(self) -> None:
        self._rate = Rate(FAILURES_PER_S, FAILURES_BURST)
        self._left_out = 0

    def observe(self, session: str, change: Change) -> None:
        match change:
            case AnswerVoided(turn=turn_id, cause=cause, model=model):
                self._log_failure(
                    f"the model failed and is asked again: {cause}", session, turn_id, model
                )
            case TurnClosed(turn=turn) if turn.outcome is TurnOutcome.FAILED:
                self._log_failure(f"a turn failed: {turn.error}", session, turn.id)
            case _:
                pass

    def _log_failure(self, words: str, session: str, turn: str, model: str = "") -> None:
        if self._rate.take(""):
            self._left_out += 1
            return
        left_out, self._left_out = self._left_out, 0
        more = {"count": left_out} if left_out else {}
        ids = {"session": session, "turn": turn, "model": model}
        _log.warning("%s", words[:CAUSE_CHARACTERS_MAX], extra={**ids, **more})
