"""The one way in which a session writes: in order, durable before told, fenced by its epoch.

`append` takes its place in the order at once and never waits; the reply tells when it is
durable. While one commit is under way what comes after it gathers, and is written together, with
the state as it is then. What nobody waits for lingers for a moment first, so that the end of a turn
is one commit and not one for each thing that ends. A failed commit breaks the journal: every later
one fails too, and the session begins anew from what is durable. So nothing that was told can be
missing, and nothing is written on top of a gap. The engine's `Scribe` takes it to the store.
"""

from collections.abc import Callable

from bargein.cancel.latch import Latch
from bargein.contracts.event import (
    AssistantSaid,
    Event,
    ModelUsed,
    SessionTitled,
    UserSaid,
)
from bargein.contracts.model import Text
from bargein.contracts.store import Commit
from bargein.errors import BargeinError
from bargein.session.reply import Reply
from bargein.session.scribe import Scribe

SAID = (UserSaid, AssistantSaid)
TOLD = (AssistantSaid, ModelUsed)
"""What is remembered of events that could not be stored: the model's words, and what they cost."""
TELLING = {*SAID, SessionTitled}


class JournalBroken(BargeinError):
    """A write of this session failed; what was not confirmed before may not be there."""


class Journal:
    """`state` gives the session's state as it is to be stored, and whether that is unfinished. Once
    it is durable, `announce` is given a commit, and then `durable` what was appended for it."""

    def __init__(
        self,
        scribe: Scribe,
        *,
        session: str,
        root: str,
        epoch: int,
        seq: int,
        state: Callable[[], tuple[bytes, bool]],
        announce: Callable[[Commit], None],
        durable: Callable[[Reply], None],
        on_broken: Callable[[BaseException], None],
    ) -> None:
        self._scribe = scribe
        self._session = session
        self._root = root
        self._epoch = epoch
        self.durable_seq = seq
        self._state = state
        self._announce = announce
        self._durable = durable
        self._on_broken = on_broken
        self._waiting: list[Reply] = []
        self._under_way: list[Reply] = []
        self._in_a_hurry = False
        self._broken: BaseException | None = None
        self._idle: Latch | None = None
        self._moved: Latch | None = None
        self.lost: list[tuple[int, AssistantSaid | ModelUsed]] = []
        self._lost_seq = 0

    def append(self, reply: Reply, lingers: bool) -> None:
        """Write the events of `reply` and the state after them. If they will never be durable, it
        fails."""
        if self._broken is not None:
            self._note_lost(reply)
            _lose(reply, self._broken)
            return
        self._waiting.append(reply)
        if not lingers:
            self._hurry()
        elif len(self._waiting) == 1 and not self._under_way:
            self._scribe.write_soon(self)

    def _hurry(self) -> None:
        if self._waiting and not self._in_a_hurry:
            self._in_a_hurry = True
            if not self._under_way:
                self._scribe.write(self)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way to the store."""
        return not self._waiting and not self._under_way

    async def idle(self) -> None:
        self._hurry()
        while not self.is_idle:
            self._idle = self._idle or Latch()
            await self._idle.wait()

    async def reached(self, seq: int) -> bool:
        """Wait until the event `seq` is durable. Returns False if it never will be."""
        self._hurry()
        while self.durable_seq < seq and self._broken is None:
            self._moved = self._moved or Latch()
            await self._moved.wait()
        return self.durable_seq >= seq

    def _tell_of_move(self) -> None:
        if self._moved is not None:
            self._moved.set()
            self._moved = None

    def give_up(self, error: BaseException) -> None:
        """Wait for the store no longer: what it has not confirmed is told to have failed."""
        if self._broken is None:
            self._broken = error
            self._tell_of_move()
            self._lost_seq = self.durable_seq
            for reply in [*self._under_way, *self._waiting]:
                self._note_lost(reply)
                _lose(reply, error)
            self._waiting = []
            if not self._under_way:
                self._rest()

    def _note_lost(self, reply: Reply) -> None:
        """With the places they would have had: the store may have taken some all the same."""
        for event in reply.events:
            self._lost_seq += 1
            if isinstance(event, TOLD):
                self.lost.append((self._lost_seq, event))

    def take(self, at: float) -> Commit | None:
        """For the scribe, who writes it down now: what waits, with the state after it."""
        if not self._waiting:
            return None
        self._under_way, self._waiting = self._waiting, []
        self._in_a_hurry = False
        events, keys = self._under_way[0].events, self._under_way[0].keys
        for reply in self._under_way[1:]:
            events += reply.events
            keys += reply.keys
        state, unfinished = self._state()
        title, text = _words_of(events)
        return Commit(
            session=self._session,
            root=self._root,
            epoch=self._epoch,
            expected_seq=self.durable_seq,
            at=at,
            events=events,
            state=state,
            unfinished=unfinished,
            keys=keys,
            title=title,
            text=text,
        )

    def written(self, commit: Commit) -> None:
        """It is durable. What nobody waits for any longer is told to nobody."""
        if self._broken is None:
            self._announce(commit)
            self.durable_seq += len(commit.events)
            self._tell_of_move()
            for reply in self._under_way:
                # A reply is remembered with the id of its message; its words are in the store.
                reply.events, reply.keys = (), ()
                self._durable(reply)
        self._go_on()

    def not_written(self, error: Exception) -> None:
        if self._broken is None:
            self.give_up(error)
            self._on_broken(error)
        self._go_on()

    def _go_on(self) -> None:
        self._under_way = []
        if not self._waiting:
            self._rest()
        elif self._in_a_hurry:
            self._scribe.write(self)
        else:
            self._scribe.write_soon(self)

    def _rest(self) -> None:
        """Nothing is on its way."""
        if self._idle is not None:
            self._idle.set()
            self._idle = None


def _words_of(events: tuple[Event, ...]) -> tuple[str | None, str]:
    """The title that these give to the session, if any, and what was said in them."""
    title: str | None = None
    text = ""
    for event in events:
        if type(event) not in TELLING:
            continue
        if isinstance(event, SAID):
            content = event.content if isinstance(event, UserSaid) else event.message.content
            said = [part.text for part in content if isinstance(part, Text)]
            text = "\n".join([text, *said] if text else said)
        elif isinstance(event, SessionTitled):
            title = event.title
    return title, text


def _lose(reply: Reply, error: BaseException) -> None:
    broken = JournalBroken(f"could not be stored: {error}")
    broken.__cause__ = error
    reply.fail(broken)
