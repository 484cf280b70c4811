"""The channel to an embryo, from the order for its birth until it has become the command."""

from collections.abc import Callable, Sequence

from bargein.process.cell import StillBorn
from bargein.process.helper import wire
from bargein.process.once import Once
from bargein.process.order import Order, failure
from bargein.process.watch import Event, Watch


class Birth:
    """`theirs` goes to the helper and is closed here as soon as that has it.

    `on_born` is called once on the loop: with the embryo's pid, or with None if it was never born.
    """

    def __init__(self, watch: Watch, on_born: Callable[[int | None], object]) -> None:
        self._watch = watch
        self._ours, self.theirs = wire.pair()
        self._ours.setblocking(False)
        self._on_born: Callable[[int | None], object] | None = on_born
        self._closed: Once[None] = Once(watch.loop)
        self._failure: tuple[str, int] | None = None
        watch.add(self._ours.fileno(), Event.READABLE, self._hear)

    @property
    def is_over(self) -> bool:
        """Nothing more can come of it: it was closed, at either end."""
        return self._closed.is_set

    @property
    def errno(self) -> int:
        """Why it failed, if that is known; else 0."""
        return self._failure[1] if self._failure is not None else 0

    def send(self, order: Order, standard: Sequence[int]) -> None:
        if self.is_over:
            raise StillBorn
        try:
            wire.send(self._ours, tuple(order), standard)
        except ConnectionError:
            raise StillBorn from None
        except OSError as error:
            # A long order takes a descriptor of its own.
            raise failure(order, "descriptors", error.errno or 0) from error

    async def became(self, order: Order) -> None:
        """The command runs, or has run already; else the reason why not is raised."""
        await self._closed.wait()
        if self._failure is not None:
            raise failure(order, *self._failure)

    def close(self) -> None:
        """An embryo that has had no order exits when it sees this."""
        if not self._closed.is_set:
            self._watch.remove(self._ours.fileno())
            self._ours.close()
            self._closed.set(None)
            self._tell_born(None)

    def abort(self) -> None:
        """Close it without a word: the order for it could not be given."""
        self._on_born = None
        self.close()

    def _hear(self) -> None:
        try:
            received = wire.receive(self._ours)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            received = None
        if received is None:
            self.close()
        elif received[0][0] == "born":
            self._tell_born(received[0][1])
        else:
            _what, stage, code = received[0]
            self._failure = (stage, code)

    def _tell_born(self, pid: int | None) -> None:
        on_born, self._on_born = self._on_born, None
        if on_born is not None:
            on_born(pid)
