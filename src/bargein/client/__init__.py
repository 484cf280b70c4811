"""A session over the wire: the methods of `bargein.Session`, at the other end of the API.

    from bargein.client import Client

    async with Client("http://127.0.0.1:8484/", token="...") as client:
        session = await client.new_session()
        async for event in session.stream("Count to a million"):
            print(event)
        receipt = await session.interrupt()

One WebSocket carries all sessions of a client. When it breaks, the client connects again by itself,
goes on with every watch where it was, and asks again what was not answered: a message is never
taken twice, and a stop never hits a turn that began later. Errors are those of the engine.

`Session` has the methods of `bargein.Session`; a test compares the two. Cancelling a call ends only
the waiting.
"""

from bargein.client.client import Client
from bargein.client.problems import Disconnected, NotFound, Unanswered, Unauthenticated
from bargein.client.session import Session
from bargein.session.broadcast import TooSlow
from bargein.session.results import MessageGone
from bargein.session.session import Busy, Forbidden, IdReused, InboxFull, TooLate, TurnFailed

__all__ = [
    "Busy",
    "Client",
    "Disconnected",
    "Forbidden",
    "IdReused",
    "InboxFull",
    "MessageGone",
    "NotFound",
    "Session",
    "TooLate",
    "TooSlow",
    "TurnFailed",
    "Unanswered",
    "Unauthenticated",
]
