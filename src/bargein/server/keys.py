"""Idempotency-Key: the same POST sent again has its effect once, and the same answer.

A message's key is its client id, which the engine keeps with the message itself. Making a session
keeps the key with the owner, in one transaction. For every other POST the answer is kept here
before it is given; of two that come at once the second waits for the first. A caller that goes away
meanwhile ends only its own waiting. All of these can be sent twice without harm if the server dies
between the effect and the note of it: a turn that was stopped, a question that was answered, is
then over, and the second one says `too_late`. So that it cannot stop a turn that began since, a
stop that is sent again names the start of the server of which it was first asked.
"""

import hashlib
import sqlite3
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING

import anyio
import msgspec

from bargein.server.gateway_db import GatewayDb
from bargein.server.limits import GatewayLimits
from bargein.server.problems import Code, Problem, told

if TYPE_CHECKING:
    from bargein.server.operation import ApiRequest

REPLAYED = {"idempotency-replayed": "true"}
"""The header of an answer that was given before."""
KEY_CHARACTERS_MAX = 200
_SHUT_DOWN = Problem(Code.SHUTTING_DOWN, "the server shut down before it answered")
PRUNE_EVERY_S = 60.0
PRUNE_ROWS = 1000
PRUNE = """DELETE FROM replies WHERE (principal, key) IN (
    SELECT principal, key FROM replies WHERE at < ? ORDER BY at LIMIT ?)"""


class Kept(msgspec.Struct, frozen=True):
    """An answer as it goes out, or as it went out before."""

    status: int
    body: bytes
    replayed: bool = False
    note: str = ""


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


def remember(
    connection: sqlite3.Connection,
    api_request: "ApiRequest",
    name: str,
    body: msgspec.Struct,
    value: str,
    at: float,
) -> str:
    """In the book's thread: the value that this key stands for; `value` if it is new."""
    if api_request.key is None:
        return value
    print_ = fingerprint(name, "", msgspec.json.encode(body))
    known = find(connection, api_request.principal.name, api_request.key)
    if known is None:
        keep(
            connection,
            api_request.principal.name,
            api_request.key,
            print_,
            Kept(0, value.encode()),
            at,
        )
        return value
    if known[0] != print_:
        raise reused(api_request.key)
    return known[1].body.decode()


def find(connection: sqlite3.Connection, principal: str, key: str) -> tuple[bytes, Kept] | None:
    row = connection.execute(
        "SELECT fingerprint, status, body FROM replies WHERE principal = ? AND key = ?",
        (principal, key),
    ).fetchone()
    return (row[0], Kept(row[1], row[2])) if row is not None else None


def keep(
    connection: sqlite3.Connection, principal: str, key: str, print_: bytes, kept: Kept, at: float
) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO replies VALUES (?, ?, ?, ?, ?, ?)",
        (principal, key, print_, kept.status, kept.body, at),
    )


class _UnderWay:
    """A request that has not been answered yet, and what it will be answered with."""

    def __init__(self, print_: bytes) -> None:
        self.print = print_
        self._over = anyio.Event()
        self._outcome: Kept | Problem = _SHUT_DOWN

    def end(self, outcome: Kept | Problem | None = None) -> None:
        """The first outcome counts; without one the server shut down first."""
        if not self._over.is_set():
            self._outcome = outcome or _SHUT_DOWN
            self._over.set()

    async def answer(self) -> Kept:
        await self._over.wait()
        outcome = self._outcome
        if isinstance(outcome, Problem):
            # A new one for each who waits: an error that was raised holds their frames.
            raise Problem(outcome.code, outcome.detail, retry_after_s=outcome.retry_after_s)
        return outcome


class Keys:
    """`begin` runs work in a task of its own. So a caller that goes away ends only its own waiting:
    the request goes on, and whoever asks again with the same key gets the same answer."""

    def __init__(
        self,
        book: GatewayDb,
        limits: GatewayLimits,
        begin: Callable[[Callable[[], Coroutine[object, object, None]]], None],
    ) -> None:
        self._book = book
        self._limits = limits
        self._begin = begin
        self._under_way: dict[tuple[str, str], _UnderWay] = {}
        self._pruned_at = 0.0

    async def once(
        self, who: str, key: str, print_: bytes, run: Callable[[], Awaitable[Kept]]
    ) -> Kept:
        """The answer of the first request with this key; this one's, if it is the first."""
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
        except Exception as error:  # boundary: everyone who waits for the answer is told
            problem = told(error)
            made.end(Problem(problem.code, problem.detail, retry_after_s=problem.retry_after_s))
        finally:
            made.end()
            del self._under_way[who, key]

    async def _found_or_done(
        self, who: str, key: str, print_: bytes, run: Callable[[], Awaitable[Kept]]
    ) -> Kept:
        known = await self._book.run(lambda connection: find(connection, who, key))
        if known is not None:
            if known[0] != print_:
                raise reused(key)
            return msgspec.structs.replace(known[1], replayed=True)
        kept = await run()
        if len(kept.body) <= self._limits.reply_bytes_max:
            await self._book.run(lambda c: self._keep(c, who, key, print_, kept))
        return kept

    def _keep(
        self, connection: sqlite3.Connection, who: str, key: str, print_: bytes, kept: Kept
    ) -> None:
        now = time.time()
        keep(connection, who, key, print_, kept, now)
        if now - self._pruned_at > PRUNE_EVERY_S:
            self._pruned_at = now
            oldest = now - self._limits.replies_kept_s
            # A slice: the next ones go with the next answers that are kept.
            connection.execute(PRUNE, (oldest, PRUNE_ROWS))
