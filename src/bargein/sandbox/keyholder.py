"""Removes keys from what other processes can see of this one.

`/proc/PID/environ` shows the memory into which the kernel wrote the variables at the start, and
deleting one from `os.environ` does not change that memory. So `forget_secrets` overwrites the
values there. Root can read that file of any process, so this matters more than `refuse_tracing`,
which keeps other programs of an ordinary user from this process's memory, descriptors and folders.

Only our own programs call this, once, at their start: a library must not take variables from the
program that uses it.
"""

import ctypes
import os
import re
import sys
from collections.abc import Callable
from typing import Final

_PR_SET_DUMPABLE: Final = 4
# Fields of /proc/self/stat, counted from 0 after the command's name; proc(5) calls them 48 and 50.
# The field after each is the end of its block.
_ARG_START: Final = 45
_ENV_START: Final = 47
_ADDRESS: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://\S*")
_BLOCK_BYTES_MAX: Final = 64 << 20

IsSecret = Callable[[str, str], bool]


def forget_secrets(is_secret: IsSecret, spare: Callable[[str], bool] = lambda name: False) -> int:
    """Remove secrets from this process's environment. Returns how many there were.

    The caller has read before what it needs. Variables that `spare` names stay in `os.environ`,
    for a library that reads them later, but are overwritten where others could see them.
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
    """Keep programs of the same user from tracing this process and from its files in /proc.

    Programs that it starts are not affected. Returns False if the system cannot do this.
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
    """Overwrite URLs with a password in them, as in `--model`, in what /proc/self/cmdline shows."""
    for address, text in _texts(_ARG_START):
        for found in _ADDRESS.finditer(text):
            if is_secret("", os.fsdecode(found[0])):
                ctypes.memset(address + found.start(), ord("x"), len(found[0]))


def _texts(field: int) -> list[tuple[int, bytes]]:
    """The strings in a block of our own memory that /proc shows, each with its address."""
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        begin, end = int(fields[field]), int(fields[field + 1])
    except (OSError, IndexError, ValueError):
        return []  # without /proc, no other process can read it there
    if not 0 < end - begin <= _BLOCK_BYTES_MAX:
        return []
    found = []
    for text in ctypes.string_at(begin, end - begin).split(b"\0"):
        found.append((begin, text))
        begin += len(text) + 1
    return found
