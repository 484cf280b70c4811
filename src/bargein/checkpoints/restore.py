"""Carries out a plan, so that nothing of anybody's is lost.

1. Stage: every new file is written completely into a folder of its own in the workspace. A full
   disk ends it here, with nothing changed.
2. Journal: the plan is written down. From here on it is carried out to its end, after a crash by
   `recover`.
3. Exchange: each new file takes its name, and the old one its place in the stage, in one step of
   the kernel's. The old one is read again: if it is not the one that the plan saw, somebody changed
   it in the last moment, and the two are exchanged back.
4. The stage is removed, with the old files in it, and then the journal.

Paths are opened folder by folder, and links are never followed: a folder that somebody replaced by
a link leads to a kept path, and not out of the workspace.
"""

import ctypes
import ctypes.util
import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from bargein.checkpoints.plan import Entry, Plan, Step
from bargein.checkpoints.repository import CheckpointFailed, Repository

STAGE = ".bargein-undo-"
LATE = "it changed in the last moment"

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NOREPLACE, _EXCHANGE = 1, 2
_CHUNK_BYTES = 1 << 20
_BATCH_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Restored:
    """`changed` are the paths that are now as planned; `kept` changed in the last moment, or could
    not be changed, each with the reason."""

    changed: tuple[bytes, ...] = ()
    kept: tuple[tuple[bytes, str], ...] = ()


def restore(repository: Repository, plan: Plan) -> Restored:
    """Carries out a plan. Raises `CheckpointFailed` if nothing was changed."""
    if repository.journal.exists():
        raise CheckpointFailed("an undo was not finished: recover it first")
    root = os.fsencode(repository.workspace)
    stage = os.fsencode(STAGE + secrets.token_hex(8))
    os.mkdir(os.path.join(root, stage), 0o700)
    try:
        _fill(repository, os.path.join(root, stage), plan)
        _write_journal(repository, stage, plan)
    except OSError as error:
        shutil.rmtree(os.path.join(root, stage), ignore_errors=True)
        raise CheckpointFailed(
            f"the files cannot be written: {error.strerror}; nothing was changed"
        ) from error
    except BaseException:
        shutil.rmtree(os.path.join(root, stage), ignore_errors=True)
        raise
    return _carry_out(repository, stage, plan)


def recover(repository: Repository) -> Restored | None:
    """Finishes an undo that a crash interrupted; None if there is none. Also removes the stage of
    one that had changed nothing yet."""
    try:
        text = repository.journal.read_bytes()
    except FileNotFoundError:
        _remove_stages(os.fsencode(repository.workspace))
        return None
    stage, plan = _read_journal(text)
    return _carry_out(repository, stage, plan)


# --- stage and journal


def _fill(repository: Repository, stage: bytes, plan: Plan) -> None:
    """Writes every wanted file to the stage, under the number of its step."""
    wanted = [(number, step.wanted) for number, step in enumerate(plan.steps) if step.wanted]
    for batch in _batches(wanted, 256):
        contents = repository.read_blobs([entry.blob for _, entry in batch])
        for (number, entry), content in zip(batch, contents, strict=True):
            path = os.path.join(stage, b"%d" % number)
            if entry.link:
                os.symlink(content, path)
                continue
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fchmod(descriptor, entry.mode)
                os.fsync(descriptor)


def _batches(
    wanted: list[tuple[int, Entry]], size: int
) -> Iterator[list[tuple[int, Entry]]]:
    for place in range(0, len(wanted), size):
        yield wanted[place : place + size]


