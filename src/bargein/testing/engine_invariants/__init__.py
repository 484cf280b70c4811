"""Checks the laws of a session against its durable log and against requests to the model.

Everything here looks from outside: at durable events and at requests that have arrived, never into
the engine. So the same checkers serve the simulation and every end-to-end test:

    check_log(await session.events())               # a whole log
    laws = SessionLaws("alice"); laws.feed(event)   # event by event, as they become durable
    check_request(request)                          # at the moment a model is asked

Each failure is a `LawBroken` that names the law of docs/design.md, section 1.
"""

from bargein.testing.engine_invariants.laws import SessionLaws, check_log
from bargein.testing.engine_invariants.requests import check_messages, check_request

__all__ = [
    "SessionLaws",
    "check_log",
    "check_messages",
    "check_request",
]
