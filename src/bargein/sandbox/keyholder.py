"""The process that holds keys does not show them.

`/proc/PID/environ` is the memory in which the kernel put the variables at the start; taking one out
of `os.environ` does not change it. So the values are overwritten there. Root reads that file of
anybody, so this counts more than `refuse_tracing`, which keeps other programs of an ordinary user
from this process's memory, descriptors and folders.

For programs of our own alone: a library must not take variables from the program that uses it.
"""

import ctypes
import os
import re
import sys
from collections.abc import Callable
from typing import Final

_PR_SET_DUMPABLE: Final = 4
# In /proc/self/stat behind the command's name, counted from 0: see proc(5), 48 and 50 there. Each
# is followed by the end of its block.
_ARG_START: Final = 45
_ENV_START: Final = 47
_ADDRESS: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://\S*")
_BLOCK_BYTES_MAX: Final = 64 << 20

IsSecret = Callable[[str, str], bool]


def forget_secrets(is_secret: IsSecret, spare: Callable[[str], bool] = lambda name: False) -> int:
    """Take secrets out of this process's environment; returns how many there were.

    The caller has read what it needs before. What `spare` names stays in `os.environ`, for a
    library that reads it later, but is overwritten where others could see it.
    """
    names = [name for name, value in os.environ.items() if is_secret(name, value)]
    if sys.platform == "linux":
        _overwrite_variables({os.fsencode(name) for name in names})
        _overwrite_arguments(is_secret)
    for name in names:
        if not spare(name):
            del os.environ[name]
    return len(names)


def refuse_tracing() -> bool:
    """Keep programs of the same user from tracing this process, and from its files in /proc.

    A program that it starts by exec is not affected. False where there is no such thing.
    """
    if sys.platform != "linux":
        return False
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    return bool(prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0)


def _overwrite_variables(names: set[bytes]) -> None:
    """Fill the values of these variables with zeros in the block that /proc/self/environ shows."""
    for address, text in _texts(_ENV_START):
        name, mark, value = text.partition(b"=")
        if mark and name in names:
            ctypes.memset(address + len(name) + 1, 0, len(value))


def _overwrite_arguments(is_secret: IsSecret) -> None:
    """Fill addresses with a password in them, as in `--model`, in what /proc/self/cmdline shows."""
    for address, text in _texts(_ARG_START):
        for found in _ADDRESS.finditer(text):
            if is_secret("", os.fsdecode(found[0])):
                ctypes.memset(address + found.start(), ord("x"), len(found[0]))


def _texts(field: int) -> list[tuple[int, bytes]]:
    """The texts of a block in our own memory that the kernel shows in /proc, and where they are."""
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        begin, end = int(fields[field]), int(fields[field + 1])
    except (OSError, IndexError, ValueError):
        return []  # no /proc: then nobody else reads it there either
    if not 0 < end - begin <= _BLOCK_BYTES_MAX:
        return []
    found = []
    for text in ctypes.string_at(begin, end - begin).split(b"\0"):
        found.append((begin, text))
        begin += len(text) + 1
    return found
