"""What the user has granted for always, for each project: one file in their config directory.

It is never inside a workspace, where the agent could write it: commands do not see the directory,
and file tools refuse it. Every call looks whether the file has changed, so that a grant which is
revoked elsewhere holds no longer. A file that cannot be read grants nothing.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

from bargein.contracts.permission import Grant, KeptGrant
from bargein.errors import UserError
from bargein.stores.user_file import UserFile

FILE = "grants.json"

Projects = dict[str, tuple[KeptGrant, ...]]


class GrantsFile:
    """All projects of one user."""

    def __init__(self, path: Path, *, now: Callable[[], float] = time.time) -> None:
        self.path = path
        self._now = now
        self._file: UserFile[Projects] = UserFile(
            path, Projects, {}, mends="repair it, or delete it to be asked again"
        )

    def project(self, folder: str | Path) -> "FolderGrants":
        return FolderGrants(self, os.path.realpath(folder))

    def projects(self) -> Projects:
        """Every project that has grants. Raises `UserError` if the file cannot be read."""
        return self._file.read()

    def keep(self, folder: str, grant: Grant, by: str) -> None:
        def kept(projects: Projects) -> Projects:
            before = projects.get(folder, ())
            if any(each.grant == grant for each in before):
                return projects
            return {**projects, folder: (*before, KeptGrant(grant, by, self._now()))}

        self._file.change(kept)

    def revoke(self, folder: str, grant_id: str) -> bool:
        def left(projects: Projects) -> Projects:
            kept = tuple(each for each in projects.get(folder, ()) if each.grant.id != grant_id)
            return {name: each for name, each in {**projects, folder: kept}.items() if each}

        return self._file.change(left)


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
