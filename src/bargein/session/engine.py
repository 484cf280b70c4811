"""The engine: all sessions of one process, on one store.

`async with SessionEngine(...) as engine:` recovers what an earlier process left unfinished, brings
sessions into memory when they are needed, lets idle ones go, and at the end settles every turn
within a bound. It owns every task that a session starts.
"""

import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self

import anyio
import anyio.lowlevel
import msgspec

from bargein.cancel import (
    SYSTEM_CLOCK,
    CancelSource,
    Cause,
    Clock,
    Reason,
    TaskOwner,
    run_thread,
)
from bargein.contracts.event import Recorded, TurnOutcome
from bargein.contracts.given import check_texts
from bargein.contracts.receipt import Receipt
from bargein.contracts.reserve import Reserve, UnstoredStop
from bargein.contracts.store import SessionHead, SessionUnreadable, StaleEpoch, Store, StoreFailed
from bargein.errors import BargeinError, UserError
from bargein.session import snapshot
from bargein.session.actor import Actor, Decide, Parts, SessionGone
from bargein.session.broadcast import Observe
from bargein.session.children import AgentKind, Below, ChildRun, is_child, like
from bargein.session.commands import Close, Drain, Passivate
from bargein.session.decide import decide
from bargein.session.home import TaskHome
from bargein.session.hooks import Hooks, run_bounded
from bargein.session.limits import Limits
from bargein.session.permits import PermissionSettings
from bargein.session.recovery import Ending, Endings, Known, ending_of, known_of, recover
from bargein.session.results import Results
from bargein.session.scribe import Scribe
from bargein.session.session import Session
from bargein.session.state import Phase, SessionState
from bargein.session.title import Titles
from bargein.session.turn import AgentFunction

SESSION_ID_CHARACTERS_MAX = 200
UNREADABLE_MAX = 1000
RESERVE_S = 1.0
RESERVE_GRACE_S = 0.1

_log = logging.getLogger("bargein.session")


class EngineClosed(UserError):
    """The engine takes up nothing any more."""


