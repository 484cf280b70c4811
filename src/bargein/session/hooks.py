"""Places where the user's own code takes part in a session.

Each hook runs under a token: the turn's, or the session's if there is no turn. A stop ends it, and
it has a bound. If it fails or takes longer, the engine logs that and continues without it. No hook
can block or break a session.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

from bargein.calls.text import shortened
from bargein.calls.words import attached_file, not_described
from bargein.cancel import Outcome, TaskOwner, Token
from bargein.contracts.event import TurnSettled
from bargein.contracts.message import Attachment, Message
from bargein.contracts.model import Image, Text
from bargein.contracts.tool import CallResult, PlannedCall, Refused

if TYPE_CHECKING:
    from bargein.session.host import TurnHost

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

HOOK_GRACE_S = 0.5
IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Images that the models read."""
TEXT_TYPES = frozenset({"application/json", "application/toml", "application/xml"})

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
        """Describe an attachment for the model: an image in words, speech as text. Unless you
        override it, text and images are shown as they are, and others only named."""
        return shown_as_it_is(attachment)


def shown_as_it_is(attachment: Attachment) -> tuple[Text | Image, ...]:
    """Return a text or an image as the model can read it; of anything else, its name."""
    name, media_type, data = attachment.name, attachment.media_type, attachment.data
    if media_type in IMAGE_TYPES:
        return Text(attached_file(name, "image")), Image(media_type, data)
    if media_type.startswith("text/") or media_type in TEXT_TYPES:
        words = shortened(data.decode(errors="replace"))
        return (Text(f"{attached_file(name, 'file')}\n{words}"),)
    return (Text(not_described(name, media_type)),)


async def run_bounded(
    owner: TaskOwner,
    function: Callable[[*Ts], Awaitable[T]],
    *args: *Ts,
    token: Token,
    timeout_s: float,
    name: str,
) -> Outcome[T]:
    """Run the user's code for at most `timeout_s`, and abandon it if it then does not stop."""
    with token.child(name, timeout_s=timeout_s) as source:
        outcome = await owner.run(
            function, *args, token=source.token, grace_s=HOOK_GRACE_S, name=name
        )
    if outcome.status == "failed":
        _log.warning("the hook %s failed and is skipped", name, exc_info=outcome.error)
    elif source.token.cancelled and not token.cancelled:
        _log.warning("the hook %s took longer than %g s and is skipped", name, timeout_s)
    return outcome


class BoundedCallHooks:
    """The hooks around each call of a session, as the pipeline runs them."""

    def __init__(self, hooks: Hooks, host: "TurnHost") -> None:
        self._hooks = hooks
        self._host = host

    @classmethod
    def of(cls, host: "TurnHost") -> "BoundedCallHooks | None":
        return cls(host.hooks, host) if host.hooks is not None else None

    async def before(self, planned: PlannedCall, token: Token) -> Refused | None:
        host = self._host
        outcome = await run_bounded(
            host.owner,
            self._hooks.before_tool,
            host.session_id,
            planned,
            token=token,
            timeout_s=host.limits.hook_s,
            name="before_tool",
        )
        return outcome.value if outcome.status == "finished" else None

    async def after(self, planned: PlannedCall, result: CallResult, token: Token) -> None:
        host = self._host
        await run_bounded(
            host.owner,
            self._hooks.after_tool,
            host.session_id,
            planned,
            result,
            token=token,
            timeout_s=host.limits.hook_s,
            name="after_tool",
        )
