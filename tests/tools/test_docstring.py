"""Descriptions in a docstring reach the model, whichever layout it has."""

from __future__ import annotations

import pytest

from bargein.tools.signature import read_docstring

GOOGLE = """Count words.

    More about it.

    Args:
        text (str): What to
            count in.
        limit: How many: at most.

    Returns:
        the number: of words
    """
NUMPY = """Count words.

    More about it.

    Parameters
    ----------
    text : str
        What to
        count in.
    limit
        How many: at most.

    Returns
    -------
    number : int
        Of words.
    """
SPHINX = """Count words.

    More about it.

    :param str text: What to
        count in.
    :param limit: How many: at most.
    :returns: the number
    """


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_description_and_parameters_are_read(text: str) -> None:
    documented = read_docstring(text)
    assert documented.description == "Count words.\n\nMore about it."
    assert documented.parameters == {"text": "What to count in.", "limit": "How many: at most."}


def test_a_docstring_without_parameters_is_all_description() -> None:
    documented = read_docstring("One line.\n\n  And: another.\n")
    assert documented.description == "One line.\n\nAnd: another."
    assert documented.parameters == {}


@pytest.mark.parametrize("text", [None, "", "---", "Args:", "Args:\n\n", ":param:", ":param x:"])
def test_odd_docstrings_do_no_harm(text: str | None) -> None:
    read_docstring(text)
