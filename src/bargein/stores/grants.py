"""What the user has granted for always, for each project: one file in their config directory.

It is never inside a workspace, where the agent could write it: commands do not see the directory,
and file tools refuse it. Every call looks whether the file has changed, so that a grant which is
revoked elsewhere holds no longer. A file that cannot be read grants nothing.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from bargein.contracts.permission import Grant, KeptGrant
from bargein.errors import UserError, WorldError

FILE = "grants.json"
FILE_BYTES_MAX = 4 << 20

Projects = dict[str, tuple[KeptGrant, ...]]


class GrantsFile:
    """All projects of one user."""

    def __init__(self, path: Path, *, now: Callable[[], float] = time.time) -> None:
        self.path = path
        self._now = now
        self._seen: tuple[int, int, int] | None = None
        self._projects: Projects = {}

    def project(self, folder: str | Path) -> "FolderGrants":
        return FolderGrants(self, os.path.realpath(folder))

    def projects(self) -> Projects:
        """Every project that has grants. Raises `UserError` if the file cannot be read."""
        try:
            stat = self.path.stat()
        except OSError:
            self._seen, self._projects = None, {}
            return self._projects
        seen = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if seen != self._seen:
            self._projects = self._read()
            self._seen = seen
        return self._projects

    def _read(self) -> Projects:
        try:
            with self.path.open("rb") as file:
                body = file.read(FILE_BYTES_MAX + 1)
            return msgspec.json.decode(body, type=Projects)
        except (OSError, msgspec.MsgspecError) as error:
            raise UserError(
                f"{self.path} cannot be read: {error}; repair it, or delete it to be asked again"
            ) from error

    def keep(self, folder: str, grant: Grant, by: str) -> None:
        kept = self.projects().get(folder, ())
        if all(each.grant != grant for each in kept):
            self._change(folder, (*kept, KeptGrant(grant, by, self._now())))

    def revoke(self, folder: str, grant_id: str) -> bool:
        kept = self.projects().get(folder, ())
        left = tuple(each for each in kept if each.grant.id != grant_id)
        if len(left) == len(kept):
            return False
        self._change(folder, left)
        return True

    def _change(self, folder: str, kept: tuple[KeptGrant, ...]) -> None:
        projects = {**self.projects(), folder: kept}
        body = msgspec.json.encode({name: each for name, each in projects.items() if each})
        new = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(msgspec.json.format(body, indent=2) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)
        except OSError as error:
            raise WorldError(
                f"{self.path} cannot be written: {error.strerror}; the grant is not kept",
                retryable=False,
            ) from error


class FolderGrants:
    """The grants of one project: `contracts.permission.ProjectGrants`."""

    def __init__(self, file: GrantsFile, folder: str) -> None:
        self._file = file
        self.folder = folder

    def covers(self, grant: Grant) -> bool:
        try:
            return any(each.grant == grant for each in self.kept())
        except UserError:
            return False

    def keep(self, grant: Grant, by: str) -> None:
        self._file.keep(self.folder, grant, by)

    def kept(self) -> tuple[KeptGrant, ...]:
        return self._file.projects().get(self.folder, ())

    def revoke(self, grant_id: str) -> bool:
        return self._file.revoke(self.folder, grant_id)
