"""Reads what is piped into `bargein run` and adds it to the message.

Standard input is read to its end if it is a file or a pipe, and never if it is a terminal, unless
`-` asks for it. A pipe that is open but silent must not hang a cron job: beside a prompt, the first
byte is awaited only briefly, and a warning says that the run goes on without it.
"""

import os
import select
import stat
import sys

from bargein.errors import UserError

PIPED_BYTES_MAX = 4 * 1024 * 1024
FIRST_BYTE_S = 3.0
READ_BYTES = 65_536
# Text in an older encoding has some bytes that are not UTF-8; binary data has many.
STRANGE_SHARE_MAX = 0.1
WHOLE = "-"
STDIN = 0


def message_of(words: list[str]) -> str:
    """Returns the message for the model: the words, standard input, or the words with standard
    input below. Raises `UserError` if both are empty, or if the input is not text for a model."""
    prompt = " ".join(words)
    if prompt in ("", WHOLE):
        message = _text(_read(first_byte_s=None, even_terminal=prompt == WHOLE))
    else:
        message = with_piped(prompt, _text(_read(first_byte_s=FIRST_BYTE_S)))
    if not message.strip():
        raise UserError('nothing to do: give a prompt, as in  bargein run "sum up README.md"')
    return message


def with_piped(prompt: str, piped: str) -> str:
    if not piped.strip():
        return prompt
    end = "" if piped.endswith("\n") else "\n"
    return f"{prompt}\n\n<stdin>\n{piped}{end}</stdin>"


def _read(*, first_byte_s: float | None, even_terminal: bool = False) -> bytes:
    """Reads all of standard input. `first_byte_s`: how long to wait for its beginning; None waits
    as long as it takes."""
    if os.isatty(STDIN):
        if not even_terminal:
            return b""
        _say("reading what you type; Ctrl-D ends it")
    elif first_byte_s is not None and not _begins_within(first_byte_s):
        _say(
            f"standard input is open, but nothing arrived within {first_byte_s:g} s; going on "
            "without it (use < /dev/null if there is no input; for a slow program, pipe the prompt "
            "too, into bargein run -)"
        )
        return b""
    body = bytearray()
    while piece := os.read(STDIN, READ_BYTES):
        body += piece
        if len(body) > PIPED_BYTES_MAX:
            raise UserError(
                f"standard input has more than {PIPED_BYTES_MAX >> 20} MiB, which no model can "
                "read at once; pipe less of it, or name the file in the prompt"
            )
    return bytes(body)


def _begins_within(seconds: float) -> bool:
    """Whether standard input can be read, or has ended, within the time."""
    if stat.S_ISREG(os.fstat(STDIN).st_mode):
        return True
    ready, _, _ = select.select([STDIN], [], [], seconds)
    return bool(ready)


def _text(body: bytes) -> str:
    text = body.decode(errors="replace").removeprefix("\ufeff")
    strange = text.count("\ufffd")
    if b"\0" in body or strange > len(text) * STRANGE_SHARE_MAX:
        raise UserError(
            f"standard input is not text ({len(body)} bytes, and not UTF-8); pipe text, or name "
            "the file in the prompt"
        )
    return text


def _say(words: str) -> None:
    print(f"bargein run: {words}", file=sys.stderr, flush=True)
