"""Describes the files that an undo or a rollback put back or kept, in words with a style."""

from collections.abc import Iterator

from bargein.cli.chat.paint import harmless
from bargein.contracts.checkpoint import FileFate, FilesUndone
from bargein.contracts.event import FilesRolledBack

FILES_MAX = 40

_SIGNS = {
    FileFate.CHANGED_BACK: "~",
    FileFate.BROUGHT_BACK: "+",
    FileFate.REMOVED: "-",
    FileFate.KEPT: "!",
}


def rollback_in_words(told: FilesRolledBack) -> Iterator[tuple[str, str]]:
    if told.error:
        yield "bad", harmless(f"the files of {told.turn} could not be put back: {told.error}")
        return
    yield "note", f"the files of {told.turn}, which was rolled back (/redo takes that back):"
    yield from files_in_words(told.files)


def files_in_words(files: FilesUndone) -> Iterator[tuple[str, str]]:
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
