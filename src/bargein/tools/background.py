"""The processes of each session that can be looked at, written to and killed by name.

Background processes are declared to outlive their call: they are governed by the session's token,
so stopping a turn leaves them alone and ending the session ends them. A command in the foreground
is listed too while it runs, so that one that was detached can be looked at.

The table owns no task: how a process stands is read from it when somebody asks.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from bargein.cancel import CancelSource, Token
from bargein.errors import ModelMisbehaved
from bargein.process import Captured, Process
from bargein.tools.output import as_read, left_out

ENDED_MAX = 16


class NoSuchProcess(ModelMisbehaved):
    """There is no process of that name. The message is written for the model."""


@dataclass(slots=True)
class Entry:
    """`source` is the background process's own; None for a command in the foreground."""

    id: str
    command: str
    process: Process
    source: CancelSource | None
    seen_bytes: int = 0

    def news(self) -> str:
        """What it has written since this was last asked."""
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
    """Output from `seen_bytes` on, as text; what is not kept any more is named."""
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
    serials: Iterator[int] = field(default_factory=lambda: count(1))
    entries: dict[str, Entry] = field(default_factory=dict)


class ProcessTable:
    def __init__(self, background_max: int) -> None:
        self._background_max = background_max
        self._sessions: dict[str, _Session] = {}

    def refuse_if_full(self, session_id: str) -> None:
        running = [
            entry
            for entry in self.entries(session_id)
            if entry.source is not None and entry.process.alive
        ]
        if len(running) >= self._background_max:
            names = ", ".join(entry.id for entry in running)
            raise ModelMisbehaved(
                f"{len(running)} background processes are running already ({names}), and that is "
                "the limit; end one of them first, with the process tool."
            )

    def add(
        self,
        session_id: str,
        session_token: Token,
        command: str,
        process: Process,
        source: CancelSource | None,
    ) -> Entry:
        self._forget()
        session = self._sessions.setdefault(session_id, _Session(session_token))
        entry = Entry(f"p{next(session.serials)}", command, process, source)
        session.entries[entry.id] = entry
        return entry

    def remove(self, session_id: str, entry: Entry) -> None:
        """A command in the foreground is over, and its result tells of it."""
        session = self._sessions.get(session_id)
        if session is not None:
            session.entries.pop(entry.id, None)

    def entries(self, session_id: str) -> list[Entry]:
        session = self._sessions.get(session_id)
        return list(session.entries.values()) if session is not None else []

    def find(self, session_id: str, process_id: str) -> Entry:
        entries = {entry.id: entry for entry in self.entries(session_id)}
        if process_id in entries:
            return entries[process_id]
        names = ", ".join(entries) or "none"
        raise NoSuchProcess(f"There is no process {process_id!r} here; there are: {names}.")

    def _forget(self) -> None:
        """Of ended processes the last few are kept; of ended sessions nothing."""
        for session_id, session in list(self._sessions.items()):
            ended = [each for each in session.entries.values() if not each.process.alive]
            for entry in ended:
                if entry.source is not None:
                    entry.source.seal()
            over = session.token.cancelled or session.token.ended
            for entry in ended if over else ended[:-ENDED_MAX]:
                del session.entries[entry.id]
            if over and not session.entries:
                del self._sessions[session_id]
