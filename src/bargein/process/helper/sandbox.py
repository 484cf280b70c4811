"""Closes a spare process in, so that the command it becomes can change little and reach nobody.

In namespaces of its own (`NAMESPACES`): every file system is read-only, except for folders that
the plan names and a private /tmp; the plan's hidden paths are empty; /dev and /proc are its own;
it sees no process, no shared memory and, unless the sandbox shares it, no network of the outside.
The first process of its pid namespace (see `init`) makes all that, while nobody waits for it, and
keeps it when the command is gone: to take mounts down takes longer than to end a command.

Where namespaces are forbidden, a Landlock domain (`LANDLOCK`) keeps commands from writing and from
reading hidden folders. It cannot take back a right inside of a folder that it gave, so what the
plan protects stays writable, and processes and folders stay visible.

A plan is `(tmp, writable, protected, hidden, read_only, door, stage, tmp_bytes)`: a folder that
becomes /tmp, and paths; through the door, a unix socket, a listening socket in the new network goes
to our owner. `stage` is empty, or one of the writable paths and the folder that is to be seen there
instead. With `tmp_bytes` the folder for /tmp is covered by a file system of that size in memory,
which the helper keeps for all commands with the same folder.
What was found at each path is kept as a mark. If that has changed when the command comes (there is
a repository now, say, whose hooks must be protected), another spare process has to be made.
"""

import errno
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Callable, Sequence
from typing import Final

from bargein.process.helper import rights, syscalls

NAMESPACES = "namespaces"
LANDLOCK = "Landlock"
OWN_NETWORK = "none"
SHARED_NETWORK = "all"
PROXY_PORT: Final = 3128

Plan = tuple[str, Sequence[str], Sequence[str], Sequence[str], bool, str, Sequence[str], int]
# For each path the device and the number of what is there, (0, 0) for nothing.
Marks = list[tuple[str, tuple[int, int]]]
# The means, the network, and the filter of system calls.
Sandboxing = tuple[str, str, bytes]

_NODES: Final = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS: Final = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
_NOTHING: Final = "/dev/.nothing"
# Root may write to these whatever its capabilities are.
_KERNEL: Final = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs")
_TEMPORARY: Final = ("/tmp", "/var/tmp")
_NOT_THERE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
# What a file takes beside its content is memory, too.
_TMP_FILES_MIN, _TMP_BYTES_A_FILE = 1024, 4096
_NOT_OURS: Final = syscalls.MS_NOSUID | syscalls.MS_NODEV
_SIOCGIFFLAGS: Final = 0x8913
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_LANDLOCK_ALL: Final = (1 << 15) - 1
_LANDLOCK_READ: Final = _EXECUTE | _READ_FILE | _READ_DIR
# Rights that make sense for a file that is not a folder: execute, write, read, truncate.
_LANDLOCK_FILE: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | (1 << 14)
_IOCTL_DEV: Final = 1 << 15


def bound_tmp(plan: Plan) -> None:
    """Called by the helper, in whose mount namespace the sandboxes begin."""
    tmp, tmp_bytes = plan[0], plan[7]
    if tmp_bytes and not os.path.ismount(tmp):
        files = max(_TMP_FILES_MIN, tmp_bytes // _TMP_BYTES_A_FILE)
        options = f"size={tmp_bytes},nr_inodes={files},mode=1777"
        syscalls.mount("bargein", tmp, "tmpfs", _NOT_OURS, options)


def build(plan: Plan, network: str) -> Marks:
    """Make namespaces with everything that the plan says, and be in them. Called in the first
    process of a pid namespace."""
    door = plan[5] if network != SHARED_NETWORK else ""
    visitor = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) if door else None
    if visitor is not None:
        visitor.connect(door)
    syscalls.unshare(_namespaces(network))
    _make_file_system()
    if network != SHARED_NETWORK:
        _bring_loopback_up()
    if visitor is not None:
        with socket.create_server(("127.0.0.1", PROXY_PORT)) as listening:
            socket.send_fds(visitor, [b"."], [listening.fileno()])
        # It ends with this process, and so with the namespace.
        visitor.detach()
    return _Mounts(plan).make()


def join(handle: int, network: str) -> None:
    """Be in the namespaces of the process that `handle` is a pidfd of, without any right to change
    them."""
    syscalls.enter_namespace(handle, _namespaces(network))
    _give_up()


