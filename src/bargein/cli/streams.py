"""The program's input and output, whatever character set the terminal or the locale has.

What cannot be written is written as `?`, what cannot be read is read as `�`: neither fails. What is
for programs and files goes out as UTF-8, whole. What is closed is as if it led nowhere.
"""

import io
import os
import sys
from contextlib import suppress
from typing import TextIO

NOBODY_READS = 141


def open_what_is_closed() -> None:
    """Whoever starts us may have closed what every program has. Then nothing stands in its place:
    another file would get its number, and be taken for it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    # Python has found them closed, and has none.
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def written(exit_code: int) -> int:
    """The exit code when all that was printed is where it belongs; another one if that cannot be,
    and a sentence. Python would complain when it closes the streams, with a code of its own."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _lead_nowhere(sys.stdout)
        exit_code = NOBODY_READS
    except OSError as error:
        _lead_nowhere(sys.stdout)
        exit_code = 1
        with suppress(OSError):
            told = f"bargein: standard output cannot be written: {error.strerror}"
            print(told, file=sys.stderr)
    try:
        sys.stderr.flush()
    except OSError:
        # There is nobody to tell.
        _lead_nowhere(sys.stderr)
    return exit_code


def _lead_nowhere(stream: TextIO) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def forgive_characters() -> None:
    """From now on no character makes reading or writing fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if isinstance(sys.stdin, io.TextIOWrapper):
        # A locale that knows ASCII alone says nothing about other bytes; nearly all are UTF-8.
        ascii_only = sys.stdin.encoding.lower() in ("ascii", "us-ascii", "ansi_x3.4-1968")
        encoding = "utf-8" if ascii_only else sys.stdin.encoding
        sys.stdin.reconfigure(encoding=encoding, errors="replace")


def as_written(argument: str) -> str:
    """An argument as text: bytes that the locale does not know are UTF-8, or `�`."""
    if any("\ud800" <= character <= "\udfff" for character in argument):
        return os.fsencode(argument).decode(errors="replace")
    return argument


def write_whole(text: str) -> None:
    """To standard output as UTF-8, and at once."""
    sys.stdout.flush()
    # A lone half of a pair has no UTF-8.
    sys.stdout.buffer.write(text.encode(errors="replace"))
    sys.stdout.buffer.flush()
