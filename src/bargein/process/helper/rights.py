"""What a sandboxed process gives up before it becomes a command: capabilities, the right to gain
any, system calls that reach around the sandbox, and processes outside of its own domain.

Nothing here can be taken back, by this process or by what it starts. Each function raises OSError.
"""

import ctypes
import errno
import os
import struct
import sys
from typing import Final

from bargein.process.helper import syscalls

_PR_SET_DUMPABLE: Final = 4
_PR_CAPBSET_DROP: Final = 24
_PR_SET_SECCOMP: Final = 22
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_CAP_AMBIENT_CLEAR_ALL: Final = 4
_SECCOMP_MODE_FILTER: Final = 2
_CAPABILITIES: Final = 64
# Root keeps what only concerns files and processes that it can reach: chown, dac_override, fowner,
# fsetid, kill, setgid, setuid, net_bind_service.
_KEPT: Final = frozenset({0, 1, 3, 4, 5, 6, 7, 10})

_LANDLOCK_CREATE_RULESET: Final = 444
_LANDLOCK_RESTRICT_SELF: Final = 446
_REFER: Final = 1 << 13
_SCOPE_ABSTRACT_SOCKETS: Final = 1
_SCOPE_SIGNALS: Final = 2

# Numbers of system calls: x86-64, then the table that newer architectures share (-1: not there).
_NUMBERS: Final = {
    "open": (2, -1),
    "openat": (257, 56),
    "openat2": (437, 437),
    "creat": (85, -1),
    "chmod": (90, -1),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "mknod": (133, -1),
    "mknodat": (259, 33),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "clone": (56, 220),
    "unshare": (272, 97),
    "ioctl": (16, 29),
    "clone3": (435, 435),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "open_by_handle_at": (304, 265),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "setns": (308, 268),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
}
# Programs fall back to an older call: the filter cannot look into the structure that these take.
_NOT_THERE: Final = ("clone3", "openat2", "io_uring_setup", "io_uring_enter", "io_uring_register")
# The argument that has the mode. A set-user-ID file would give others the user's rights, outside.
_MODES: Final = {
    **dict.fromkeys(("creat", "chmod", "fchmod", "mknod"), 1),
    **dict.fromkeys(("open", "fchmodat", "fchmodat2", "mknodat"), 2),
    "openat": 3,
}
_SET_ID: Final = 0o6000
_ARCHITECTURES: Final = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_X32: Final = 0x4000_0000
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_TYPING: Final = (0x5412, 0x541C)  # TIOCSTI and TIOCLINUX put words into a terminal's input

_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _ERRNO = 0x7FFF_0000, 0x0005_0000

_libc = ctypes.PyDLL(None, use_errno=True)
_prctl = _libc.prctl
_prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4


