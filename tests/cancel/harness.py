"""What the kernel's tests share: threads that begin together, and programs of their own."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


def together(*functions: Callable[[], T], limit_s: float = 40.0) -> list[T]:
    """Run each in a thread of its own, all from one moment on; their results in that order."""
    barrier = threading.Barrier(len(functions))
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(number: int, function: Callable[[], T]) -> None:
        try:
            barrier.wait(limit_s)
            results[number] = function()
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=run, args=item, daemon=True) for item in enumerate(functions)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit_s)
        assert not thread.is_alive(), "a deadlock: a thread did not end"
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(functions))]


@contextmanager
def frequent_switches() -> Iterator[None]:
    """Have Python change between threads as often as it can, to show races."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def eventually(condition: Callable[[], object], limit_s: float = 30.0) -> None:
    """Wait for something that another thread is about to do."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"not within {limit_s:g} s"
        time.sleep(0.001)


def run_program(
    code: str, *, limit_s: float = 50.0, exit_code: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run a program of its own, with warnings as errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    assert done.returncode == exit_code, done.stderr
    return done
