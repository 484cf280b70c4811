"""Turns a server's answer to a call into text and images for the model, within bounds. Pure."""

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from bargein.calls.text import one_line, shortened
from bargein.contracts.model import Image, Text
from bargein.contracts.tool import CallResult, CallStatus

BLOCKS_MAX: Final = 200
IMAGE_BYTES_MAX: Final = 8 << 20
URI_CHARS_MAX: Final = 2000
IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


def call_result(result: Mapping[str, Any]) -> CallResult:
    """The result of a call that the server ended by itself."""
    parts = tuple(_content(result)) or (Text("Done. The server returned nothing."),)
    if result.get("isError"):
        words = " ".join(part.text for part in parts if isinstance(part, Text))
        return CallResult(CallStatus.FAILED, parts, f"failed: {one_line(words)}")
    return CallResult(CallStatus.FINISHED, parts, "finished")


def _content(result: Mapping[str, Any]) -> Iterator[Text | Image]:
    blocks = result.get("content")
    listed = [each for each in blocks if isinstance(each, dict)] if isinstance(blocks, list) else []
    for block in listed[:BLOCKS_MAX]:
        yield from content_of(block)
    if len(listed) > BLOCKS_MAX:
        yield Text(f"[{len(listed) - BLOCKS_MAX} more parts of the result are left out]")
    if not listed and result.get("structuredContent") is not None:
        structured = msgspec.json.encode(result["structuredContent"])
        yield Text(shortened(structured.decode("utf-8", "replace")))


def content_of(block: Mapping[str, Any]) -> Iterator[Text | Image]:
    """Read a block of content. Tools, resources and prompts use the same blocks."""
    kind = block.get("type")
    if kind == "text":
        yield Text(shortened(str(block.get("text", ""))))
    elif kind == "image":
        yield _image(str(block.get("data", "")), str(block.get("mimeType", "")))
    elif kind == "audio":
        yield Text(f"[audio, {_short(block.get('mimeType'))}, which cannot be shown]")
    elif kind == "resource_link":
        yield Text(f"[resource {_uri(block)}: {one_line(str(block.get('name', '')))}]")
    elif kind == "resource" and isinstance(block.get("resource"), dict):
        yield from resource_content(block["resource"])
    else:
        yield Text(f"[a part of unknown type {one_line(str(kind))!r}]")


def resource_content(resource: Mapping[str, Any]) -> Iterator[Text | Image]:
    uri, kind = _uri(resource), str(resource.get("mimeType", ""))
    if "text" in resource:
        yield Text(f"[resource {uri}]\n{shortened(str(resource['text']))}")
    elif kind in IMAGE_TYPES:
        yield Text(f"[resource {uri}]")
        yield _image(str(resource.get("blob", "")), kind)
    else:
        length = len(str(resource.get("blob", ""))) * 3 // 4
        yield Text(f"[resource {uri}, {_short(kind)}, {length} bytes, not shown]")


def _uri(block: Mapping[str, Any]) -> str:
    return one_line(str(block.get("uri", "")), URI_CHARS_MAX)


def _short(kind: object) -> str:
    return one_line(str(kind or "of unknown type"))


def _image(data: str, kind: str) -> Text | Image:
    if kind not in IMAGE_TYPES:
        return Text(f"[an image, {_short(kind)}, which cannot be shown]")
    if len(data) > IMAGE_BYTES_MAX * 4 // 3:
        return Text(f"[an image of {len(data) * 3 // 4} bytes, too large to be shown]")
    try:
        return Image(kind, base64.b64decode(data, validate=True))
    except (binascii.Error, ValueError):
        return Text("[an image that is not valid base64]")
