"""What is piped into `bargein run`, and how it becomes part of the message.

Standard input is read to its end when it is a file or a pipe, and never when it is a terminal,
unless `-` asks for it. A pipe that somebody holds open and nobody writes to must not hang a cron
job: beside a prompt, its first byte is waited for a moment only, and going on without it is said.
"""

import os
import select
import stat
import sys

from bargein.errors import UserError

PIPED_BYTES_MAX = 4 * 1024 * 1024
FIRST_BYTE_S = 3.0
READ_BYTES = 65_536
# Text of an older character set has some bytes that are not UTF-8; other data has many.
STRANGE_SHARE_MAX = 0.1
WHOLE = "-"
STDIN = 0


def message_of(words: list[str]) -> str:
    """The message for the model: the words, standard input, or the words with standard input below
    them. Raises `UserError` if there is neither, or if the input cannot be given to a model."""
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
    """All of standard input. `first_byte_s`: how long its beginning is waited for; None is as long
    as it takes."""
    if os.isatty(STDIN):
        if not even_terminal:
            return b""
        _say("reading what you type; Ctrl-D ends it")
    elif first_byte_s is not None and not _begins_within(first_byte_s):
        _say(
            f"standard input is open, but nothing came in {first_byte_s:g} s: going on without it "
            "(< /dev/null if there is none; for a slow program, pipe prompt and all into "
            "bargein run -)"
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
    """Whether there is something to read, or the end of it."""
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
