"""Grants for always: opens the user's file, lists and revokes them."""

from collections.abc import Iterable
from pathlib import Path

from bargein.contracts.permission import Grant, KeptGrant
from bargein.contracts.visible import visible
from bargein.errors import UserError
from bargein.runtime.config import COMMAND_LINE, Config, user_file
from bargein.session.any_session import AnySession
from bargein.stores.grants import FILE, FolderGrants, GrantsFile


def grants_file(config: Config) -> GrantsFile:
    return GrantsFile(user_file(config.environment).parent / FILE)


def project_grants(config: Config) -> FolderGrants:
    """Returns the grants of the project in this folder."""
    return grants_file(config).project(Path.cwd())


STAGED_NOW = (
    "turns are staged: they change a copy of this folder, until you accept that; /stage shows it"
)


async def obey_mode_flag(config: Config, session: AnySession) -> None:
    """Sets the mode of an existing session, if the command line names one."""
    wanted = config.effective.get("mode")
    if (
        wanted is not None
        and wanted.source == COMMAND_LINE
        and await session.mode() != wanted.value
    ):
        await session.set_mode(str(wanted.value))


async def obey_staged_flag(config: Config, session: AnySession) -> bool:
    """Stages an existing session, if the command line says so. Returns whether it is staged."""
    wanted = config.effective.get("sandbox.staged")
    place = await session.place()
    if place is None or place.staged:
        return place is not None
    if wanted is not None and wanted.source == COMMAND_LINE and wanted.value == "on":
        await session.set_staged()
        return True
    return False


def revoke_everywhere(config: Config, grant_id: str) -> None:
    file = grants_file(config)
    found = [file.revoke(folder, grant_id) for folder in list(file.projects())]
    if not any(found):
        raise UserError(f"there is no grant {grant_id}; `bargein config` lists them")


def in_lines(grants: Iterable[KeptGrant], scope: str) -> list[str]:
    def line(grant: Grant) -> str:
        return f"  {grant.id}  {scope:<8} {visible(' '.join(str(grant).split()))[:100]}"

    return [line(each.grant) for each in grants]
