"""`stop="raise"`: the handlers that stand around a loop, in the same function, run as usual."""

import itertools
import threading
import time
from collections.abc import Callable

import pytest

from bargein.cancel import Cancelled, CancelSource, Cause, Reason
from bargein.cancel.raising import Raiser


class Surrounded:
    """Loops whose handlers are in the same function, around them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.steps: list[str] = []

    def a_while_with_a_condition(self) -> None:
        number = 0
        with self.lock:
            while number >= 0:
                number += 1

    def a_while_true(self) -> None:
        number = 0
        with self.lock:
            while True:
                number += 1

    def an_empty_while(self) -> None:
        with self.lock:
            while True:
                pass

    def a_for(self) -> None:
        with self.lock:
            for _ in itertools.count():
                pass

    def a_comprehension(self) -> None:
        with self.lock:
            {number % 2 for number in itertools.count()}

    def a_round_that_begins_with_a_try(self) -> None:
        number = 0
        with self.lock:
            while number >= 0:
                try:
                    number += 1
                except ValueError:
                    number = 0

    def a_round_that_continues(self) -> None:
        number = 0
        with self.lock:
            for _ in itertools.count():
                try:
                    number += 1
                    continue
                except ValueError:
                    number = 0

    def one_that_catches_it(self) -> None:
        number = 0
        try:
            while number >= 0:
                number += 1
        except Cancelled:
            self.steps.append("caught")
            raise
        finally:
            self.steps.append("finally")


SURROUNDED = {name: loop for name, loop in vars(Surrounded).items() if not name.startswith("_")}


@pytest.mark.parametrize("name", SURROUNDED)
def test_the_handlers_around_the_loop_run(name: str) -> None:
    loop: Callable[[Surrounded], None] = SURROUNDED[name]
    source = CancelSource("s")
    source.cancel(Reason(Cause.USER_STOP))
    # Some rounds in: by then Python runs it as the code that it was adapted to.
    for _ in range(12):
        surrounded = Surrounded()
        hit: list[Cancelled] = []

        def run(surrounded: Surrounded = surrounded, hit: list[Cancelled] = hit) -> None:
            try:
                loop(surrounded)
            except Cancelled as cancelled:
                hit.append(cancelled)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        raiser = Raiser(loop)
        end = time.monotonic() + 30
        with raiser.aimed_at(thread, source.token):
            while thread.is_alive() and time.monotonic() < end:
                raiser.try_once()
                time.sleep(0.0001)
        assert len(hit) == 1
        assert not surrounded.lock.locked()
        assert surrounded.steps == (["caught", "finally"] if "catches" in name else [])
