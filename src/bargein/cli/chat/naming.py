"""A call is seen when it is known what it is about, however quick it is. Pure.

That a call begins is told at once; what it is about is in the words of the model that asked for it,
and those are told when they are in the store. A quick call may be over by then. So it is held back
until it has a name, and with it all that comes after, so that things are seen in the order in which
they happened. That lasts as long as the store takes to write, and a stop is never held back.
"""

from collections import deque
from collections.abc import Iterable, Iterator

from bargein.contracts.event import AssistantSaid, CallEnded, CallStarted, Recorded, TurnSettled
from bargein.contracts.live import StepBegan, Stopping
from bargein.contracts.model import ToolCall
from bargein.contracts.receipt import StepKind
from bargein.session.broadcast import Watched


class Naming:
    """`log` is what was written before anything is watched."""

    def __init__(self, log: Iterable[Recorded] = ()) -> None:
        self._named: set[str] = set()
        self._held: deque[Watched] = deque()
        for recorded in log:
            self._note(recorded)

    def in_order(self, event: Watched) -> Iterator[Watched]:
        """What can be seen now that this has happened."""
        if isinstance(event, Stopping):
            yield event
        elif not isinstance(event, Recorded):
            self._held.append(event)
            yield from self._released()
        elif isinstance(event.event, CallEnded | TurnSettled):
            # Nothing is going to name it any more.
            if isinstance(event.event, CallEnded):
                self._named.add(event.event.call_id)
                yield from self._released()
            else:
                yield from self._held
                self._held.clear()
            self._note(event)
            yield event
        else:
            self._note(event)
            yield event
            yield from self._released()

    def _released(self) -> Iterator[Watched]:
        while self._held and not self._is_unnamed(self._held[0]):
            yield self._held.popleft()

    def _is_unnamed(self, event: Watched) -> bool:
        if not isinstance(event, StepBegan) or event.kind != StepKind.TOOL:
            return False
        return event.call_id not in self._named

    def _note(self, recorded: Recorded) -> None:
        match recorded.event:
            case AssistantSaid(message=message):
                calls = [part for part in message.content if isinstance(part, ToolCall)]
                self._named.update(call.id for call in calls)
            case CallStarted(call=call):
                self._named.add(call.id)
            case CallEnded(call_id=call_id):
                self._named.discard(call_id)
            case _:
                pass
