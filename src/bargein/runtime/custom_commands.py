"""Commands of the user's own: `/NAME WORDS` sends the text of a file.

    ~/.config/bargein/commands/NAME.md          the user's
    .bargein/commands/NAME.md                   the project's, in this folder or above it

`$ARGUMENTS` in the file stands for the words after the name; without it they come after the text.
The first line is shown in `/help`. A project's commands count only if the user approved them, by
their content, and are checked again at each use. A built-in command of the same name wins, then the
user's, then the project's.
"""

import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bargein.errors import UserError
from bargein.runtime.config import trust_file, user_file
from bargein.runtime.project_trust import TrustRequest

FOLDER = "commands"
PROJECT_FOLDER = ".bargein"
KIND = "commands"
COMMANDS_MAX = 200
FILE_BYTES_MAX = 64 * 1024
HELP_CHARACTERS = 80
KNOWN_S = 2.0
ARGUMENTS = "$ARGUMENTS"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,40}\Z")


@dataclass(frozen=True, slots=True)
class CustomCommand:
    """`project` is the real path of the project whose file it is; empty for the user's own."""

    name: str
    text: str
    project: str = ""

    @property
    def help(self) -> str:
        first = self.text.strip().partition("\n")[0].lstrip("# ").strip()
        return first[:HELP_CHARACTERS] + (" (of this project)" if self.project else "")

    def message(self, words: str) -> str:
        if ARGUMENTS in self.text:
            return self.text.replace(ARGUMENTS, words).strip()
        return "\n\n".join(filter(None, (self.text.strip(), words)))


class CustomCommands:
    """The commands that count now. `known` may be a moment old, for menus that are drawn with each
    key; `read` is not."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self._environment = environment
        self._folder = folder
        self._known: dict[str, CustomCommand] = {}
        self._read_at = -KNOWN_S

    def known(self) -> dict[str, CustomCommand]:
        if time.monotonic() - self._read_at >= KNOWN_S:
            self.read()
        return self._known

    def read(self) -> dict[str, CustomCommand]:
        self._known = custom_commands(self._environment, self._folder)
        self._read_at = time.monotonic()
        return self._known


def project_request(folder: Path) -> TrustRequest | None:
    """Returns what the commands of a project would send; None if it has none."""
    place = _project_place(folder)
    found = list(_read(place, os.path.realpath(place.parent.parent))) if place is not None else []
    if place is None or not found:
        return None
    effects = tuple(f"/{each.name} sends:\n{each.text.strip()}" for each in found)
    return TrustRequest(KIND, found[0].project, str(place), effects)


def custom_commands(environment: Mapping[str, str], folder: Path) -> dict[str, CustomCommand]:
    """Returns the commands that count now, by their names."""
    commands: dict[str, CustomCommand] = {}
    place = _project_place(folder)
    if place is not None:
        found = list(_read(place, os.path.realpath(place.parent.parent)))
        request = project_request(folder)
        if request is not None and trust_file(environment).is_approved(request):
            commands.update((each.name, each) for each in found)
    own = user_file(environment).parent / FOLDER
    commands.update((each.name, each) for each in _read(own, ""))
    return commands


def _project_place(folder: Path) -> Path | None:
    for above in (folder, *folder.parents):
        place = above / PROJECT_FOLDER / FOLDER
        if place.is_dir():
            return place
    return None


def _read(place: Path, project: str) -> Iterator[CustomCommand]:
    try:
        names = sorted(each for each in os.listdir(place) if each.endswith(".md"))
    except OSError:
        return
    for file in names[:COMMANDS_MAX]:
        name = file.removesuffix(".md")
        path = place / file
        if not _NAME.match(name) or not path.is_file():
            continue
        try:
            with path.open("rb") as opened:
                body = opened.read(FILE_BYTES_MAX + 1)
            text = body.decode()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path} cannot be read: {error}") from error
        if len(body) > FILE_BYTES_MAX:
            raise UserError(f"{path} is larger than {FILE_BYTES_MAX} bytes")
        if text.strip():
            yield CustomCommand(name, text, project)
