"""Backs up a whole data directory, and restores one. What holds:

- A backup is a directory with a `manifest.json`. It is complete and checked, or it does not exist:
  it is written under another name (`NAME.part`) and renamed at the end. A server may run meanwhile.
- All databases are copied as they were at one moment, so that every session has its owner.
- A restore checks everything before it changes anything, needs the directory for itself, and
  deletes nothing: it moves the old data into a folder beside the new.
- If a restore is killed half-way, the next start notices and refuses to continue.

A cancel of the current token ends a backup or restore at its next block and removes the partial
copy.

A data directory can hold databases of parts above this one, such as the gateway's. Every
`*.sqlite3` file is copied; callers pass the `Database`s that they know, so that versions which this
program cannot read are refused.
"""

import errno
import hashlib
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec

from bargein import __version__
from bargein.cancel import current_token
from bargein.contracts.store import StoreFailed
from bargein.errors import BargeinError, UserError
from bargein.runtime.data_directory import (
    RESTORE_UNFINISHED,
    SESSIONS_FILE,
    own_data_directory,
)
from bargein.stores import reserve
from bargein.stores.sqlite import backup, schema
from bargein.stores.sqlite.faults import explain

MANIFEST = "manifest.json"
FORMAT = 1
MANIFEST_BYTES_MAX = 1024 * 1024
BLOCK_BYTES = 1024 * 1024
SAME_MOMENT_TRIES = 100
PLAIN_FILES = ("history", reserve.FILE)
DRAFTS = "draft"
DATABASE_SUFFIX = ".sqlite3"

Report = Callable[[str, int, int], object]
"""Receives the progress of a copy: the name of the file, the bytes copied, the bytes in all."""


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
    format: int
    made_at: str
    bargein: str
    items: tuple[Item, ...]


# --- backup


