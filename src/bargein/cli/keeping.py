"""A backup of a whole data directory, and its way back. What holds:

- A backup is a directory with a `manifest.json`, complete and checked, or it is not there: it is
  written beside its name (`NAME.part`) and renamed at the end. It may be made while a server runs.
- Both databases are copied as they were at one moment, so that every session has its owner.
- A restore checks everything before it touches anything, needs the directory for itself, and
  deletes nothing: what was there is moved into a folder beside it.
- A restore that was killed half-way is noticed by the next start, which refuses to go on with it.

A cancel of the current token ends either at the next slice, and removes what is half.
"""

import errno
import hashlib
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec

from bargein import __version__
from bargein.cancel import current_token
from bargein.cli.home import UNFINISHED, own_home
from bargein.cli.wiring import DATABASE
from bargein.contracts.store import StoreFailed
from bargein.errors import BargeinError, UserError
from bargein.server import book
from bargein.stores import reserve
from bargein.stores.sqlite import backup, schema
from bargein.stores.sqlite.faults import explain

MANIFEST = "manifest.json"
FORMAT = 1
MANIFEST_BYTES_MAX = 1024 * 1024
BLOCK_BYTES = 1024 * 1024
SAME_MOMENT_TRIES = 100
PLAIN = ("history", reserve.FILE)
DRAFTS = "draft"

Tell = Callable[[str, int, int], object]
"""What is being copied, how much of it is done, of how much."""


class Database(msgspec.Struct, frozen=True):
    """A database of the data directory, and how to tell its version. `known` is what this program
    reads; older ones are brought up to date when they are opened."""

    name: str
    known: int
    version: Callable[[sqlite3.Connection], int]


DATABASES = (
    Database(DATABASE, len(schema.MIGRATIONS), schema.version_of),
    Database(book.FILE, book.VERSION, book.version_of),
)


class Item(msgspec.Struct, frozen=True):
    """A file of a backup. `schema` is there for databases."""

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


def write_backup(home: Path, destination: Path, tell: Tell) -> Manifest:
    """Copy all of `home` into the new directory `destination`."""
    destination = destination.absolute()
    found = [each for each in DATABASES if (home / each.name).is_file()]
    if not found:
        raise UserError(f"there is nothing to back up in {home}; BARGEIN_HOME says where data is")
    _check_free(destination)
    with _part(destination) as part, ExitStack() as stack:
        items = []
        for database, connection in _at_one_moment(stack, home, found):
            name, target = database.name, part / database.name
            _make_file(target)
            backup.copy_database(connection, home / name, target, partial(tell, name))
            items.append(_item(part, target, database.version(connection)))
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


def _check_free(destination: Path) -> None:
    if os.path.lexists(destination):
        raise UserError(f"{destination} exists; choose another name for the backup")
    if not destination.parent.is_dir():
        raise UserError(f"there is no directory {destination.parent}; make it, or name another")


@contextmanager
def _part(destination: Path) -> Iterator[Path]:
    """A directory to write into, removed unless it was renamed. One that a killed program left is
    replaced."""
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
    stack: ExitStack, home: Path, found: list[Database]
) -> list[tuple[Database, sqlite3.Connection]]:
    """A connection to each, that reads it as it was at a moment common to all."""
    connections = []
    for database in found:
        connection = _connect(home / database.name)
        stack.enter_context(closing(connection))
        connections.append(connection)
        _check_kind(database, connection, home / database.name)
    witness = stack.enter_context(closing(_connect(home / found[0].name)))
    for _ in range(SAME_MOMENT_TRIES):
        before = witness.execute("PRAGMA data_version").fetchone()
        for connection in connections:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            connection.execute("BEGIN")
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        # Nobody has written to the first one until the last one was begun on.
        if witness.execute("PRAGMA data_version").fetchone() == before:
            break
    return list(zip(found, connections, strict=True))


def _connect(path: Path) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(
            f"{path.as_uri()}?mode=rw", uri=True, timeout=5.0, isolation_level=None
        )
        connection.execute("PRAGMA query_only = ON")
    except sqlite3.Error as error:
        raise explain(error, path) from error
    return connection


def _check_kind(database: Database, connection: sqlite3.Connection, path: Path) -> int:
    """The version of a database, if this program knows it."""
    try:
        version = database.version(connection)
    except sqlite3.Error as error:
        raise explain(error, path) from error
    except UserError as error:
        raise UserError(f"{path} {error}") from error
    if version > database.known:
        raise UserError(
            f"{path} was written by a newer Bargein (version {version} of its format; this one "
            f"knows {database.known}). Use that Bargein, or a later one"
        )
    return version


def _plain_files(home: Path) -> list[Path]:
    drafts = sorted((home / DRAFTS).glob("*")) if (home / DRAFTS).is_dir() else []
    found = [*(home / name for name in PLAIN), *drafts]
    return [path for path in found if path.is_file() and not path.is_symlink()]


# --- restore


