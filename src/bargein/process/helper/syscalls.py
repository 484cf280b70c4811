"""The system calls that Python has no function for."""

import ctypes
import os
from typing import Final

_CLONE3: Final = 435  # the same number on every architecture that Python 3.11 runs on
_CLONE_PARENT: Final = 0x0000_8000
_CLONE_INTO_CGROUP: Final = 0x2_0000_0000
_PR_SET_CHILD_SUBREAPER: Final = 36


class _CloneArguments(ctypes.Structure):
    """The kernel's struct clone_args, as of Linux 5.7."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "flags",
            "pidfd",
            "child_tid",
            "parent_tid",
            "exit_signal",
            "stack",
            "stack_size",
            "tls",
            "set_tid",
            "set_tid_size",
            "cgroup",
        )
    ]


# PyDLL keeps the interpreter's lock during the call: the clone comes back into Python holding it.
_libc = ctypes.PyDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = [ctypes.c_long, ctypes.c_void_p, ctypes.c_size_t]
_prctl = _libc.prctl
_prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4


def clone_sibling_into_cgroup(cgroup_fd: int) -> int:
    """Like fork, but the new process begins life in that cgroup, and its parent is our parent.

    Only for a process with a single thread, and the new one should soon become another program:
    the interpreter is not told that it was forked.
    """
    arguments = _CloneArguments(flags=_CLONE_PARENT | _CLONE_INTO_CGROUP, cgroup=cgroup_fd)
    pid: int = _syscall(_CLONE3, ctypes.addressof(arguments), ctypes.sizeof(arguments))
    if pid < 0:
        raise _last_error("clone3")
    return pid


def become_subreaper() -> None:
    """Orphans among our descendants become our children, not those of init."""
    if _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise _last_error("prctl(PR_SET_CHILD_SUBREAPER)")


def _last_error(what: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"{what}: {os.strerror(code)}")
