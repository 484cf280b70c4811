"""The state that all requests share: engine, access, limits, open streams, and shutting down.

A gateway is for one event loop. It owns no turn: neither the end of a request, nor its cancel, nor
a reader that goes away stops one.
"""

import logging
import math
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING

import anyio
import msgspec
from anyio.abc import TaskGroup

from bargein.contracts.message import QuestionPolicy
from bargein.contracts.store import SessionHead
from bargein.errors import BargeinError
from bargein.mcp.overview import McpSource
from bargein.server.access import DOOR, Access, Principal, Right
from bargein.server.audit import Audit
from bargein.server.gateway_tables import GatewayTables
from bargein.server.keys import Keys
from bargein.server.limits import ByteBudget, GatewayLimits, Hold, Rate
from bargein.server.metrics import Metrics, Now
from bargein.server.problems import Code, Problem, not_found
from bargein.server.proxy import ProxyHeader
from bargein.server.references import EventEncoder
from bargein.server.shapes import ChannelView, CutReason
from bargein.server.shared_use import SharedUse
from bargein.server.tickets import Tickets
from bargein.session.engine import SessionEngine
from bargein.session.limits import MESSAGE_BYTES
from bargein.session.session import Session
from bargein.session.snapshot import stored_in
from bargein.session.state import SessionState

if TYPE_CHECKING:
    from bargein.cluster.peers import Peers
    from bargein.runtime.opened_agent import OpenedAgent
    from bargein.server.anywhere import Anywhere
    from bargein.server.guests import Guests
    from bargein.session.agent import LoopAgent

_log = logging.getLogger("bargein.server")

STRANGERS_PER_S = 1.0
STRANGERS_BURST = 20
LOOK_EVERY_S = 0.25
EXPIRED_EVERY_S = 5.0
OWNERS_COUNTED_MAX = 10_000
LARGE_BYTES = 64 * 1024


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator chose.

    - `names`: host names by which clients may call this server, beside addresses and localhost.
    - `origins`: other sites whose pages may call it.
    - `host_tools`: the model may use commands, Python and files of this machine, in the folder
      `workspace`.
    - `sole_principal`: set if `host_tools` is on only because this is the only principal; nobody
      else is admitted.
    - `openai_questions`: what happens to questions in turns of OpenAI clients, unless the request
      says otherwise.
    - `node_address`: where other nodes of a cluster reach this one (`cluster.address`).
    - `trusted_proxies`: networks whose `proxy_header` is believed about a client's address.
    """

    names: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    model: str = ""
    workspace: str = ""
    host_tools: bool = False
    places: bool = False
    sole_principal: str | None = None
    openai_questions: QuestionPolicy = QuestionPolicy.ERROR
    trusted_proxies: tuple[str, ...] = ()
    proxy_header: ProxyHeader = "x-forwarded-for"
    node_address: str = ""

    def is_proxy(self, address: str) -> bool:
        return bool(self.trusted_proxies) and _is_among(address, self.trusted_proxies)


@lru_cache(maxsize=1024)
def _is_among(address: str, networks: tuple[str, ...]) -> bool:
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return any(parsed in ip_network(each, strict=False) for each in networks)


OpenedFor = Callable[[str], "tuple[OpenedAgent, LoopAgent] | None"]


async def _kill_nothing() -> None:
    """An engine that was given as its core alone has no processes that are known here."""


class Opened(msgspec.Struct, frozen=True):
    """A session that the caller may see, and what the caller may do with it."""

    session: Session
    root: str
    right: Right


class Reader:
    """The reader of an open stream. Its work runs in `scope`, which ends with its token; `reason`
    says why it was cut off. `root` is None for a connection, which belongs to no session."""

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
        """Ends the stream. `detail` replaces the usual words for the reason."""
        self._reason, self.detail = reason, detail
        self.scope.cancel()


class HeavyQueue:
    """The searches and transcripts of one principal: how many there are; one runs at a time."""

    def __init__(self) -> None:
        self.count = 0
        self.lock = anyio.Lock()


def _deadline(expires_at: float | None) -> float:
    """Returns the time on the event loop's clock."""
    if expires_at is None:
        return math.inf
    return anyio.current_time() + expires_at - time.time()