def refuse_tracing() -> None:
    """Keep processes without our capabilities from this one's memory, descriptors and folders."""
    _prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def drop_capabilities() -> None:
    """From the next exec on: an ordinary user has none, root the few that concern its own files and
    processes, and no program that it starts gives more (set-user-ID programs are plain ones)."""
    for number in range(_CAPABILITIES):
        if number not in _KEPT and _prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
            code = ctypes.get_errno()
            if code == errno.EINVAL:
                break  # this kernel has no more
            raise OSError(code, f"capability {number}: {os.strerror(code)}")
    _prctl(_PR_CAP_AMBIENT, _CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    if _prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise syscalls.last_error("prctl(PR_SET_NO_NEW_PRIVS)")


class _Rules(ctypes.Structure):
    """The kernel's struct landlock_ruleset_attr, as of Linux 6.12."""

    _fields_ = [
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    ]


class Landlock:
    """A domain in the making. `allow` folders, then `enter` it."""

    def __init__(self, files: int, *, connecting: int = 0, scoped: bool = True) -> None:
        """`files` and `connecting` are the rights that it takes away where no rule gives them.
        `scoped`: signals and abstract sockets do not leave it, where the kernel can do that."""
        version = syscalls.landlock_version()
        if version < 2:
            raise OSError(errno.ENOSYS, "this kernel's Landlock is too old")
        if connecting and version < 4:
            raise OSError(errno.ENOSYS, "this kernel's Landlock knows nothing of networks")
        scopes = _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS if scoped and version >= 6 else 0
        size = 24 if version >= 6 else 16 if version >= 4 else 8
        rules = _Rules(files, connecting, scopes)
        self._handle = syscalls.landlock(_LANDLOCK_CREATE_RULESET, ctypes.addressof(rules), size, 0)
        if self._handle < 0:
            raise syscalls.last_error("landlock_create_ruleset")

    def allow(self, folder: int, rights: int) -> None:
        """`folder` is an open descriptor of it; all below it is allowed too."""
        syscalls.landlock_rule(self._handle, folder, rights)

    def enter(self) -> None:
        if syscalls.landlock(_LANDLOCK_RESTRICT_SELF, self._handle, 0, 0) != 0:
            raise syscalls.last_error("landlock_restrict_self")
        os.close(self._handle)


def fence(*, scoped: bool) -> None:
    """Keep this process and its descendants from mounting, and from looking into other processes.

    Landlock forbids both to everybody inside a domain, whatever its rules are: mounting and
    unmounting, and everything that needs the right to trace a process outside (its root, working
    directory, descriptors, environment, memory and namespaces in /proc). Our rules handle one
    right, moving files between directories, and grant it everywhere. Needs CAP_SYS_ADMIN or
    `drop_capabilities` before it. `scoped`: no signals and abstract sockets to the outside either.
    """
    domain = Landlock(_REFER, scoped=scoped)
    root = os.open("/", os.O_PATH)
    domain.allow(root, _REFER)
    os.close(root)
    domain.enter()


_Instruction = tuple[int, int, int, int]


def system_calls(*, internet: bool) -> bytes:
    """The filter: what no command needs and what would reach around the sandbox is refused.

    New user namespaces, kinds of sockets that no network namespace confines (vsock reaches the
    machine's host), the kernel's keys, mounts, files with set-user-ID or set-group-ID bits, and
    asynchronous I/O that no filter sees. Without `internet` sockets of the internet's are refused
    as well.
    """
    architecture = os.uname().machine
    if architecture not in _ARCHITECTURES or sys.byteorder != "little":
        raise OSError(errno.ENOSYS, f"no filter of system calls for {architecture}")
    audit, column = _ARCHITECTURES[architecture]
    families = [_AF_UNIX, _AF_NETLINK, *([_AF_INET, _AF_INET6] if internet else [])]
    special = {
        "socket": _only(0, families, errno.EAFNOSUPPORT),
        "socketpair": _only(0, [_AF_UNIX], errno.EAFNOSUPPORT),
        "clone": _without_bits(0, syscalls.CLONE_NEWUSER),
        "unshare": _without_bits(0, syscalls.CLONE_NEWUSER),
        "ioctl": _none_of(1, _TYPING),
        **{name: _without_bits(at, _SET_ID) for name, at in _MODES.items()},
    }
    program: list[_Instruction] = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, audit),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_LOAD, 0, 0, 0),
    ]
    if column == 0:
        program += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    for name, numbers in _NUMBERS.items():
        if numbers[column] < 0:
            continue
        code = errno.ENOSYS if name in _NOT_THERE else errno.EPERM
        body = special.get(name) or [(_RETURN, 0, 0, _ERRNO | code)]
        program += [(_EQUAL, 0, len(body), numbers[column]), *body]
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *each) for each in program)


def _only(argument: int, values: list[int], code: int) -> list[_Instruction]:
    body = [(_LOAD, 0, 0, 16 + 8 * argument)]
    body += [(_EQUAL, len(values) - at, 0, value) for at, value in enumerate(values)]
    return [*body, (_RETURN, 0, 0, _ERRNO | code), (_RETURN, 0, 0, _ALLOW)]


def _none_of(argument: int, values: tuple[int, ...]) -> list[_Instruction]:
    body = [(_LOAD, 0, 0, 16 + 8 * argument)]
    body += [(_EQUAL, len(values) - at, 0, value) for at, value in enumerate(values)]
    return [*body, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]


def _without_bits(argument: int, bits: int) -> list[_Instruction]:
    return [
        (_LOAD, 0, 0, 16 + 8 * argument),
        (_ANY_BIT, 0, 1, bits),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]


class _Program(ctypes.Structure):
    """The kernel's struct sock_fprog."""

    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def restrict_system_calls(instructions: bytes) -> None:
    """Needs `drop_capabilities` before it."""
    program = _Program(len(instructions) // 8, instructions)
    if _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(program), 0, 0) != 0:
        raise syscalls.last_error("prctl(PR_SET_SECCOMP)")
