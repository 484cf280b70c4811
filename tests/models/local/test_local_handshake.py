"""The child's answer is found, in whatever pieces it comes and among whatever other output."""

from __future__ import annotations

import signal

import pytest

from bargein.models.local.child import MARK
from bargein.models.local.errors import RuntimeFailed, RuntimeMissing
from bargein.models.local.handshake import Ears, Facts, Failure, explain
from bargein.process import Exit
from tests.models.local.fake_child import MARK as FAKE_MARK

READY = b'{"what": "ready", "address": "http://127.0.0.1:1", "context_tokens": 8192}'
OUTPUT = (
    b"0.00 W a log line\n0.01 \xff\xfe not text\n" + MARK + READY + b"\nlater " + MARK + b"{}\n"
)


@pytest.mark.parametrize("size", [1, 2, 7, 64, 10_000])
def test_the_answer_is_found_however_it_is_cut(size: int) -> None:
    woken: list[bool] = []
    ears = Ears(lambda: woken.append(True))
    for begin in range(0, len(OUTPUT), size):
        ears.hear(OUTPUT[begin : begin + size])
    assert ears.answer == Facts("http://127.0.0.1:1", 8192)
    assert woken == [True]


def test_a_line_without_an_end_is_not_kept_for_ever() -> None:
    ears = Ears(lambda: None)
    for _ in range(100):
        ears.hear(b"x" * 100_000)
    assert len(ears._pending) <= 100_000
    ears.hear(b"\n" + MARK + b'{"what": "failed", "error": "no"}\n')
    assert ears.answer == Failure("no")


def test_the_fake_child_speaks_as_the_real_one_does() -> None:
    assert FAKE_MARK == MARK


def test_each_way_to_fail_has_its_words() -> None:
    def told(answer: Failure | None, ended: Exit | None, output: str = "") -> str:
        return str(explain("local", answer, ended, output, "Do this instead."))

    killed = Exit(None, int(signal.SIGKILL), 1.0)
    assert "if memory ran out" in told(None, killed)
    assert "processor" in told(None, Exit(None, int(signal.SIGILL), 1.0))
    assert "exit 3): the last line. Do this" in told(None, Exit(3, None, 1.0), "a\nthe last line\n")
    assert "cannot load it: no" in told(Failure("no"), None)
    libc = Failure("ImportError: libc.so.6: version `GLIBC_2.99' not found")
    assert "GLIBC_2.99" in told(libc, None)
    assert isinstance(explain("local", libc, None, "", ""), RuntimeMissing)
    assert isinstance(explain("local", Failure("no"), None, "", ""), RuntimeFailed)