class Gateway:
    def __init__(
        self,
        engine: SessionEngine,
        db: GatewayTables,
        access: Access,
        *,
        limits: GatewayLimits | None = None,
        settings: Settings | None = None,
        metrics: Metrics | None = None,
        opened_for: "OpenedFor | None" = None,
        kill_stopping: Callable[[], Awaitable[None]] | None = None,
        mcp: McpSource | None = None,
    ) -> None:
        """`opened_for` returns the agent of a session, `kill_stopping` kills what is already being
        stopped; `bargein.Engine` has both."""
        self.engine = engine
        self.opened_for: OpenedFor = opened_for or (lambda session_id: None)
        self.kill_stopping = kill_stopping or _kill_nothing
        self.mcp = mcp
        self.db = db
        self.access = access
        self.limits = limits or GatewayLimits()
        self.settings = settings or Settings()
        self.metrics = metrics or Metrics()
        self.audit = Audit(db)
        self.start = db.start or secrets.token_hex(8)
        """Names this start of the server: what ran under another one is over. The nodes of a
        cluster have one name, because a turn goes on when a client comes back at another node."""
        self.keys = Keys(db, self.limits, self._begin)
        self.tickets = Tickets(db)
        self.rate = Rate(self.limits.requests_per_s, self.limits.requests_burst)
        self.strangers = Rate(STRANGERS_PER_S, STRANGERS_BURST)
        self.budget = ByteBudget(
            each_max=self.limits.held_bytes_max, all_max=self.limits.held_bytes_max_of_all
        )
        self.flow = Rate(self.limits.body_bytes_per_s, self.limits.body_bytes_burst)
        self.uses = SharedUse(self)
        self.heavy_queues: dict[str, HeavyQueue] = {}
        self.large = anyio.Lock()
        self.sharing = anyio.Lock()
        """Held while the members of a session are changed: one change is made from the last."""
        self.events = EventEncoder()
        self.draining = anyio.Event()
        self.hurry = anyio.Event()
        self.streams: set[Reader] = set()
        self.tasks: TaskGroup | None = None
        self.anywhere: Anywhere | None = None
        self.peers: Peers | None = None
        self.channels: Callable[[], Sequence[ChannelView]] = lambda: ()
        """How the chat platforms are, which run beside the server."""
        self.guests: Guests | None = None
        self.on_streams: Callable[[], None] = lambda: None
        """Called when somebody has connected or has gone."""
        self.leave_if_idle: Callable[[bool], bool] | None = None
        """Ends a host that does nothing; None for a server that stays."""
        self._starting: dict[str, dict[str, int]] = {}
        self._ticks: set[Callable[[float], None]] = set()
        self._memory: dict[str, int] = {}

    # --- who comes in

    def admit(self, principal: Principal) -> None:
        """Counts one request. Raises `Problem` if the principal is not admitted or too fast."""
        sole = self.settings.sole_principal
        is_let_in = principal.token == DOOR or (
            self.guests is not None and self.guests.is_guest(principal)
        )
        if sole is not None and principal.name != sole and not is_let_in:
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

    def admit_stranger(self, address: str) -> None:
        """Counts one request of somebody without a token. Raises `Problem` if it is too fast."""
        wait_s = self.strangers.take(address)
        if wait_s:
            raise Problem(
                Code.TOO_MANY,
                f"too many requests without a token from {address}",
                retry_after_s=math.ceil(wait_s),
            )

    def admit_bytes(self, who: str, size: int) -> None:
        """Counts a body of this size. Small bodies always pass, because a stop is one."""
        if size <= LARGE_BYTES:
            return
        wait_s = self.flow.take(who, size)
        if wait_s:
            raise Problem(
                Code.TOO_MANY,
                f"more than {self.limits.body_bytes_per_s:g} bytes a second from {who}",
                retry_after_s=math.ceil(wait_s),
            )

    @asynccontextmanager
    async def heavy(self, who: str) -> AsyncIterator[None]:
        """Wraps work that takes long. Each principal has one under way at a time, so asking for
        many delays only the principal itself. Raises `Problem` if too many wait already."""
        queue = self.heavy_queues.setdefault(who, HeavyQueue())
        if queue.count >= self.limits.heavy_max:
            raise Problem(
                Code.TOO_MANY,
                f"{queue.count} searches or transcripts are being made for {who}; wait for one",
                retry_after_s=1,
            )
        queue.count += 1
        try:
            async with queue.lock:
                yield
        finally:
            queue.count -= 1
            if not queue.count:
                del self.heavy_queues[who]

    def check_token(self, principal: Principal) -> None:
        """Checks the token again after a wait. Raises `Problem` if it is no longer valid."""
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
        """Returns the session if the principal has the right. A session that it may not see raises
        the same `Problem` as one that does not exist."""
        root = session_id
        right = self.access.right(principal, root)
        known = self.access.owned(root) is not None
        if not known and "/" in session_id:
            root = session_id.partition("/")[0]
            right = self.access.right(principal, root)
        if right is None and self.db.is_shared:
            # Another node may have made or shared it a moment ago. Also asked about a session of
            # somebody else: that takes as long as for one that does not exist.
            await self.access.refresh((root,))
            right = self.access.right(principal, root)
            known = self.access.owned(root) is not None
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
        """Returns the session's state without bringing it into memory."""
        actor = self.engine.actor_in_memory(head.id)
        return actor.state if actor is not None else stored_in(head).state

    def now(self) -> Now:
        """Returns what goes on now, for the metrics."""
        actors = map(self.engine.actor_in_memory, self.engine.in_memory)
        states = tuple(actor.state for actor in actors if actor is not None)
        return Now(states, watchers=len(self.streams))

    # --- limits of one principal

    @contextmanager
    def turn_allowed(self, principal: Principal, session_id: str, size: int = 0) -> Iterator[None]:
        """Wraps the sending of a message of `size` bytes, which may start a turn. Raises `Problem`
        if the session's owner has too many turns running or too many bytes in memory."""
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
        running = len(sessions | starting.keys()) + self.uses.turns_elsewhere(owner)
        if running >= most:
            raise Problem(
                Code.TOO_MANY,
                f"{running} turns of {owner} are running, which is the limit; stop a turn or wait",
                retry_after_s=1,
            )

    def _check_memory(self, owner: str, size: int) -> None:
        """Bounds the bytes of messages in memory in all sessions of one owner. Adds up what comes
        in, and counts exactly only when the sum reaches the bound."""
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
        """Counts the owner's bytes in memory. Lets quiet sessions go, the least used first, until
        the rest is at most `most`."""
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
        """Returns a hold for the bytes of one body or answer of a principal."""
        return Hold(self.budget, who)

    # --- streams

    @contextmanager
    def stream(self, reader: Reader, tick: Callable[[float], None] | None = None) -> Iterator[None]:
        """Registers a stream while it is open. It is cut off when its token ends, when the session
        is no longer shared with its reader, or when the server shuts down. `tick` is called a few
        times a second with the time."""
        self.check_streams(reader.principal)
        self.streams.add(reader)
        self.on_streams()
        if tick is not None:
            self._ticks.add(tick)
        try:
            yield
        finally:
            self.streams.discard(reader)
            self.on_streams()
            if tick is not None:
                self._ticks.discard(tick)

    def check_streams(self, principal: Principal) -> None:
        """Raises `Problem` if the principal has too many streams open."""
        who = principal.name
        mine = sum(1 for each in self.streams if each.principal.name == who)
        mine += self.uses.streams_elsewhere(who)
        if mine >= self.limits.streams_max:
            raise Problem(
                Code.TOO_MANY,
                f"{mine} streams of {who} are open, which is the limit; close a stream",
                retry_after_s=1,
            )

    async def look_after_streams(self) -> None:
        """Cuts off streams that stand still, and streams whose tokens have ended. The bell and the
        deadline of each stream do the latter sooner; this finds what they missed, for example
        after the machine has slept. Runs until cancelled."""
        every_s = min(LOOK_EVERY_S, self.limits.ping_s, self.limits.send_s)
        seen, looked_at = -1, time.monotonic()
        while True:
            await anyio.sleep(every_s)
            self.audit.flush()
            now = time.monotonic()
            for tick in list(self._ticks):
                tick(now)
            with self._unless_unreadable():
                version = self.db.version()
                if version != seen or now - looked_at >= EXPIRED_EVERY_S:
                    seen, looked_at = version, now
                    self.cut_ended()

    async def changed(self, sessions: frozenset[str] | None) -> None:
        """Another process or node has changed tokens, or the owners or members of these sessions;
        of any session if None."""
        with self._unless_unreadable():
            if sessions is None:
                await self.access.load()
            elif sessions:
                await self.access.refresh(sessions)
        self.cut_ended()

    def cut_ended(self) -> None:
        """Cuts off the streams of tokens that were revoked or have expired."""
        with self._unless_unreadable():
            # One query for all: this runs a few times a second, and streams are many.
            valid = self.access.valid_among(each.principal for each in self.streams)
            for reader in list(self.streams):
                if reader.principal.token not in valid:
                    reader.cut("revoked")
        self.cut_unshared()

    @contextmanager
    def _unless_unreadable(self) -> Iterator[None]:
        """Logs a database that cannot be read just now. No stream ends because of it."""
        try:
            yield
        except BargeinError as error:
            _log.warning("the tokens cannot be read now: %s", error)

    def cut_unshared(self) -> None:
        """Cuts off the readers of sessions that they may no longer see."""
        for reader in list(self.streams):
            if reader.root is None:
                continue
            if self.access.right(reader.principal, reader.root) is None:
                reader.cut("session_gone")

    def go_on(self, doing: Awaitable[object]) -> None:
        """Finishes work after the request that began it has been answered."""

        async def finish() -> None:
            try:
                await doing
            except BargeinError as error:
                _log.warning("work after an answer failed: %s", error)
            except Exception as error:  # boundary: one request's fault must not end the gateway
                # A ping, say, to a connection that was closed a moment ago: uvloop raises then.
                _log.error("work after an answer failed", exc_info=error)

        self._begin(finish)

    def _begin(self, work: Callable[[], Coroutine[object, object, None]]) -> None:
        """Run this in a task of the gateway, which no request ends."""
        assert self.tasks is not None
        self.tasks.start_soon(work)

    def drain(self) -> None:
        """Takes no new work from here on. Running turns go on, and can still be stopped."""
        self.draining.set()

    async def drained_or_hurried(self) -> None:
        """Returns when no turn runs any more, or when a second signal asks to hurry."""
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
