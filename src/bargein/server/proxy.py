"""The client behind a proxy, as the proxy's own header tells it.

A header is worth what its writer is worth. Each proxy adds the address that it heard from at the
end, so the header is read from there: past the addresses that the operator trusts, up to the first
other one. What stands before that was written by whoever sent the request, and counts for nothing.
Of the two headers that there are only the one is read that the operator named: the other one may
have come through the proxy as a client wrote it.
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
    """Empty where nobody trusted has told it."""

    address: str = ""
    scheme: str = ""


def forwarded(
    headers: Iterable[tuple[bytes, bytes]], header: ProxyHeader, is_proxy: Callable[[str], bool]
) -> Origin:
    """Where a request came from that the last trusted proxy has passed on."""
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
            # Hidden or broken: whatever stands before it could have been written by anybody.
            return found
        found = Origin(address, hop.get("proto", "").lower())
        if not is_proxy(address):
            return found
    return found


def _hops(text: str) -> list[dict[str, str]]:
    """Those after the last that cannot be read: a client may write what it likes before them."""
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
    """Without its port and brackets; empty if it is no address."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ip_address(text))
    except ValueError:
        return ""
