"""Reads the address of a client behind a proxy from the proxy's header.

Each proxy appends the address it received the request from, so the header is read from its end:
past the addresses that the operator trusts, to the first other one. Everything before that may be
made up by the client and is ignored. Only the header that the operator named is read
(`X-Forwarded-For` or `Forwarded`), because the proxy may pass the other one on as the client wrote
it.
"""

import re
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import Literal, NamedTuple

ProxyHeader = Literal["x-forwarded-for", "forwarded"]

HOPS_MAX = 32

# RFC 7239: pairs with semicolons between them, and commas between hops; a value may be quoted.
_PAIR = re.compile(r'\s*([\w!#$%&\'*+.^`|~-]+)=(?:"((?:[^"\\]|\\.)*)"|([^",;\s]*))\s*(;|,|$)')


class Origin(NamedTuple):
    """A field is empty if no trusted proxy gave it."""

    address: str = ""
    scheme: str = ""


def forwarded(
    headers: Iterable[tuple[bytes, bytes]], header: ProxyHeader, is_proxy: Callable[[str], bool]
) -> Origin:
    """Returns the client's address and scheme according to the trusted proxies."""
    texts: dict[bytes, list[str]] = {}
    for name, value in headers:
        texts.setdefault(name, []).append(value.decode("latin-1"))
    if header == "forwarded":
        return _first_untrusted(_hops(",".join(texts.get(b"forwarded", ()))), is_proxy)
    named = [part.strip() for part in ",".join(texts.get(b"x-forwarded-for", ())).split(",")]
    schemes = ",".join(texts.get(b"x-forwarded-proto", ())).split(",")
    hops = [{"for": each} for each in named[-HOPS_MAX:]]
    return Origin(_first_untrusted(hops, is_proxy).address, schemes[-1].strip().lower())


def _first_untrusted(hops: list[dict[str, str]], is_proxy: Callable[[str], bool]) -> Origin:
    found = Origin()
    for hop in reversed(hops):
        address = _address(hop.get("for", ""))
        if not address:
            # Hidden or broken: anybody could have written what stands before it.
            return found
        found = Origin(address, hop.get("proto", "").lower())
        if not is_proxy(address):
            return found
    return found


def _hops(text: str) -> list[dict[str, str]]:
    """Returns the hops after the last unreadable part: a client may write anything before them."""
    hops: list[dict[str, str]] = [{}]
    place = 0
    while place < len(text):
        found = _PAIR.match(text, place)
        if found is None:
            comma = text.find(",", place)
            hops, place = [{}], len(text) if comma < 0 else comma + 1
            continue
        name, quoted, plain, end = found.groups()
        value = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else plain
        hops[-1].setdefault(name.lower(), value)
        if end == ",":
            hops.append({})
        place = found.end()
    return hops[-HOPS_MAX:]


def _address(text: str) -> str:
    """Returns the address without port and brackets, or an empty text if it is not one."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ip_address(text))
    except ValueError:
        return ""
