"""Reads /proc: who is whose child, commands, environments; and signals without hitting strangers.

A pid that was read from /proc may belong to another process a moment later. So `send` holds a
process by a pidfd, sees that it is still below us, then signals through the pidfd.

What is read here may be out of date at once, so it never proves that nobody is left: only the
kernel's ECHILD or `populated 0` does. Any thread; nothing here waits for another process.
"""

import os
import signal
from collections.abc import Collection, Iterable, Iterator
from functools import cache

COMMAND_CHARACTERS_MAX = 200
_THREADS_MAX = 64
_LOOKS = 3
# Most are shorter than the first; Linux starts no program with more than the second.
_ENVIRON_BYTES = 1 << 14
_ENVIRON_BYTES_MAX = 6 << 20
# The kernel functions, by version, in which the parent of a vfork waits.
_FORKING = (b"kernel_clone", b"_do_fork", b"do_fork")


def children(pid: int) -> list[int]:
    """The children of all threads of a process, zombies too; empty if it is gone."""
    tasks = f"/proc/{pid}/task"
    try:
        # A directory has two links more than it has directories in it.
        threads = [str(pid)] if os.stat(tasks).st_nlink == 3 else os.listdir(tasks)
    except OSError:
        return []
    found: list[int] = []
    for thread in threads:
        listed = _read(f"{tasks}/{thread}/children")
        if listed:
            found.extend(map(int, listed.split()))
        elif not _kernel_lists_children():
            return _children_by_scan(pid)
    return found


@cache
def _kernel_lists_children() -> bool:
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def _read(path: str, size: int = 1 << 16) -> bytes:
    """Empty if the process is gone. `os.open`, because `open` takes longer than the kernel does."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(file, size)
    except OSError:
        return b""
    finally:
        os.close(file)


def _children_by_scan(parent: int) -> list[int]:
    return [pid for pid in all_pids() if parent_of(pid) == parent]


def all_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def status_fields(pid: int) -> list[bytes]:
    """The fields after the command's name in /proc/PID/stat: state, parent, group, session..."""
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def parent_of(pid: int) -> int:
    fields = status_fields(pid)
    return int(fields[1]) if fields else 0


def is_running(pid: int) -> bool:
    fields = status_fields(pid)
    return bool(fields) and fields[0] not in (b"Z", b"X")


def command_of(pid: int) -> str:
    """The command line, shortened; of a dead process its bare name; empty if it is gone.

    The command line is in the memory of the process, and a process that is stuck in the kernel (on
    a dead network drive, say) may hold the lock of that memory. Reading it would wait, so such a
    process is named by its bare name, too.
    """
    return _line_of(pid) or _text(_read(f"/proc/{pid}/comm").strip())


def environ_of(pid: int) -> bytes:
    """The environment that its program was started with; empty if it has ended or is stuck, or
    while it becomes another program."""
    if _is_stuck(pid):
        return b""
    path = f"/proc/{pid}/environ"
    environ = _read(path, _ENVIRON_BYTES)
    return environ if len(environ) < _ENVIRON_BYTES else _read(path, _ENVIRON_BYTES_MAX)


def running(pids: Iterable[int]) -> list[tuple[int, str, int]]:
    """Those of them that run, with their commands and their groups. Leaves out dead processes that
    nobody has collected: no stop ended them."""
    found = []
    for pid in pids:
        command = _line_of(pid) or (command_of(pid) if is_running(pid) else "")
        if command:
            found.append((pid, command, group_of(pid)))
    return found


def _line_of(pid: int) -> str:
    if _is_stuck(pid):
        return ""
    return _text(_read(f"/proc/{pid}/cmdline", 4 * COMMAND_CHARACTERS_MAX))


def _text(line: bytes) -> str:
    text = line.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
    return text[:COMMAND_CHARACTERS_MAX]


def _is_stuck(pid: int) -> bool:
    """Whether the process, or one of its threads, sleeps so that only the kernel can wake it."""
    fields = status_fields(pid)
    if not fields:
        return True
    if int(fields[17]) == 1:
        return fields[0] == b"D" and _sleeps_on(f"/proc/{pid}")
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True
    each = (f"/proc/{pid}/task/{thread}" for thread in threads[:_THREADS_MAX])
    return len(threads) > _THREADS_MAX or any(
        _state(f"{thread}/stat") == b"D" and _sleeps_on(thread) for thread in each
    )


def _sleeps_on(thread: str) -> bool:
    """Whether a thread that was seen asleep stays so. The parent of a vfork sleeps for an instant,
    until its child has memory of its own; that locks nothing, and `wchan` shows it."""
    for _ in range(_LOOKS):
        if _read(f"{thread}/wchan") in _FORKING or _state(f"{thread}/stat") != b"D":
            return False
    return True


def _state(path: str) -> bytes:
    return _read(path).rpartition(b")")[2][1:2]


def group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except OSError:
        return 0


def descendants(root: int, spared: Collection[int] = (), count_max: int = 1 << 22) -> list[int]:
    """All processes below `root`, parents first, without `spared` and all below those."""
    found = [root]
    known = {root, *spared}
    for parent in found:
        if len(found) > count_max:
            break
        for child in children(parent):
            if child not in known:
                known.add(child)
                found.append(child)
    return found[1:]


def send(pids: Collection[int], root: int, *numbers: int, through: int = 0) -> list[int]:
    """Signal those of `pids` that are still below `root`, or children of `through`, which is below
    it too and gets no signal. Returns those that were reached."""
    ours = {root, *pids, *((through,) if through else ())}
    reached = []
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            if parent_of(pid) in ours:
                for number in numbers:
                    signal.pidfd_send_signal(handle, number)
                reached.append(pid)
        except OSError:
            pass  # gone; or another user's, and then the caller goes on waiting for it
        finally:
            os.close(handle)
    return reached
