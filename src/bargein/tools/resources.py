"""Who may use what now: calls that declare the same resource run one after the other.

A call enters the lines of all its resources at once and runs when it is at the front of each, so
the order is the order of arrival and two calls can never wait for each other. Some resources are
known by name only after a look at the world (`extend`); those are named apart from all others, and
so are always entered last. A call made by another call is not held up by what that one holds; its
siblings still are held up by it.

A call that had to be abandoned keeps its place until its work has really ended: whoever stands
behind it, or comes later, is refused at once with its name. Everything happens in one event loop;
only `Hold.work_ended` is told from elsewhere, and its caller brings it into the loop.
"""

from collections import deque
from collections.abc import Iterable, Iterator

import anyio

from bargein.errors import ModelMisbehaved


class ResourceBusy(ModelMisbehaved):
    """The resource cannot be had now, and waiting for it would not help."""


class Hold:
    """One call's place in the lines. `above` is the hold of the call that made this one."""

    __slots__ = ("_abandoned", "_front", "_table", "_working", "above", "resources", "title")

    def __init__(
        self, table: "ResourceTable", title: str, resources: tuple[str, ...], above: "Hold | None"
    ) -> None:
        self._table = table
        self.title = title
        self.resources = resources
        self.above = above
        self._front = anyio.Event()
        self._working = False
        self._abandoned = False

    @property
    def abandoned(self) -> bool:
        return self._abandoned

    @property
    def waiting(self) -> bool:
        return not self._front.is_set()

    async def wait(self) -> None:
        """Until this call may run. Being cancelled here is an ordinary way to leave the line."""
        await self._front.wait()
        blocker = self._table.abandoned_before(self)
        if blocker is not None:
            raise ResourceBusy(_held_by_abandoned(blocker[0], blocker[1]))

    def work_began(self) -> None:
        self._working = True

    def work_ended(self) -> None:
        """The work itself is over. If the call was left before, the resources are free now."""
        self._working = False
        if self._abandoned:
            self._table.leave(self)

    def leave(self) -> None:
        """The call is over; its work may not be."""
        if self._working:
            self._abandoned = True
            self._table.wake(self.resources)
        else:
            self._table.leave(self)

    def wake(self) -> None:
        self._front.set()

    def wait_for(self, resources: tuple[str, ...]) -> None:
        """For the table: more resources to wait for."""
        self.resources += resources
        self._front = anyio.Event()

    def lineage(self) -> "Iterator[Hold]":
        hold: Hold | None = self
        while hold is not None:
            yield hold
            hold = hold.above


class ResourceTable:
    def __init__(self) -> None:
        self._lines: dict[str, deque[Hold]] = {}

    def enter(self, title: str, resources: tuple[str, ...], above: Hold | None = None) -> Hold:
        """Take a place in the line of each resource.

        Raises `ResourceBusy` if an abandoned call holds one, or if waiting would be for ever.
        """
        hold = Hold(self, title, tuple(dict.fromkeys(resources)), above)
        self._stand_in_line(hold, hold.resources)
        if not hold.resources:
            hold.wake()
        return hold

    def extend(self, hold: Hold, resources: Iterable[str]) -> None:
        """Take a place in more lines, for a call that has not begun to work. Raises as `enter`."""
        more = tuple(name for name in dict.fromkeys(resources) if name not in hold.resources)
        if more:
            hold.wait_for(more)
            self._stand_in_line(hold, more)

    def _stand_in_line(self, hold: Hold, resources: tuple[str, ...]) -> None:
        for resource in resources:
            self._lines.setdefault(resource, deque()).append(hold)
        try:
            blocker = self.abandoned_before(hold)
            if blocker is not None:
                raise ResourceBusy(_held_by_abandoned(*blocker))
            if self._waits_for_itself(hold):
                raise ResourceBusy(
                    f"{hold.title} would wait for ever for {', '.join(resources)}: the call that "
                    "holds it waits for one that this call holds. Do one after the other."
                )
        except ResourceBusy:
            self.leave(hold)
            raise
        self.wake(hold.resources)

    def leave(self, hold: Hold) -> None:
        for resource in hold.resources:
            line = self._lines.get(resource)
            if line is not None and hold in line:
                line.remove(hold)
                if not line:
                    del self._lines[resource]
        self.wake(hold.resources)

    def wake(self, resources: tuple[str, ...]) -> None:
        """Let those go who are at the front, and those who wait behind an abandoned call."""
        for resource in resources:
            for hold in self._lines.get(resource, ()):
                if hold.waiting and (self.abandoned_before(hold) or not any(self._before(hold))):
                    hold.wake()

    def abandoned_before(self, hold: Hold) -> tuple[Hold, str] | None:
        for each, resource in self._before(hold):
            if each.abandoned:
                return each, resource
        return None

    def held(self) -> tuple[str, ...]:
        """Every resource that somebody holds or waits for, for tests and for `doctor`."""
        return tuple(self._lines)

    def _before(self, hold: Hold) -> Iterator[tuple[Hold, str]]:
        """Who stands in the way, other than the calls that this one was made by."""
        lineage = set(hold.lineage())
        for resource in hold.resources:
            for each in self._lines.get(resource, ()):
                if each is hold:
                    break
                if each not in lineage:
                    yield each, resource

    def _waits_for_itself(self, hold: Hold) -> bool:
        """Whether the calls in the way wait, through calls of their own, for this call's lineage.

        A call that made another one is over only when that is.
        """
        lineage = set(hold.lineage())
        waiting = {each for line in self._lines.values() for each in line if each.waiting}
        seen: set[Hold] = set()
        todo = [each for each, _ in self._before(hold)]
        while todo:
            each = todo.pop()
            if each in lineage:
                return True
            if each in seen:
                continue
            seen.add(each)
            inner = (other for other in waiting if each in other.lineage())
            todo.extend(blocker for other in inner for blocker, _ in self._before(other))
        return False


def _held_by_abandoned(hold: Hold, resource: str) -> str:
    return (
        f"{resource} is still held by an earlier call that did not stop when it was told to and "
        f"may still be running: {hold.title}. This call was not started. Work on something else, "
        "or tell the user."
    )
