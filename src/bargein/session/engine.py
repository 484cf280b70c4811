"""The session engine: all sessions of one process, on one store.

`async with SessionEngine(...) as engine:` continues the sessions that an earlier process left
unfinished, brings sessions into memory when they are needed, removes idle ones from memory, and at
the end settles every turn within a bound. It owns every task that a session starts.
"""

import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self

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
)
from bargein.cancel._loops import call_if_open, loop_caller
from bargein.contracts.checkpoint import Checkpoints
from bargein.contracts.event import Recorded
from bargein.contracts.given import check_texts
from bargein.contracts.output_type import OutputType
from bargein.contracts.place import SessionPlace
from bargein.contracts.receipt import Receipt, ReceiptStatus, Scope
from bargein.contracts.store import (
    LeasedStore,
    OwnedElsewhere,
    Reserve,
    SessionHead,
    SessionUnreadable,
    StaleEpoch,
    Store,
)
from bargein.contracts.tool import LostCalls, UndoingToolbox
from bargein.errors import BargeinError, UserError
from bargein.session.abort import land, stopped_before
from bargein.session.actor import Actor, Decide, Parts
from bargein.session.broadcast import Observe
from bargein.session.children import AgentKind, Below, ChildRun, is_child, like
from bargein.session.commands import Close, Drain, Passivate, Refuse, SetPlace
from bargein.session.decide import decide
from bargein.session.elsewhere import Elsewhere
from bargein.session.engine_tasks import EngineTasks
from bargein.session.hooks import Hooks, run_bounded
from bargein.session.journal import GroupCommitter
from bargein.session.limits import Limits
from bargein.session.permits import PermissionSettings
from bargein.session.recovery import Recovery, owned
from bargein.session.reply import SessionGone
from bargein.session.results import Results
from bargein.session.sending import Busy
from bargein.session.session import Session
from bargein.session.side_question import SideRun
from bargein.session.side_request import MakeSideRequest
from bargein.session.snapshot import stored_in
from bargein.session.staging import refuse_to_leave_stage
from bargein.session.state import SessionState
from bargein.session.title import Titles
from bargein.session.turn import AgentFunction

SESSION_ID_CHARACTERS_MAX = 200
UNREADABLE_MAX = 1000

_log = logging.getLogger("bargein.session")


class EngineClosed(UserError):
    """The engine is closed or about to close, and brings no session into memory."""


class PartsOf(Protocol):
    """Makes the parts of a session that has a place, from the engine's own. `environment` is what
    the caller lends it; None leaves what it has. Raises `UserError` if nothing can work there,
    unless the session is only `brought` into memory: then its turns fail with that error."""

    async def __call__(
        self,
        parts: Parts,
        session_id: str,
        place: SessionPlace,
        *,
        environment: Mapping[str, str] | None = None,
        brought: bool = False,
        created_at: float = 0.0,
    ) -> Parts: ...


