"""Output is bounded, readable, and never takes long to be made so."""

from __future__ import annotations

import time

import pytest

from bargein.process import Captured
from bargein.tools.background import since
from bargein.tools.output import KeptText, LiveOutput, as_read, one_line, shortened


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
    live = LiveOutput(shown.append, lambda: now, burst_bytes=10, rate_bytes=4)
    data = "aäb".encode()
    live(data[:2])
    live(data[2:])
    assert "".join(shown) == "aäb"
    live(b"x" * 100)
    assert "".join(shown) == "aäb" + "x" * 6
    live(b"y" * 50)
    assert len("".join(shown)) == 9
    now = 1.0
    live(b"z" * 10)
    assert "".join(shown[2:]) == "x" * 6 + "\n[... 144 bytes left out ...]\n" + "z" * 4


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
