"""The tree of errors is the one that is drawn on top of `errors.py`."""

from __future__ import annotations

import pickle
import re

import pytest

from bargein import errors
from bargein.errors import BargeinError, WorldError


def test_the_drawing_shows_every_class_under_its_parent() -> None:
    drawn: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        if match := re.match(r"    ([ │]*[├└]── |)(\w+)", line):
            depth, name = len(match[1]), match[2]
            path = [step for step in path if step[0] < depth]
            if path:
                drawn[name] = path[-1][1]
            path.append((depth, name))
    real = {name: getattr(errors, name).__base__.__name__ for name in errors.__all__}
    assert drawn == real


def test_every_class_says_what_it_is_for() -> None:
    for name in errors.__all__:
        assert getattr(errors, name).__doc__


@pytest.mark.parametrize("retryable", [True, False])
def test_a_world_error_survives_the_way_to_another_process(retryable: bool) -> None:
    error = WorldError("the disk is full: /data; free some room", retryable=retryable)
    error.add_note("while writing the log")
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, WorldError)
    assert (str(copy), copy.retryable) == (str(error), retryable)
    assert copy.__notes__ == ["while writing the log"]


def test_whether_to_retry_is_never_left_open() -> None:
    with pytest.raises(TypeError, match="retryable"):
        WorldError("gone")  # type: ignore[call-arg]


def test_one_handler_catches_the_whole_tree() -> None:
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), BargeinError)
