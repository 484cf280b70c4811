"""Output is bounded and readable, and cleaning it never takes long."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from bargein.calls.text import KeptText, one_line, shortened
from bargein.process import Captured
from bargein.tools.background import since
from bargein.tools.output import LiveOutput, as_read


@pytest.mark.parametrize(
    ("raw", "read"),
    [
        ("plain\n", "plain\n"),
        ("\x1b[1;31mred\x1b[0m\x1b(B", "red"),
        ("\x1b]0;title\x07text\x1b]8;;http://x\x1b\\link", "textlink"),
        ("  1%\r 50%\r100%\nnext", "100%\nnext"),
        ("a\r\nb\r\r\nc\r", "a\nb\nc"),
        ("bell\x07 back\x08 null\0 tab\t", "bell back null tab\t"),
        ("\x1b", ""),
        ("ä\u2028b", "ä\u2028b"),
    ],
)
def test_terminal_output_is_read_as_it_stood_at_the_end(raw: str, read: str) -> None:
    assert as_read(raw) == read


@pytest.mark.parametrize(
    "piece", ["x", " ", "\r", "x\r", "\x1b", "\x1b[", "\x1b[0", "\x1b]", "\x1bP", "\x1b]x", "\n"]
)
def test_reading_it_takes_time_in_proportion(piece: str) -> None:
    began_at = time.process_time()
    as_read(piece * (200_000 // len(piece)))
    as_read("\x1b[" + piece * (200_000 // len(piece)))
    assert time.process_time() - began_at < 20


def test_long_texts_keep_their_beginning_and_end() -> None:
    assert shortened("short", 10) == "short"
    text = shortened("a" * 100 + "b" * 900, 100)
    assert text == "a" * 25 + "\n[... 900 characters left out ...]\n" + "b" * 75
    assert one_line("two\n  words") == "two words"
    assert len(one_line("x" * 1000)) == 80


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_kept_text_is_the_same_in_whatever_pieces_it_comes(size: int) -> None:
    whole = "".join(f"{number:04}" for number in range(100))
    kept = KeptText(head_chars=10, tail_chars=20)
    for at in range(0, len(whole), size):
        kept.add(whole[at : at + size])
    assert kept.text() == whole[:10] + "\n[... 370 characters left out ...]\n" + whole[-20:]


def test_live_output_joins_cut_characters_and_thins_a_flood() -> None:
    shown: list[str] = []
    now = 0.0
    live = LiveOutput(shown.append, lambda: now, burst_bytes=10, rate_bytes=4, piece_bytes=4)
    data = "aäb".encode()
    live(data[:2])
    live(data[2:])
    assert "".join(shown) == "aäb"
    # There is no line to end at: it is shown when there is room for a piece.
    live(b"x" * 100)
    live(b"y" * 50)
    assert "".join(shown[2:]) == "\n[... 96 bytes left out ...]\nxxxx"
    now = 1.0
    live(b"z" * 10)
    assert "".join(shown[4:]) == "\n[... 56 bytes left out ...]\nzzzz"


class Flood:
    """A `LiveOutput` with clock and timer in the test's hands."""

    def __init__(self) -> None:
        self.now = 0.0
        self.shown = ""
        self.timers: list[Callable[[], None]] = []
        self.live = LiveOutput(
            self._show,
            lambda: self.now,
            later=lambda _, act: self.timers.append(act),
            burst_bytes=1000,
            rate_bytes=1000,
            piece_bytes=100,
        )

    def _show(self, text: str) -> None:
        self.shown += text

    def pour(self, lines: range, seconds: float = 0.0) -> None:
        """In chunks that end anywhere."""
        body = b"".join(b"line %d\n" % number for number in lines)
        for begin in range(0, len(body), 37):
            self.now += seconds * 37 / len(body)
            self.live(body[begin : begin + 37])

    def ring(self) -> None:
        due, self.timers = self.timers, []
        for act in due:
            act()

    @property
    def fragments(self) -> list[str]:
        whole = re.compile(r"line \d+|\[\.\.\. \d+ bytes left out \.\.\.\]|")
        numbers = [int(each) for each in re.findall(r"^line (\d+)$", self.shown, re.MULTILINE)]
        assert numbers == sorted(set(numbers))
        return [line for line in self.shown.split("\n") if not whole.fullmatch(line)]


@pytest.mark.parametrize("seconds", [0.0, 0.5, 5.0])
def test_of_a_flood_whole_lines_are_shown_and_its_end(seconds: float) -> None:
    flood = Flood()
    flood.pour(range(1000, 4000), seconds)
    flood.live.finish()
    assert flood.fragments == []
    assert flood.shown.startswith("line 1000\nline 1001\n")
    assert flood.shown.endswith("line 3998\nline 3999\n")
    assert len(flood.shown) < 1400 + 1200 * seconds + 40 * flood.shown.count("left out")


def test_after_a_flood_its_end_is_shown_though_the_command_goes_on() -> None:
    flood = Flood()
    flood.pour(range(1000, 2000))
    flood.live(b"Listening on port 8080, press q to quit: ")
    assert "Listening" not in flood.shown
    flood.ring()
    assert "Listening" not in flood.shown, "something had come since the timer was set"
    flood.ring()
    assert flood.shown.endswith("\nListening on port 8080, press q to quit: ")
    assert flood.timers == []
    flood.live(b"q\n")
    flood.live.finish()
    assert flood.fragments == ["Listening on port 8080, press q to quit: q"]


@pytest.mark.parametrize("seen", range(31))
def test_news_of_a_process_are_what_was_not_seen(seen: int) -> None:
    head, tail = b"0123456789", b"abcdefghij"
    captured = Captured(head, tail, dropped_bytes=10)
    text = since(captured, seen)
    if seen >= 20:
        assert text == tail[seen - 20 :].decode()
    else:
        dropped = 10 - max(0, seen - 10)
        note = f"\n[... {dropped} bytes left out ...]\n"
        assert text == head[seen:].decode() + note + tail.decode()
    assert since(Captured(head, tail, 0), min(seen, 20)) == (head + tail)[min(seen, 20) :].decode()
