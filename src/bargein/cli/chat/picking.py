"""The menu below the line, from which the user chooses a session or a model.

A command alone, such as `/resume`, opens its menu. Typing searches it, the arrows choose, and Enter
takes the chosen one, or else the first that fits. Pure.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple, TypeVar

from bargein.cli.chat.any_engine import AnyEngine, ListedSession
from bargein.cli.chat.paint import harmless

SESSIONS_LISTED = 200
OF_SESSIONS = ("resume", "sessions")
PICKED = (*OF_SESSIONS, "model")

S = TypeVar("S", bound=ListedSession)


class Pick(NamedTuple):
    """A line in which something is chosen: the command, and the words to search for as typed."""

    command: str
    words: str


def pick_of(line: str) -> Pick | None:
    """Returns what is chosen in a line; None for lines in which nothing is."""
    name, space, words = line.removeprefix("/").partition(" ")
    if not line.startswith("/") or not space or name not in PICKED:
        return None
    return Pick(name, words)


def fitting(words: str, names: Sequence[str]) -> Iterator[int]:
    """Yields the places of the names that contain all these words; if none does, of those that have
    the letters in order."""
    wanted = words.lower().split()
    lowered = [each.lower() for each in names]
    found = [at for at, name in enumerate(lowered) if all(word in name for word in wanted)]
    letters = "".join(wanted)
    yield from found or (at for at, name in enumerate(lowered) if in_order(letters, name))


def in_order(letters: str, name: str) -> bool:
    """Returns whether a name has these letters in this order, with others between them."""
    place = 0
    for letter in letters:
        place = name.find(letter, place) + 1
        if not place:
            return False
    return True


def sessions_fitting(words: str, sessions: Sequence[S]) -> list[S]:
    """Returns the sessions with this beginning of an id, or else those whose title fits."""
    begun = words.strip()
    by_id = [each for each in sessions if begun and each.id.startswith(begun)]
    titles = [each.title or each.id for each in sessions]
    return by_id or [sessions[at] for at in fitting(words, titles)]


def described(engine: AnyEngine, session: ListedSession, here: str) -> str:
    """Says when a session was last used, in which other folder it works, and whether it is busy."""
    when = datetime.fromtimestamp(session.updated_at).astimezone()
    folder = engine.workspace_of(session)
    state = engine.state(session.id)
    parts = [f"{when:%m-%d %H:%M}"]
    if state is not None and state.busy:
        parts.append("working")
    if folder and folder != here:
        parts.append(f"in {folder}")
    return harmless(" · ".join(parts))
