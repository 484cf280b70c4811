"""The errors of the API: problem JSON (RFC 9457), with one code for each kind.

`detail` names the thing, its value and what to do. `code` is for programs and never changes. The
OpenAPI document is made from the same table.
"""

import logging
from enum import StrEnum

import msgspec

from bargein.contracts.store import OwnedElsewhere, SessionUnreadable, StoreFailed
from bargein.errors import BargeinError, UserError, WorldError
from bargein.session.engine import EngineClosed
from bargein.session.journal import JournalBroken
from bargein.session.reply import SessionGone
from bargein.session.session import Busy, Forbidden, IdReused, InboxFull, TooLate

MEDIA_TYPE = "application/problem+json"

_log = logging.getLogger("bargein.server")


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
    TOO_LATE = "too_late"
    TOO_LARGE = "too_large"
    WRONG_TYPE = "wrong_type"
    UNANSWERED = "unanswered"
    TOO_MANY = "too_many"
    INBOX_FULL = "inbox_full"
    BUG = "bug"
    SHUTTING_DOWN = "shutting_down"
    UNAVAILABLE = "unavailable"
    UNREADABLE = "unreadable"


STATUS = {
    Code.BAD_REQUEST: (400, "The request is invalid"),
    Code.BAD_JSON: (400, "The body is not valid JSON"),
    Code.UNAUTHENTICATED: (401, "Who are you?"),
    Code.FORBIDDEN: (403, "Not allowed"),
    Code.WRONG_HOST: (421, "This server has another name"),
    Code.WRONG_ORIGIN: (403, "Another page may not call this server"),
    Code.NOT_FOUND: (404, "Not found"),
    Code.METHOD_NOT_ALLOWED: (405, "The method is not allowed here"),
    Code.TOO_SLOW: (408, "The body came too slowly"),
    Code.BUSY: (409, "A turn is running"),
    Code.ID_REUSED: (409, "The id belongs to another request"),
    Code.TOO_LATE: (409, "It is over"),
    Code.TOO_LARGE: (413, "Too large"),
    Code.WRONG_TYPE: (415, "Not JSON"),
    Code.UNANSWERED: (422, "The agent asked something that nobody can answer here"),
    Code.TOO_MANY: (429, "Too many"),
    Code.INBOX_FULL: (429, "Too many messages wait"),
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
    if isinstance(error, Problem):
        return error
    for kind, code, retry_after_s in _EXPLAINED:
        if isinstance(error, kind):
            return Problem(code, str(error), retry_after_s=retry_after_s)
    return None


_EXPLAINED: tuple[tuple[type[BargeinError], Code, int | None], ...] = (
    (Busy, Code.BUSY, None),
    (IdReused, Code.ID_REUSED, None),
    (TooLate, Code.TOO_LATE, None),
    (Forbidden, Code.FORBIDDEN, None),
    (InboxFull, Code.INBOX_FULL, 1),
    (EngineClosed, Code.SHUTTING_DOWN, 5),
    (OwnedElsewhere, Code.UNAVAILABLE, 1),
    (SessionUnreadable, Code.UNREADABLE, None),
    (SessionGone, Code.UNAVAILABLE, 1),
    (StoreFailed, Code.UNAVAILABLE, 1),
    (JournalBroken, Code.UNAVAILABLE, 1),
    (UserError, Code.BAD_REQUEST, None),
    (WorldError, Code.UNAVAILABLE, 1),
)
"""The first that fits counts. What none of them fits is a bug."""


def as_problem(error: Exception) -> Problem:
    """Returns the problem to answer with. A bug is logged with its traceback, which the client
    does not get."""
    problem = explain(error)
    if problem is None:
        _log.error("a request failed", exc_info=error)
        problem = Problem(Code.BUG, "the server failed; its log says why")
    return problem
