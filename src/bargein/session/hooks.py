"""Places where the user's own code takes part in a session.

Each hook runs under a token: the turn's, or the session's where there is no turn. A stop ends it,
and it has a bound. If it fails or takes longer, the engine logs that and goes on without it. No
hook can hold a session up or bring it down.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar, TypeVarTuple

from bargein.cancel import Outcome, TaskOwner, Token
from bargein.contracts.event import TurnSettled
from bargein.contracts.message import Attachment, Message
from bargein.contracts.model import Image, Text
from bargein.contracts.tool import CallResult, PlannedCall, Refused

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

HOOK_GRACE_S = 0.5

_log = logging.getLogger("bargein.session")


class Hooks:
    """Does nothing. Inherit from it, override the hooks you want, and pass it as `hooks=`."""

    async def session_started(self, session: str) -> None: ...

    async def message(self, session: str, message: Message) -> None: ...

    async def turn_started(self, session: str, turn: str) -> None: ...

    async def before_tool(self, session: str, planned: PlannedCall) -> Refused | None:
        """Return a `Refused` to keep the call from running."""
        return None

    async def after_tool(self, session: str, planned: PlannedCall, result: CallResult) -> None: ...

    async def turn_settled(self, session: str, settled: TurnSettled) -> None: ...

    async def enrich(self, session: str, attachment: Attachment) -> tuple[Text | Image, ...]:
        """Describe an attachment for the model: an image in words, speech as text."""
        return (Text(f"[attachment {attachment.name}, {attachment.media_type}, not described]"),)


async def run_bounded(
    owner: TaskOwner,
    function: Callable[[*Ts], Awaitable[T]],
    *args: *Ts,
    token: Token,
    timeout_s: float,
    name: str,
) -> Outcome[T]:
    """Runs the user's code for `timeout_s` at most, and abandons it if it does not stop then."""
    with token.child(name, timeout_s=timeout_s) as source:
        outcome = await owner.run(
            function, *args, token=source.token, grace_s=HOOK_GRACE_S, name=name
        )
    if outcome.status == "failed":
        _log.warning("the hook %s failed and is skipped", name, exc_info=outcome.error)
    elif source.token.cancelled and not token.cancelled:
        _log.warning("the hook %s took longer than %g s and is skipped", name, timeout_s)
    return outcome
