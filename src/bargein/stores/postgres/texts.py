"""Encodes texts for PostgreSQL, which cannot store the null character.

A null becomes a substitute character and a digit, and so does the substitute character itself.
Every other text is kept as it is.
"""

ESCAPE = "\x1a"


def kept(text: str) -> str:
    if "\x00" in text or ESCAPE in text:
        return text.replace(ESCAPE, ESCAPE + "1").replace("\x00", ESCAPE + "0")
    return text


def as_it_was(text: str) -> str:
    if ESCAPE in text:
        return text.replace(ESCAPE + "0", "\x00").replace(ESCAPE + "1", ESCAPE)
    return text
