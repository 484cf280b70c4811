"""A session in memory: takes commands one at a time, decides them with `decide`, carries them out.

Nothing here waits. `post` decides a command and begins its effects before it returns. Writing,
running a turn and gathering an album are tasks of the engine, which post further commands. So
between any two awaits the session is in exactly one consistent state.

Everything runs in the engine's loop, with one exception: any thread may read `turn`. `abort.land`
uses it to cancel the running turn from any thread or signal handler; the command follows in the
loop.
"""

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial

import anyio
import msgspec

from bargein.calls import words
from bargein.cancel import CancelSource, Cause, Clock, Reason, TaskOwner, Token
from bargein.cancel.latch import Latch
from bargein.contracts.checkpoint import Checkpoints
from bargein.contracts.event import (
    AssistantSaid,
    Event,
    MessageAccepted,
    MessageWithdrawn,
    ModelUsed,
    Recorded,
    SessionPlaced,
    TurnSettled,
)
from bargein.contracts.live import Live, Notice, Paused, Stopping
from bargein.contracts.message import Message
from bargein.contracts.stage import SessionStage
from bargein.contracts.store import AcceptKey, Commit, SessionHead, StaleEpoch, Store
from bargein.contracts.tool import CallResult, ChildReport, ChildTask, Question, UndoingToolbox
from bargein.errors import BargeinError
from bargein.session import snapshot
from bargein.session.broadcast import Broadcast, Observe
from bargein.session.calls import ActiveCall
from bargein.session.children import AgentKind, Below, Children, ChildRun, Tree
from bargein.session.commands import (
    Accept,
    Announce,
    Boundary,
    Command,
    CutModel,
    Done,
    Effect,
    Gather,
    GatherOver,
    GiveAnswer,
    GiveSteers,
    Leave,
    Log,
    Pause,
    Refuse,
    RestoreFiles,
    Resume,
    Send,
    Settled,
    StartTurn,
    Stop,
    StopBackground,
)
from bargein.session.files import SessionFiles
from bargein.session.hooks import Hooks
from bargein.session.journal import GroupCommitter, Journal, JournalBroken
from bargein.session.limits import Limits, weight_of_waiting
from bargein.session.logbook import Logbook
from bargein.session.permits import PermissionSettings, SessionPermits
from bargein.session.questions import Questions
from bargein.session.reply import Reply, SessionGone
from bargein.session.results import TAKES, Results
from bargein.session.rolling_back import put_files_back
from bargein.session.rules.moves import Decision
from bargein.session.side_request import MakeSideRequest
from bargein.session.state import Lane, Phase, SessionState, WaitingMessage
from bargein.session.title import Titler, Titles
from bargein.session.turn import AgentFunction, Turn
from bargein.session.turns import Turns
from bargein.session.watching import tell_pages

Decide = Callable[[SessionState, Command], Decision]

MAY_STOP = (Send, Stop)
ANSWERS = (Accept, Done, Refuse)


class Parts(msgspec.Struct, frozen=True):
    """The parts of an engine that all its sessions share."""

    store: Store
    committer: GroupCommitter
    agent: AgentFunction
    compact: AgentFunction | None
    titles: Titles | None
    decide: Decide
    clock: Clock
    limits: Limits
    hooks: Hooks | None
    owner: TaskOwner
    spawn: Callable[[Callable[[], Coroutine[object, object, None]]], None]
    left: Callable[["Actor", BaseException | None], None]
    observe: Observe | None
    below: Below
    permission: PermissionSettings
    checkpoints: Checkpoints | None
    make_child: Callable[[ChildRun, AgentKind], Awaitable["Actor"]]
    side_request: MakeSideRequest | None = None
    toolbox: UndoingToolbox | None = None
    stage: SessionStage | None = None


