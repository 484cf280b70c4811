"""A lone Escape acts at once; a key sequence stays one key, however the terminal delivers it."""

import os
import tty
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from prompt_toolkit.key_binding.key_processor import KeyPress
from prompt_toolkit.keys import Keys

from bargein.cli.chat.keyboard import ESCAPE_ALONE, Keyboard

ESCAPE = "\x1b"
READ_BYTES = 1024


@dataclass
class Typist:
    """Types into a PTY that a `Keyboard` reads. `now` is the keyboard's clock."""

    terminal: int
    keyboard: Keyboard
    now: float = 0.0

    def types(self, keys: str) -> list[KeyPress]:
        """Write the keys at once and return what one read makes of them."""
        os.write(self.terminal, keys.encode())
        return self.keyboard.read_keys()

    def names(self, keys: str) -> list[str]:
        return [str(press.key) for press in self.types(keys) if press is not ESCAPE_ALONE]


@pytest.fixture
def typist(request: pytest.FixtureRequest) -> Iterator[Typist]:
    escape_wait_s = getattr(request, "param", 0.0)
    terminal, ours = os.openpty()
    tty.setraw(ours)
    with os.fdopen(ours, encoding="utf-8") as stdin:
        keyboard = Keyboard(stdin, escape_wait_s=escape_wait_s, now=lambda: someone.now)
        someone = Typist(terminal, keyboard)
        yield someone
    os.close(terminal)


def test_a_lone_escape_is_a_key_at_once(typist: Typist) -> None:
    first, after = typist.types(ESCAPE)
    assert first.key == Keys.Escape
    assert after is ESCAPE_ALONE


def test_escape_behind_other_keys_is_a_key_at_once_too(typist: Typist) -> None:
    presses = typist.types(f"ab{ESCAPE}")
    assert [press.key for press in presses[:3]] == ["a", "b", Keys.Escape]
    assert presses[3:] == [ESCAPE_ALONE]


@pytest.mark.parametrize(
    ("keys", "meant"),
    [
        ("\x1b[A", [Keys.Up]),
        ("\x1bOP", [Keys.F1]),
        ("\x1b\r", [Keys.Escape, Keys.ControlM]),
        ("\x1bb", [Keys.Escape, "b"]),
        ("\x1b[1;3A", [Keys.Escape, Keys.Up]),
    ],
)
def test_a_sequence_in_one_read_is_one_key(
    typist: Typist, keys: str, meant: list[Keys | str]
) -> None:
    presses = typist.types(keys)
    assert [press.key for press in presses] == meant
    assert ESCAPE_ALONE not in presses


@pytest.mark.parametrize(
    ("rest", "meant"),
    [
        (["[A"], [Keys.Up]),
        (["[", "A"], [Keys.Up]),
        (["OP"], [Keys.F1]),
        (["[1;", "3A"], [Keys.Escape, Keys.Up]),
    ],
)
def test_a_sequence_cut_behind_its_escape_types_nothing(
    typist: Typist, rest: list[str], meant: list[Keys]
) -> None:
    assert typist.types(ESCAPE)[-1] is ESCAPE_ALONE
    typist.now += 0.02
    names = [name for piece in rest for name in typist.names(piece)]
    assert names == [str(key) for key in meant]


def test_words_and_enter_after_an_escape_are_just_that(typist: Typist) -> None:
    typist.types(ESCAPE)
    assert typist.names("stop") == list("stop")
    typist.types(ESCAPE)
    assert typist.names("\r") == [str(Keys.ControlM)]


def test_a_bracket_typed_later_is_a_bracket(typist: Typist) -> None:
    typist.types(ESCAPE)
    typist.now += 0.2
    assert typist.names("[A") == ["[", "A"]


def test_an_escape_at_the_end_of_a_full_read_waits_for_what_is_there_already(
    typist: Typist,
) -> None:
    presses = typist.types("x" * (READ_BYTES - 1) + "\x1b[A")
    assert ESCAPE_ALONE not in presses
    assert len(presses) == READ_BYTES - 1
    assert [press.key for press in typist.keyboard.read_keys()] == [Keys.Up]


def test_a_paste_cut_inside_its_end_mark_is_whole(typist: Typist) -> None:
    assert typist.types(f"\x1b[200~some text{ESCAPE}") == []
    (pasted,) = typist.types("[201~")
    assert (pasted.key, pasted.data) == (Keys.BracketedPaste, "some text")


@pytest.mark.parametrize("typist", [0.05], indirect=True)
def test_with_a_wait_an_escape_is_held_back(typist: Typist) -> None:
    assert typist.types(ESCAPE) == []
    assert typist.names("[A") == [str(Keys.Up)]