def write_backup(
    home: Path, destination: Path, report: Report, databases: Sequence[Database]
) -> Manifest:
    """Copies all of `home` into the new directory `destination`."""
    destination = destination.absolute()
    paths = _databases_in(home, databases)
    if not paths:
        raise UserError(
            f"there is nothing to back up in {home}; set BARGEIN_HOME to the data directory"
        )
    _check_free(destination)
    with _part(destination) as part, ExitStack() as stack:
        items = []
        for path, connection in _at_one_moment(stack, paths, databases):
            version = _check_version(_named(databases, path.name), connection, path)
            target = part / path.name
            _make_file(target)
            backup.copy_database(connection, path, target, partial(report, path.name))
            items.append(_item(part, target, version))
        for path in _plain_files(home):
            target = part / path.relative_to(home)
            target.parent.mkdir(mode=0o700, exist_ok=True)
            _copy_file(path, target)
            items.append(_item(part, target, None))
        made_at = datetime.now().astimezone().isoformat(timespec="seconds")
        manifest = Manifest(FORMAT, made_at, __version__, tuple(items))
        _make_file(part / MANIFEST)
        (part / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
        _sync_all(part)
        _check_free(destination)
        part.rename(destination)
        _sync(destination.parent)
    return manifest


def _databases_in(home: Path, databases: Sequence[Database]) -> list[Path]:
    """Returns the databases in the directory: first the known ones in their order, then others."""
    known = [home / each.name for each in databases]
    others = sorted(path for path in home.glob(f"*{DATABASE_SUFFIX}") if path not in known)
    return [path for path in (*known, *others) if path.is_file()]


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
            f"no backup was made: {where} cannot be written ({error.strerror})",
            retryable=error.errno == errno.ENOSPC,
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _at_one_moment(
    stack: ExitStack, paths: list[Path], databases: Sequence[Database]
) -> list[tuple[Path, sqlite3.Connection]]:
    """Opens a connection to each database; all of them read the state of the same moment."""
    connections = []
    for path in paths:
        connection = _connect(path)
        stack.enter_context(closing(connection))
        connections.append(connection)
        _check_version(_named(databases, path.name), connection, path)
    witness = stack.enter_context(closing(_connect(paths[0])))
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


def _connect(path: Path) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(
            f"{path.as_uri()}?mode=rw", uri=True, timeout=5.0, isolation_level=None
        )
        connection.execute("PRAGMA query_only = ON")
    except sqlite3.Error as error:
        raise explain(error, path) from error
    return connection


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


def _plain_files(home: Path) -> list[Path]:
    drafts = sorted((home / DRAFTS).glob("*")) if (home / DRAFTS).is_dir() else []
    found = [*(home / name for name in PLAIN_FILES), *drafts]
    return [path for path in found if path.is_file() and not path.is_symlink()]


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
        if ".." in Path(item.name).parts or Path(item.name).is_absolute():
            raise UserError(
                f"{path} names a file outside of the backup: {item.name!r}; use another backup"
            )
        if item.schema is not None and item.schema > known.get(item.name, 0):
            raise UserError(
                f"{source / item.name} was written by a newer Bargein ({manifest.bargein}). Use "
                "that Bargein or a later one"
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
    old = [path for path in _replaced_by_restore(home, databases) if os.path.lexists(path)]
    if old and not (replace or (home / RESTORE_UNFINISHED).exists()):
        names = ", ".join(path.name for path in old)
        raise UserError(
            f"{home} already has data ({names}). To restore anyway, add --replace: it moves the "
            "old data into a folder beside the new data, and deletes nothing"
        )
    stage = home / "restore.part"
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(mode=0o700)
    try:
        for item in manifest.items:
            (stage / item.name).parent.mkdir(mode=0o700, exist_ok=True)
            target = stage / item.name
            _copy_checked(source, item, target, report)
            if target.name.endswith(DATABASE_SUFFIX):
                with closing(_connect(target)) as connection:
                    _check_version(_named(databases, item.name), connection, source / item.name)
        _sync_all(stage)
        return _put_in_place(home, stage, [item.name for item in manifest.items], old)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _copy_checked(source: Path, item: Item, target: Path, report: Report) -> None:
    path = source / item.name
    if not path.is_file():
        raise UserError(f"{source} is damaged: {item.name} is missing. Use another backup")
    digest = _copy_file(path, target, lambda done: report(item.name, done, item.bytes))
    if digest != item.sha256:
        raise UserError(
            f"{source} is damaged: {item.name} is not what was backed up. Use another backup"
        )


def _put_in_place(home: Path, stage: Path, names: list[str], old: list[Path]) -> Path | None:
    """Moves the files. `RESTORE_UNFINISHED` exists from the first move to the last."""
    _make_file(home / RESTORE_UNFINISHED, exclusive=False)
    _sync(home)
    aside: Path | None = None
    if old:
        aside = home / f"replaced-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        aside.mkdir(mode=0o700)
        for path in old:
            path.rename(aside / path.name)
    for name in names:
        target = home / name
        target.parent.mkdir(mode=0o700, exist_ok=True)
        (stage / name).rename(target)
    _sync_all(home, deep=False)
    (home / RESTORE_UNFINISHED).unlink()
    _sync(home)
    return aside


def _replaced_by_restore(home: Path, databases: Sequence[Database]) -> list[Path]:
    names = [path.name for path in _databases_in(home, databases)]
    names += [each.name for each in databases if each.name not in names]
    parts = [f"{name}{end}" for name in names for end in ("", "-wal", "-shm")]
    return [home / name for name in (*parts, *PLAIN_FILES, DRAFTS)]


# --- files


def _make_file(path: Path, *, exclusive: bool = True) -> None:
    flags = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | (os.O_EXCL if exclusive else 0)
    os.close(os.open(path, flags, 0o600))


def _copy_file(source: Path, target: Path, report: Callable[[int], object] | None = None) -> str:
    """Copies a file, and returns its SHA-256."""
    digest, done, token = hashlib.sha256(), 0, current_token()
    _make_file(target)
    with source.open("rb") as reading, target.open("wb") as writing:
        while block := reading.read(BLOCK_BYTES):
            if token is not None:
                token.check()
            digest.update(block)
            writing.write(block)
            done += len(block)
            if report is not None:
                report(done)
    return digest.hexdigest()


def _item(part: Path, path: Path, version: int | None) -> Item:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Item(str(path.relative_to(part)), path.stat().st_size, digest, version)


def _sync_all(folder: Path, *, deep: bool = True) -> None:
    for path in sorted(folder.rglob("*")) if deep else []:
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- before an upgrade


def keep_copy_before_upgrade(
    home: Path,
    notice: Callable[[str], object] | None,
    databases: Sequence[Database] = (SESSIONS,),
) -> Path | None:
    """If opening one of these databases would upgrade it, backs up the whole directory first, and
    returns where the copy is. `docs/upgrading.md` says how to go back to it."""
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
    write_backup(home, copy, lambda name, done, total: None, databases)
    return copy


def _version_of(database: Database, directory: Path) -> int | None:
    """Returns None if the database does not exist or cannot be read; opening it then says why."""
    path = directory / database.name
    if not path.is_file() or not path.stat().st_size:
        return None
    try:
        with closing(_connect(path)) as connection:
            return database.version(connection)
    except (sqlite3.Error, BargeinError):
        return None
