"""System calls that Python has no function for. Each raises OSError."""

import ctypes
import errno
import os
from typing import Final

_CLONE3: Final = 435  # the same number on every architecture that Python 3.11 runs on
_CLONE_PARENT: Final = 0x0000_8000
_CLONE_INTO_CGROUP: Final = 0x2_0000_0000
_PR_SET_CHILD_SUBREAPER: Final = 36
CLONE_NEWNS: Final = 0x0002_0000
CLONE_NEWUSER: Final = 0x1000_0000
MS_RDONLY: Final = 0x1
MS_NOSUID: Final = 0x2
MS_NODEV: Final = 0x4
MS_NOEXEC: Final = 0x8
MS_REMOUNT: Final = 0x20
MS_BIND: Final = 0x1000
MS_REC: Final = 0x4000
MS_SLAVE: Final = 0x8_0000
_LANDLOCK_CREATE_RULESET: Final = 444
_LANDLOCK_ADD_RULE: Final = 445
_LANDLOCK_RESTRICT_SELF: Final = 446
_LANDLOCK_VERSION: Final = 1
_LANDLOCK_PATH_BENEATH: Final = 1
_LANDLOCK_REFER: Final = 1 << 13


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


# PyDLL keeps the interpreter's lock during the call, so that the clone returns to Python with it.
_libc = ctypes.PyDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = [ctypes.c_long, ctypes.c_void_p, ctypes.c_size_t]
_syscall4 = ctypes.PyDLL(None, use_errno=True).syscall
_syscall4.restype = ctypes.c_long
_syscall4.argtypes = [ctypes.c_long] + [ctypes.c_long] * 2 + [ctypes.c_void_p, ctypes.c_long]
_landlock = ctypes.PyDLL(None, use_errno=True).syscall
_landlock.restype = ctypes.c_long
_landlock.argtypes = [ctypes.c_long, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32]
_mount = _libc.mount
_mount.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_ulong, ctypes.c_char_p]
_prctl = _libc.prctl
_prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4


def clone_sibling_into_cgroup(cgroup_fd: int) -> int:
    """Like fork, but the new process starts in that cgroup, and its parent is our parent.

    Only for a process with a single thread. The interpreter does not know that it was forked, so
    the new process should soon become another program.
    """
    arguments = _CloneArguments(flags=_CLONE_PARENT | _CLONE_INTO_CGROUP, cgroup=cgroup_fd)
    pid: int = _syscall(_CLONE3, ctypes.addressof(arguments), ctypes.sizeof(arguments))
    if pid < 0:
        raise _last_error("clone3")
    return pid


def become_subreaper() -> None:
    """Make orphans among our descendants our children, not init's."""
    if _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise _last_error("prctl(PR_SET_CHILD_SUBREAPER)")


def unshare(flags: int) -> None:
    """Move this process into new namespaces, of the kinds that `flags` name."""
    if _libc.unshare(ctypes.c_int(flags)) != 0:
        raise _last_error("unshare")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    arguments = [os.fsencode(text) if text else None for text in (source, target, kind)]
    if _mount(*arguments, flags, os.fsencode(options) if options else None) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), target)


class _LandlockRules(ctypes.Structure):
    """The kernel's struct landlock_ruleset_attr, as of Linux 5.13."""

    _fields_ = [("handled_access_fs", ctypes.c_uint64)]


class _LandlockPath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


def fence() -> None:
    """Keep this process and its descendants from mounting, and from looking into other processes.

    Landlock forbids both to everybody inside a domain, whatever its rules are: mounting and
    unmounting, and everything that needs the right to trace a process outside (its root, working
    directory, descriptors, environment, memory and namespaces in /proc). Our rules handle one
    right, moving files between directories, and grant it everywhere. Needs CAP_SYS_ADMIN, and then
    leaves set-user-ID programs as they are.
    """
    if _landlock(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION) < 2:
        raise OSError(errno.ENOSYS, "this kernel's Landlock is too old")
    rules = _LandlockRules(_LANDLOCK_REFER)
    handle = _landlock(_LANDLOCK_CREATE_RULESET, ctypes.addressof(rules), ctypes.sizeof(rules), 0)
    if handle < 0:
        raise _last_error("landlock_create_ruleset")
    root = os.open("/", os.O_PATH)
    try:
        everywhere = _LandlockPath(_LANDLOCK_REFER, root)
        where = ctypes.addressof(everywhere)
        if _syscall4(_LANDLOCK_ADD_RULE, handle, _LANDLOCK_PATH_BENEATH, where, 0) != 0:
            raise _last_error("landlock_add_rule")
        if _syscall4(_LANDLOCK_RESTRICT_SELF, handle, 0, None, 0) != 0:
            raise _last_error("landlock_restrict_self")
    finally:
        os.close(root)
        os.close(handle)


def _last_error(what: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"{what}: {os.strerror(code)}")
