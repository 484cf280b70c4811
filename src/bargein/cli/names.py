"""Checks names on the command line, before anything starts."""

import re
from argparse import ArgumentTypeError
from ipaddress import ip_network

from bargein.cli.streams import as_written

SESSION_CHARACTERS_MAX = 200

_HOST = re.compile(r"[\w-]+(\.[\w-]+)*")
_ORIGIN = re.compile(rf"https?://({_HOST.pattern}|\[[0-9a-f:.]+\])(:\d{{1,5}})?")


def session_name(text: str) -> str:
    text = as_written(text)
    if not text.isprintable() or not 1 <= len(text.strip()) <= SESSION_CHARACTERS_MAX:
        shown = text if len(text) <= SESSION_CHARACTERS_MAX else f"{text[:20]}..."
        raise ArgumentTypeError(
            f"{shown!r} cannot name a session: give 1 to {SESSION_CHARACTERS_MAX} visible "
            "characters"
        )
    return text


def model_name(text: str) -> str:
    if not text.strip():
        raise ArgumentTypeError("give the name of a model, such as openai:NAME or local")
    return text


def host_name(text: str) -> str:
    if not text.strip():
        raise ArgumentTypeError("give an address or a name, such as 127.0.0.1")
    return text


def server_name(text: str) -> str:
    """Checks a host name as requests carry it, without the port."""
    if not _HOST.fullmatch(text):
        raise ArgumentTypeError(
            f"{text!r} is not a host name: write it like agents.example, without scheme and port"
        )
    return text


def page_origin(text: str) -> str:
    """Returns an origin as browsers send it: lower case, without a path."""
    origin = text.lower().removesuffix("/")
    if not _ORIGIN.fullmatch(origin):
        raise ArgumentTypeError(
            f"{text!r} is not an origin: write it like https://agents.example or "
            "http://10.0.0.1:3000"
        )
    return origin


def proxy_network(text: str) -> str:
    try:
        return str(ip_network(text))
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} is not an address: give an address or a network, such as 10.0.0.2 or "
            "10.0.0.0/24"
        ) from None
