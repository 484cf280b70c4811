"""The program's input and output, whatever the character set of the terminal or locale.

A character that cannot be written becomes `?`, one that cannot be read becomes `�`; neither fails.
Output for programs and files is UTF-8, in full. A closed stream behaves as if it led to /dev/null.
"""

import io
import os
import sys
from contextlib import suppress
from typing import TextIO

NOBODY_READS = 141


def open_what_is_closed() -> None:
    """Opens /dev/null in place of closed standard streams. Otherwise another file would get the
    descriptor's number and be taken for the stream."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # This is the lowest free number.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    # Python sets the stream of a closed descriptor to None.
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def written(exit_code: int) -> int:
    """Flushes the output and returns the exit code; if the output cannot be written, says so and
    returns another code. Python itself would complain on closing the streams, with its own code."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _lead_nowhere(sys.stdout)
        exit_code = NOBODY_READS
    except OSError as error:
        _lead_nowhere(sys.stdout)
        exit_code = 1
        with suppress(OSError):
            message = f"bargein: standard output cannot be written: {error.strerror}"
            print(message, file=sys.stderr)
    try:
        sys.stderr.flush()
    except OSError:
        # Nothing is left to report it to.
        _lead_nowhere(sys.stderr)
    return exit_code


def _lead_nowhere(stream: TextIO) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def forgive_characters() -> None:
    """Makes sure that no character fails reading or writing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if isinstance(sys.stdin, io.TextIOWrapper):
        # An ASCII locale says nothing about other bytes; nearly always they are UTF-8.
        ascii_only = sys.stdin.encoding.lower() in ("ascii", "us-ascii", "ansi_x3.4-1968")
        encoding = "utf-8" if ascii_only else sys.stdin.encoding
        sys.stdin.reconfigure(encoding=encoding, errors="replace")


def as_written(argument: str) -> str:
    """Returns an argument as text; bytes unknown to the locale are decoded as UTF-8, or `�`."""
    if any("\ud800" <= character <= "\udfff" for character in argument):
        return os.fsencode(argument).decode(errors="replace")
    return argument


def write_whole(text: str) -> None:
    """Writes to standard output as UTF-8, and flushes."""
    sys.stdout.flush()
    # An unpaired surrogate has no UTF-8 form.
    sys.stdout.buffer.write(text.encode(errors="replace"))
    sys.stdout.buffer.flush()
