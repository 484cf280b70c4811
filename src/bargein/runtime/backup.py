"""Backs up a whole data directory, and restores one. What holds:

- Everything in the data directory is copied, except what `NOT_COPIED` names: a new part of it needs
  no line here.
- A backup is a directory with a `manifest.json`. It is complete and checked, or it does not exist:
  it is written under another name (`NAME.part`) and renamed at the end. A server may run meanwhile.
- The databases at the top of the directory are copied as they were at one moment, so that every
  session has its owner.
- A restore checks everything before it changes anything, needs the directory for itself, and
  deletes nothing: it moves all that a backup would copy into a folder beside the new.
- If a restore fails, the directory is as it was. If it is killed half-way, the next start notices
  and refuses to continue.

A cancel of the current token ends a backup or restore at its next block and removes the partial
copy.

Callers pass the `Database`s that they know, so that versions which this program cannot read are
refused. `backup_folders` copies folders.
"""

import errno
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import msgspec

from bargein import __version__
from bargein.contracts.store import StoreFailed
from bargein.errors import BargeinError, UserError
from bargein.runtime.backup_folders import (
    COMPANIONS,
    FolderCopy,
    Report,
    connect,
    copy_bytes,
    digest_of,
    is_database,
    make_file,
    restore_folders,
    sync,
)
from bargein.runtime.data_directory import (
    CHECKPOINTS,
    DOOR_FILE,
    PEOPLE,
    RESTORE_UNFINISHED,
    RUNNING_SERVER_FILE,
    SESSIONS_FILE,
    STAGES,
    own_data_directory,
)
from bargein.runtime.directory_lock import FILE_NAME as OWNER_LOCK
from bargein.stores.sqlite import backup, schema
from bargein.stores.sqlite.faults import explain

MANIFEST = "manifest.json"
LISTING = "manifest.files"
FORMAT = 2
FORMAT_WITHOUT_FOLDERS = 1
"""A copy before an upgrade has this format, because the older Bargein must be able to read it."""
MANIFEST_BYTES_MAX = 1024 * 1024
SAME_MOMENT_TRIES = 100
DATABASE_SUFFIX = ".sqlite3"
STAGE = "restore.part"

NOT_COPIED = (
    # Of processes that run now.
    OWNER_LOCK,
    DOOR_FILE,
    RUNNING_SERVER_FILE,
    "host.starting",
    "host.unfit",
    "cgroups",
    "*.lock",
    "*.new",
    "*.part",
    # Logs of the program.
    "host.log*",
    "bargein.log*",
    "leaving.log",
    # Model weights. They are downloaded again.
    "models",
    # Backups, and what a restore moved aside. A folder with a manifest is a backup, too.
    "before-upgrade-*",
    "replaced-*",
    RESTORE_UNFINISHED,
    MANIFEST,
    LISTING,
    # The file system's own, if the data directory is a disk.
    "lost+found",
)
"""Patterns of names at the top of the data directory. A restore leaves these alone."""


class Database(msgspec.Struct, frozen=True):
    """A database of the data directory. `version` reads the version of its format; `known` is the
    latest version that this program reads. Opening an older one upgrades it."""

    name: str
    known: int
    version: Callable[[sqlite3.Connection], int]


SESSIONS = Database(SESSIONS_FILE, len(schema.MIGRATIONS), schema.version_of)


class Item(msgspec.Struct, frozen=True):
    """A file of a backup. `schema` is the version of a database that the caller knows."""

    name: str
    bytes: int
    sha256: str
    schema: int | None = None


class Manifest(msgspec.Struct, frozen=True):
    """`items` are the files at the top of the data directory. The entries of its `folders` are in
    `listing`, a file with a line for each. `left_out` counts files below `people` that could not be
    read; `left_out_first` is the name of one."""

    format: int
    made_at: str
    bargein: str
    items: tuple[Item, ...]
    folders: tuple[str, ...] = ()
    folder_bytes: int = 0
    listing: Item | None = None
    left_out: int = 0
    left_out_first: str = ""


# --- backup


