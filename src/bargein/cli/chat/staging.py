"""`/stage`: what staged turns changed, shown, accepted and discarded."""

import shlex
from collections.abc import Iterator

from bargein.cli.chat.paint import harmless
from bargein.cli.chat.restored import FILES_MAX
from bargein.cli.chat.rewinding import tell_diff
from bargein.cli.chat.talk import Talk
from bargein.cli.granted import STAGED_NOW
from bargein.contracts.stage import StagedFate, StagedFiles
from bargein.errors import UserError
from bargein.session.staging import NOT_STAGED

HOW = (
    "/stage, /stage on, /stage off, /stage accept [PATH...], /stage accept --overrule PATH, "
    "/stage discard PATH... or --all, /stage undo"
)
_SIGNS = {
    StagedFate.ADDED: "+",
    StagedFate.CHANGED: "~",
    StagedFate.REMOVED: "-",
    StagedFate.KEPT: "!",
}


async def stage(talk: Talk, rest: str) -> None:
    _, session = talk.opened()
    what, *words = _words(rest)
    if what == "accept":
        overrule = words[1:] if words[:1] == ["--overrule"] else []
        if words[:1] == ["--overrule"] and len(overrule) != 1:
            raise UserError(f"/stage {rest}: say {HOW}")
        done = await session.accept_staged(overrule or words, overrule=overrule)
        _tell(talk, "accepted (/stage undo takes it back):", done)
    elif what == "discard" and words:
        paths = () if words == ["--all"] else words
        _tell(talk, "discarded:", await session.discard_staged(paths))
    elif what == "undo" and not words:
        done = await session.undo_accept()
        _tell(talk, "the acceptance is taken back, and staged again:", done)
    elif what in ("on", "off") and not words:
        await session.set_staged(what == "on")
        talk.face.tell("note", STAGED_NOW if what == "on" else "turns work in the folder itself")
    elif not rest:
        found = await session.staged()
        if found is None:
            raise UserError(NOT_STAGED)
        if found.diff:
            tell_diff(talk, found.diff)
        _tell(talk, "an acceptance would change (/stage accept, /stage discard --all):", found)
    else:
        raise UserError(f"/stage {rest}: say {HOW}")


def _words(rest: str) -> list[str]:
    try:
        return shlex.split(rest) or [""]
    except ValueError:
        raise UserError(f"/stage {rest}: a quotation mark is not closed") from None


def _tell(talk: Talk, head: str, files: StagedFiles) -> None:
    if not files.files:
        talk.face.tell("dim", "nothing is staged")
        return
    if files.changed:
        talk.face.tell("note", head)
    for style, line in _in_words(files):
        talk.face.tell(style, line)


def _in_words(files: StagedFiles) -> Iterator[tuple[str, str]]:
    for style, chosen in (("note", files.changed), ("warn", files.kept)):
        lines = [
            f"  {_SIGNS[each.fate]} {harmless(each.path)}  {each.fate}{each.why and ': '}{each.why}"
            for each in chosen[:FILES_MAX]
        ]
        if len(chosen) > FILES_MAX:
            lines.append(f"  and {len(chosen) - FILES_MAX} more")
        if lines:
            yield style, "\n".join(lines)
    if files.more:
        yield "dim", f"  and {files.more} more files"
