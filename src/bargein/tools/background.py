"""The running commands of each session, by call id, for the `process` tool to poll, write and kill.

Foreground commands are listed too, so that the tool can still reach them after they move to the
background. The last few commands that ended in the background stay listed, so that the model can
read the rest of their output.

The table owns no task and ends nothing: a command belongs to its call, and the session ends calls.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bargein.calls.text import left_out
from bargein.cancel import Token
from bargein.errors import ModelMisbehaved
from bargein.process import Captured, Process
from bargein.tools.context import ToolContext
from bargein.tools.output import as_read

ENDED_MAX = 16


class NoSuchProcess(ModelMisbehaved):
    """No process has this id. The message is for the model."""


@dataclass(slots=True)
class Entry:
    """`killed`: the process tool killed it. `end_known`: the process tool has already shown the
    model how it ended, so no message needs to repeat that."""

    id: str
    session_id: str
    command: str
    process: Process
    in_background: bool
    seen_bytes: int = 0
    killed: bool = False
    end_known: bool = False

    def news(self) -> str:
        """Returns the output since the last call of this method."""
        captured = self.process.output
        text = since(captured, self.seen_bytes)
        self.seen_bytes = captured.total_bytes
        return text

    def state(self) -> str:
        exited = self.process.exit
        if exited is None:
            return "running"
        if self.process.alive:
            return f"ended ({exited}), but left others running"
        return f"ended ({exited})"


def since(captured: Captured, seen_bytes: int) -> str:
    """Returns the output from `seen_bytes` on as text; a note stands where output was dropped."""
    head_end = len(captured.head)
    tail_begin = head_end + captured.dropped_bytes
    head = captured.head[seen_bytes:]
    tail = captured.tail[max(0, seen_bytes - tail_begin) :]
    if not captured.dropped_bytes or seen_bytes >= tail_begin:
        return as_read((head + tail).decode("utf-8", "replace"))
    dropped = left_out(tail_begin - max(seen_bytes, head_end), "bytes")
    return as_read(head.decode("utf-8", "replace") + dropped + tail.decode("utf-8", "replace"))


@dataclass(slots=True)
class _Session:
    token: Token
    starting: int = 0
    entries: dict[str, Entry] = field(default_factory=dict)


class ProcessTable:
    def __init__(self, background_max: int) -> None:
        self._background_max = background_max
        self._sessions: dict[str, _Session] = {}

    @contextmanager
    def starting_in_background(self, context: ToolContext) -> Iterator[None]:
        """Reserves a slot while a command starts, so that concurrent starts respect the limit.
        Raises `ModelMisbehaved` if no slot is free."""
        session = self._session(context)
        running = [
            entry.id
            for entry in session.entries.values()
            if entry.in_background and entry.process.alive
        ]
        if len(running) + session.starting >= self._background_max:
            names = f" ({', '.join(running)})" if running else ""
            raise ModelMisbehaved(
                f"{len(running) + session.starting} background processes are running already"
                f"{names}, and that is the limit; end one of them first, with the process tool."
            )
        session.starting += 1
        try:
            yield
        finally:
            session.starting -= 1

    def add(
        self, context: ToolContext, command: str, process: Process, *, in_background: bool
    ) -> Entry:
        self._forget()
        entry = Entry(context.call_id, context.session_id, command, process, in_background)
        self._session(context).entries[entry.id] = entry
        return entry

    def remove(self, entry: Entry) -> None:
        """Removes a foreground command that has ended; the model has its result."""
        session = self._sessions.get(entry.session_id)
        if session is not None and session.entries.get(entry.id) is entry:
            del session.entries[entry.id]

    def entries(self, session_id: str) -> list[Entry]:
        session = self._sessions.get(session_id)
        return list(session.entries.values()) if session is not None else []

    def find(self, session_id: str, process_id: str) -> Entry:
        entries = {entry.id: entry for entry in self.entries(session_id)}
        if process_id in entries:
            return entries[process_id]
        names = ", ".join(entries) or "none"
        raise NoSuchProcess(f"There is no process {process_id!r} here; there are: {names}.")

    def _session(self, context: ToolContext) -> _Session:
        token = context.session_token
        session = self._sessions.setdefault(context.session_id, _Session(token))
        # Stopping the whole session cancels its token, and the session goes on with a new one.
        session.token = token
        return session

    def _forget(self) -> None:
        """Keeps only the last few ended processes of each session, and none of ended sessions."""
        for session_id, session in list(self._sessions.items()):
            ended = [each for each in session.entries.values() if not each.process.alive]
            over = session.token.cancelled or session.token.ended
            for entry in ended if over else ended[:-ENDED_MAX]:
                del session.entries[entry.id]
            if over and not session.entries and not session.starting:
                del self._sessions[session_id]
