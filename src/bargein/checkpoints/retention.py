"""Drops old snapshots of all workspaces, and reports how much is held."""

import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bargein.checkpoints.repository import CheckpointFailed, Repository, held_bytes


@dataclass(frozen=True, slots=True)
class Held:
    """What is held of one workspace."""

    workspace: str
    snapshots: int
    bytes: int


def held_in(directory: Path) -> Iterator[Held]:
    """What is held of each workspace. Only looks, and waits for nobody."""
    for own in _repositories(directory):
        with suppress(OSError):
            workspace = (own / "workspace").read_bytes().decode(errors="backslashreplace")
            kept = own / "git" / "refs" / "kept"
            count = sum(1 for _ in kept.iterdir()) if kept.is_dir() else 0
            yield Held(workspace, count, held_bytes(own))


def tidy(directory: Path, *, keep_s: float, bytes_max: int) -> int:
    """Drops what is older than this, and of each workspace the older snapshots while all of them
    take more room than this. Returns how many bytes are held then."""
    for own in _repositories(directory):
        with suppress(CheckpointFailed), Repository.open_kept(own) as repository:
            _tidy_one(repository, time.time() - keep_s, bytes_max)
            is_left = bool(repository.kept()) or repository.journal.exists()
            if not is_left and not repository.has_stages:
                shutil.rmtree(own, ignore_errors=True)
    return held_bytes(directory)


def _tidy_one(repository: Repository, before: float, bytes_max: int) -> None:
    if repository.drop_before(before) or repository.is_untidy:
        repository.tidy()
    while repository.held_bytes() > bytes_max and len(kept := repository.kept()) > 1:
        repository.drop_before(kept[(len(kept) + 1) // 2][0])
        repository.tidy()


def _repositories(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted(each for each in directory.iterdir() if (each / "workspace").is_file())