def write_backup(
    home: Path,
    destination: Path,
    report: Report,
    databases: Sequence[Database],
    *,
    folders: bool = True,
) -> Manifest:
    """Copies all of `home` into the new directory `destination`; without `folders`, only the files
    at its top."""
    destination = destination.absolute()
    names = _names_in(home)
    paths = _databases_in(home, names, databases)
    files = _plain_files(home, names, paths)
    kept = [name for name in names if folders and _is_folder(home, name)]
    if not (paths or files or kept):
        raise UserError(
            f"there is nothing to back up in {home}; set BARGEIN_HOME to the data directory"
        )
    _check_free(destination)
    with _part(destination) as part, ExitStack() as stack:
        items = []
        for path, connection in _at_one_moment(stack, paths, databases):
            version = _check_version(_named(databases, path.name), connection, path)
            target = part / path.name
            make_file(target)
            backup.copy_database(connection, path, target, partial(report, path.name))
            sync(target)
            items.append(Item(path.name, target.stat().st_size, digest_of(target), version))
        for path in files:
            try:
                with path.open("rb") as reading:
                    digest, size = copy_bytes(
                        reading,
                        part / path.name,
                        partial(report, path.name),
                        bytes_max=os.fstat(reading.fileno()).st_size,
                    )
            except FileNotFoundError:
                if os.path.lexists(path):
                    raise
                continue  # it was removed meanwhile
            items.append(Item(path.name, size, digest))
        made_at = datetime.now().astimezone().isoformat(timespec="seconds")
        manifest = Manifest(FORMAT_WITHOUT_FOLDERS, made_at, __version__, tuple(items))
        if folders:
            manifest = _with_folders(manifest, home, part, kept, report)
        make_file(part / MANIFEST)
        (part / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
        sync(part / MANIFEST)
        sync(part)
        _check_free(destination)
        part.rename(destination)
        sync(destination.parent)
    return manifest


def _with_folders(
    manifest: Manifest, home: Path, part: Path, names: list[str], report: Report
) -> Manifest:
    listing = part / LISTING
    make_file(listing)
    with listing.open("wb") as file:
        copy = FolderCopy(home, part, file, report)
        for name in names:
            copy.copy(name)
    sync(listing)
    return msgspec.structs.replace(
        manifest,
        format=FORMAT,
        folders=tuple(names),
        folder_bytes=copy.bytes,
        listing=Item(LISTING, listing.stat().st_size, digest_of(listing)),
        left_out=copy.left_out,
        left_out_first=copy.left_out_first,
    )


def _names_in(home: Path) -> list[str]:
    """Returns the names at the top of the directory that a backup copies and a restore replaces."""
    if not home.is_dir():
        return []
    try:
        return sorted(name for name in os.listdir(home) if _is_copied(home, name))
    except OSError as error:
        raise UserError(
            f"{error.filename} cannot be read: {error.strerror}; correct its permissions"
        ) from error


def _is_copied(home: Path, name: str) -> bool:
    path = home / name
    if _is_left_out(name) or path.is_socket() or path.is_fifo():
        return False
    return name in (PEOPLE, CHECKPOINTS, STAGES) or not (path / MANIFEST).is_file()


def _is_left_out(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in NOT_COPIED)


def _is_folder(home: Path, name: str) -> bool:
    """Returns whether it is a folder, or a link to one that does not contain the data directory."""
    path = home / name
    return path.is_dir() and not home.resolve().is_relative_to(path.resolve())


def _databases_in(home: Path, names: list[str], databases: Sequence[Database]) -> list[Path]:
    """Returns the databases in the directory: first the known ones in their order, then others."""
    known = [each.name for each in databases]
    others = [
        name
        for name in names
        if name not in known
        # Closing a file that SQLite has open in this process would release its locks.
        and not name.endswith(COMPANIONS)
        and (name.endswith(DATABASE_SUFFIX) or is_database(home / name))
    ]
    return [home / name for name in (*known, *others) if (home / name).is_file()]


def _plain_files(home: Path, names: list[str], databases: list[Path]) -> list[Path]:
    not_plain = {f"{path.name}{end}" for path in databases for end in ("", *COMPANIONS)}
    return [home / each for each in names if each not in not_plain and (home / each).is_file()]


def _named(databases: Sequence[Database], name: str) -> Database | None:
    return next((each for each in databases if each.name == name), None)


def _check_free(destination: Path) -> None:
    if os.path.lexists(destination):
        raise UserError(f"{destination} exists; choose another name for the backup")
    if not destination.parent.is_dir():
        raise UserError(f"there is no directory {destination.parent}; make it, or name another")


@contextmanager
def _part(destination: Path) -> Iterator[Path]:
    """Makes a directory to write into, and removes it unless it was renamed. Replaces one that a
    killed program left behind."""
    part = destination.with_name(f"{destination.name}.part")
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(mode=0o700)
        yield part
    except OSError as error:
        where = error.filename or part
        raise StoreFailed(
            f"no backup was made, because of {where}: {error.strerror}",
            retryable=error.errno == errno.ENOSPC,
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _at_one_moment(
    stack: ExitStack, paths: list[Path], databases: Sequence[Database]
) -> list[tuple[Path, sqlite3.Connection]]:
    """Opens a connection to each database; all of them read the state of the same moment."""
    if not paths:
        return []
    connections = []
    for path in paths:
        connection = connect(path)
        stack.enter_context(closing(connection))
        connections.append(connection)
        _check_version(_named(databases, path.name), connection, path)
    witness = stack.enter_context(closing(connect(paths[0])))
    for _ in range(SAME_MOMENT_TRIES):
        before = witness.execute("PRAGMA data_version").fetchone()
        for connection in connections:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            connection.execute("BEGIN")
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        # Nobody wrote to the first database until the last transaction had begun.
        if witness.execute("PRAGMA data_version").fetchone() == before:
            break
    return list(zip(paths, connections, strict=True))


def _check_version(
    database: Database | None, connection: sqlite3.Connection, path: Path
) -> int | None:
    """Returns the version of a known database. Raises an error if this program cannot read it."""
    try:
        if database is None:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return None
        version = database.version(connection)
    except sqlite3.Error as error:
        raise explain(error, path) from error
    except UserError as error:
        raise UserError(f"{path} {error}") from error
    if version > database.known:
        raise UserError(
            f"{path} was written by a newer Bargein (version {version} of its format; this one "
            f"reads {database.known}). Use that Bargein or a later one"
        )
    return version


# --- restore


def read_manifest(source: Path, databases: Sequence[Database]) -> Manifest:
    """Returns the manifest of a backup. Raises a `UserError` if this program cannot restore it."""
    path = source / MANIFEST
    if not source.is_dir() or not path.is_file():
        raise UserError(
            f"{source} is not a backup: it has no {MANIFEST}. Give the directory that "
            "`bargein backup` made"
        )
    body = path.read_bytes()[:MANIFEST_BYTES_MAX]
    try:
        made_by = msgspec.json.decode(body, type=_Format)
        if made_by.format > FORMAT:
            raise UserError(
                f"{source} was made by a newer Bargein ({made_by.bargein}; format "
                f"{made_by.format}; this one reads {FORMAT}). Use that Bargein or a later one"
            )
        manifest = msgspec.json.decode(body, type=Manifest)
    except msgspec.MsgspecError as error:
        raise UserError(f"{path} is damaged ({error}); use another backup") from error
    known = {each.name: each.known for each in databases}
    for item in manifest.items:
        parts = Path(item.name).parts
        if not parts or ".." in parts or Path(item.name).is_absolute() or _is_left_out(parts[0]):
            raise UserError(
                f"{path} names a file outside of the backup: {item.name!r}; use another backup"
            )
        if item.schema is not None and item.schema > known.get(item.name, 0):
            raise UserError(
                f"{source / item.name} was written by a newer Bargein ({manifest.bargein}). Use "
                "that Bargein or a later one"
            )
    for name in manifest.folders:
        if Path(name).name != name or name == ".." or _is_left_out(name):
            raise UserError(
                f"{path} names a folder outside of the backup: {name!r}; use another backup"
            )
    return manifest


class _Format(msgspec.Struct):
    format: int
    bargein: str = "?"


def restore(
    source: Path, home: Path, report: Report, databases: Sequence[Database], *, replace: bool
) -> Path | None:
    """Puts the data of a backup into `home`. Returns the folder into which it moved the data that
    was there before; None if there was none."""
    source = source.absolute()
    manifest = read_manifest(source, databases)
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        with own_data_directory(home):
            return _restore(source, home, manifest, report, databases, replace=replace)
    except OSError as error:
        where = error.filename or home
        raise StoreFailed(
            f"{where} cannot be written ({error.strerror}), so {source} was not restored",
            retryable=error.errno == errno.ENOSPC,
        ) from error


def _restore(
    source: Path,
    home: Path,
    manifest: Manifest,
    report: Report,
    databases: Sequence[Database],
    *,
    replace: bool,
) -> Path | None:
    old = _replaced_by_restore(home, manifest)
    if old and not (replace or (home / RESTORE_UNFINISHED).exists()):
        names = ", ".join(path.name for path in old)
        raise UserError(
            f"{home} already has data ({names}). To restore anyway, add --replace: it moves the "
            "old data into a folder beside the new data, and deletes nothing"
        )
    stage = home / STAGE
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(mode=0o700)
    try:
        for item in manifest.items:
            (stage / item.name).parent.mkdir(mode=0o700, exist_ok=True)
            target = stage / item.name
            _copy_checked(source, item, target, report)
            if target.name.endswith(DATABASE_SUFFIX):
                with closing(connect(target)) as connection:
                    _check_version(_named(databases, item.name), connection, source / item.name)
        if manifest.listing is not None:
            listing = source / LISTING
            if not listing.is_file() or digest_of(listing) != manifest.listing.sha256:
                raise UserError(f"{source} is damaged: {LISTING}. Use another backup")
            restore_folders(source, listing, stage, manifest.folders, report)
        sync(stage)
        return _put_in_place(home, stage, old)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _copy_checked(source: Path, item: Item, target: Path, report: Report) -> None:
    path = source / item.name
    if not path.is_file():
        raise UserError(f"{source} is damaged: {item.name} is missing. Use another backup")
    with path.open("rb") as reading:
        digest, size = copy_bytes(
            reading, target, partial(report, item.name), bytes_max=path.stat().st_size
        )
    if (digest, size) != (item.sha256, item.bytes):
        raise UserError(
            f"{source} is damaged: {item.name} is not what was backed up. Use another backup"
        )


def _put_in_place(home: Path, stage: Path, old: list[Path]) -> Path | None:
    """Moves the files. `RESTORE_UNFINISHED` exists from the first move to the last. If a move
    fails, those before it are taken back."""
    mark = home / RESTORE_UNFINISHED
    was_unfinished = mark.exists()
    make_file(mark, exclusive=False)
    sync(home)
    aside = home / f"replaced-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}" if old else None
    moves = [(path, aside / path.name) for path in old] if aside is not None else []
    moves += [(path, home / path.name) for path in sorted(stage.iterdir())]
    done: list[tuple[Path, Path]] = []
    try:
        if aside is not None:
            aside.mkdir(mode=0o700)
        for path, target in moves:
            path.rename(target)
            done.append((path, target))
        sync(home)
    except OSError:
        for path, target in reversed(done):
            target.rename(path)
        if aside is not None and aside.is_dir():
            aside.rmdir()
        if not was_unfinished:
            mark.unlink()
        sync(home)
        raise
    mark.unlink()
    sync(home)
    return aside


def _replaced_by_restore(home: Path, manifest: Manifest) -> list[Path]:
    """Returns what must not stay beside the data of this backup: everything, or, if the backup is
    one without folders, all files."""
    theirs = {Path(item.name).parts[0] for item in manifest.items}
    return [
        home / name
        for name in _names_in(home)
        if manifest.format > FORMAT_WITHOUT_FOLDERS or name in theirs or not (home / name).is_dir()
    ]


# --- before an upgrade


def keep_copy_before_upgrade(
    home: Path,
    notice: Callable[[str], object] | None,
    databases: Sequence[Database] = (SESSIONS,),
) -> Path | None:
    """If opening one of these databases would upgrade it, copies all files at the top of the
    directory first, and returns where the copy is. No upgrade changes a folder.
    `docs/upgrading.md` says how to go back to it."""
    older: dict[Database, int] = {}
    for database in databases:
        version = _version_of(database, home)
        if version is not None and 0 < version < database.known:
            older[database] = version
    if not older:
        return None
    # Another command may have just kept a copy, of more databases than these.
    for copy in sorted(home.glob("before-upgrade-*")):
        if all(_version_of(database, copy) == version for database, version in older.items()):
            return copy
    names = [f"{Path(database.name).stem}-{version}" for database, version in older.items()]
    copy = home / f"before-upgrade-{'-'.join(names)}"
    if notice is not None:
        notice(f"The data is from an older version. A copy of it is kept in {copy}")
    write_backup(home, copy, _say_nothing, databases, folders=False)
    return copy


def _say_nothing(name: str, done: int, total: int) -> None:
    pass


def _version_of(database: Database, directory: Path) -> int | None:
    """Returns None if the database does not exist or cannot be read; opening it then says why."""
    path = directory / database.name
    if not path.is_file() or not path.stat().st_size:
        return None
    try:
        with closing(connect(path)) as connection:
            return database.version(connection)
    except (sqlite3.Error, BargeinError):
        return None
