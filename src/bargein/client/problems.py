"""The errors of a client: the engine's own, rebuilt from the codes of the API, and a few that only
a network can cause."""

import os
from collections.abc import Callable
from ssl import SSLError

import aiohttp
import msgspec

from bargein.contracts.store import SessionUnreadable, StoreFailed
from bargein.errors import BargeinError, BugError, UserError, WorldError
from bargein.session.engine import EngineClosed
from bargein.session.session import Busy, Forbidden, IdReused, InboxFull, TooLate


class Disconnected(WorldError):
    """The server could not be reached for as long as the client waits for it."""


class Unanswered(WorldError):
    """The server was started again before it answered. It may have done what was asked, or not."""


class Unauthenticated(UserError):
    """The server does not know the token, or the token has ended."""


class NotFound(UserError):
    """There is no such session or thing, or it is not the caller's to see."""


def _retryable(detail: str) -> WorldError:
    return WorldError(detail, retryable=True)


def _unreadable(detail: str) -> SessionUnreadable:
    error = SessionUnreadable("", "")
    error.args = (detail,)
    return error


ERRORS: dict[str, Callable[[str], BargeinError]] = {
    "bad_request": UserError,
    "bad_json": UserError,
    "unauthenticated": Unauthenticated,
    "forbidden": Forbidden,
    "wrong_host": UserError,
    "wrong_origin": UserError,
    "not_found": NotFound,
    "method_not_allowed": UserError,
    "too_slow": _retryable,
    "busy": Busy,
    "id_reused": IdReused,
    "too_late": TooLate,
    "too_large": UserError,
    "wrong_type": UserError,
    "unanswered": UserError,
    "too_many": _retryable,
    "inbox_full": lambda detail: InboxFull(detail, retryable=True),
    "bug": BugError,
    "shutting_down": EngineClosed,
    "unavailable": lambda detail: StoreFailed(detail, retryable=True),
    "unreadable": _unreadable,
}
"""Makes the error for each code of the API."""


class _Problem(msgspec.Struct):
    status: int = 0
    code: str = ""
    detail: str = ""


def error_of(status: int, body: bytes) -> BargeinError:
    """Return the error that a refusal of the server stands for."""
    try:
        problem = msgspec.json.decode(body, type=_Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = _Problem()
    make = ERRORS.get(problem.code)
    if make is not None:
        return make(problem.detail)
    words = problem.detail or f"the server answered with status {status} and without a reason"
    return UserError(words) if 400 <= status < 500 else _retryable(words)


def unreachable(where: str, error: Exception) -> Disconnected:
    """The error for a server with which no connection can be made, or was made and is lost."""
    why = str(error) or type(error).__name__
    if isinstance(error, TimeoutError):
        why = "it does not answer"
    elif isinstance(error, aiohttp.ClientConnectorError):
        # The text of a failed connect repeats the address; numbers of TLS are its own.
        cause = error.os_error
        number = 0 if isinstance(cause, SSLError) else cause.errno or 0
        why = os.strerror(number) if number > 0 else cause.strerror or why
    words = f"{where} cannot be reached: {why}. Is Bargein running there, and is the address right?"
    return Disconnected(words, retryable=True)
