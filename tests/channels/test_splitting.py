import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bargein.channels.splitting import split

LINES = st.sampled_from(
    ["word " * 20, "", "```python", "```", "~~~", "x" * 300, "a line", "- item"]
)


def test_a_short_text_is_one_piece() -> None:
    assert split("Hello.", 100) == ["Hello."]


def test_it_cuts_between_paragraphs() -> None:
    assert split("a" * 60 + "\n\n" + "b" * 60, 100) == ["a" * 60, "b" * 60]


def test_code_that_is_cut_is_closed_and_opened_again() -> None:
    code = "\n".join(f"line {number}" for number in range(40))
    pieces = split(f"```python\n{code}\n```", 120)
    assert len(pieces) > 2
    assert all(p.startswith("```python\n") and p.rstrip().endswith("```") for p in pieces)
    lines = [line for p in pieces for line in p.split("\n") if line.startswith("line")]
    assert lines == code.split("\n")


@given(st.lists(LINES, max_size=40).map("\n".join), st.integers(64, 400))
def test_no_piece_is_too_long_and_no_word_is_lost(text: str, limit: int) -> None:
    pieces = split(text, limit)
    assert all(len(piece) <= limit for piece in pieces)
    assert _words("\n".join(pieces)) == _words(text)


def _words(text: str) -> str:
    """Without blanks and fences: those are what a cut may add or take."""
    return re.sub(r"\s|```(python)?|~~~", "", text)


def test_a_limit_that_cannot_work_is_refused() -> None:
    with pytest.raises(ValueError, match="too small"):
        split("Hello.", 10)
