from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bargein.net.sse import EventParser, EventTooLong

LINES = st.lists(
    st.sampled_from(
        [
            "data: one",
            "data:two",
            "data:  three",
            'data: {"text": "grüße 世界 🌍"}',
            "data:",
            "event: ping",
            "event:",
            ": a comment",
            ":",
            "id: 7",
            "retry: 10",
            "nonsense",
            "",
            "",
            "",
        ]
    ),
    max_size=30,
)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])


def feed(pieces: list[bytes], **options: int) -> list[bytes]:
    parser = EventParser(**options)
    return [event for piece in pieces for event in parser.feed(piece)]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    marks = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(marks)]


@given(LINES, ENDS, st.lists(st.integers(0, 600), max_size=40))
def test_any_cut_of_the_bytes_gives_the_same_events(
    lines: list[str], end: str, places: list[int]
) -> None:
    data = "".join(line + end for line in [*lines, ""]).encode()
    whole = feed([data])
    assert feed(cut(data, places)) == whole
    assert feed([data[i : i + 1] for i in range(len(data))]) == whole


@given(LINES, ENDS)
def test_the_events_are_those_of_the_specification(lines: list[str], end: str) -> None:
    data = "".join(line + end for line in [*lines, ""]).encode()
    assert feed([data]) == specified(lines)


def specified(lines: list[str]) -> list[bytes]:
    """Written from the specification, one line at a time, with no thought of speed; only that
    an event without data is none."""
    events, data = [], list[str]()
    for line in [*lines, ""]:
        if line == "":
            if any(data) or len(data) > 1:
                events.append("\n".join(data).encode())
            data = []
            continue
        field, _, value = line.partition(":")
        if field == "data":
            data.append(value.removeprefix(" "))
    return events


def test_a_byte_order_mark_is_not_part_of_the_first_line() -> None:
    assert feed([b"\xef\xbb\xbfdata: a\n\n"]) == [b"a"]
    assert feed([b"\xef", b"\xbb\xbfda", b"ta: a\n\n"]) == [b"a"]


def test_the_other_end_is_heard_in_comments() -> None:
    parser = EventParser()
    assert parser.feed(b": still here\n") == []
    assert parser.lines == 1


def test_an_unfinished_event_is_never_given_out() -> None:
    parser = EventParser()
    assert parser.feed(b"data: half") == []
    assert parser.feed(b"\n") == []
    assert parser.feed(b"data: more\n\n") == [b"half\nmore"]


@pytest.mark.parametrize("piece", [b"x" * 16, b"data: " + b"x" * 10 + b"\n"])
def test_what_never_ends_is_refused_at_the_bound(piece: bytes) -> None:
    with pytest.raises(EventTooLong):
        feed([piece] * 1000, event_bytes_max=1000)


def test_a_line_that_comes_byte_by_byte_costs_linear_time() -> None:
    def seconds(size: int) -> float:
        parser = EventParser()
        start = time.thread_time()
        for _ in range(size):
            parser.feed(b"x")
        parser.feed(b"\n\n")
        return time.thread_time() - start

    small = min(seconds(20_000) for _ in range(3))
    large = min(seconds(160_000) for _ in range(3))
    # Eight times the bytes: linear gives 8, a copy of the line for each byte would give 64.
    assert large / small < 30
