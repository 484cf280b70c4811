"""What every request shares: the engine, who may do what, the limits, and whether it is time to go.

A gateway is for one event loop. It owns no turn: a request that ends, and a stream whose reader
goes away, stop nothing by themselves.
"""

import logging
import math
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import lru_cache
from ipaddress import ip_address, ip_network

import anyio
import msgspec
from anyio.abc import TaskGroup

from bargein.contracts.message import QuestionPolicy
from bargein.contracts.store import SessionHead
from bargein.errors import BargeinError
from bargein.server.access import DOOR, Access, Principal, Right
from bargein.server.audit import Audit
from bargein.server.gateway_db import GatewayDb
from bargein.server.holding import Hold, Holdings
from bargein.server.keys import Keys
from bargein.server.limits import GatewayLimits, Rate
from bargein.server.metrics import Metrics, Now
from bargein.server.problems import Code, Problem, not_found
from bargein.server.proxy import ProxyHeader
from bargein.server.references import EventEncoder
from bargein.server.shapes import CutReason
from bargein.server.tickets import Tickets
from bargein.session.engine import SessionEngine
from bargein.session.limits import MESSAGE_BYTES
from bargein.session.session import Session
from bargein.session.snapshot import stored_in
from bargein.session.state import SessionState

_log = logging.getLogger("bargein.server")

LOOK_EVERY_S = 0.25
EXPIRED_EVERY_S = 5.0
OWNERS_COUNTED_MAX = 10_000
LARGE_BYTES = 64 * 1024


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """`names`: host names by which this server may be called, beside addresses and localhost.
    `origins`: pages elsewhere that may call it. `host_tools`: commands, Python and files of this
    machine are offered to the model, in the folder `workspace`. `sole_principal`: they are because
    there is only this one, so nobody else is let in. `openai_questions`: what becomes of questions
    in turns that OpenAI's clients ask for, unless a request says otherwise. `trusted_proxies`:
    networks whose word about a client's address counts, in `proxy_header`."""

    names: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    model: str = ""
    workspace: str = ""
    host_tools: bool = False
    sole_principal: str | None = None
    openai_questions: QuestionPolicy = QuestionPolicy.ERROR
    trusted_proxies: tuple[str, ...] = ()
    proxy_header: ProxyHeader = "x-forwarded-for"

    def is_proxy(self, address: str) -> bool:
        return bool(self.trusted_proxies) and _is_among(address, self.trusted_proxies)


@lru_cache(maxsize=1024)
def _is_among(address: str, networks: tuple[str, ...]) -> bool:
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return any(parsed in ip_network(each, strict=False) for each in networks)


class Opened(msgspec.Struct, frozen=True):
    """A session that the one who asks may see."""

    session: Session
    root: str
    right: Right


class Reader:
    """One who has a stream open: whose it is, of which session, and why it was cut off. What is
    done for it is done in its scope. `root` is None for a connection, which is no session's."""

    def __init__(self, principal: Principal, root: str | None) -> None:
        self.principal = principal
        self.root = root
        self.scope = anyio.CancelScope(deadline=_deadline(principal.expires_at))
        self._reason: CutReason | None = None
        self.detail = ""

    @property
    def reason(self) -> CutReason | None:
        expired = self._reason is None and self.scope.cancel_called
        return "revoked" if expired else self._reason

    def cut(self, reason: CutReason, detail: str = "") -> None:
        """End it, with words of its own if the reason's usual ones do not say enough."""
        self._reason, self.detail = reason, detail
        self.scope.cancel()


class Line:
    """What one principal waits for that takes long: how many, and which one is under way."""

    def __init__(self) -> None:
        self.count = 0
        self.lock = anyio.Lock()


def _deadline(expires_at: float | None) -> float:
    """On the clock of the event loop."""
    if expires_at is None:
        return math.inf
    return anyio.current_time() + expires_at - time.time()


