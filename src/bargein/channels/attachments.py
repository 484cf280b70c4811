"""Takes files and voice notes of a message, within bounds, under names without directories."""

import re
from collections.abc import Sequence

import anyio

from bargein.channels.contract import Channel, Offer
from bargein.contracts.message import Attachment
from bargein.contracts.visible import visible

FILES_MAX = 10
FILE_BYTES_MAX = 10 * 1024 * 1024
FETCH_S = 30.0
NAME_CHARACTERS_MAX = 100
_NOT_IN_NAMES = re.compile(r"[^\w.\- ]+")
_MEDIA_TYPE = re.compile(r"[\w.+-]{1,64}/[\w.+-]{1,64}")


async def fetch_all(
    channel: Channel, offers: Sequence[Offer]
) -> tuple[list[Attachment], list[str]]:
    """The files, and a sentence for each that is missing: a message is not lost with its file."""
    fetched: list[Attachment] = []
    missing: list[str] = []
    for number, offer in enumerate(offers):
        name = confined(offer.name)
        if number >= FILES_MAX:
            missing.append(f"(more than {FILES_MAX} files; {name} was left out)")
            continue
        if offer.size is not None and offer.size > FILE_BYTES_MAX:
            missing.append(f"({name} has {offer.size} bytes; at most {FILE_BYTES_MAX} are taken)")
            continue
        try:
            with anyio.fail_after(FETCH_S):
                data = await channel.fetch(offer, FILE_BYTES_MAX)
        except Exception as error:  # boundary: an adapter's; the words of the message go on
            why = visible(str(error) or type(error).__name__)
            missing.append(f"({name} could not be fetched: {why})")
            continue
        media_type = offer.media_type.lower()
        known = media_type if _MEDIA_TYPE.fullmatch(media_type) else "application/octet-stream"
        fetched.append(Attachment(name, known, data[:FILE_BYTES_MAX]))
    return fetched, missing


def confined(name: str) -> str:
    """A name without directories, without anything that hides, and not too long."""
    last = re.split(r"[/\\]", name)[-1]
    plain = _NOT_IN_NAMES.sub("_", visible(last)).strip(". ")
    return plain[-NAME_CHARACTERS_MAX:] or "file"
