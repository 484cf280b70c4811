"""Failures of providers and of turns, in the log.

Each line has the session, the turn, the model and what the provider said, and none of the words of
a message. They come at a bounded rate: a provider that is down fails every turn.
"""

import logging

from bargein.contracts.event import TurnOutcome
from bargein.server.limits import Rate
from bargein.view import AnswerVoided, Change, TurnClosed

_log = logging.getLogger("bargein.server")

PER_S = 5.0
BURST = 50
CAUSE_CHARACTERS_MAX = 500


class Failures:
    def __init__(self) -> None:
        self._rate = Rate(PER_S, BURST)
        self._left_out = 0

    def observe(self, session: str, change: Change) -> None:
        match change:
            case AnswerVoided(turn=turn_id, cause=cause, model=model):
                self._tell(f"the model failed and is asked again: {cause}", session, turn_id, model)
            case TurnClosed(turn=turn) if turn.outcome is TurnOutcome.FAILED:
                self._tell(f"a turn failed: {turn.error}", session, turn.id)
            case _:
                pass

    def _tell(self, words: str, session: str, turn: str, model: str = "") -> None:
        if self._rate.take(""):
            self._left_out += 1
            return
        left_out, self._left_out = self._left_out, 0
        more = {"count": left_out} if left_out else {}
        ids = {"session": session, "turn": turn, "model": model}
        _log.warning("%s", words[:CAUSE_CHARACTERS_MAX], extra={**ids, **more})