class Actor:
    # Rarely set, so defaults of the class: an object with thirty own attributes takes a kilobyte.
    comes_back = False
    moved_from = ""
    unheard: tuple[Message, ...] = ()
    stopped_beside: tuple[ActiveCall, ...] = ()
    _boundary: Reply | None = None
    _next_parts: Parts | None = None
    _weighed: tuple[WaitingMessage, ...] = ()
    _weight = 0

    def __init__(
        self,
        parts: Parts,
        head: SessionHead,
        state: SessionState,
        results: Results,
        run: ChildRun | None = None,
    ) -> None:
        """`results` may contain results that senders still expect from before the session left
        memory. `run` is set for a sub-agent at work: its parent's handle on it."""
        self.session_id = head.id
        self.limits = parts.limits
        self.clock = parts.clock
        self.owner = parts.owner
        self.hooks = parts.hooks
        self.logbook = Logbook(snapshot.stored_in(head), head.seq, self._read_log)
        self.root = head.root
        self.epoch = head.epoch
        self.created_at = head.created_at
        self.run = run
        self.tree: Tree = run.parent.tree if run is not None else Tree()
        above = run.source.token if run is not None else None
        self.source = CancelSource(f"session {head.id}", above, clock=parts.clock)
        self.lifetime: CancelSource = self.source.token.child("session lifetime")
        self.broadcast = Broadcast(
            head.id,
            parts.limits.watcher_events_max,
            parts.observe,
            bytes_max=parts.limits.watcher_bytes_max,
        )
        self.results = results
        self.background: dict[str, ActiveCall] = {}
        # What a sub-agent changes is within its parent's call.
        self.files = SessionFiles(self, parts.checkpoints if run is None else None)
        self.children = Children(self, self.tree, parts.below)
        self.questions = Questions(self)
        self.titler = Titler(self, parts.titles if head.id == head.root else None, head.title)
        self.turns = Turns(self, parts)
        self.gone = Latch()
        self.used_at = parts.clock.now()
        self.recent: OrderedDict[tuple[str, str], tuple[AcceptKey, Reply]] = OrderedDict()
        self._parts = parts
        self.state = state
        self._placed = state.place
        self.files.restores(bool(state.restoring))
        self._commands: deque[tuple[Command, Reply]] = deque()
        self._handling = False
        self._journal = Journal(
            parts.committer,
            session=head.id,
            root=head.root,
            epoch=head.epoch,
            seq=head.seq,
            state=self._to_store,
            announce=self._announce,
            durable=self._go_on,
            on_broken=self._broken,
        )

    # Commands

    @property
    def turn(self) -> Turn | None:
        """The turn that can be stopped. Any thread may read it."""
        return self.turns.current

    @property
    def permits(self) -> SessionPermits:
        return SessionPermits(self, self._parts.permission)

    @property
    def parts(self) -> Parts:
        return self._parts

    def work_with(self, parts: Parts) -> None:
        """Use other parts from the next turn on: the session has another place. A turn that runs
        keeps its own, with its sub-agents, permissions and snapshots."""
        self._next_parts = parts
        if self.turn is None:
            self._take_up_parts()

    def _take_up_parts(self) -> None:
        parts, self._next_parts = self._next_parts, None
        if parts is None:
            return
        self._parts = parts
        self.turns.work_with(parts)
        self.children.below = parts.below
        self.titler.titles = parts.titles if self.session_id == self.root else None
        self.files.work_with(parts.checkpoints if self.run is None else None)

    @property
    def depth(self) -> int:
        return self.run.depth if self.run is not None else 0

    @property
    def newest_steer(self) -> str | None:
        steers = self.state.lane(Lane.STEER)
        return steers[-1].id if steers else None

    @property
    def appended_seq(self) -> int:
        """The number of the last event, stored or on its way to the store."""
        return self.logbook.seq

    @property
    def waiting_bytes(self) -> int:
        waiting = self.state.waiting
        if waiting is not self._weighed:
            self._weighed, self._weight = waiting, weight_of_waiting(waiting)
        return self._weight

    @property
    def held_bytes(self) -> int:
        """How many bytes of people's words and files the session keeps in memory."""
        return self.waiting_bytes + self.logbook.held_bytes

    @property
    def durable_seq(self) -> int:
        return self._journal.durable_seq

    def post(self, command: Command, keys: tuple[AcceptKey, ...] = ()) -> Reply:
        """Decide a command and begin its effects. Only in the loop's thread."""
        reply = Reply()
        reply.keys = keys
        if self.gone.is_set:
            reply.fail(SessionGone(f"{self.session_id} has left memory"))
            return reply
        self.used_at = self.clock.now()
        if self._handling:
            self._commands.append((command, reply))
            return reply
        self._handling = True
        try:
            self._handle(command, reply)
            while self._commands:
                self._handle(*self._commands.popleft())
        finally:
            self._handling = False
        return reply

    def _handle(self, command: Command, reply: Reply) -> None:
        before = self.state
        self.state, effects = self._parts.decide(before, command)
        if self.state.turn != before.turn:
            self._take_up_parts()
            self.turns.change(self.state.turn)
            self._boundary = None
        if isinstance(command, MAY_STOP):
            if command.landed:
                self._show_stop()
        elif isinstance(command, Pause | Resume):
            if self.turn is not None and before.phase is not self.state.phase:
                self.emit(Paused(self.turn.id, self.state.phase is Phase.PAUSED))
        elif isinstance(command, Settled):
            if before.child:
                self.unheard = tuple(each.message for each in before.waiting)
        elif isinstance(command, Boundary) and not effects:
            # Paused: the resume answers this.
            self._boundary = reply
        if self.state.restoring != before.restoring:
            self.files.restores(bool(self.state.restoring))
        reply.follow = effects
        self._go_on(reply)

    def _show_stop(self) -> None:
        turn = self.turn
        if turn is not None and not turn.stop_shown:
            turn.stop_shown = True
            self.emit(Stopping(turn.id))

    # Effects

    def _go_on(self, reply: Reply) -> None:
        """Carry out the effects of a command. Those after a `Log` wait until it is durable."""
        effects, reply.follow = iter(reply.follow), ()
        for effect in effects:
            if type(effect) is Log:
                reply.events, reply.follow = effect.events, tuple(effects)
                self._append(reply, effect.lingers)
                return
            if isinstance(effect, ANSWERS):
                reply.give(effect)
            else:
                self._do(effect, reply)

    def _do(self, effect: Effect, reply: Reply) -> None:
        match effect:
            case CutModel():
                if self.turn is not None and self.turn.id == effect.turn:
                    self.turn.cut_model()
            case StartTurn():
                self._tell_that_it_moved(effect.turn)
                self.turns.start(effect)
            case RestoreFiles():
                self._put_files_back(effect.turn)
            case GiveSteers():
                (self._boundary or reply).give(effect)
                self._boundary = None
            case Announce():
                self.turns.announce(effect)
            case Gather():
                self.spawn(partial(self._gather, effect.group))
            case GiveAnswer():
                self.questions.give(effect)
            case StopBackground():
                self.lifetime.cancel(Reason(Cause.SHUTDOWN, "the session ends"))
            case Leave():
                self._leave_if_written()
            case Log() | Accept() | Done() | Refuse():
                raise AssertionError("_go_on carries these out")

    def _append(self, reply: Reply, lingers: bool) -> None:
        if self.state.place is not self._placed:
            self._log_place(reply)
        for event in reply.events:
            turn_s = 0.0 if type(event) is MessageAccepted else self._note(event)
            self.logbook.apply(event, turn_s)
        self._journal.append(reply, lingers)

    def _tell_that_it_moved(self, turn: str) -> None:
        if self.moved_from:
            self.emit(Notice(turn, words.moved_note(self.moved_from, self.state.machine)))
            self.moved_from = ""

    def _log_place(self, reply: Reply) -> None:
        """The log names the place before anything that happens there."""
        place = self._placed = self.state.place
        if place is not None and not any(type(event) is SessionPlaced for event in reply.events):
            reply.events = (SessionPlaced(place), *reply.events)

    def _note(self, event: Event) -> float:
        """Note an event for the waiters for results. If it ends a turn, returns the seconds that
        the turn took."""
        if isinstance(event, TAKES):
            self.results.taken(event.turn, event.messages)
        elif isinstance(event, MessageWithdrawn):
            self.results.being_withdrawn(event.message)
        elif isinstance(event, TurnSettled):
            return self.turns.seconds_of(event.turn)
        return 0.0

    async def events_of(self, turn: str) -> list[Recorded]:
        """Return the stored events that name this turn, and the messages that aimed at it."""
        found: list[Recorded] = []

        def keep(recorded: Recorded) -> None:
            event = recorded.event
            if turn in (getattr(event, "turn", None), getattr(event, "target", None)):
                found.append(recorded)

        await tell_pages(self._parts.store.events, self.session_id, keep)
        return found

    async def _read_log(self, tell: Callable[[Recorded], None]) -> None:
        """Read the log page by page, so that a long log is never in memory as a whole."""

        def check(recorded: Recorded) -> None:
            if recorded.seq > self.appended_seq:
                raise StaleEpoch(f"{self.session_id} has another owner, which has continued it")
            tell(recorded)

        await tell_pages(self._parts.store.events, self.session_id, check)

    def _to_store(self) -> tuple[bytes, bool]:
        """Return the state after all appended events, and whether it is unfinished. A command is
        decided and its events are appended without an await in between, so state and log always
        match."""
        return self.logbook.encode(self.state), self.state.unfinished

    def _announce(self, commit: Commit) -> None:
        for event in commit.events:
            if type(event) is MessageWithdrawn:
                self.results.withdrawn(event.message)
        if self.broadcast.is_heard:
            for seq, event in enumerate(commit.events, commit.expected_seq + 1):
                self.broadcast.send(Recorded(seq, commit.at, event))

    async def work_over(self) -> None:
        """Wait until no turn, background call or sub-agent of this session is in flight. Each has a
        bound once it is cancelled."""
        await self.turns.work_over()
        for call in list(self.background.values()):
            await call.over.wait()
        for run in self.children.running:
            await run.over.wait()

    @property
    def lost(self) -> list[tuple[int, AssistantSaid | ModelUsed]]:
        """The model answers and usage that could not be stored, each with the place in the log that
        it would have had."""
        return self._journal.lost

    async def stored_so_far(self) -> bool:
        """Wait until everything appended until now is durable. Returns False if it never will
        be."""
        return await self._journal.reached(self.appended_seq)

    def durably_waiting(self) -> tuple[str, ...]:
        """Return the waiting messages that are durable, so their senders have been acknowledged."""
        durable_seq = self.durable_seq
        waiting = (each.message.id for each in self.state.waiting)
        return tuple(each for each in waiting if self.logbook.seq_of(each) <= durable_seq)

    async def written(self) -> None:
        """Wait until nothing is on its way to the store. A turn is over once its end is written."""
        await self._journal.idle()

    def _put_files_back(self, turn: str) -> None:
        if self.files.takes_up_restore():
            self.spawn(partial(put_files_back, self, turn))

    async def _gather(self, group: str) -> None:
        await anyio.sleep(self.limits.gather_s)
        self.post(GatherOver(group))

    def _leave_if_written(self) -> None:
        """Leave memory only when nothing is on its way to the store: at once, or, if the session
        takes no more commands, when everything is written. Otherwise stay."""
        if self._journal.is_idle and self.files.is_idle:
            self._leave()
        elif self.state.closing or self.state.phase is Phase.ENDED:
            self.spawn(self._leave_when_written)

    async def _leave_when_written(self) -> None:
        await self.files.idle()
        await self._journal.idle()
        self._leave()

    def _leave(self, error: BaseException | None = None) -> None:
        """Leave memory. With an `error` the session comes back, and the results that senders expect
        are kept until then."""
        if self.gone.is_set:
            return
        self.comes_back = error is not None
        self.gone.set()
        self.source.cancel(Reason(Cause.SHUTDOWN, "the session leaves memory"))
        gone = SessionGone(f"{self.session_id} has left memory")
        if error is None:
            self.results.lost(gone)
            self._let_go_of_words()
        self.turns.lose(gone)
        self.files.restores(False)
        self.broadcast.close()
        self._parts.left(self, error)

    def _let_go_of_words(self) -> None:
        """An actor is in circles with its parts. Until Python's collector comes by, which does not
        know how much they hold, it should hold no megabytes of what people said."""
        self.logbook.let_go()
        self._weighed, self._weight = (), 0
        if self.state.phase is Phase.ENDED:
            self.state = msgspec.structs.replace(self.state, waiting=())

    def _broken(self, error: BaseException) -> None:
        """Handle a failed write: stop everything, fail all waiters, and let the session start again
        from what is durable."""
        self.source.cancel(Reason(Cause.LEASE_LOST, str(error)))
        broken = JournalBroken(f"{self.session_id} could not be stored: {error}")
        for _, reply in self._commands:
            reply.fail(broken)
        self._leave(error)

    def lose(self, error: StaleEpoch) -> None:
        """Stop because another owner has the session. A sub-agent noticed it first."""
        self._journal.give_up(error)
        self._broken(error)

    def give_up(self, error: BargeinError) -> None:
        """Stop waiting for the store, because the engine ends."""
        self._journal.give_up(error)
        self._leave()

    @property
    def is_over(self) -> bool:
        """Whether the session has ended for good and all of it is stored."""
        return self.state.phase is Phase.ENDED and self._journal.is_idle

    @property
    def is_quiet(self) -> bool:
        """Whether the session may leave memory, by things that `decide` does not know: writes,
        watchers, processes."""
        return self.is_still and not self.broadcast.is_watched

    @property
    def is_still(self) -> bool:
        """Whether nothing is being written and no process runs. Somebody may watch."""
        in_use = self.lifetime.token.in_use
        return self._journal.is_idle and self.files.is_idle and not in_use

    @property
    def is_working(self) -> bool:
        """Whether something runs, or waits to run by itself."""
        state = self.state
        waits = bool(state.waiting) and not state.held
        runs = state.busy or bool(state.restoring)
        return runs or waits or bool(state.background or state.children)

    def remember(self, key: AcceptKey, reply: Reply) -> None:
        """Remember a message until the store has it, to recognise a repeated delivery."""
        self.recent[key.sender, key.client_id] = (key, reply)
        if len(self.recent) > self.limits.remembered_ids_max:
            self.recent.popitem(last=False)

    def find_call(self, call_id: str) -> ActiveCall | None:
        return self.background.get(call_id) or (
            self.turn.calls.find(call_id) if self.turn is not None else None
        )

    def renew_lifetime(self, reason: Reason) -> None:
        """Stop everything that lives as long as the session; later work gets a new token."""
        self.lifetime.cancel(reason)
        self.lifetime = self.source.token.child("session lifetime")

    # What turns use

    def log(self, *events: Event) -> None:
        self._begin(Log(events, lingers=True))

    def write(self, *events: Event) -> Reply:
        return self._begin(Log(events), Done())

    def _begin(self, *effects: Effect) -> Reply:
        reply = Reply()
        if self.gone.is_set and not self.comes_back:
            # Its state is not whole any more, and the session may be in memory again.
            reply.fail(SessionGone(f"{self.session_id} has left memory"))
            return reply
        reply.follow = effects
        self._go_on(reply)
        return reply

    def spawn(self, function: Callable[[], Coroutine[object, object, None]]) -> None:
        self._parts.spawn(function)

    def so_far(self) -> tuple[Live, ...]:
        """Return the work in progress, for a watcher that joins in the middle of it."""
        turn = () if self.turn is None else self.turn.so_far()
        return turn + tuple(call.output.so_far() for call in self.background.values())

    def emit(self, live: Live) -> None:
        self.broadcast.send(live)

    async def ask(self, turn: str, call_id: str, question: Question, token: Token) -> str:
        return await self.questions.ask(turn, call_id, question, token)

    async def delegate(
        self,
        call: ActiveCall,
        turn_id: str,
        tasks: Sequence[ChildTask],
        token: Token,
        *,
        detached: bool,
    ) -> tuple[ChildReport, ...]:
        return await self.children.delegate(call, turn_id, tasks, token, detached=detached)

    async def end_children(self, call: ActiveCall, result: CallResult) -> CallResult:
        return await self.children.end(call, result)

    @property
    def side_request(self) -> MakeSideRequest | None:
        """Makes the requests for side questions; None if its agent cannot."""
        return self._parts.side_request

    async def make_child(self, run: ChildRun, kind: AgentKind) -> "Actor":
        return await self._parts.make_child(run, kind)

    @property
    def path(self) -> str:
        """The path from the root to this sub-agent, for ids that are unique in the whole tree."""
        return self.session_id.removeprefix(self.root).replace("/", ".").lstrip(".") + (
            "." if self.run is not None else ""
        )

    def pause(self) -> Reply:
        """Hold the turn at its next step boundary, and its sub-agents at theirs."""
        return self._tell_tree(Pause())

    def resume(self) -> Reply:
        return self._tell_tree(Resume())

    def _tell_tree(self, command: Pause | Resume) -> Reply:
        refused = self.turn is None
        reply = self.post(command)
        for run in () if refused else self.children.of_the_turn:
            if run.actor is not None:
                run.actor._tell_tree(command)
        return reply
