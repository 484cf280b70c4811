"""System calls that Python has no function for. Each raises OSError."""

import ctypes
import os
from typing import Final

_CLONE3: Final = 435  # the same number on every architecture that Python 3.11 runs on
_CLONE_PARENT: Final = 0x0000_8000
_CLONE_INTO_CGROUP: Final = 0x2_0000_0000
_PR_SET_CHILD_SUBREAPER: Final = 36
_SIGCHLD: Final = 17
CLONE_NEWTIME: Final = 0x80
CLONE_NEWNS: Final = 0x0002_0000
CLONE_NEWUTS: Final = 0x0400_0000
CLONE_NEWIPC: Final = 0x0800_0000
CLONE_NEWUSER: Final = 0x1000_0000
CLONE_NEWPID: Final = 0x2000_0000
CLONE_NEWNET: Final = 0x4000_0000
MS_RDONLY: Final = 0x1
MS_NOSUID: Final = 0x2
MS_NODEV: Final = 0x4
MS_NOEXEC: Final = 0x8
MS_REMOUNT: Final = 0x20
MS_BIND: Final = 0x1000
MS_REC: Final = 0x4000
MS_PRIVATE: Final = 0x4_0000
MS_SLAVE: Final = 0x8_0000
_MOUNT_SETATTR: Final = 442
_OPENAT2: Final = 437
_AT_FDCWD: Final = -100
_AT_RECURSIVE: Final = 0x8000
_MOUNT_ATTR_RDONLY: Final = 0x1
_RESOLVE_NO_SYMLINKS: Final = 0x4
_LANDLOCK_CREATE_RULESET: Final = 444
_LANDLOCK_ADD_RULE: Final = 445
_LANDLOCK_VERSION: Final = 1
_LANDLOCK_PATH_BENEATH: Final = 1


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
_syscall5 = ctypes.PyDLL(None, use_errno=True).syscall
_syscall5.restype = ctypes.c_long
_syscall5.argtypes = [
    *(ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint),
    *(ctypes.c_void_p, ctypes.c_size_t),
]
_openat2 = ctypes.PyDLL(None, use_errno=True).syscall
_openat2.restype = ctypes.c_long
_openat2.argtypes = [
    *(ctypes.c_long, ctypes.c_int, ctypes.c_char_p),
    *(ctypes.c_void_p, ctypes.c_size_t),
]
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
        raise last_error("clone3")
    return pid


def clone_init() -> int:
    """Like fork, but the new process is the first of a pid namespace."""
    arguments = _CloneArguments(flags=CLONE_NEWPID, exit_signal=_SIGCHLD)
    pid: int = _syscall(_CLONE3, ctypes.addressof(arguments), ctypes.sizeof(arguments))
    if pid < 0:
        raise last_error("clone3")
    return pid


def enter_namespace(handle: int, kind: int) -> None:
    """`handle` is a pidfd of a process in it, or an open file of /proc/PID/ns. A pid namespace is
    that of our children from now on, not our own."""
    if _libc.setns(handle, ctypes.c_int(kind)) != 0:
        raise last_error("setns")


def become_subreaper() -> None:
    """Make orphans among our descendants our children, not init's."""
    if _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise last_error("prctl(PR_SET_CHILD_SUBREAPER)")


def unshare(flags: int) -> None:
    """Move this process into new namespaces, of the kinds that `flags` name."""
    if _libc.unshare(ctypes.c_int(flags)) != 0:
        raise last_error("unshare")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    arguments = [os.fsencode(text) if text else None for text in (source, target, kind)]
    if _mount(*arguments, flags, os.fsencode(options) if options else None) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), target)


class _MountAttributes(ctypes.Structure):
    """The kernel's struct mount_attr."""

    _fields_ = [
        (name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")
    ]


def make_read_only(path: str, *, recursively: bool = False) -> None:
    """Of the mount at `path`, or of it and every mount below."""
    _set_attributes(path, _MountAttributes(attr_set=_MOUNT_ATTR_RDONLY), recursively)


def make_writable(path: str) -> None:
    _set_attributes(path, _MountAttributes(attr_clr=_MOUNT_ATTR_RDONLY), False)


def _set_attributes(path: str, attributes: _MountAttributes, recursively: bool) -> None:
    where, size = ctypes.addressof(attributes), ctypes.sizeof(attributes)
    flags = _AT_RECURSIVE if recursively else 0
    if _syscall5(_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), flags, where, size) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)


class _OpenHow(ctypes.Structure):
    """The kernel's struct open_how."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("flags", "mode", "resolve")]


def open_without_links(path: str) -> int:
    """An O_PATH descriptor of `path`, no part of which may be a symbolic link."""
    how = _OpenHow(os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_NO_SYMLINKS)
    # The fourth argument is the struct, the fifth its size.
    handle: int = _openat2(
        _OPENAT2, _AT_FDCWD, os.fsencode(path), ctypes.addressof(how), ctypes.sizeof(how)
    )
    if handle < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)
    return handle


class _LandlockPath(ctypes.Structure):
    _pack_ = 1
    # The layout that `_pack_` implies. Python 3.14 warns if it is not named.
    _layout_ = "ms"
    _fields_ = [("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


def landlock(number: int, first: int | None, second: int, third: int) -> int:
    result: int = _landlock(number, first, second, third)
    return result


def landlock_version() -> int:
    return landlock(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION)


def landlock_rule(ruleset: int, folder: int, rights: int) -> None:
    rule = _LandlockPath(rights, folder)
    where = ctypes.addressof(rule)
    if _syscall4(_LANDLOCK_ADD_RULE, ruleset, _LANDLOCK_PATH_BENEATH, where, 0) != 0:
        raise last_error("landlock_add_rule")


def last_error(what: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"{what}: {os.strerror(code)}")
