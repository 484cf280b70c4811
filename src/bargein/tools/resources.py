"""Serializes calls that declare the same resource.

A call enters the queues of all its resources at once, and runs when it is first in each. So calls
run in order of arrival, and two calls can never wait for each other. Some resources can only be
named after I/O (`extend`); their names differ from all others, so they are always entered last. A
call made by another call does not wait for resources that its caller holds. Calls of one caller
still wait for each other.

An abandoned call keeps its place until its work has really ended. Calls behind it are refused at
once, with its name. Everything happens in one event loop. Work in other threads must bring
`ResourceHold.work_ended` into that loop.
"""

from collections import deque
from collections.abc import Iterable, Iterator

import anyio

from bargein.errors import ModelMisbehaved


class ResourceBusy(ModelMisbehaved):
    """The resource is not available now, and waiting would not help."""


class ResourceHold:
    """One call's place in the queues. `above` is the hold of the call that made this one."""

    __slots__ = ("_abandoned", "_front", "_table", "_working", "above", "resources", "title")

    def __init__(
        self,
        table: "ResourceTable",
        title: str,
        resources: tuple[str, ...],
        above: "ResourceHold | None",
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
        """Waits until this call may run. A cancel here is an ordinary way to leave the queue."""
        await self._front.wait()
        blocker = self._table.abandoned_before(self)
        if blocker is not None:
            raise ResourceBusy(_held_by_abandoned(blocker[0], blocker[1]))

    def work_began(self) -> None:
        self._working = True

    def work_ended(self) -> None:
        """Records that the work is over; frees the resources of an abandoned call."""
        self._working = False
        if self._abandoned:
            self._table.leave(self)

    def leave(self) -> None:
        """Records that the call is over. Its resources stay held while its work goes on."""
        if self._working:
            self._abandoned = True
            self._table.wake(self.resources)
        else:
            self._table.leave(self)

    def wake(self) -> None:
        self._front.set()

    def wait_for(self, resources: tuple[str, ...]) -> None:
        """Adds resources to wait for. The table calls it."""
        self.resources += resources
        self._front = anyio.Event()

    def lineage(self) -> "Iterator[ResourceHold]":
        hold: ResourceHold | None = self
        while hold is not None:
            yield hold
            hold = hold.above


class ResourceTable:
    def __init__(self) -> None:
        self._lines: dict[str, deque[ResourceHold]] = {}

    def enter(
        self, title: str, resources: tuple[str, ...], above: ResourceHold | None = None
    ) -> ResourceHold:
        """Takes a place in the queue of each resource.

        Raises `ResourceBusy` if an abandoned call holds one, or if the wait would never end.
        """
        hold = ResourceHold(self, title, tuple(dict.fromkeys(resources)), above)
        self._stand_in_line(hold, hold.resources)
        if not hold.resources:
            hold.wake()
        return hold

    def extend(self, hold: ResourceHold, resources: Iterable[str]) -> None:
        """Takes places in more queues, for a call that has not begun to work. Raises as `enter`."""
        more = tuple(name for name in dict.fromkeys(resources) if name not in hold.resources)
        if more:
            hold.wait_for(more)
            self._stand_in_line(hold, more)

    def _stand_in_line(self, hold: ResourceHold, resources: tuple[str, ...]) -> None:
        for resource in resources:
            self._lines.setdefault(resource, deque()).append(hold)
        try:
            blocker = self.abandoned_before(hold)
            if blocker is not None:
                raise ResourceBusy(_held_by_abandoned(*blocker))
            if self._waits_for_itself(hold):
                raise ResourceBusy(
                    f"{hold.title} would wait forever for {', '.join(resources)}: the call that "
                    "holds it waits for a resource of this call. Make one call after the other."
                )
        except ResourceBusy:
            self.leave(hold)
            raise
        self.wake(hold.resources)

    def leave(self, hold: ResourceHold) -> None:
        for resource in hold.resources:
            line = self._lines.get(resource)
            if line is not None and hold in line:
                line.remove(hold)
                if not line:
                    del self._lines[resource]
        self.wake(hold.resources)

    def wake(self, resources: tuple[str, ...]) -> None:
        """Wakes the calls that are first in their queues or wait behind an abandoned call."""
        for resource in resources:
            for hold in self._lines.get(resource, ()):
                if hold.waiting and (self.abandoned_before(hold) or not any(self._before(hold))):
                    hold.wake()

    def abandoned_before(self, hold: ResourceHold) -> tuple[ResourceHold, str] | None:
        for each, resource in self._before(hold):
            if each.abandoned:
                return each, resource
        return None

    def held(self) -> tuple[str, ...]:
        """Every resource that a call holds or waits for; for tests and `doctor`."""
        return tuple(self._lines)

    def _before(self, hold: ResourceHold) -> Iterator[tuple[ResourceHold, str]]:
        """Yields the calls in the way of this one, except those that made it."""
        lineage = set(hold.lineage())
        for resource in hold.resources:
            for each in self._lines.get(resource, ()):
                if each is hold:
                    break
                if each not in lineage:
                    yield each, resource

    def _waits_for_itself(self, hold: ResourceHold) -> bool:
        """Whether the calls in the way wait, through their own calls, for this call's lineage.

        A call ends only after the calls it made.
        """
        lineage = set(hold.lineage())
        waiting = {each for line in self._lines.values() for each in line if each.waiting}
        seen: set[ResourceHold] = set()
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


def _held_by_abandoned(hold: ResourceHold, resource: str) -> str:
    return (
        f"{resource} is still held by an earlier call that did not stop when told to and "
        f"may still be running: {hold.title}. This call was not started. Work on something else, "
        "or tell the user."
    )
