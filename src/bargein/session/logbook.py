"""What a session knows from its own log, updated with each appended event: the place of each
waiting message, the usage, the agent's state, and the transcript. All but the transcript is stored
with the session's state, so the log is read again only when a turn begins, and then once.
"""

from collections.abc import Awaitable, Callable

import anyio

from bargein.cancel import Token
from bargein.contracts.budget import Spent
from bargein.contracts.event import (
    AgentState,
    AnswerHeard,
    Event,
    MessageAccepted,
    MessageWithdrawn,
    Recorded,
    TurnStarted,
)
from bargein.session import snapshot
from bargein.session.budget import USES, spent_after
from bargein.session.results import TAKES
from bargein.session.state import SessionState
from bargein.session.transcript import Transcript


class Logbook:
    """`seq` is that of the last event, durable or not. `agent_state` is the state that the agent
    set last; the log gets it when the turn ends. Token estimates of this session's requests are
    multiplied by `token_ratio`. `turn_spent` is what the running turn has used."""

    def __init__(
        self,
        stored: snapshot.SessionSnapshot,
        seq: int,
        read_log: Callable[[Callable[[Recorded], None]], Awaitable[None]],
    ) -> None:
        self.seq = seq
        self.agent_state = stored.agent_state
        self.accounts = stored.accounts
        self.token_ratio = 1.0
        self.turn_spent = Spent()
        self._turn = ""
        self._stored_agent_state = stored.agent_state
        self._seqs = {ref.message: ref.seq for ref in stored.waiting}
        self._runs = snapshot.WaitingRuns()
        self._turn_seq = stored.turn_seq
        self._transcript: Transcript | None = None
        # What the user heard of each turn, told while there is no transcript, and its last place in
        # the log; a reading of the log may miss it.
        self._heard: dict[str, tuple[AnswerHeard, int]] = {}
        self._read_log = read_log
        self.is_readable = seq == 0
        self._reading: anyio.Lock | None = None

    def apply(self, event: Event, turn_s: float) -> None:
        """Apply an event. If it ends a turn, `turn_s` is how long the turn took."""
        seq = self.seq = self.seq + 1
        if isinstance(event, MessageAccepted):
            # The model does not see the message yet.
            self._seqs[event.message.id] = seq
            self.accounts = self.accounts.after(event)
            return
        if isinstance(event, MessageWithdrawn):
            self._seqs.pop(event.message, None)
        elif isinstance(event, TAKES):
            if isinstance(event, TurnStarted):
                self._turn_seq = seq
                self._turn, self.turn_spent = event.turn, Spent()
            for message in event.messages:
                self._seqs.pop(message, None)
        elif isinstance(event, AgentState):
            self._stored_agent_state = event.body
        elif isinstance(event, USES) and event.turn == self._turn:
            self.turn_spent = spent_after(self.turn_spent, event)
        self.accounts = self.accounts.after(event, turn_s)
        if self._transcript is not None:
            self._transcript.apply(event, seq)
        elif isinstance(event, AnswerHeard):
            # Without a transcript no turn speaks: the least that was heard of one is what counts.
            least, _ = self._heard.get(event.turn, (event, 0))
            self._heard[event.turn] = (min(least, event, key=_characters), seq)

    def encode(self, state: SessionState) -> bytes:
        """Encode everything that is stored beside the log, as of the last event."""
        runs = self._runs.of(state.waiting, self._seqs)
        kept = self._stored_agent_state
        return snapshot.encode(state, runs, self._turn_seq, kept, self.accounts)

    def seq_of(self, message: str) -> int:
        """Return the place of a waiting message in the log."""
        return self._seqs.get(message, self.seq)

    @property
    def held_bytes(self) -> int:
        """The bytes of people's words in memory."""
        return self.accounts.said_bytes if self._transcript is not None else 0

    @property
    def loaded(self) -> Transcript | None:
        """The transcript, if it is in memory."""
        return self._transcript

    @property
    def transcript(self) -> Transcript:
        return self._transcript if self._transcript is not None else Transcript()

    def let_go(self) -> None:
        """The session has left memory, and takes up no more than it must until it is freed."""
        self._transcript = None

    async def check_readable(self) -> None:
        """Read the log before a message is accepted, once while the session is in memory. So a
        session with an unreadable log refuses the message instead of failing to answer it. The turn
        that the message starts need not read the log again. Waiting callers continue in their
        order."""
        if self._reading is None:
            self._reading = anyio.Lock()
        async with self._reading:
            if self.is_readable:
                return
            transcript, read_to = Transcript(), 0

            def add(recorded: Recorded) -> None:
                nonlocal read_to
                read_to = recorded.seq
                transcript.apply(recorded.event, recorded.seq)

            await self._read_log(add)
            # Events appended meanwhile may be missing; then the turn reads the log again.
            if self._transcript is None and read_to == self.seq:
                self._transcript, self._heard = transcript, {}
            self.is_readable = True

    async def load_transcript(self, turn: Token) -> None:
        """Read the log for the turn with this token, once while the session is in memory. Only a
        turn adds to the transcript, and `AnswerHeard`, which is kept until the reading is over: so
        nothing is missed between the reading and the next event. If the turn is stopped meanwhile,
        that no longer holds, and `turn.check` raises."""
        if self._transcript is None:
            transcript, read_to = Transcript(), 0

            def add(recorded: Recorded) -> None:
                nonlocal read_to
                read_to = recorded.seq
                transcript.apply(recorded.event, recorded.seq)

            await self._read_log(add)
            turn.check()
            for heard, seq in self._heard.values():
                if seq > read_to:
                    transcript.apply(heard, seq)
            self._transcript, self._heard = transcript, {}
            self.is_readable = True


def _characters(heard: AnswerHeard) -> int:
    return heard.characters