class SessionEngine:
    """`decide` and the clocks are there to be replaced by a simulation. `owner`, if given, is
    open already and outlives the engine; the tools then share it. `compact` runs the turns that
    only compress; `titles` says how sessions are given titles, None that they are not."""

    def __init__(
        self,
        agent: AgentFunction,
        store: Store,
        *,
        hooks: Hooks | None = None,
        limits: Limits | None = None,
        compact: AgentFunction | None = None,
        titles: Titles | None = None,
        clock: Clock = SYSTEM_CLOCK,
        now: Callable[[], float] = time.time,
        decide: Decide = decide,
        owner: TaskOwner | None = None,
        observe: Observe | None = None,
        below: Below | None = None,
        reserve: Reserve | None = None,
        permission: PermissionSettings | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.store = store
        self._reserve = reserve
        self._known: dict[str, dict[str, Known]] = {}
        self._returning: dict[str, anyio.Event] = {}
        self._now = now
        self._source = CancelSource("engine", clock=clock)
        self._owner = owner or TaskOwner(close_grace_s=self.limits.settle_s, apart=True)
        self._own_owner = owner is None
        self._home: TaskHome | None = None
        self._scribe = Scribe(store, linger_s=self.limits.linger_s, now=now, spawn=self._spawn)
        self._parts = Parts(
            store=store,
            scribe=self._scribe,
            agent=agent,
            compact=compact,
            titles=titles,
            decide=decide,
            clock=clock,
            limits=self.limits,
            hooks=hooks,
            owner=self._owner,
            spawn=self._spawn,
            left=self._left,
            observe=observe,
            below=below or like(agent),
            permission=permission or PermissionSettings(),
            make_child=self._make_child,
        )
        self._actors: dict[str, Actor] = {}
        self._loading: dict[str, anyio.Event] = {}
        self._owed: dict[str, Results] = {}
        self.unreadable: dict[str, str] = {}
        self._closing = False
        self._draining = False

    async def __aenter__(self) -> Self:
        if self._home is not None:
            raise RuntimeError("an engine was entered twice; make a new one")
        if self._own_owner:
            await self._owner.__aenter__()
        self._home = TaskHome()
        self._home.open()
        self._scribe.open()
        self._spawn(self._let_idle_ones_go)
        try:
            await self._go_on_with_unfinished()
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._home is not None
        self._closing = True
        try:
            # At once: a turn that others cancel at the same moment is stopped, and has not failed.
            told = self._tell_to_close()
            await self._home.finish(partial(self._close_sessions, told))
        finally:
            self._give_up()
            try:
                await self._home.close()
            finally:
                if self._own_owner:
                    await self._owner.__aexit__(kind, error, trace)

    def _give_up(self) -> None:
        self._source.cancel(Reason(Cause.SHUTDOWN, "the engine is closed"))
        closed = SessionGone("the engine is closed")
        for actor in list(self._actors.values()):
            actor.give_up(closed)
        for owed in self._owed.values():
            owed.lost(closed)

    async def session(self, session_id: str) -> Session:
        """The session of this name, made if there is none. A sub-agent's is never made so."""
        check_texts(session_id=session_id)
        if is_child(session_id):
            await self.actor(session_id)
            return Session(self, session_id)
        if not session_id or len(session_id) > SESSION_ID_CHARACTERS_MAX:
            raise UserError(
                f"a session's name must have 1 to {SESSION_ID_CHARACTERS_MAX} characters, "
                f"not {len(session_id)}"
            )
        await self.actor(session_id)
        return Session(self, session_id)

    @property
    def in_memory(self) -> tuple[str, ...]:
        return tuple(self._actors)

    def actor_in_memory(self, session_id: str) -> Actor | None:
        return self._actors.get(session_id)

    def is_at_hand(self, session_id: str) -> bool:
        """Whether a session is in memory or on its way there."""
        known = (self._actors, self._loading, self._returning, self._owed)
        return any(session_id in each for each in known)

    async def actor(self, session_id: str, *, unasked: bool = False) -> Actor:
        """The session in memory; brought there, by one caller for all, if it is not.

        `unasked`: the engine wants it by itself. No root is claimed for that which is not on its
        way back anyway, for it may be another owner's by now; `SessionGone` in its place.
        """
        while True:
            actor = self._actors.get(session_id)
            if actor is not None:
                return actor
            loading = self._loading.get(session_id)
            if loading is not None:
                await loading.wait()
                continue
            self._loading[session_id] = anyio.Event()
            try:
                # A closed engine claims nothing: the session may be another one's by then.
                with self._source.token.scope():
                    return await self._load(session_id, unasked)
            except SessionUnreadable as error:
                self._note_unreadable(session_id, error)
                raise
            finally:
                self._loading.pop(session_id).set()
            self._refuse_if_closing()

    async def events(
        self,
        session_id: str,
        *,
        after: int = 0,
        limit: int | None = None,
        bytes_max: int | None = None,
    ) -> list[Recorded]:
        """The log of a session, as far as it is durable."""
        try:
            return await self.store.events(
                session_id, after=after, limit=limit, bytes_max=bytes_max
            )
        except SessionUnreadable as error:
            self._note_unreadable(session_id, error)
            raise

    async def check_readable(self, actor: Actor) -> None:
        """Raise `SessionUnreadable` if the log that a turn would need cannot be read. Not while a
        turn runs, which has read it."""
        if actor.turn is not None or actor.logbook.is_readable:
            return
        try:
            # A store that does not answer keeps nobody from sending; the turn will tell. So will
            # the commit if another owner has the session.
            with anyio.move_on_after(self.limits.store_s), suppress(StaleEpoch):
                await actor.logbook.check_readable()
        except SessionUnreadable as error:
            self._note_unreadable(actor.session_id, error)
            raise
        self.unreadable.pop(actor.session_id, None)

    def _note_unreadable(self, session_id: str, error: SessionUnreadable) -> None:
        """Remember why a session cannot be read, for the lists it stands in."""
        if session_id not in self.unreadable:
            _log.error("%s", error)
        self.unreadable[session_id] = str(error)
        if len(self.unreadable) > UNREADABLE_MAX:
            del self.unreadable[next(iter(self.unreadable))]

    async def _load(self, session_id: str, unasked: bool) -> Actor:
        self._refuse_if_closing()
        if self._draining:
            raise EngineClosed("the engine is about to close, and takes up no session any more")
        if is_child(session_id):
            return await self._load_child(session_id, unasked)
        if unasked and session_id not in self._owed:
            raise SessionGone(f"{session_id} has left memory, and nobody has asked for it")
        head = await self.store.claim(session_id)
        created = head is None
        if created and unasked:
            raise SessionGone(f"{session_id} was deleted")
        while head is None:
            head = await self.store.create(session_id, root=session_id, at=self._now())
            head = head or await self.store.claim(session_id)
            if head is None and await self.store.head(session_id) is not None:
                return await self._load_child(session_id, unasked)
        ended = await self._settle_children(snapshot.stored_in(head).state, head.epoch)
        actor = await self._bring(head, self._parts, ended)
        self._actors[session_id] = actor
        if created and self._parts.hooks is not None:
            self._spawn(partial(self._run_session_hook, self._parts.hooks, session_id))
        return actor

    async def _bring(self, head: SessionHead, parts: Parts, ended: Endings) -> Actor:
        """A session into memory, from what is durable; what was left unsettled is settled."""
        stored = snapshot.stored_in(head)
        log: list[Recorded] = []
        # Whoever is still owed an answer may have to be given one of long ago; and as long ago
        # may a call have begun that was in the background.
        from_long_ago = head.id in self._owed or bool(stored.state.background)
        begins_at = 1 if from_long_ago else stored.log_begins_at
        if begins_at is not None:
            log = await self.events(head.id, after=begins_at - 1)
        self._refuse_if_closing()
        results = self._owed.pop(head.id, Results())
        results.come_back(stored.state.turn, [ref.message for ref in stored.waiting], log)
        state = snapshot.with_messages(head.id, stored, log)
        state = msgspec.structs.replace(state, child=head.root != head.id)
        actor = Actor(parts, head, state, results)
        known = self._known_of(head, stored.state.turn)
        recover(actor, log, stored.turn_seq, ended, known)
        if known.stop is not None and self._reserve is not None:
            self._spawn(partial(self._forget_stop, actor, self._reserve))
        return actor

    # Stops that could not be stored

    async def keep_stop(self, actor: Actor, turn: str, receipt: Receipt) -> None:
        """Remember a stop that the store has not confirmed, so that no recovery contradicts the
        receipt of it. Bounded; if it cannot be kept, the receipt says all the same that it is not
        stored."""
        if self._reserve is None:
            return
        stop = UnstoredStop(actor.session_id, actor.created_at, turn, receipt)
        with anyio.move_on_after(RESERVE_S, shield=True), CancelSource("reserve") as source:
            await run_thread(self._reserve.keep, stop, token=source.token, grace_s=RESERVE_GRACE_S)

    async def _forget_stop(self, actor: Actor, reserve: Reserve) -> None:
        if await actor.stored_so_far():
            forget = partial(reserve.forget, actor.session_id)
            await run_thread(forget, token=self._source.token, grace_s=RESERVE_GRACE_S)

    def _known_of(self, head: SessionHead, turn: str | None) -> Known:
        if turn is None:
            return Known()
        known = self._known.pop(head.id, {}).get(turn)
        if known is None and self._reserve is not None:
            kept = self._reserve.find(head.id, head.created_at, turn)
            known = Known(kept.receipt) if kept is not None else None
        return known or Known()

    async def returned(self, session_id: str) -> None:
        """Wait while a session that the store has failed is on its way back into memory."""
        returning = self._returning.get(session_id)
        if returning is not None:
            await returning.wait()

    # Sub-agents

    async def _make_child(self, run: ChildRun, kind: AgentKind) -> Actor:
        """A new session under its parent's root. In memory when this returns, so that nobody else
        brings it there."""
        parent = run.parent
        while (loading := self._loading.get(run.id)) is not None:
            await loading.wait()
        self._loading[run.id] = anyio.Event()
        try:
            self._refuse_if_closing()
            try:
                head = await self.store.create(
                    run.id, root=parent.root, at=self._now(), epoch=parent.epoch
                )
            except StaleEpoch as error:
                self._lose(parent, error)
                raise
            if head is None:
                raise UserError(f"there is a session named {run.id} already")
            parts = msgspec.structs.replace(self._parts, agent=kind.agent, below=kind.below)
            actor = Actor(parts, head, SessionState(child=True), Results(), run)
            self._actors[run.id] = actor
        finally:
            self._loading.pop(run.id).set()
        if self._parts.hooks is not None:
            self._spawn(partial(self._run_session_hook, self._parts.hooks, run.id))
        return actor

    async def _load_child(self, session_id: str, unasked: bool) -> Actor:
        """A sub-agent that is not at work, to be looked at: its root comes first, and settles it
        if it has to be."""
        head = await self.store.head(session_id)
        if head is None:
            raise UserError(f"there is no sub-agent {session_id}")
        root = await self.actor(head.root, unasked=unasked)
        head = _owned(await self.store.head(session_id) or head, root.epoch)
        ended = await self._settle_children(snapshot.stored_in(head).state, head.epoch)
        actor = self._actors[session_id] = await self._bring(head, self._parts, ended)
        return actor

    async def _settle_children(self, state: SessionState, epoch: int) -> Endings:
        """Settle what a crash has left of a session's sub-agents, the deepest first, so that
        another crash on the way finds the rest."""
        return {child.id: await self._settle_child(child.id, epoch) for child in state.children}

    async def _settle_child(self, child: str, epoch: int) -> Ending:
        head = await self.store.head(child)
        if head is None:
            return Ending(TurnOutcome.CRASHED, "the program ended before it began")
        state = snapshot.stored_in(head).state
        if state.phase is not Phase.ENDED:
            ended = await self._settle_children(state, epoch)
            why: list[BaseException | None] = []
            parts = msgspec.structs.replace(self._parts, left=lambda _, error: why.append(error))
            actor = await self._bring(_owned(head, epoch), parts, ended)
            await actor.gone.wait()
            if isinstance(why[0], StaleEpoch):
                raise SessionGone(f"{child} has another owner: {why[0]}")
            if actor.comes_back:
                raise StoreFailed(
                    f"{child} could not be settled; it is tried again", retryable=True
                )
        return ending_of(await self.events(child))

    async def drain(self) -> None:
        """Let the turns that run come to their end, and begin none after them: what waits stays
        for the next start. Back when none runs; whoever has less time just leaves the engine."""
        self._draining = True
        for actor in list(self._actors.values()):
            actor.post(Drain())
        while running := [each.turn for each in self._actors.values() if each.turn is not None]:
            for turn in running:
                with suppress(BargeinError):
                    await turn.settled.wait()
            # The end of a turn is told a moment before its session is without one.
            await anyio.lowlevel.checkpoint()

    def _refuse_if_closing(self) -> None:
        if self._closing:
            raise EngineClosed("the engine is closed; open it with `async with Engine(...)`")

    async def _run_session_hook(self, hooks: Hooks, session_id: str) -> None:
        await run_bounded(
            self._owner,
            hooks.session_started,
            session_id,
            token=self._source.token,
            timeout_s=self.limits.hook_s,
            name="session_started",
        )

    async def _go_on_with_unfinished(self) -> None:
        after = ""
        while ids := await self.store.unfinished(after=after):
            for session_id in ids:
                # What another owner has claimed since is that owner's; and one that cannot be read
                # keeps none of the others from going on.
                with suppress(SessionGone, SessionUnreadable):
                    await self.actor(session_id)
                    await self._go_on_below(session_id)
            after = ids[-1]

    async def _go_on_below(self, root: str) -> None:
        """Sub-agents that their parent counts as over, but whose own end could not be stored."""
        before: tuple[float, str] | None = None
        while heads := await self.store.sessions(under=root, before=before):
            for head in heads:
                if head.id != root and snapshot.stored_in(head).state.unfinished:
                    await self.actor(head.id, unasked=True)
            before = (heads[-1].updated_at, heads[-1].id)

    async def _let_idle_ones_go(self) -> None:
        while True:
            await anyio.sleep(self.limits.idle_s)
            self._passivate_since(self._parts.clock.now() - self.limits.idle_s)

    def let_go(self, session_id: str) -> None:
        """Have a session leave memory, if it does nothing."""
        actor = self._actors.get(session_id)
        if actor is not None and actor.is_quiet:
            actor.post(Passivate())

    def _passivate_since(self, idle_since: float) -> None:
        for actor in list(self._actors.values()):
            if actor.used_at <= idle_since and actor.is_quiet:
                actor.post(Passivate())

    def _tell_to_close(self) -> list[Actor]:
        actors = list(self._actors.values())
        for actor in actors:
            actor.land(Reason(Cause.SHUTDOWN, "the program ends"))
            actor.post(Close())
        return actors

    async def _close_sessions(self, told: list[Actor]) -> None:
        with anyio.move_on_after(self.limits.receipt_s):
            while True:
                for actor in told:
                    await actor.gone.wait()
                for loading in list(self._loading.values()):
                    await loading.wait()
                if not (self._actors or self._loading):
                    return
                told = self._tell_to_close()

    def beside(self, function: Callable[[], Coroutine[object, object, None]]) -> None:
        """Run something beside the sessions until the engine is closed."""
        self._spawn(function)

    def _spawn(self, function: Callable[[], Coroutine[object, object, None]]) -> None:
        assert self._home is not None
        self._home.spawn(function)

    def _lose(self, actor: Actor, error: StaleEpoch) -> None:
        """Another owner has claimed the root of `actor`: all of the tree stops at once, whoever of
        it was told first. A root on its way back stays away."""
        actor.tree.lost = error
        root = self._actors.get(actor.root)
        if root is not None and root.epoch == actor.epoch:
            root.lose(error)

    def _left(self, actor: Actor, error: BaseException | None) -> None:
        if isinstance(error, StaleEpoch):
            self._lose(actor, error)
        if self._actors.get(actor.session_id) is not actor:
            return
        del self._actors[actor.session_id]
        if error is not None:
            # Nobody brings it back before its turn is over: one runner (law 4).
            self._loading[actor.session_id] = anyio.Event()
            self._owed[actor.session_id] = actor.results
            self._returning[actor.session_id] = anyio.Event()
            self._spawn(partial(self._bring_back, actor, error))

    async def _bring_back(self, actor: Actor, error: BaseException) -> None:
        """A session whose store failed goes on by itself, from what is durable, as soon as the
        store answers again. One that another owner has claimed is that owner's."""
        try:
            await self._bring_back_when_possible(actor, error)
        finally:
            self._returning.pop(actor.session_id).set()

    async def _bring_back_when_possible(self, actor: Actor, error: BaseException) -> None:
        await actor.work_over()
        error = actor.tree.lost or error
        failure = f"it could not be stored: {error}"
        known = {turn.id: known_of(actor, turn, failure) for turn in actor.turns.unsettled}
        self._known[actor.session_id] = known
        for turn, each in known.items():
            if each.stop is not None:
                await self.keep_stop(actor, turn, each.stop)
        self._loading.pop(actor.session_id).set()
        delay_s = self.limits.bring_back_first_s
        while not (self._closing or isinstance(error, StaleEpoch | SessionGone)):
            try:
                await self.actor(actor.session_id, unasked=True)
                return
            except (SessionGone, SessionUnreadable) as lost:
                error = SessionGone(str(lost))
            except Exception as failure:  # boundary: tried again until the engine is closed
                _log.warning("%s cannot be brought back: %s", actor.session_id, failure)
                await anyio.sleep(delay_s)
                delay_s = min(2 * delay_s, self.limits.bring_back_max_s)
        self._known.pop(actor.session_id, None)
        self._owed.pop(actor.session_id, Results()).lost(SessionGone(str(error)))


def _owned(child: SessionHead, epoch: int) -> SessionHead:
    """A sub-agent is written under the epoch at which its root was claimed here. What the store
    shows now may be another owner's."""
    return msgspec.structs.replace(child, epoch=epoch)