class SessionEngine:
    """A simulation can replace `decide` and the clocks. A given `owner` is already open and
    outlives the engine; tools may share it. `compact` is the agent of turns that only compress.
    `titles` sets how sessions get titles; with None they get none. `output_type` is the type of the
    agent's answers; None for words. `checkpoints` saves files around calls. `lost_calls` learns how
    calls ended under which an earlier process died. `place_of` names the place of a session that
    was given none. `parts_of` equips the sessions that have a place; without it a place is only
    written down. `toolbox` undoes calls whose tools declare how. `machine` names this one, if
    other machines go on with the sessions and have other files."""

    def __init__(
        self,
        agent: AgentFunction,
        store: Store,
        *,
        hooks: Hooks | None = None,
        limits: Limits | None = None,
        compact: AgentFunction | None = None,
        side_request: MakeSideRequest | None = None,
        titles: Titles | None = None,
        clock: Clock = SYSTEM_CLOCK,
        now: Callable[[], float] = time.time,
        decide: Decide = decide,
        owner: TaskOwner | None = None,
        observe: Observe | None = None,
        below: Below | None = None,
        reserve: Reserve | None = None,
        permission: PermissionSettings | None = None,
        checkpoints: Checkpoints | None = None,
        output_type: OutputType[Any] | None = None,
        parts_of: PartsOf | None = None,
        place_of: Callable[[str], SessionPlace | None] | None = None,
        lost_calls: LostCalls | None = None,
        toolbox: UndoingToolbox | None = None,
        machine: str = "",
    ) -> None:
        self.limits = limits or Limits()
        self.store = store
        self.output_type = output_type
        self.machine = machine
        self._parts_of = parts_of
        self._place_of = place_of
        self.recovery = Recovery(self, reserve, lost_calls)
        self._now = now
        self.source = CancelSource("engine", clock=clock)
        self._owner = owner or TaskOwner(close_grace_s=self.limits.settle_s, apart=True)
        self._own_owner = owner is None
        self._tasks: EngineTasks | None = None
        self._loop_caller: Callable[[Callable[[], object]], object] | None = None
        self._committer = GroupCommitter(
            store, linger_s=self.limits.linger_s, now=now, spawn=self.spawn
        )
        self.parts = Parts(
            store=store,
            committer=self._committer,
            agent=agent,
            compact=compact,
            titles=titles,
            decide=decide,
            clock=clock,
            limits=self.limits,
            hooks=hooks,
            owner=self._owner,
            spawn=self.spawn,
            left=self._left,
            observe=observe,
            below=below or like(agent),
            permission=permission or PermissionSettings(),
            checkpoints=checkpoints,
            make_child=self._make_child,
            side_request=side_request,
            toolbox=toolbox,
        )
        self._actors: dict[str, Actor] = {}
        self._loading: dict[str, anyio.Event] = {}
        self.unreadable: dict[str, str] = {}
        self.side_runs: dict[tuple[str, str], SideRun] = {}
        """The side questions that are being answered, by session and id."""
        self.now = now
        self.closing = False
        self._draining = False
        self.elsewhere = Elsewhere(self, store) if isinstance(store, LeasedStore) else None

    async def __aenter__(self) -> Self:
        if self._tasks is not None:
            raise RuntimeError("an engine was entered twice; make a new one")
        if self._own_owner:
            await self._owner.__aenter__()
        self._loop_caller = loop_caller()
        self._tasks = EngineTasks()
        self._tasks.open()
        self._committer.open()
        self.spawn(self._let_idle_ones_go)
        try:
            if self.elsewhere is not None:
                self.elsewhere.open()
            await self.recovery.go_on_with_unfinished()
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
        assert self._tasks is not None
        self.closing = True
        try:
            # Without an await before it: a turn that other code cancels at the same moment must
            # count as stopped, not as failed.
            told = self._tell_to_close()
            await self._tasks.finish(partial(self._close_sessions, told))
        finally:
            self._give_up()
            try:
                await self._tasks.close()
            finally:
                if self._own_owner:
                    await self._owner.__aexit__(kind, error, trace)

    def _give_up(self) -> None:
        self.source.cancel(Reason(Cause.SHUTDOWN, "the engine is closed"))
        closed = SessionGone("the engine is closed")
        for actor in list(self._actors.values()):
            actor.give_up(closed)
        self.recovery.give_up(closed)

    async def session(self, session_id: str) -> Session[Any]:
        """Return the session of this name; make it if it does not exist. This never makes a
        sub-agent's session. A session that another owner has can be looked at and stopped here."""
        check_texts(session_id=session_id)
        if is_child(session_id):
            await self.actor(session_id)
            return Session(self, session_id)
        if not session_id or len(session_id) > SESSION_ID_CHARACTERS_MAX:
            raise UserError(
                f"the name of a session has {len(session_id)} characters; give it 1 to "
                f"{SESSION_ID_CHARACTERS_MAX}"
            )
        try:
            await self.actor(session_id)
        except OwnedElsewhere:
            if self.elsewhere is None:
                raise
        return Session(self, session_id)

    @property
    def in_memory(self) -> tuple[str, ...]:
        return tuple(self._actors)

    def actor_in_memory(self, session_id: str) -> Actor | None:
        return self._actors.get(session_id)

    def is_at_hand(self, session_id: str) -> bool:
        """Whether a session is in memory or on its way there."""
        in_memory = session_id in self._actors or session_id in self._loading
        return in_memory or self.recovery.is_returning(session_id)

    async def actor(self, session_id: str, *, unasked: bool = False) -> Actor:
        """Return the session in memory. If it is not there, one caller brings it for all.

        `unasked`: the engine itself wants it, not a user. Then it claims a root only if that is on
        its way back anyway. Any other root may belong to another owner by now, so this raises
        `SessionGone`.
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
                # A closed engine claims nothing: by then another engine may have the session.
                with self.source.token.scope():
                    return await self._load(session_id, unasked)
            except SessionUnreadable as error:
                self._note_unreadable(session_id, error)
                raise
            finally:
                self._loading.pop(session_id).set()
            self.refuse_if_closing()

    async def events(
        self,
        session_id: str,
        *,
        after: int = 0,
        limit: int | None = None,
        bytes_max: int | None = None,
    ) -> list[Recorded]:
        """Return the durable part of a session's log."""
        try:
            return await self.store.events(
                session_id, after=after, limit=limit, bytes_max=bytes_max
            )
        except SessionUnreadable as error:
            self._note_unreadable(session_id, error)
            raise

    async def check_readable(self, actor: Actor) -> None:
        """Raise `SessionUnreadable` if the log that a turn would need cannot be read. Checks
        nothing while a turn runs, because the turn has read the log."""
        if actor.turn is not None or actor.logbook.is_readable:
            return
        try:
            # A store that does not answer must not prevent sending: the turn will fail with the
            # error. If another owner has the session, the commit will fail.
            with anyio.move_on_after(self.limits.store_s), suppress(StaleEpoch):
                await actor.logbook.check_readable()
        except SessionUnreadable as error:
            self._note_unreadable(actor.session_id, error)
            raise
        self.unreadable.pop(actor.session_id, None)

    def _note_unreadable(self, session_id: str, error: SessionUnreadable) -> None:
        """Remember why a session cannot be read, so that lists of sessions can show it."""
        if session_id not in self.unreadable:
            _log.error("%s", error)
        self.unreadable[session_id] = str(error)
        if len(self.unreadable) > UNREADABLE_MAX:
            del self.unreadable[next(iter(self.unreadable))]

    async def _load(self, session_id: str, unasked: bool) -> Actor:
        self.refuse_if_closing()
        if self._draining:
            raise EngineClosed("the engine is about to close and brings no session into memory")
        if is_child(session_id):
            return await self._load_child(session_id, unasked)
        if unasked and session_id not in self.recovery.owed:
            raise SessionGone(f"{session_id} has left memory, and no user asked for it")
        head = await self.store.claim(session_id)
        created = head is None
        if created and unasked:
            raise SessionGone(f"{session_id} was deleted")
        while head is None:
            head = await self.store.create(session_id, root=session_id, at=self._now())
            head = head or await self.store.claim(session_id)
            if head is None and await self.store.head(session_id) is not None:
                return await self._load_child(session_id, unasked)
        parts = await self._parts_for(head)
        actor = self._actors[session_id] = await self.recovery.bring(head, parts)
        if created and self.parts.hooks is not None:
            self.spawn(partial(self._run_session_hook, self.parts.hooks, session_id))
        return actor

    # Places

    async def _parts_for(self, head: SessionHead) -> Parts | None:
        place = stored_in(head).state.place
        if place is None and self._place_of is not None:
            place = self._place_of(head.id)
        if place is None or self._parts_of is None:
            return None
        return await self._parts_of(
            self.parts, head.id, place, brought=True, created_at=head.created_at
        )

    async def place(
        self,
        session_id: str,
        place: SessionPlace,
        *,
        environment: Mapping[str, str] | None,
        by: str,
    ) -> None:
        """Let a session work elsewhere, from its next turn on."""
        if is_child(session_id):
            raise UserError(f"{session_id} is a sub-agent, which works where its parent does")
        command = SetPlace(place, by)
        while True:
            actor = await self.actor(session_id)
            parts: Parts | None = None
            if self._parts_of is not None:
                self._refuse_to_move(actor, command)
                await refuse_to_leave_stage(actor, place)
                parts = await self._parts_of(
                    self.parts,
                    session_id,
                    place,
                    environment=environment,
                    created_at=actor.created_at,
                )
            if not actor.gone.is_set:
                break  # otherwise it left memory meanwhile
        reply = actor.post(command)
        if parts is not None and actor.state.place == place:
            # Without an await after the decision: a cancel of this call would leave the session
            # where it was, although its log says otherwise.
            actor.work_with(parts)
        answer = await reply.wait()
        if isinstance(answer, Refuse):
            raise Busy(answer.why)

    def _refuse_to_move(self, actor: Actor, command: SetPlace) -> None:
        """Raise `Busy` before anything is opened for a place that would be refused."""
        _, effects = self.parts.decide(actor.state, command)
        for effect in effects:
            if isinstance(effect, Refuse):
                raise Busy(effect.why)

    # Sub-agents

    async def _make_child(self, run: ChildRun, kind: AgentKind) -> Actor:
        """Make a sub-agent's session under its parent's root. It is in memory when this returns, so
        nothing else brings it there."""
        parent = run.parent
        while (loading := self._loading.get(run.id)) is not None:
            await loading.wait()
        self._loading[run.id] = anyio.Event()
        try:
            self.refuse_if_closing()
            try:
                head = await self.store.create(
                    run.id, root=parent.root, at=self._now(), epoch=parent.epoch
                )
            except StaleEpoch as error:
                self._lose(parent, error)
                raise
            if head is None:
                raise UserError(f"a session named {run.id} already exists")
            parts = msgspec.structs.replace(
                parent.parts, agent=kind.agent, below=kind.below, left=self._left
            )
            actor = Actor(parts, head, SessionState(child=True), Results(), run)
            self._actors[run.id] = actor
        finally:
            self._loading.pop(run.id).set()
        if self.parts.hooks is not None:
            self.spawn(partial(self._run_session_hook, self.parts.hooks, run.id))
        return actor

    async def _load_child(self, session_id: str, unasked: bool) -> Actor:
        """Bring a sub-agent that is not at work into memory, for reading. Its root is loaded first
        and settles the sub-agent if necessary."""
        head = await self.store.head(session_id)
        if head is None:
            raise UserError(f"there is no sub-agent {session_id}")
        root = await self.actor(head.root, unasked=unasked)
        head = owned(await self.store.head(session_id) or head, root.epoch)
        actor = self._actors[session_id] = await self.recovery.bring(head)
        return actor

    async def drain(self) -> None:
        """Let the running turns end by themselves and start no others: waiting messages stay for
        the next start. Returns when no turn runs; a caller with less time just closes the
        engine."""
        self._draining = True
        for actor in list(self._actors.values()):
            actor.post(Drain())
        while running := [each.turn for each in self._actors.values() if each.turn is not None]:
            for turn in running:
                with suppress(BargeinError):
                    await turn.settled.wait()
            # `settled` is given a moment before the session has no turn.
            await anyio.lowlevel.checkpoint()

    async def hand_over(self, root: str) -> None:
        """Give up a session in which nothing goes on, so that another node can claim it."""
        actor = self._actors.get(root)
        if actor is not None:
            # Watchers go on at the next owner.
            if not actor.is_still:
                return
            actor.post(Passivate())
            if not actor.gone.is_set:
                return
        store = self.store
        if not isinstance(store, LeasedStore) or self.is_at_hand(root):
            return
        # Callers that ask for it meanwhile wait: a session given up while it comes into memory
        # would run here and at another node (law 4).
        self._loading[root] = anyio.Event()
        try:
            head = await store.head(root)
            if head is None or head.owner != store.owner:
                return
            given_up = await store.release(root, epoch=head.epoch)
            if given_up and self.elsewhere is not None:
                self.elsewhere.moved["given up"] += 1
        finally:
            self._loading.pop(root).set()

    async def stop_all(self, *, scope: Scope, by: str) -> tuple[Receipt, ...]:
        """Stop all sessions at once, and return the receipts of those in which something ran."""
        receipts: list[Receipt] = []

        async def stop(session_id: str) -> None:
            # A session that has left memory runs nothing.
            with suppress(BargeinError):
                receipt = await Session(self, session_id).interrupt(scope=scope, by=by)
                if receipt.status is ReceiptStatus.STOPPED:
                    receipts.append(receipt)

        async with anyio.create_task_group() as group:
            for session_id in self.in_memory:
                if not is_child(session_id):
                    group.start_soon(stop, session_id)
        return tuple(receipts)

    def refuse_if_closing(self) -> None:
        if self.closing:
            raise EngineClosed("the engine is closed; open it with `async with Engine(...)`")

    async def _run_session_hook(self, hooks: Hooks, session_id: str) -> None:
        await run_bounded(
            self._owner,
            hooks.session_started,
            session_id,
            token=self.source.token,
            timeout_s=self.limits.hook_s,
            name="session_started",
        )

    async def _let_idle_ones_go(self) -> None:
        while True:
            await anyio.sleep(self.limits.idle_s)
            self._passivate_since(self.parts.clock.now() - self.limits.idle_s)

    def let_go(self, session_id: str) -> None:
        """Remove a session from memory, if it does nothing."""
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
            landing = land(actor, Reason(Cause.SHUTDOWN, "the program ends"))
            actor.post(Close(stopped_before(landing)))
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

    def call_in_loop(self, function: Callable[[], object]) -> None:
        """Make the engine's loop call `function` soon. Any thread or signal handler may call
        this."""
        if self._loop_caller is not None:
            call_if_open(self._loop_caller, function)

    def spawn(self, function: Callable[[], Coroutine[object, object, None]]) -> None:
        """Start a task that belongs to the engine and ends with it. It must not raise."""
        assert self._tasks is not None
        self._tasks.spawn(function)

    def _lose(self, actor: Actor, error: StaleEpoch) -> None:
        """Stop the whole tree of `actor` at once, because another owner has claimed its root. Any
        part of the tree may notice it first. A root on its way back does not come back."""
        actor.tree.lost = error
        root = self._actors.get(actor.root)
        if root is not None and root.epoch == actor.epoch:
            root.lose(error)

    def lose_everything(self, why: str) -> None:
        """This owner may be declared dead: stop every session at once. Others go on with them."""
        error = StaleEpoch(why)
        roots = [each for each in self._actors.values() if each.session_id == each.root]
        if self.elsewhere is not None:
            self.elsewhere.moved["lost with the lease"] += len(roots)
        for actor in roots:
            self._lose(actor, error)

    def _left(self, actor: Actor, error: BaseException | None) -> None:
        if isinstance(error, StaleEpoch):
            self._lose(actor, error)
        if self._actors.get(actor.session_id) is not actor:
            return
        del self._actors[actor.session_id]
        if error is not None:
            # Nothing may bring it back before its turn is over: one runner (law 4).
            loading = self._loading[actor.session_id] = anyio.Event()

            def let_in() -> None:
                del self._loading[actor.session_id]
                loading.set()

            self.recovery.begin(actor, error, let_in)
