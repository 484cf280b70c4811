"""How a command is answered: when what it has changed is durable, or with the error that kept it
from being so."""

from bargein.contracts.event import Event
from bargein.contracts.store import AcceptKey
from bargein.session.commands import Accept, Done, Effect, GiveSteers, Refuse
from bargein.session.slot import Slot

Answered = Accept | Done | Refuse | GiveSteers


class Reply(Slot[Answered]):
    """On its way to the store it has with it the `events` that are to be written, the `keys` of
    messages that are among them, and the effects that `follow` when they are durable."""

    events: tuple[Event, ...] = ()
    keys: tuple[AcceptKey, ...] = ()
    follow: tuple[Effect, ...] = ()
