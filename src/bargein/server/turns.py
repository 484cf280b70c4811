"""Reads from the log how a turn went, and waits until it is over."""

from contextlib import suppress

import anyio

from bargein.server.gateway import Gateway
from bargein.server.problems import not_found
from bargein.server.shapes import TurnView
from bargein.session.reply import SessionGone
from bargein.session.session import Session
from bargein.view import Picture


async def turn_view(session: Session, turn: str) -> TurnView:
    """Returns the turn as the API shows it. Raises `Problem` if the session has no such turn."""
    picture = Picture(session.id)
    async for recorded in session.log():
        if getattr(recorded.event, "turn", None) == turn:
            picture.apply(recorded)
    shown = picture.turns.get(turn)
    if shown is None:
        raise not_found(f"turn {turn!r} in session {session.id}")
    messages = tuple(shown.messages)
    if shown.outcome is None:
        return TurnView(turn, "running", messages, shown.began_at, shown.text)
    return TurnView(
        turn,
        "settled",
        messages,
        shown.began_at,
        shown.text,
        shown.outcome,
        shown.error,
        shown.receipt,
        shown.ended_at,
    )


async def wait_settled(gateway: Gateway, session: Session, turn: str, wait_s: float) -> None:
    """Returns when the turn has settled, after `wait_s`, or when the session leaves memory because
    the server shuts down. A cancel ends only the waiting."""
    if (await turn_view(session, turn)).state == "settled":
        return
    actor = gateway.engine.actor_in_memory(session.id)
    if actor is None:
        return
    running = actor.turn
    with anyio.move_on_after(wait_s), suppress(SessionGone):
        if running is not None and running.id == turn:
            await running.settled.wait()
        else:
            # The turn is over; wait until the store has its end.
            await actor.written()
