"""Knows which sessions work in a folder, and which snapshots were taken around their work.

Several sessions may have calls in one folder at the same time. A change belongs to a session if no
other was at work. Changes made while several worked cannot be told apart: such a span is `shared`,
and an undo keeps its changes unless the user says otherwise.

A piece of work begins when its first snapshot was taken, or has failed, and ends with the snapshot
after it. Snapshots are taken one after the other and reported here in that order.
"""

from dataclasses import dataclass, field

from bargein.contracts.checkpoint import Span


@dataclass(slots=True, eq=False)
class Stint:
    """What one group of calls does. `since` is the last snapshot that it knows of; None if there
    was none when it began, so that nothing is known of what it changes."""

    since: str | None = None
    shared: bool = False
    spans: list[Span] = field(default_factory=list)


class Timeline:
    """The work in one folder. It runs in one event loop and never waits."""

    def __init__(self) -> None:
        self._working: list[Stint] = []

    def begins(self, work: Stint, snapshot: str | None) -> None:
        self._cut(snapshot)
        work.since = snapshot
        self._working.append(work)
        self._mark_shared()

    def ends(self, work: Stint, snapshot: str | None) -> tuple[Span, ...]:
        """Returns the spans in which files changed while it was at work."""
        self._cut(snapshot)
        self._working.remove(work)
        self._mark_shared()
        return tuple(work.spans)

    def _cut(self, snapshot: str | None) -> None:
        """Everybody's span ends here, and another begins."""
        if snapshot is None:
            return
        for each in self._working:
            if each.since not in (None, snapshot):
                each.spans.append(Span(each.since or "", snapshot, each.shared))
            if each.since is not None:
                each.since = snapshot
            each.shared = False

    def _mark_shared(self) -> None:
        if len(self._working) > 1:
            for each in self._working:
                each.shared = True
