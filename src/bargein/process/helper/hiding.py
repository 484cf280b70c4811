"""Covers directories, so that the helper and every command see them empty.

The helper does this once, before it starts any process. Spare processes and supervisors inherit
it, so no command pays for it. The helper moves into a mount namespace of its own, in which a small
read-only tmpfs covers each directory.

Root needs nothing more for that, and a fence (see `rights.fence`) keeps commands from removing
the cover and from going around it through other processes in /proc. An ordinary user also needs a
user namespace, in which a command has no rights over the mounts and over processes outside; the
price is that set-user-ID programs such as sudo do not work there.

Mounts made outside later appear inside. A mount removed outside is not kept busy inside.
"""

import os
from collections.abc import Sequence

from bargein.process.helper import rights, syscalls

MOUNT_NAMESPACE = "mount namespace"
USER_NAMESPACE = "user namespace"

# The means ("" if none), whether fenced, and the errno of the last failure.
Outcome = tuple[str, bool, int]

_COVER = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
_COVER_OPTIONS = "size=1m,nr_inodes=1k,mode=0555"


def hide(directories: Sequence[str], kept: Sequence[str], *, fenced: bool = True) -> Outcome:
    """Hide them by the best means that works here, or change nothing. Without `fenced`, root's
    commands are left to be fenced one by one.

    A throwaway process tries each means whole first: half of a namespace would take something from
    commands and protect nothing.
    """
    code = _try(MOUNT_NAMESPACE, directories, kept)
    if code == 0:
        _enter(MOUNT_NAMESPACE, directories, kept)
        return (MOUNT_NAMESPACE, *_fence()) if fenced else (MOUNT_NAMESPACE, True, 0)
    if os.geteuid() == 0:
        # With root's number a command would have all rights in a user namespace.
        return "", False, code
    code = _try(USER_NAMESPACE, directories, kept)
    if code == 0:
        _enter(USER_NAMESPACE, directories, kept)
        return USER_NAMESPACE, True, 0
    return "", False, code


def _try(how: str, directories: Sequence[str], kept: Sequence[str]) -> int:
    """Returns the errno that it fails with, or 0."""
    pid = os.fork()
    if pid == 0:
        code = 255
        try:
            _enter(how, directories, kept)
            code = 0
        except OSError as error:
            code = error.errno or 255
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _enter(how: str, directories: Sequence[str], kept: Sequence[str]) -> None:
    if how == USER_NAMESPACE:
        user, group = os.geteuid(), os.getegid()
        syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
    else:
        syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("", "/", "", syscalls.MS_REC | syscalls.MS_SLAVE)
    for directory in directories:
        _cover(directory, kept)


def _cover(directory: str, kept: Sequence[str]) -> None:
    below = [path for path in kept if path.startswith(directory.rstrip("/") + "/")]
    handles = [
        (path, os.open(path, os.O_PATH | os.O_DIRECTORY)) for path in below if os.path.isdir(path)
    ]
    syscalls.mount("bargein", directory, "tmpfs", _COVER, _COVER_OPTIONS)
    for path, handle in handles:
        os.makedirs(path, mode=0o755, exist_ok=True)
        syscalls.mount(f"/proc/self/fd/{handle}", path, "", syscalls.MS_BIND | syscalls.MS_REC)
        os.close(handle)
    read_only = syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY
    syscalls.mount("", directory, "", read_only | _COVER)


def _fence() -> tuple[bool, int]:
    try:
        rights.fence(scoped=False)
    except OSError as error:
        return False, error.errno or 255
    return True, 0


def _write(path: str, text: str) -> None:
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)