class Gateway:
    def __init__(
        self,
        engine: SessionEngine,
        book: GatewayDb,
        access: Access,
        *,
        limits: GatewayLimits | None = None,
        settings: Settings | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.engine = engine
        self.book = book
        self.access = access
        self.limits = limits or GatewayLimits()
        self.settings = settings or Settings()
        self.metrics = metrics or Metrics()
        self.audit = Audit(book)
        self.start = secrets.token_hex(8)
        """Names this start of the server: what ran under another one is over."""
        self.keys = Keys(book, self.limits, self._begin)
        self.tickets = Tickets()
        self.rate = Rate(self.limits.requests_per_s, self.limits.requests_burst)
        self.holdings = Holdings(
            each_max=self.limits.held_bytes_max, all_max=self.limits.held_bytes_max_of_all
        )
        self._flow = Rate(self.limits.body_bytes_per_s, self.limits.body_bytes_burst)
        self.lines: dict[str, Line] = {}
        self.large = anyio.Lock()
        self.events = EventEncoder()
        self.draining = anyio.Event()
        self.hurry = anyio.Event()
        self.streams: set[Reader] = set()
        self.tasks: TaskGroup | None = None
        self._starting: dict[str, dict[str, int]] = {}
        self._ticks: set[Callable[[float], None]] = set()
        self._memory: dict[str, int] = {}

    # --- who comes in

    def admit(self, principal: Principal) -> None:
        sole = self.settings.sole_principal
        if sole is not None and principal.name != sole and principal.token != DOOR:
            raise Problem(
                Code.FORBIDDEN,
                f"this server was started for {sole} alone, with the tools of its machine. Restart "
                "it: with more than one principal they are off, unless the operator says otherwise",
            )
        wait_s = self.rate.take(principal.name)
        if wait_s:
            raise Problem(
                Code.TOO_MANY,
                f"more than {self.limits.requests_per_s:g} requests a second from {principal.name}",
                retry_after_s=math.ceil(wait_s),
            )

    def admit_bytes(self, who: str, size: int) -> None:
        """A body of this size. Small ones always: a stop is one."""
        if size <= LARGE_BYTES:
            return
        wait_s = self._flow.take(who, size)
        if wait_s:
            raise Problem(
                Code.TOO_MANY,
                f"more than {self.limits.body_bytes_per_s:g} bytes a second from {who}",
                retry_after_s=math.ceil(wait_s),
            )

    @asynccontextmanager
    async def heavy(self, who: str) -> AsyncIterator[None]:
        """Around what takes long to answer. Each principal has one of them under way at a time, so
        that whoever asks for many keeps only itself waiting."""
        line = self.lines.setdefault(who, Line())
        if line.count >= self.limits.heavy_max:
            raise Problem(
                Code.TOO_MANY,
                f"{line.count} searches or transcripts are being made for {who}; wait for one",
                retry_after_s=1,
            )
        line.count += 1
        try:
            async with line.lock:
                yield
        finally:
            line.count -= 1
            if not line.count:
                del self.lines[who]

    def check_token(self, principal: Principal) -> None:
        """Again, where time has passed since it was shown."""
        if not self.access.is_valid(principal):
            raise Problem(
                Code.UNAUTHENTICATED, "the token has expired or was revoked; ask for a new one"
            )

    def refuse_if_draining(self) -> None:
        if self.draining.is_set():
            raise Problem(
                Code.SHUTTING_DOWN,
                "the server is shutting down and takes nothing new; try again when it is back",
                retry_after_s=5,
            )

    # --- sessions

    async def open(self, principal: Principal, session_id: str, need: Right = "read") -> Opened:
        """The session, if this principal may see it; another's and none at all are the same."""
        root = session_id
        right = self.access.right(principal, root)
        known = self.access.owned(root) is not None
        if not known and "/" in session_id:
            root = session_id.partition("/")[0]
            right = self.access.right(principal, root)
        if right is None:
            raise not_found(f"session {session_id!r}")
        if not known:
            head = await self.engine.store.head(session_id)
            root = head.root if head is not None else root
            right = self.access.right(principal, root)
            if head is None or right is None:
                raise not_found(f"session {session_id!r}")
        if _RANK[right] < _RANK[need]:
            raise Problem(
                Code.FORBIDDEN,
                f"{principal.name} may {right} session {session_id}, which is not enough for this",
            )
        return Opened(Session(self.engine, session_id), root, right)

    async def head(self, session_id: str) -> SessionHead:
        head = await self.engine.store.head(session_id)
        if head is None:
            raise not_found(f"session {session_id!r}")
        return head

    def state(self, head: SessionHead) -> SessionState:
        """What it is doing, without bringing it into memory."""
        actor = self.engine.actor_in_memory(head.id)
        return actor.state if actor is not None else stored_in(head).state

    def now(self) -> Now:
        """What is going on, for the figures."""
        actors = map(self.engine.actor_in_memory, self.engine.in_memory)
        states = tuple(actor.state for actor in actors if actor is not None)
        return Now(states, watchers=len(self.streams))

    # --- limits of one principal

    @contextmanager
    def turn_allowed(self, principal: Principal, session_id: str, size: int = 0) -> Iterator[None]:
        """Held while a message of `size` bytes is handed over: it may start a turn, and then it
        counts."""
        owned = self.access.owned(session_id)
        owner = owned.owner if owned is not None else principal.name
        self._check_memory(owner, size)
        starting = self._starting.setdefault(owner, {})
        if not self._is_busy(session_id) and session_id not in starting:
            self._check_turns(owner, starting)
        starting[session_id] = starting.get(session_id, 0) + 1
        try:
            yield
        finally:
            starting[session_id] -= 1
            if not starting[session_id]:
                del starting[session_id]

    def _check_turns(self, owner: str, starting: dict[str, int]) -> None:
        most = self.limits.turns_max
        if self.access.seen_count(owner) <= most:
            return  # at most one turn a session: there is nothing to count
        sessions = {each for each in self.access.owned_by(owner) if self._is_busy(each)}
        running = len(sessions | starting.keys())
        if running >= most:
            raise Problem(
                Code.TOO_MANY,
                f"{running} turns of {owner} are running, and no more may; stop one or wait",
                retry_after_s=1,
            )

    def _check_memory(self, owner: str, size: int) -> None:
        """Words and files of one owner that are in memory, in all of its sessions. They are only
        counted when they could be too many: until then what was added since is enough."""
        most = self.limits.memory_bytes_max
        held = self._memory.get(owner, 0) + size + MESSAGE_BYTES
        if held > most:
            held = self._count_memory(owner, most - size) + size
        if held > most:
            raise Problem(
                Code.TOO_MANY,
                f"the sessions of {owner} that are at work hold {held - size} bytes of messages, "
                f"and this one has {size}; at most {most} are held. Wait until a turn has ended, "
                "or withdraw what waits",
                retry_after_s=1,
            )
        if len(self._memory) > OWNERS_COUNTED_MAX:
            self._memory.clear()
        self._memory[owner] = held

    def _count_memory(self, owner: str, most: int) -> int:
        """Sessions that do nothing leave memory, if that is needed."""
        actors = map(self.engine.actor_in_memory, self.access.owned_by(owner))
        here = [actor for actor in actors if actor is not None]
        held = sum(actor.held_bytes for actor in here)
        for actor in sorted(here, key=lambda each: each.used_at):
            if held <= most:
                break
            if actor.is_quiet and actor.held_bytes:
                held -= actor.held_bytes
                self.engine.let_go(actor.session_id)
        here = [actor for actor in here if not actor.gone.is_set]
        return sum(actor.held_bytes for actor in here)

    def _is_busy(self, session_id: str) -> bool:
        actor = self.engine.actor_in_memory(session_id)
        return actor is not None and actor.state.busy

    def hold(self, who: str) -> Hold:
        """For bytes that are held for a principal: a body that comes, an answer that goes."""
        return Hold(self.holdings, who)

    # --- streams

    @contextmanager
    def stream(self, reader: Reader, tick: Callable[[float], None] | None = None) -> Iterator[None]:
        """Registered while it is open, so that it ends when its token does, when the session is
        shared no longer, or when the server goes. `tick` is called now and then with the time."""
        self.check_streams(reader.principal)
        self.streams.add(reader)
        if tick is not None:
            self._ticks.add(tick)
        try:
            yield
        finally:
            self.streams.discard(reader)
            if tick is not None:
                self._ticks.discard(tick)

    def check_streams(self, principal: Principal) -> None:
        """Refuses one who has as many streams open as may be."""
        who = principal.name
        mine = sum(1 for each in self.streams if each.principal.name == who)
        if mine >= self.limits.streams_max:
            raise Problem(
                Code.TOO_MANY,
                f"{mine} streams of {who} are open, and no more may be; close one",
                retry_after_s=1,
            )

    async def look_after_streams(self) -> None:
        """Cut those that stand still; and those whose tokens have ended, where nobody rang for it
        or the clocks do not agree, as after a machine has slept."""
        every_s = min(LOOK_EVERY_S, self.limits.ping_s, self.limits.send_s)
        seen, looked_at = -1, time.monotonic()
        while True:
            await anyio.sleep(every_s)
            self.audit.flush()
            now = time.monotonic()
            for tick in list(self._ticks):
                tick(now)
            with self._unless_unreadable():
                version = self.book.version()
                if version != seen or now - looked_at >= EXPIRED_EVERY_S:
                    seen, looked_at = version, now
                    self.cut_ended()

    def cut_ended(self) -> None:
        """With a token that was revoked or has expired nothing stays open."""
        with self._unless_unreadable():
            # All at once: it is looked at a few times a second, and streams are many.
            valid = self.access.valid_among(each.principal for each in self.streams)
            for reader in list(self.streams):
                if reader.principal.token not in valid:
                    reader.cut("revoked")
        self.cut_unshared()

    @contextmanager
    def _unless_unreadable(self) -> Iterator[None]:
        """The book may not be readable for a while: nothing ends of that, and it is looked at
        again."""
        try:
            yield
        except BargeinError as error:
            _log.warning("whose token has ended cannot be seen now: %s", error)

    def cut_unshared(self) -> None:
        """Of a session that one may no longer see, one sees nothing more."""
        for reader in list(self.streams):
            if reader.root is None:
                continue
            if self.access.right(reader.principal, reader.root) is None:
                reader.cut("session_gone")

    def go_on(self, doing: Awaitable[object]) -> None:
        """Finish this beside the request that began it."""

        async def finish() -> None:
            try:
                await doing
            except BargeinError as error:
                _log.warning("what was left to go on failed: %s", error)

        self._begin(finish)

    def _begin(self, work: Callable[[], Coroutine[object, object, None]]) -> None:
        """Run this in a task of the gateway, which no request ends."""
        assert self.tasks is not None
        self.tasks.start_soon(work)

    def drain(self) -> None:
        """Take nothing new from here on. What runs may go on; stopping it stays possible."""
        self.draining.set()

    async def drained_or_hurried(self) -> None:
        """Back when no turn runs any more, or when somebody asks a second time."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._drain_engine, group.cancel_scope)
            await self.hurry.wait()
            group.cancel_scope.cancel()

    async def _drain_engine(self, scope: anyio.CancelScope) -> None:
        await self.engine.drain()
        scope.cancel()

    def cut_streams(self) -> None:
        for reader in list(self.streams):
            reader.cut("shutting_down")


_RANK: dict[Right, int] = {"read": 0, "write": 1, "own": 2}