def _write_journal(repository: Repository, stage: bytes, plan: Plan) -> None:
    def shown(entry: Entry | None) -> list[object] | None:
        return None if entry is None else [entry.blob, entry.mode, entry.link]

    content = {
        "stage": stage.decode(),
        "steps": [[step.path.hex(), shown(step.seen), shown(step.wanted)] for step in plan.steps],
        "make": [[path.hex(), mode] for path, mode in plan.make],
        "remove": [path.hex() for path in plan.remove],
    }
    new = repository.journal.with_suffix(".new")
    with new.open("w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(repository.journal)
    folder = os.open(repository.journal.parent, _FOLDER)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read_journal(text: bytes) -> tuple[bytes, Plan]:
    def entry(shown: list[object] | None) -> Entry | None:
        if shown is None:
            return None
        blob, mode, link = shown
        assert isinstance(blob, str) and isinstance(mode, int) and isinstance(link, bool)
        return Entry(blob, mode, link)

    content = json.loads(text)
    steps = [Step(bytes.fromhex(path), entry(a), entry(b)) for path, a, b in content["steps"]]
    make = [(bytes.fromhex(path), mode) for path, mode in content["make"]]
    remove = [bytes.fromhex(path) for path in content["remove"]]
    return content["stage"].encode(), Plan(tuple(steps), tuple(make), tuple(remove))


def _remove_stages(root: bytes) -> None:
    with os.scandir(root) as found:
        left = [each.path for each in found if each.name.startswith(STAGE.encode())]
    for path in left:
        shutil.rmtree(path, ignore_errors=True)


# --- carrying it out


@dataclass
class _Progress:
    changed: list[bytes] = field(default_factory=list)
    kept: list[tuple[bytes, str]] = field(default_factory=list)


def _carry_out(repository: Repository, stage: bytes, plan: Plan) -> Restored:
    """Every step looks what is there first, so that a second time it finds what it did the first
    time."""
    progress = _Progress()
    root = os.open(repository.workspace, _FOLDER & ~os.O_NOFOLLOW)
    try:
        staged = _open_stage(root, stage)
        try:
            numbered = list(enumerate(plan.steps))
            leaving = [each for each in numbered if each[1].wanted is None]
            coming = [each for each in numbered if each[1].wanted is not None]
            # What goes first: a folder may have to make room for a file, or a file for a folder.
            for number, step in reversed(leaving):
                _do(progress, step.path, lambda n=number, s=step: _leave(root, staged, n, s))
            for path in plan.remove:
                _remove_folder(root, path)
            for path, mode in plan.make:
                _do(progress, path, lambda p=path, m=mode: _make_folder(root, p, m))
            for number, step in coming:
                _do(progress, step.path, lambda n=number, s=step: _come(root, staged, n, s))
        finally:
            os.close(staged)
        shutil.rmtree(os.path.join(os.fsencode(repository.workspace), stage), ignore_errors=True)
        os.fsync(root)
    finally:
        os.close(root)
    repository.journal.unlink()
    return Restored(tuple(progress.changed), tuple(progress.kept))


def _open_stage(root: int, stage: bytes) -> int:
    with suppress(FileExistsError):
        os.mkdir(stage, 0o700, dir_fd=root)
    return os.open(stage, _FOLDER, dir_fd=root)


class _Kept(Exception):
    """The path stays as it is; the message says why."""


def _do(progress: _Progress, path: bytes, act: Callable[[], None]) -> None:
    try:
        act()
    except _Kept as why:
        progress.kept.append((path, str(why)))
    except OSError as error:
        progress.kept.append((path, error.strerror or "cannot be changed"))
    else:
        progress.changed.append(path)


def _leave(root: int, staged: int, number: int, step: Step) -> None:
    """Moves a file that is to go into the stage."""
    name = b"%d.old" % number
    with _parent(root, step.path) as (folder, own):
        if look(folder, own) is not None:
            _rename(folder, own, staged, name, _NOREPLACE)
        moved = look(staged, name)
        if moved is not None and moved != step.seen:
            _rename(staged, name, folder, own, _NOREPLACE)
            raise _Kept(LATE)


def _come(root: int, staged: int, number: int, step: Step) -> None:
    """Gives a staged file its name."""
    name = b"%d" % number
    with _parent(root, step.path, make=True) as (folder, own):
        found = look(folder, own)
        if found != step.wanted:
            if (found is None) != (step.seen is None):
                raise _Kept(LATE)
            _rename(staged, name, folder, own, _EXCHANGE if found else _NOREPLACE)
        replaced = look(staged, name)
        if replaced not in (None, step.seen, step.wanted):
            _rename(staged, name, folder, own, _EXCHANGE)
            raise _Kept(LATE)


def _make_folder(root: int, path: bytes, mode: int) -> None:
    with _parent(root, path, make=True) as (folder, name):
        try:
            os.mkdir(name, mode, dir_fd=folder)
        except FileExistsError:
            return
        os.chmod(name, mode, dir_fd=folder)


def _remove_folder(root: int, path: bytes) -> None:
    """Removes it if it is empty. Whatever else is in it is somebody's."""
    with suppress(OSError, _Kept), _parent(root, path) as (folder, name):
        os.rmdir(name, dir_fd=folder)


@contextmanager
def _parent(root: int, path: bytes, *, make: bool = False) -> Iterator[tuple[int, bytes]]:
    """Opens the folder that a path is in, and follows no link on the way."""
    *folders, name = path.split(b"/")
    opened = os.dup(root)
    try:
        for each in folders:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(each, 0o755, dir_fd=opened)
            try:
                below = os.open(each, _FOLDER, dir_fd=opened)
            except OSError as error:
                if error.errno in (errno.ENOTDIR, errno.ELOOP):
                    raise _Kept(f"{os.fsdecode(each)} is no folder any more") from error
                if error.errno == errno.ENOENT:
                    raise _Kept("its folder is gone") from error
                raise
            os.close(opened)
            opened = below
        yield opened, name
    finally:
        os.close(opened)


def look(folder: int, name: bytes) -> Entry | None:
    """What is there now, read completely. None if there is nothing."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(found.st_mode):
        target = os.readlink(name, dir_fd=folder)
        return Entry(_blob([target], len(target)), 0, link=True)
    if not stat.S_ISREG(found.st_mode):
        return Entry("", found.st_mode)
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    with open(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        pieces = iter(lambda: file.read(_CHUNK_BYTES), b"")
        return Entry(_blob(pieces, size), stat.S_IMODE(found.st_mode))


def _blob(pieces: "Iterator[bytes] | list[bytes]", size: int) -> str:
    digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


# --- a rename that replaces nothing, or exchanges two


def _load() -> "ctypes._FuncPointer | None":
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    function.argtypes = (
        ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint,
    )
    return function  # type: ignore[no-any-return]


_renameat2 = _load()


def _rename(from_folder: int, name: bytes, to_folder: int, to: bytes, flags: int) -> None:
    if _renameat2 is not None:
        if _renameat2(from_folder, name, to_folder, to, flags) == 0:
            return
        code = ctypes.get_errno()
        if code not in (errno.EINVAL, errno.ENOSYS):
            raise OSError(code, os.strerror(code))
    _rename_in_steps(from_folder, name, to_folder, to, flags)


def _rename_in_steps(from_folder: int, name: bytes, to_folder: int, to: bytes, flags: int) -> None:
    """Where the kernel or the file system cannot: a moment in which nothing has the name."""
    if flags == _NOREPLACE:
        os.link(name, to, src_dir_fd=from_folder, dst_dir_fd=to_folder, follow_symlinks=False)
        os.unlink(name, dir_fd=from_folder)
        return
    aside = name + b".aside"
    os.rename(to, aside, src_dir_fd=to_folder, dst_dir_fd=from_folder)
    os.rename(name, to, src_dir_fd=from_folder, dst_dir_fd=to_folder)
    os.rename(aside, name, src_dir_fd=from_folder, dst_dir_fd=from_folder)
