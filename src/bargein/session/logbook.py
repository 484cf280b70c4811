"""What a session knows from its own log, kept up event by event as they are appended: where each
message that waits stands, what was used, what the agent has stored, what the model is shown. All of
it but the last is stored with the session's state, so that a log is read again only when a turn
begins, and then once.
"""

from collections.abc import Awaitable, Callable

import anyio

from bargein.cancel import Token
from bargein.contracts.event import (
    AgentState,
    Event,
    MessageAccepted,
    MessageWithdrawn,
    Recorded,
    TurnStarted,
)
from bargein.session import snapshot
from bargein.session.results import TAKES
from bargein.session.state import SessionState
from bargein.session.transcript import Transcript


class Logbook:
    """`seq` is of the last event, durable or not; `agent_state` is what the agent has set last, and
    is in the log when its turn ends; `token_ratio` what estimates of this session's requests are
    multiplied by."""

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
        self._stored_agent_state = stored.agent_state
        self._seqs = {ref.message: ref.seq for ref in stored.waiting}
        self._runs = snapshot.WaitingRuns()
        self._turn_seq = stored.turn_seq
        self._transcript: Transcript | None = None
        self._read_log = read_log
        self.is_readable = seq == 0
        self._reading: anyio.Lock | None = None

    def apply(self, event: Event, turn_s: float) -> None:
        """`turn_s` is how long the turn has taken, of which `event` may be the end."""
        seq = self.seq = self.seq + 1
        if isinstance(event, MessageAccepted):
            # Nothing of it is shown to the model yet.
            self._seqs[event.message.id] = seq
            self.accounts = self.accounts.after(event)
            return
        if isinstance(event, MessageWithdrawn):
            self._seqs.pop(event.message, None)
        elif isinstance(event, TAKES):
            if isinstance(event, TurnStarted):
                self._turn_seq = seq
            for message in event.messages:
                self._seqs.pop(message, None)
        elif isinstance(event, AgentState):
            self._stored_agent_state = event.body
        self.accounts = self.accounts.after(event, turn_s)
        if self._transcript is not None:
            self._transcript.apply(event, seq)

    def encode(self, state: SessionState) -> bytes:
        """All that is stored beside the log, after the last event."""
        runs = self._runs.of(state.waiting, self._seqs)
        kept = self._stored_agent_state
        return snapshot.encode(state, runs, self._turn_seq, kept, self.accounts)

    def seq_of(self, message: str) -> int:
        """Where a message that waits stands in the log."""
        return self._seqs.get(message, self.seq)

    @property
    def held_bytes(self) -> int:
        """Of what people have said, as far as it is in memory."""
        return self.accounts.said_bytes if self._transcript is not None else 0

    @property
    def transcript(self) -> Transcript:
        return self._transcript if self._transcript is not None else Transcript()

    def let_go(self) -> None:
        """The session has left memory, and takes up no more than it must until it is freed."""
        self._transcript = None

    async def check_readable(self) -> None:
        """Read the log before a message is accepted, once in the life of this session, so that a
        session whose log cannot be read refuses the message instead of failing to answer it. The
        turn that the message begins need not read it again. Who waits goes on in the order of
        asking."""
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
            # What was appended while it was read is not in it; then the turn reads it anew.
            if self._transcript is None and read_to == self.seq:
                self._transcript = transcript
            self.is_readable = True

    async def load_transcript(self, turn: Token) -> None:
        """Read the log once in the life of this session, for the turn with this token. Only a turn
        adds to the transcript, so nothing is missed between the reading and the next event; unless
        the turn is stopped meanwhile, and the log goes on without it."""
        if self._transcript is None:
            transcript = Transcript()
            await self._read_log(lambda recorded: transcript.apply(recorded.event, recorded.seq))
            turn.check()
            self._transcript = transcript
            self.is_readable = True
