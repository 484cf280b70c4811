"""The errors of the API: problem JSON (RFC 9457), with one code for each kind.

`detail` names the thing, its value and what to do. `code` is for programs and never changes. The
OpenAPI document is made from the same table.
"""

from enum import StrEnum

import msgspec

from bargein.contracts.store import SessionUnreadable, StoreFailed
from bargein.errors import BargeinError, BugError, UserError, WorldError
from bargein.session.engine import EngineClosed
from bargein.session.journal import JournalBroken
from bargein.session.reply import SessionGone
from bargein.session.session import Busy, IdReused, InboxFull

MEDIA_TYPE = "application/problem+json"


class Code(StrEnum):
    BAD_REQUEST = "bad_request"
    BAD_JSON = "bad_json"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    WRONG_HOST = "wrong_host"
    WRONG_ORIGIN = "wrong_origin"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    TOO_SLOW = "too_slow"
    BUSY = "busy"
    ID_REUSED = "id_reused"
    TOO_LARGE = "too_large"
    WRONG_TYPE = "wrong_type"
    UNANSWERED = "unanswered"
    TOO_MANY = "too_many"
    BUG = "bug"
    SHUTTING_DOWN = "shutting_down"
    UNAVAILABLE = "unavailable"
    UNREADABLE = "unreadable"


STATUS = {
    Code.BAD_REQUEST: (400, "The request is not right"),
    Code.BAD_JSON: (400, "The body is not the JSON that is needed"),
    Code.UNAUTHENTICATED: (401, "Who are you?"),
    Code.FORBIDDEN: (403, "Not allowed"),
    Code.WRONG_HOST: (421, "Not a name of this server"),
    Code.WRONG_ORIGIN: (403, "Not from this page"),
    Code.NOT_FOUND: (404, "Not found"),
    Code.METHOD_NOT_ALLOWED: (405, "Not with this method"),
    Code.TOO_SLOW: (408, "The body came too slowly"),
    Code.BUSY: (409, "A turn is running"),
    Code.ID_REUSED: (409, "The id was used for something else"),
    Code.TOO_LARGE: (413, "Too large"),
    Code.WRONG_TYPE: (415, "Not JSON"),
    Code.UNANSWERED: (422, "The agent asked something that nobody can answer here"),
    Code.TOO_MANY: (429, "Too many"),
    Code.BUG: (500, "A bug in the server"),
    Code.SHUTTING_DOWN: (503, "Shutting down"),
    Code.UNAVAILABLE: (503, "Not possible now"),
    Code.UNREADABLE: (422, "The session cannot be read"),
}


class ProblemBody(msgspec.Struct, frozen=True):
    """`type` is always about:blank; `code` names the kind."""

    title: str
    status: int
    code: Code
    detail: str
    type: str = "about:blank"


class Problem(BargeinError):
    """Raised anywhere below a request. The edge turns it into the answer."""

    def __init__(self, code: Code, detail: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.retry_after_s = retry_after_s

    @property
    def status(self) -> int:
        return STATUS[self.code][0]

    @property
    def headers(self) -> dict[str, str]:
        headers = {}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(self.retry_after_s)
        if self.code is Code.UNAUTHENTICATED:
            headers["www-authenticate"] = 'Bearer realm="bargein"'
        return headers

    def body(self) -> ProblemBody:
        status, title = STATUS[self.code]
        return ProblemBody(title, status, self.code, self.detail)


def not_found(what: str) -> Problem:
    return Problem(Code.NOT_FOUND, f"there is no {what}, or it is not yours to see")


def explain(error: Exception) -> Problem | None:
    """Returns the problem to answer with for an error of the engine, or None if it is a bug."""
    match error:
        case Problem():
            return error
        case Busy():
            return Problem(Code.BUSY, str(error))
        case IdReused():
            return Problem(Code.ID_REUSED, str(error))
        case InboxFull():
            return Problem(Code.TOO_MANY, str(error), retry_after_s=1)
        case EngineClosed():
            return Problem(Code.SHUTTING_DOWN, str(error), retry_after_s=5)
        case SessionUnreadable():
            return Problem(Code.UNREADABLE, str(error))
        case SessionGone() | StoreFailed() | JournalBroken():
            return Problem(Code.UNAVAILABLE, str(error), retry_after_s=1)
        case UserError():
            return Problem(Code.BAD_REQUEST, str(error))
        case WorldError():
            return Problem(Code.UNAVAILABLE, str(error), retry_after_s=1)
        case BugError():
            return None
    return None
