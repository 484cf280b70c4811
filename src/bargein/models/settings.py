"""The user's settings of models, as data. Built once, by `bargein.runtime.config`.

`settings_from_environment` reads the mapping it is given; nothing here reads the process's own
environment. Keys are `Secret`s, so settings can be logged and shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bargein.errors import UserError
from bargein.models.costs import Price
from bargein.models.errors import Secret
from bargein.models.retry import RetryPolicy
from bargein.models.watchdog import Timeouts

if TYPE_CHECKING:
    import ssl

OPENAI_BASE_URL = "https://api.openai.com/v1"
ANTHROPIC_BASE_URL = "https://api.anthropic.com"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """`model` is None if none was named; see `bargein.models.choice`.

    `proxies` maps a scheme to the address of a proxy. Hosts in `no_proxy` and this machine are
    asked directly. `weights_dir` is where the embedded model keeps its weights.
    """

    model: str | None = None
    openai_base_url: str = OPENAI_BASE_URL
    openai_key: Secret | None = None
    anthropic_base_url: str = ANTHROPIC_BASE_URL
    anthropic_key: Secret | None = None
    context_tokens: int | None = None
    price: Price | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    tls: ssl.SSLContext | None = None
    proxies: Mapping[str, str] = field(default_factory=dict, repr=False)
    no_proxy: tuple[str, ...] = ()
    weights_dir: Path | None = None

    def __repr__(self) -> str:
        # Addresses may contain passwords.
        shown = {
            "model": self.model,
            "openai": _host(self.openai_base_url),
            "openai_key": self.openai_key,
            "anthropic": _host(self.anthropic_base_url),
            "anthropic_key": self.anthropic_key,
            "proxies": sorted(self.proxies),
        }
        return f"ModelSettings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def proxy_for(self, url: str) -> str | None:
        parts = urlsplit(url)
        host = (parts.hostname or "").lower()
        if is_loopback(host) or any(_covers(entry, host, parts.port) for entry in self.no_proxy):
            return None
        return self.proxies.get(parts.scheme) or self.proxies.get("all")


def settings_from_environment(environment: Mapping[str, str]) -> ModelSettings:
    """Reads the settings from variables. An empty value counts as unset."""

    def get(name: str) -> str | None:
        return environment.get(name, "").strip() or None

    def secret(name: str) -> Secret | None:
        value = get(name)
        return Secret(value) if value is not None else None

    proxies = {}
    for scheme in ("http", "https", "all"):
        name = f"{scheme}_proxy"
        value = get(name) or get(name.upper())
        if value is not None:
            proxies[scheme] = _checked_proxy(name.upper(), value)
    no_proxy = (get("no_proxy") or get("NO_PROXY") or "").replace(",", " ").split()
    return ModelSettings(
        model=get("BARGEIN_MODEL"),
        openai_base_url=get("OPENAI_BASE_URL") or OPENAI_BASE_URL,
        openai_key=secret("OPENAI_API_KEY"),
        anthropic_base_url=(get("ANTHROPIC_BASE_URL") or ANTHROPIC_BASE_URL),
        anthropic_key=secret("ANTHROPIC_API_KEY"),
        context_tokens=_tokens(get("BARGEIN_CONTEXT_TOKENS")),
        price=_price(get("BARGEIN_PRICE")),
        proxies=MappingProxyType(proxies),
        no_proxy=tuple(entry.lower() for entry in no_proxy),
    )


def is_loopback(host: str) -> bool:
    host = host.lower().strip("[]")
    return (
        host == "localhost"
        or host.endswith(".localhost")
        or host == "::1"
        or (host.startswith("127.") and host.replace(".", "").isdecimal())
    )


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _checked_proxy(name: str, value: str) -> str:
    address = value if "://" in value else f"http://{value}"
    if urlsplit(address).scheme not in ("http", "https"):
        raise UserError(f"{name} is a kind of proxy that is not supported; use an http:// proxy")
    return address


def _tokens(value: str | None) -> int | None:
    if value is None:
        return None
    if not (value.isascii() and value.isdecimal() and int(value) > 0):
        raise UserError(f"BARGEIN_CONTEXT_TOKENS is {value!r}; give a whole number of tokens")
    return int(value)


def _price(value: str | None) -> Price | None:
    if value is None:
        return None
    try:
        numbers = [float(number) for number in value.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 3) or not all(0 <= number < inf for number in numbers):
        raise UserError(
            f"BARGEIN_PRICE is {value!r}; give dollars per million tokens of input, of output "
            "and, optionally, of cached input: 1.25,10,0.125"
        )
    return Price(*numbers)


def _covers(entry: str, host: str, port: int | None) -> bool:
    """Whether an entry of NO_PROXY matches this host: the host itself, or a domain it is in."""
    if entry == "*":
        return True
    name, _, wanted_port = entry.partition(":")
    if wanted_port and wanted_port != str(port):
        return False
    name = name.removeprefix("*").removeprefix(".")
    return host == name or host.endswith(f".{name}")
