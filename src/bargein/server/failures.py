"""Failures of providers and of turns, in the log.

`Failures.observe` is an observer of the engine. Each line has the session, the turn, the model and
what the provider said, and none of the words of a message. They come at a bounded rate: a provider
that is down fails every turn.
"""

import logging

from bargein.contracts.event import Recorded, TurnOutcome, TurnSettled
from bargein.contracts.live import AnswerVoid
from bargein.server.limits import Rate
from bargein.session.broadcast import Watched

_log = logging.getLogger("bargein.server")

PER_S = 5.0
BURST = 50
CAUSE_CHARACTERS_MAX = 500


class Failures:
    def __init__(self) -> None:
        self._rate = Rate(PER_S, BURST)
        self._left_out = 0

    def observe(self, session: str, shown: Watched) -> None:
        match shown:
            case AnswerVoid(turn=turn, cause=cause, model=model):
                self._tell(f"the model failed and is asked again: {cause}", session, turn, model)
            case Recorded(event=TurnSettled(turn=turn, outcome=outcome, error=error)) if (
                outcome is TurnOutcome.FAILED
            ):
                self._tell(f"a turn failed: {error}", session, turn)

    def _tell(self, words: str, session: str, turn: str, model: str = "") -> None:
        if self._rate.take(""):
            self._left_out += 1
            return
        left_out, self._left_out = self._left_out, 0
        more = {"count": left_out} if left_out else {}
        ids = {"session": session, "turn": turn, "model": model}
        _log.warning("%s", words[:CAUSE_CHARACTERS_MAX], extra={**ids, **more})