def read_manifest(source: Path) -> Manifest:
    """The manifest of a backup that this program can take into use."""
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
                f"{made_by.format}, this one knows {FORMAT}): use that one, or a later one"
            )
        manifest = msgspec.json.decode(body, type=Manifest)
    except msgspec.MsgspecError as error:
        raise UserError(f"{path} is damaged ({error}); take another backup") from error
    known = {each.name: each.known for each in DATABASES}
    for item in manifest.items:
        if ".." in Path(item.name).parts or Path(item.name).is_absolute():
            raise UserError(f"{path} names a file outside of the backup: {item.name!r}")
        if item.schema is not None and item.schema > known.get(item.name, 0):
            raise UserError(
                f"{source / item.name} was written by a newer Bargein ({manifest.bargein}): use "
                "that one, or a later one"
            )
    return manifest


class _Format(msgspec.Struct):
    format: int
    bargein: str = "?"


def restore(source: Path, home: Path, tell: Tell, *, replace: bool) -> Path | None:
    """Take a backup into use. Returns where what was there before has been moved, if anything
    was."""
    source = source.absolute()
    manifest = read_manifest(source)
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        with own_home(home):
            return _restore(source, home, manifest, tell, replace=replace)
    except OSError as error:
        where = error.filename or home
        raise StoreFailed(
            f"{where} cannot be written ({error.strerror}), so {source} was not restored",
            retryable=error.errno == errno.ENOSPC,
        ) from error


def _restore(
    source: Path, home: Path, manifest: Manifest, tell: Tell, *, replace: bool
) -> Path | None:
    old = [path for path in _ours(home) if os.path.lexists(path)]
    if old and not (replace or (home / UNFINISHED).exists()):
        names = ", ".join(path.name for path in old)
        raise UserError(
            f"{home} has data already ({names}). To restore all the same, say --replace: what is "
            "there is then moved into a folder beside it, not deleted"
        )
    stage = home / "restore.part"
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(mode=0o700)
    try:
        for item in manifest.items:
            (stage / item.name).parent.mkdir(mode=0o700, exist_ok=True)
            _copy_checked(source, item, stage / item.name, tell)
        _sync_all(stage)
        return _put_in_place(home, stage, [item.name for item in manifest.items], old)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _copy_checked(source: Path, item: Item, target: Path, tell: Tell) -> None:
    path = source / item.name
    if not path.is_file():
        raise UserError(f"{source} is damaged: {item.name} is missing. Take another backup")
    digest = _copy_file(path, target, lambda done: tell(item.name, done, item.bytes))
    if digest != item.sha256:
        raise UserError(
            f"{source} is damaged: {item.name} is not what was backed up. Take another backup"
        )
    database = next((each for each in DATABASES if each.name == item.name), None)
    if database is not None:
        with closing(_connect(target)) as connection:
            _check_kind(database, connection, path)


def _put_in_place(home: Path, stage: Path, names: list[str], old: list[Path]) -> Path | None:
    """From the first move to the last a mark says that it is not finished."""
    _make_file(home / UNFINISHED, exclusive=False)
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
    (home / UNFINISHED).unlink()
    _sync(home)
    return aside


def _ours(home: Path) -> list[Path]:
    """All that a restore puts in place, and what belongs to it."""
    names = [f"{each.name}{end}" for each in DATABASES for end in ("", "-wal", "-shm")]
    return [home / name for name in (*names, *PLAIN, DRAFTS)]


# --- files


def _make_file(path: Path, *, exclusive: bool = True) -> None:
    flags = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | (os.O_EXCL if exclusive else 0)
    os.close(os.open(path, flags, 0o600))


def _copy_file(source: Path, target: Path, tell: Callable[[int], object] | None = None) -> str:
    """Returns the SHA-256 of what was copied."""
    digest, done, token = hashlib.sha256(), 0, current_token()
    _make_file(target)
    with source.open("rb") as reading, target.open("wb") as writing:
        while block := reading.read(BLOCK_BYTES):
            if token is not None:
                token.check()
            digest.update(block)
            writing.write(block)
            done += len(block)
            if tell is not None:
                tell(done)
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


def keep_copy_before_upgrade(home: Path, notice: Callable[[str], object] | None) -> Path | None:
    """If opening the data would bring a database up to date, back all of it up first. Returns where
    the copy is; `docs/upgrading.md` says how to go back to it."""
    older = []
    for database in DATABASES:
        path = home / database.name
        if not path.is_file() or not path.stat().st_size:
            continue
        try:
            with closing(_connect(path)) as connection:
                version = database.version(connection)
        except (sqlite3.Error, BargeinError):
            continue  # whoever opens it says what is wrong with it
        if 0 < version < database.known:
            older.append(f"{Path(database.name).stem}-{version}")
    if not older:
        return None
    copy = home / f"before-upgrade-{'-'.join(older)}"
    if not copy.exists():
        if notice is not None:
            notice(f"The data is of an older version. A copy of it is kept in {copy}")
        write_backup(home, copy, lambda name, done, total: None)
    return copy
