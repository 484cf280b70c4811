"""Forks a session: a new session begins with the conversation of another, up to a turn's end."""

from contextlib import aclosing
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import msgspec

from bargein.contracts.event import AnswerHeard, Recorded, TurnSettled
from bargein.contracts.model import ModelMessage
from bargein.contracts.place import SessionPlace
from bargein.errors import UserError
from bargein.session.transcript import Transcript

if TYPE_CHECKING:
    from bargein.session.session import Session

FORK_BYTES = 4


class AlreadyBegun(UserError):
    """The session has events, and a history can only come first."""


class Fork(msgspec.Struct, frozen=True):
    """What the model saw at the end of a turn, and where the session works."""

    messages: tuple[ModelMessage, ...]
    instructions: str
    place: SessionPlace | None

    async def begin(self, made: "Session[Any]", *, by: str) -> None:
        """Begin a new session with it."""
        if self.place is not None:
            await made.set_place(self.place, by=by)
        await made.begin_with(self.messages, instructions=self.instructions, by=by)


async def read_fork(session: "Session[Any]", turn: str | None) -> Fork:
    """Read a session until the end of `turn`, or of the last turn that is over. Raises `UserError`
    if there is no such turn."""
    end, heard = await _end_of(session, turn)
    if end is None:
        which = "no turn that is over" if turn is None else f"no turn {turn} that is over"
        raise UserError(f"session {session.id} has {which}; there is nothing to fork from")
    transcript = Transcript()
    async with aclosing(session.log()) as log:
        # To its end, because the pages behind it are closed only there.
        async for recorded in log:
            if recorded.seq <= end:
                transcript.apply(recorded.event, recorded.seq)
    for each in heard:
        # Told after the end of the turn. What later turns said is not here, so it is ignored.
        transcript.apply(each.event, each.seq)
    return Fork(transcript.messages(), transcript.instructions, await session.place())


async def _end_of(
    session: "Session[Any]", turn: str | None
) -> tuple[int | None, tuple[Recorded, ...]]:
    """Return where the turn, or the last one, ends in the log, and what the user was reported to
    have heard after that."""
    end: int | None = None
    heard: list[Recorded] = []
    async with aclosing(session.log()) as log:
        async for recorded in log:
            event = recorded.event
            if isinstance(event, TurnSettled) and turn in (None, event.turn):
                end, heard = recorded.seq, []
            elif isinstance(event, AnswerHeard):
                heard.append(recorded)
    return end, tuple(heard)


def fork_id() -> str:
    return f"fork-{token_hex(FORK_BYTES)}"