def enter_domain(plan: Plan) -> Marks:
    """Where there are no namespaces: read all but the hidden paths, write to the writable ones."""
    tmp, writable, protected, hidden, read_only, _, stage, _ = plan
    if stage:
        raise OSError(errno.EOPNOTSUPP, "a stage needs namespaces")
    # Taken first: what appears while the domain is made is not in it, and must count as a change.
    marks = [(path, _mark(path)) for path in (*writable, *protected, *hidden)]
    rights.drop_capabilities()
    domain = rights.Landlock(_LANDLOCK_ALL)
    gone = [os.path.realpath(path) for path in (*hidden, *_TEMPORARY)]
    # The names of hidden files can be seen, so that folders around them can be listed.
    _allow(domain, "/", _READ_DIR)
    for path in _around("/", [path for path in gone if os.path.lexists(path)]):
        _allow(domain, path, _LANDLOCK_READ)
    for path in protected:
        _allow(domain, path, _LANDLOCK_READ)
    for path in ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/pts", "/dev/ptmx"):
        _allow(domain, path, _LANDLOCK_READ | _WRITE_FILE)
    for path in (tmp, "/dev/shm", *(() if read_only else writable)):
        _allow(domain, path, _LANDLOCK_ALL)
    domain.enter()
    return marks


def is_stale(marks: Marks) -> bool:
    return any(_mark(path) != mark for path, mark in marks)


def _mark(path: str) -> tuple[int, int]:
    try:
        found = os.lstat(path)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


def _namespaces(network: str) -> int:
    kinds = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS
    return kinds if network == SHARED_NETWORK else kinds | syscalls.CLONE_NEWNET


def _make_file_system() -> None:
    """All of it read-only, with devices and processes of its own."""
    syscalls.mount("", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.make_read_only("/", recursively=True)
    _make_devices()
    syscalls.mount("proc", "/proc", "proc", _NOT_OURS | syscalls.MS_NOEXEC)
    for path in _KERNEL if os.geteuid() == 0 else ():
        if os.path.exists(path):
            syscalls.mount(path, path, "", syscalls.MS_BIND)
            syscalls.make_read_only(path)


def _make_devices() -> None:
    """A /dev with the devices that every program needs, and terminals of its own."""
    handles = {
        name: os.open(f"/dev/{name}", os.O_PATH)
        for name in _NODES
        if os.path.exists(f"/dev/{name}")
    }
    syscalls.mount("bargein", "/dev", "tmpfs", syscalls.MS_NOSUID, "size=1m,mode=0755")
    for name, handle in handles.items():
        os.close(os.open(f"/dev/{name}", os.O_CREAT | os.O_WRONLY))
        syscalls.mount(f"/proc/self/fd/{handle}", f"/dev/{name}", "", syscalls.MS_BIND)
        syscalls.make_writable(f"/dev/{name}")
        os.close(handle)
    for name, target in _LINKS.items():
        os.symlink(target, f"/dev/{name}")
    for name in ("pts", "shm", _NOTHING.rpartition("/")[2]):
        os.mkdir(f"/dev/{name}")
    options = "newinstance,ptmxmode=0666,mode=0620"
    syscalls.mount("devpts", "/dev/pts", "devpts", syscalls.MS_NOSUID | syscalls.MS_NOEXEC, options)
    syscalls.mount("bargein", "/dev/shm", "tmpfs", _NOT_OURS, "mode=1777")
    syscalls.make_read_only("/dev")


def _bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh22x", b"lo", 0)
        answer = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request)
        flags = struct.unpack("16sh22x", answer)[1] | _IFF_UP
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags))


