"""How a turn went, read from the log; and waiting until it is over."""

from contextlib import suppress

import anyio

from bargein.contracts.event import (
    AssistantSaid,
    MessagesTaken,
    TurnSettled,
    TurnStarted,
)
from bargein.contracts.model import Text
from bargein.server.gateway import Gateway
from bargein.server.problems import not_found
from bargein.server.shapes import TurnView
from bargein.session.reply import SessionGone
from bargein.session.session import Session


async def turn_view(session: Session, turn: str) -> TurnView:
    view: TurnView | None = None
    messages: list[str] = []
    text = ""
    started_at = 0.0
    async for recorded in session.log():
        event = recorded.event
        if getattr(event, "turn", None) != turn:
            continue
        if isinstance(event, TurnStarted):
            started_at = recorded.at
        if isinstance(event, TurnStarted | MessagesTaken):
            messages.extend(event.messages)
        elif isinstance(event, AssistantSaid):
            parts = event.message.content
            text = "".join(part.text for part in parts if isinstance(part, Text)) or text
        elif isinstance(event, TurnSettled):
            view = TurnView(
                turn,
                "settled",
                tuple(messages),
                started_at,
                text,
                event.outcome,
                event.error,
                event.receipt,
                recorded.at,
            )
    if view is None:
        if not started_at:
            raise not_found(f"turn {turn!r} in session {session.id}")
        view = TurnView(turn, "running", tuple(messages), started_at, text)
    return view


async def wait_settled(gateway: Gateway, session: Session, turn: str, wait_s: float) -> None:
    """Back when it is over, when the time is, or when the server is to go."""
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
            # It is over, and that is on its way to the store.
            await actor.written()
