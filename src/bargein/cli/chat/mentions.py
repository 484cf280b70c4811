"""`@file` in a message: the file goes along, as an attachment.

A mention is `@PATH` or `@"PATH"` at the beginning of a word. If there is such a file, its content
is sent with the message; otherwise the words stay words. Text goes as text, images as images.
Blocking: call it in a thread.
"""

import re
from pathlib import Path

from bargein.contracts.message import Attachment
from bargein.errors import UserError

FILES_MAX = 20
TEXT_BYTES_MAX = 256 * 1024
IMAGE_BYTES_MAX = 5 * 1024 * 1024
IMAGE_TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
_MENTION = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|(\S+))')
_BEGUN = re.compile(r'(?<!\S)@("[^"\n]*|[^\s"]\S*|)$')
_AFTER = ".,;:!?)]}'"


def mentioned_files(text: str, folder: Path) -> tuple[Attachment, ...]:
    """Returns the files that a message mentions. Raises `UserError` if one cannot be sent."""
    found: dict[str, Attachment] = {}
    for quoted, bare in _MENTION.findall(text):
        path = _existing(folder, quoted or bare)
        if path is None:
            continue
        name = _name(path, folder)
        if name not in found:
            found[name] = _attachment(path, name)
        if len(found) > FILES_MAX:
            raise UserError(f"the message mentions more than {FILES_MAX} files; send fewer at once")
    return tuple(found.values())


def mention_of(pasted: str) -> str | None:
    """Returns the mention of an image whose path was pasted or dropped; None for other text."""
    path = pasted.strip().strip("'\"").replace("\\ ", " ")
    if "\n" in path or Path(path).suffix.lower() not in IMAGE_TYPES:
        return None
    try:
        if not Path(path).expanduser().is_file():
            return None
    except OSError:
        return None
    return f"@{mention(path)}"


def mention(path: str) -> str:
    """Returns what stands behind the `@` for a path. A path with blanks is quoted; the quotes of a
    folder stay open."""
    if not any(each.isspace() for each in path):
        return path
    return f'"{path}' if path.endswith("/") else f'"{path}"'


def mention_begun(before: str) -> str | None:
    """Returns what stands behind the `@` of the mention at the end of a line that is being written,
    with the quote that opens it; None if there is none."""
    found = _BEGUN.search(before)
    return found[1] if found else None


def _existing(folder: Path, named: str) -> Path | None:
    for name in (named, named.rstrip(_AFTER)):
        try:
            path = (folder / Path(name).expanduser()) if name else folder
            if path.is_file():
                return path
        except (OSError, RuntimeError, ValueError):
            return None
    return None


def _name(path: Path, folder: Path) -> str:
    try:
        return str(path.relative_to(folder))
    except ValueError:
        return str(path)


def _attachment(path: Path, name: str) -> Attachment:
    image = IMAGE_TYPES.get(path.suffix.lower())
    most = IMAGE_BYTES_MAX if image is not None else TEXT_BYTES_MAX
    try:
        with path.open("rb") as file:
            body = file.read(most + 1)
    except OSError as error:
        raise UserError(f"@{name} cannot be read: {error.strerror}") from error
    if len(body) > most:
        raise UserError(f"@{name} is larger than {most // 1024} KiB; name a smaller file")
    if image is not None:
        return Attachment(name, image, body)
    if b"\0" in body:
        raise UserError(f"@{name} is neither text nor an image that models read")
    return Attachment(name, "text/plain", body)
