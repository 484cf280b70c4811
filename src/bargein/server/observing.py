"""Observers of an engine: they see what changes in every session, each session read once.

An observer takes the id of a session and one change of its picture. It must not wait, and shows no
words: those that stream are left out.
"""

from collections.abc import Callable

from bargein.contracts.event import Recorded
from bargein.session.broadcast import Watched
from bargein.view import WORDS, Change, Picture

Observer = Callable[[str, Change], None]


class Observers:
    """An `Observe` of the engine. Keeps a picture of each session in which something goes on."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers
        self._pictures: dict[str, Picture] = {}

    def __call__(self, session: str, shown: Watched) -> None:
        if isinstance(shown, WORDS):
            return
        picture = self._pictures.get(session)
        if picture is None:
            if not isinstance(shown, Recorded):
                # Nothing goes on there but what was abandoned.
                return
            picture = self._pictures[session] = Picture(session, turns_max=1)
        for change in picture.apply(shown):
            for observe in self._observers:
                observe(session, change)
        if picture.is_at_rest:
            del self._pictures[session]
