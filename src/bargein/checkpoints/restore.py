"""Carries out a plan, and never loses what somebody else wrote.

1. Stage: every new file is written completely into a folder of its own in the workspace. A full
   disk ends it here, with nothing changed.
2. Journal: the plan is written down. From here on it is carried out to its end, after a crash by
   `recover`.
3. Exchange: each new file takes its name, and the old one its place in the stage, in one step of
   the kernel's. The old one is read again: if it is not the one that the plan saw, somebody changed
   it in the last moment, and the two are exchanged back.
4. The old files are removed from the stage, then the stage, then the journal. A file that the plan
   had not seen and that could not go back to its name is somebody's: it stays, in a folder whose
   name begins with `KEPT`, and is named.

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
from functools import partial

from bargein.checkpoints.plan import FileEntry, FolderMode, UndoPlan, UndoStep
from bargein.checkpoints.repository import CheckpointFailed, Repository, private

STAGE = ".bargein-undo-"
KEPT = "bargein-kept-"
LATE = "it changed in the last moment"

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NOREPLACE, _EXCHANGE = 1, 2
_CHUNK_BYTES = 1 << 20
_SPARE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Restored:
    """`changed` are the paths that are now as planned; `kept` changed in the last moment, or could
    not be changed, each with the reason."""

    changed: tuple[bytes, ...] = ()
    kept: tuple[tuple[bytes, str], ...] = ()


def restore(repository: Repository, plan: UndoPlan) -> Restored:
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


def _fill(repository: Repository, stage: bytes, plan: UndoPlan) -> None:
    """Writes every wanted file to the stage, under the number of its step, and the folders. What
    comes after it only renames, for which `spare` leaves room on a full disk."""
    wanted = [(number, step.wanted) for number, step in enumerate(plan.steps) if step.wanted]
    contents = repository.read_objects(entry.blob for _, entry in wanted)
    for (number, entry), content in zip(wanted, contents, strict=True):
        path = os.path.join(stage, b"%d" % number)
        if entry.link:
            os.symlink(content, path)
        else:
            _write(path, content, entry.mode)
    for number in range(len(plan.make)):
        os.mkdir(os.path.join(stage, b"%d.folder" % number), 0o700)
    _write(os.path.join(stage, b"spare"), b"\1" * _SPARE_BYTES, 0o600)


def _write(path: bytes, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)


def _write_journal(repository: Repository, stage: bytes, plan: UndoPlan) -> None:
    def shown(entry: FileEntry | None) -> list[object] | None:
        return None if entry is None else [entry.blob, entry.mode, entry.link]

    content = {
        "stage": stage.decode(),
        "steps": [[step.path.hex(), shown(step.seen), shown(step.wanted)] for step in plan.steps],
        "make": [[path.hex(), mode] for path, mode in plan.make],
        "remove": [path.hex() for path in plan.remove],
        "modes": [[each.path.hex(), each.seen, each.wanted] for each in plan.modes],
    }
    new = repository.journal.with_suffix(".new")
    with open(new, "w", opener=private) as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(repository.journal)
    folder = os.open(repository.journal.parent, _FOLDER)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read_journal(text: bytes) -> tuple[bytes, UndoPlan]:
    def entry(shown: list[object] | None) -> FileEntry | None:
        if shown is None:
            return None
        blob, mode, link = shown
        assert isinstance(blob, str)
        assert isinstance(mode, int)
        assert isinstance(link, bool)
        return FileEntry(blob, mode, link)

    content = json.loads(text)
    steps = [UndoStep(bytes.fromhex(path), entry(a), entry(b)) for path, a, b in content["steps"]]
    make = [(bytes.fromhex(path), mode) for path, mode in content["make"]]
    remove = [bytes.fromhex(path) for path in content["remove"]]
    modes = [FolderMode(bytes.fromhex(path), a, b) for path, a, b in content["modes"]]
    plan = UndoPlan(tuple(steps), tuple(make), tuple(remove), tuple(modes))
    return content["stage"].encode(), plan


def _remove_stages(root: bytes) -> None:
    with os.scandir(root) as found:
        left = [each.path for each in found if each.name.startswith(STAGE.encode())]
    for path in left:
        shutil.rmtree(path, ignore_errors=True)


# --- carrying it out


@dataclass
class _Progress:
    changed: dict[bytes, None] = field(default_factory=dict)
    kept: list[tuple[bytes, str]] = field(default_factory=list)


def _carry_out(repository: Repository, stage: bytes, plan: UndoPlan) -> Restored:
    """Every step looks what is there first, so that a second time it finds what it did the first
    time."""
    progress = _Progress()
    root = os.open(repository.workspace, _FOLDER & ~os.O_NOFOLLOW)
    try:
        staged = _open_stage(root, stage)
        try:
            _act(progress, root, staged, plan)
            _empty(progress, root, staged, plan)
        finally:
            os.close(staged)
        try:
            os.rmdir(stage, dir_fd=root)
        except OSError:
            kept = KEPT.encode() + stage.removeprefix(STAGE.encode())
            os.rename(stage, kept, src_dir_fd=root, dst_dir_fd=root)
            progress.kept.append((kept, LATE))
        os.fsync(root)
    finally:
        os.close(root)
    repository.journal.unlink()
    return Restored(tuple(progress.changed), tuple(progress.kept))


def _act(progress: _Progress, root: int, staged: int, plan: UndoPlan) -> None:
    with suppress(FileNotFoundError):
        os.unlink(b"spare", dir_fd=staged)
    # What goes first: a folder may have to make room for a file, or a file for a folder.
    for number, step in reversed(list(enumerate(plan.steps))):
        if step.wanted is None:
            _do(progress, step.path, partial(_leave, root, staged, number, step))
    for path in plan.remove:
        if _remove_folder(root, path):
            progress.changed[path] = None
    for number, (path, _) in enumerate(plan.make):
        _do(progress, path, partial(_make_folder, root, staged, number, path))
    for number, step in enumerate(plan.steps):
        if step.wanted is not None:
            _do(progress, step.path, partial(_come, root, staged, number, step))
    # A folder may get a mode that forbids to write in it: that comes last.
    for path, mode in reversed(plan.make):
        with suppress(OSError, _Kept):
            _change_mode(root, FolderMode(path, 0o700, mode))
    for each in plan.modes:
        _do(progress, each.path, partial(_change_mode, root, each))


def _empty(progress: _Progress, root: int, staged: int, plan: UndoPlan) -> None:
    """Removes from the stage what the snapshots have, and nothing else."""
    for number, step in enumerate(plan.steps):
        for name in (b"%d" % number, b"%d.old" % number):
            with suppress(OSError):
                if look(staged, name) in (step.seen, step.wanted):
                    os.unlink(name, dir_fd=staged)
    for number in range(len(plan.make)):
        with suppress(OSError):
            os.rmdir(b"%d.folder" % number, dir_fd=staged)


def _open_stage(root: int, stage: bytes) -> int:
    with suppress(FileExistsError):
        os.mkdir(stage, 0o700, dir_fd=root)
    return os.open(stage, _FOLDER, dir_fd=root)


class _Kept(Exception):
    """The path stays as it is; the message says why."""


class _FolderGone(_Kept):
    """Nothing can be there: the folder that it was in does not exist."""


def _do(progress: _Progress, path: bytes, act: Callable[[], None]) -> None:
    try:
        act()
    except _Kept as why:
        progress.kept.append((path, str(why)))
    except OSError as error:
        progress.kept.append((path, error.strerror or "cannot be changed"))
    else:
        progress.changed[path] = None


def _leave(root: int, staged: int, number: int, step: UndoStep) -> None:
    """Moves a file that is to go into the stage. After a crash its folder may be gone, too."""
    name = b"%d.old" % number
    with suppress(_FolderGone), _parent(root, step.path) as (folder, own):
        if look(folder, own) is not None:
            _rename(folder, own, staged, name, _NOREPLACE)
        moved = look(staged, name)
        if moved is not None and moved != step.seen:
            _rename(staged, name, folder, own, _NOREPLACE)
            raise _Kept(LATE)


def _come(root: int, staged: int, number: int, step: UndoStep) -> None:
    """Gives a staged file its name."""
    name = b"%d" % number
    with _parent(root, step.path, make=step.seen is None) as (folder, own):
        found = look(folder, own)
        if found != step.wanted:
            if (found is None) != (step.seen is None):
                raise _Kept(LATE)
            _give_to_owner(staged, name, folder, own, step.wanted)
            _rename(staged, name, folder, own, _EXCHANGE if found else _NOREPLACE)
        replaced = look(staged, name)
        if replaced not in (None, step.seen, step.wanted):
            _rename(staged, name, folder, own, _EXCHANGE)
            raise _Kept(LATE)


def _give_to_owner(
    staged: int, name: bytes, folder: int, own: bytes, wanted: FileEntry | None
) -> None:
    """A file that root restores belongs to whom the old one belonged to, or its folder."""
    if os.geteuid() != 0:
        return
    try:
        owner = os.stat(own, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        owner = os.fstat(folder)
    if (owner.st_uid, owner.st_gid) == (0, 0):
        return
    os.chown(name, owner.st_uid, owner.st_gid, dir_fd=staged, follow_symlinks=False)
    if wanted is not None and not wanted.link:
        os.chmod(name, wanted.mode, dir_fd=staged)  # chown takes some bits away


def _make_folder(root: int, staged: int, number: int, path: bytes) -> None:
    """Gives a staged folder its name. One that is there already will do."""
    with _parent(root, path, make=True) as (folder, name):
        found = look(folder, name)
        if found is None:
            own = b"%d.folder" % number
            _give_to_owner(staged, own, folder, name, None)
            _rename(staged, own, folder, name, _NOREPLACE)
        elif not stat.S_ISDIR(found.mode):
            raise _Kept(LATE)


def _change_mode(root: int, change: FolderMode) -> None:
    with _parent(root, change.path) as (folder, name):
        opened = os.open(name, _FOLDER, dir_fd=folder)
        try:
            mode = stat.S_IMODE(os.fstat(opened).st_mode)
            if mode == change.seen:
                os.fchmod(opened, change.wanted)
            elif mode != change.wanted:
                raise _Kept(LATE)
        finally:
            os.close(opened)


def _remove_folder(root: int, path: bytes) -> bool:
    """Removes it if it is empty. Whatever else is in it is somebody's. Returns whether it is gone:
    an undo that a crash interrupted may have removed it, and the folder that it was in."""
    try:
        with _parent(root, path) as (folder, name):
            os.rmdir(name, dir_fd=folder)
    except (FileNotFoundError, _FolderGone):
        return True
    except (OSError, _Kept):
        return False
    return True


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
                    raise _FolderGone("its folder is gone") from error
                raise
            os.close(opened)
            opened = below
        yield opened, name
    finally:
        os.close(opened)


def look(folder: int, name: bytes) -> FileEntry | None:
    """What is there now, read completely. None if there is nothing."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(found.st_mode):
        target = os.readlink(name, dir_fd=folder)
        return FileEntry(_blob([target], len(target)), 0, link=True)
    if not stat.S_ISREG(found.st_mode):
        return FileEntry("", found.st_mode)
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    with open(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        pieces = iter(lambda: file.read(_CHUNK_BYTES), b"")
        return FileEntry(_blob(pieces, size), stat.S_IMODE(found.st_mode))


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
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_uint,
    )
    return function


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
        if stat.S_ISDIR(os.stat(name, dir_fd=from_folder, follow_symlinks=False).st_mode):
            # Over another folder this fails unless that is empty.
            os.rename(name, to, src_dir_fd=from_folder, dst_dir_fd=to_folder)
            return
        os.link(name, to, src_dir_fd=from_folder, dst_dir_fd=to_folder, follow_symlinks=False)
        os.unlink(name, dir_fd=from_folder)
        return
    aside = name + b".aside"
    os.rename(to, aside, src_dir_fd=to_folder, dst_dir_fd=from_folder)
    os.rename(name, to, src_dir_fd=from_folder, dst_dir_fd=to_folder)
    os.rename(aside, name, src_dir_fd=from_folder, dst_dir_fd=from_folder)