class _Mounts:
    """Parents come before what is in them, so that the innermost rule of a path decides."""

    def __init__(self, plan: Plan) -> None:
        self._tmp, writable, protected, self._hidden, self._read_only, _, stage, _ = plan
        # Which folder is seen at a path instead of the one that is there.
        self._instead = {stage[0]: stage[1]} if stage else {}
        # Taken before anything is opened: what appears later is not covered, and must count as a
        # change.
        before = (*writable, *protected)
        self._before = [(path, _mark(self._instead.get(path, path))) for path in before]
        steps: dict[str, str] = {}
        for path in writable:
            steps[path] = "write"
        hidden = [os.path.realpath(path) for path in self._hidden]
        for path in (*protected, *hidden):
            # A folder that has a mount in it can be moved away with it; a mount cannot.
            parent = os.path.dirname(path)
            while parent not in steps and any(_is_in(parent, each) for each in writable):
                steps[parent] = "keep"
                parent = os.path.dirname(parent)
        for path in protected:
            steps[path] = "protect"
        for path in hidden:
            steps.setdefault(path, "hide")
        for path in _TEMPORARY:
            if os.path.isdir(path) and not os.path.islink(path):
                steps.setdefault(path, "tmp")
        self._covers: list[str] = []
        self._absent: set[str] = set()
        self._found: set[str] = set()
        self._steps = sorted(steps.items(), key=lambda step: step[0].split("/"))

    def make(self) -> Marks:
        # All of them are opened before the first mount, which may cover some.
        tmp = syscalls.open_without_links(self._tmp)
        handles: dict[str, int] = {}
        for path, kind in self._steps:
            try:
                if kind != "hide":
                    source = self._instead.get(path, path)
                    handles[path] = syscalls.open_without_links(source)
            except OSError as error:
                # What is to be protected is not there, or a link of the user's to elsewhere.
                if kind == "write" or error.errno not in _NOT_THERE:
                    raise
        self._found = set(handles)
        for path, kind in self._steps:
            if kind == "hide":
                self._hide(path)
            elif path in handles:
                self._bind(path, kind, tmp if kind == "tmp" else handles[path])
        for path in self._covers:
            syscalls.make_read_only(path)
        for handle in (tmp, *handles.values()):
            os.close(handle)
        return [*self._before, *((path, self._mark_hidden(path)) for path in self._hidden)]

    def _mark_hidden(self, path: str) -> tuple[int, int]:
        """The mark of what covers it; none if there was nothing to cover. In a folder that is
        covered itself, there is only what we made."""
        real = os.path.realpath(path)
        is_ours = any(_is_in(real, cover) for cover in self._covers)
        return (0, 0) if real in self._absent and not is_ours else _mark(path)

    def _bind(self, path: str, kind: str, source: int) -> None:
        if not os.path.lexists(path):
            _make_place(path, source)  # in our own /tmp, or in a folder that we cover
        target = syscalls.open_without_links(path)
        here = f"/proc/self/fd/{target}"
        syscalls.mount(f"/proc/self/fd/{source}", here, "", syscalls.MS_BIND | syscalls.MS_REC)
        os.close(target)
        if kind == "protect":
            syscalls.make_read_only(path)
        elif kind == "tmp" or not self._read_only:
            syscalls.make_writable(path)

    def _hide(self, path: str) -> None:
        try:
            mode = os.stat(path, follow_symlinks=False).st_mode
        except OSError:
            self._absent.add(path)
            return
        if not stat.S_ISDIR(mode):
            syscalls.mount("/dev/null", path, "", syscalls.MS_BIND)
        elif any(_is_in(other, path) and other in self._found for other, _kind in self._steps):
            options = "size=1m,nr_inodes=1k,mode=0755"
            syscalls.mount("bargein", path, "tmpfs", _NOT_OURS, options)
            self._covers.append(path)
        else:
            # As read-only as the /dev that it is in.
            syscalls.mount(_NOTHING, path, "", syscalls.MS_BIND)


def _make_place(path: str, source: int) -> None:
    if stat.S_ISDIR(os.fstat(source).st_mode):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))


def _is_in(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _around(folder: str, hidden: list[str]) -> list[str]:
    """The paths below `folder` that together hold everything but the hidden ones."""
    inside = [path for path in hidden if path == folder or _is_in(path, folder)]
    if not inside:
        return [folder]
    if folder in inside:
        return []
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return [
        found
        for name in names
        if not os.path.islink(os.path.join(folder, name))
        for found in _around(os.path.join(folder, name), inside)
    ]


def _allow(domain: rights.Landlock, path: str, what: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            what &= _LANDLOCK_FILE
        domain.allow(handle, what)
    finally:
        os.close(handle)


# --- which of them works here


def probe(network: str, choice: str) -> tuple[str, int]:
    """Try each whole, in processes that are thrown away. Returns the best, and the errno with which
    the first failed; an empty text if none works."""
    first = 0
    for means in (NAMESPACES, LANDLOCK) if choice == "auto" else (choice,):
        code = _try(means, network)
        if code == 0:
            return means, first
        first = first or code
    return "", first


def sandboxing(means: str, network: str) -> Sandboxing:
    # A Landlock domain has the network of the outside, so what is not to reach it gets no socket.
    internet = means == NAMESPACES or network == SHARED_NETWORK
    return means, network, rights.system_calls(internet=internet)


def _try(means: str, network: str) -> int:
    """Returns the errno that it fails with, or 0."""
    folder = os.path.realpath("/tmp")
    plan: Plan = (folder, [folder], [], [], False, "", (), 0)

    def in_domain() -> None:
        enter_domain(plan)
        rights.restrict_system_calls(sandboxing(means, network)[2])

    def in_namespaces() -> None:
        build(plan, network)
        _give_up()
        rights.restrict_system_calls(sandboxing(means, network)[2])

    def in_pid_namespace() -> None:
        syscalls.unshare(syscalls.CLONE_NEWPID)
        code = _in_a_child(in_namespaces)
        if code:
            raise OSError(code, os.strerror(code))

    return _in_a_child(in_domain if means == LANDLOCK else in_pid_namespace)


def _give_up() -> None:
    rights.drop_capabilities()
    rights.fence(scoped=True)


def _in_a_child(function: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 255
        try:
            function()
            code = 0
        except OSError as error:
            code = error.errno or 255
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
