"""Idempotency-Key: a request sent twice takes effect once, and gets the same answer twice.

A message's key is its client id, which the engine keeps with the message itself. The key of a new
session is written with its owner, in one transaction. For every other request the answer is kept
here before it is sent. If two come at once, the second waits for the first; a caller that goes away
ends only its own waiting. If the server dies between the effect and the writing of the answer, a
repeat does no harm: the turn was stopped or the question answered, and the second request gets
`too_late`. A stop that is sent again names the start of the server that it was first sent to, so
that it cannot stop a turn that began later.
"""

import hashlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING

import anyio
import msgspec

from bargein.contracts.store import OwnedElsewhere
from bargein.server.gateway_tables import GatewayTables, NewOwner, ReplyRow
from bargein.server.limits import GatewayLimits
from bargein.server.problems import Code, Problem, as_problem

if TYPE_CHECKING:
    from bargein.server.operation import ApiRequest

REPLAYED = {"idempotency-replayed": "true"}
"""The header of an answer that was given before."""
KEY_CHARACTERS_MAX = 200
_SHUT_DOWN = Problem(Code.SHUTTING_DOWN, "the server shut down before it answered")
PRUNE_EVERY_S = 60.0
PRUNE_ROWS = 1000


class Kept(msgspec.Struct, frozen=True):
    """An answer as it is sent, or was sent before."""

    status: int
    body: bytes
    replayed: bool = False
    note: str = ""
    headers: Mapping[str, str] | None = None
    session: str = ""


def check_key(key: str) -> str:
    if not key or len(key) > KEY_CHARACTERS_MAX or not key.isascii() or not key.isprintable():
        raise Problem(
            Code.BAD_REQUEST,
            f"Idempotency-Key: give 1 to {KEY_CHARACTERS_MAX} printable ASCII characters",
        )
    return key


def fingerprint(name: str, params: str, body: bytes | bytearray | memoryview) -> bytes:
    digest = hashlib.sha256(f"{name}\0{params}\0".encode())
    digest.update(body)
    return digest.digest()


def reused(key: str) -> Problem:
    return Problem(
        Code.ID_REUSED,
        f"Idempotency-Key {key!r} was used for another request; give each request its own",
    )


def new_owner(
    api_request: "ApiRequest", name: str, body: msgspec.Struct, session: str, at: float
) -> NewOwner:
    """Returns the row of a session that this request makes, with the request's key."""
    key = api_request.key
    print_ = fingerprint(name, "", msgspec.json.encode(body)) if key is not None else b""
    return NewOwner(session, api_request.principal.name, at, key, print_)


class _UnderWay:
    """A request that is not answered yet, and the place for its answer."""

    def __init__(self, print_: bytes) -> None:
        self.print = print_
        self._over = anyio.Event()
        self._outcome: Kept | Problem | OwnedElsewhere = _SHUT_DOWN

    def end(self, outcome: Kept | Problem | OwnedElsewhere | None = None) -> None:
        """Sets the outcome; the first one counts. None: the server shut down before there was
        one."""
        if not self._over.is_set():
            self._outcome = outcome or _SHUT_DOWN
            self._over.set()

    async def answer(self) -> Kept:
        await self._over.wait()
        outcome = self._outcome
        if isinstance(outcome, OwnedElsewhere):
            raise OwnedElsewhere(outcome.session, outcome.owner, outcome.address)
        if isinstance(outcome, Problem):
            # A new error for each waiting caller, because a raised error keeps their frames.
            raise Problem(outcome.code, outcome.detail, retry_after_s=outcome.retry_after_s)
        return outcome


class Keys:
    """`begin` runs work in a task of its own. So a caller that goes away ends only its own waiting:
    the request goes on, and a repeated request with the same key gets the same answer."""

    def __init__(
        self,
        db: GatewayTables,
        limits: GatewayLimits,
        begin: Callable[[Callable[[], Coroutine[object, object, None]]], None],
    ) -> None:
        self._db = db
        self._limits = limits
        self._begin = begin
        self._under_way: dict[tuple[str, str], _UnderWay] = {}
        self._pruned_at = 0.0

    async def once(
        self, who: str, key: str, print_: bytes, run: Callable[[], Awaitable[Kept]]
    ) -> Kept:
        """Returns the answer of the first request with this key, running `run` if this is the
        first."""
        known = self._under_way.get((who, key))
        if known is not None:
            if known.print != print_:
                raise reused(key)
            return msgspec.structs.replace(await known.answer(), replayed=True)
        made = self._under_way[who, key] = _UnderWay(print_)
        self._begin(partial(self._finish, who, key, made, run))
        return await made.answer()

    async def _finish(
        self, who: str, key: str, made: _UnderWay, run: Callable[[], Awaitable[Kept]]
    ) -> None:
        try:
            made.end(await self._found_or_done(who, key, made.print, run))
        except OwnedElsewhere as owner:
            made.end(OwnedElsewhere(owner.session, owner.owner, owner.address))
        except Exception as error:  # boundary: everyone who waits gets the failure
            problem = as_problem(error)
            made.end(Problem(problem.code, problem.detail, retry_after_s=problem.retry_after_s))
        finally:
            made.end()
            del self._under_way[who, key]

    async def _found_or_done(
        self, who: str, key: str, print_: bytes, run: Callable[[], Awaitable[Kept]]
    ) -> Kept:
        known = await self._db.reply(who, key)
        if known is not None:
            if known.fingerprint != print_:
                raise reused(key)
            return Kept(known.status, known.body, replayed=True)
        kept = await run()
        if len(kept.body) <= self._limits.reply_bytes_max:
            now = time.time()
            await self._db.keep_reply(who, key, ReplyRow(print_, kept.status, kept.body), now)
            if now - self._pruned_at > PRUNE_EVERY_S:
                self._pruned_at = now
                # A slice; the rest goes when further answers are kept.
                await self._db.prune_replies(now - self._limits.replies_kept_s, PRUNE_ROWS)
        return kept
