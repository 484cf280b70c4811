"""Turns the name that a user writes into a model.

    openai:NAME             Chat Completions at OPENAI_BASE_URL, or at NAME@URL
    openai-responses:NAME   OpenAI Responses, likewise
    openai-background:NAME  the same, as a job of the provider that a stop cancels there
    anthropic:NAME          Anthropic Messages at ANTHROPIC_BASE_URL, or at NAME@URL
    local                   the embedded model
    local:PATH.gguf         the same runtime with your own weights
    scripted:PATH           plays a script (TOML or JSON), for tests and demonstrations
    A,B                     asks A, and B if A fails

A key is sent only to the host it was set for. A URL inside a name gets the key only if it is on the
configured host.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bargein.models.costs import context_tokens_of, price_of
from bargein.models.dialects import Dialect
from bargein.models.dialects.anthropic import AnthropicDialect
from bargein.models.dialects.chat import ChatDialect
from bargein.models.dialects.chat_request import quirks_of
from bargein.models.dialects.responses import ResponsesDialect
from bargein.models.endpoint import Endpoint
from bargein.models.errors import MissingKey, Secret, UnknownModel
from bargein.models.http_endpoint import HttpEndpoint, split_base_url
from bargein.models.retrying import RetryingModel
from bargein.models.settings import ANTHROPIC_BASE_URL, OPENAI_BASE_URL, ModelSettings

if TYPE_CHECKING:
    from bargein.models.local import LocalOptions

FORMS = (
    "openai:NAME",
    "openai-responses:NAME",
    "openai-background:NAME",
    "anthropic:NAME",
    "local",
    "local:PATH.gguf",
    "scripted:PATH",
)
_HELP = f"models are named {', '.join(FORMS)}, or several of these with commas to fall back"


def resolve_model(
    name: str, settings: ModelSettings, *, local: "LocalOptions | None" = None
) -> RetryingModel:
    """Returns the model with that name. Raises a `UserError` that says what to write or set.

    `local` has options for models on this machine, such as who receives their notices.
    """
    names = [part.strip() for part in name.split(",")]
    if not all(names):
        raise UnknownModel(f"{name!r} names no model; {_HELP}")
    endpoints = [_endpoint(part, settings, local) for part in names]
    return RetryingModel(endpoints, policy=settings.policy)


def _endpoint(name: str, settings: ModelSettings, local: "LocalOptions | None") -> Endpoint:
    kind, _, rest = name.partition(":")
    if kind in _PROVIDERS:
        if not rest:
            raise UnknownModel(f"{name!r} lacks the name of the model: {kind}:NAME")
        return _http(name, kind, rest, settings)
    if kind == "local":
        from bargein.models.local import LocalEndpoint

        return LocalEndpoint(settings, path=rest or None, options=local)
    if kind == "scripted" and rest:
        from bargein.models.script import load_script
        from bargein.models.scripted import ScriptedEndpoint

        return ScriptedEndpoint(load_script(rest), name)
    hint = _hint(name)
    raise UnknownModel(f"{name!r} is not a model that Bargein knows{hint}; {_HELP}")


def _hint(name: str) -> str:
    for beginning, kind in (("gpt", "openai"), ("o3", "openai"), ("claude", "anthropic")):
        if name.lower().startswith(beginning):
            return f" (did you mean {kind}:{name}?)"
    return f" (your own weights are local:{name})" if name.endswith(".gguf") else ""


@dataclass(frozen=True, slots=True)
class _Provider:
    """The default address, the key and the dialect of one kind of model."""

    dialect: Callable[[str], Dialect]
    default_url: str
    base_url: Callable[[ModelSettings], str]
    key: Callable[[ModelSettings], Secret | None]


_PROVIDERS = {
    "openai": _Provider(
        lambda host: ChatDialect(quirks_of(host)),
        OPENAI_BASE_URL,
        lambda settings: settings.openai_base_url,
        lambda settings: settings.openai_key,
    ),
    "openai-responses": _Provider(
        lambda _: ResponsesDialect(),
        OPENAI_BASE_URL,
        lambda settings: settings.openai_base_url,
        lambda settings: settings.openai_key,
    ),
    "openai-background": _Provider(
        lambda _: ResponsesDialect(background=True),
        OPENAI_BASE_URL,
        lambda settings: settings.openai_base_url,
        lambda settings: settings.openai_key,
    ),
    "anthropic": _Provider(
        lambda _: AnthropicDialect(),
        ANTHROPIC_BASE_URL,
        # Some people add the version to the address, but it is part of the path.
        lambda settings: settings.anthropic_base_url.rstrip("/").removesuffix("/v1"),
        lambda settings: settings.anthropic_key,
    ),
}


def _http(name: str, kind: str, rest: str, settings: ModelSettings) -> HttpEndpoint:
    provider = _PROVIDERS[kind]
    base_url = provider.base_url(settings)
    key = provider.key(settings)
    model, url = _split_url(rest)
    if url:
        if kind == "anthropic":
            url = url.removesuffix("/v1")
        if _origin(url) != _origin(base_url):
            key = None
        base_url = url
    dialect = provider.dialect(split_base_url(base_url, provider.dialect("").url_variable))
    at_home = _origin(base_url) == _origin(provider.default_url)
    if key is None and at_home:
        raise MissingKey(
            f"{name} needs a key: set {dialect.key_variable}. "
            f"To use your own server, set {dialect.url_variable} to its address"
        )
    return HttpEndpoint(
        name=name,
        model=model,
        base_url=base_url,
        dialect=dialect,
        key=key,
        context_tokens=settings.context_tokens or context_tokens_of(model),
        price=settings.price or (price_of(model) if at_home else None),
        timeouts=settings.timeouts,
        tls=settings.tls,
        proxy=settings.proxy_for(base_url),
    )


def _split_url(rest: str) -> tuple[str, str]:
    """Splits `NAME@URL`; a name may contain an @ itself."""
    for mark in ("@http://", "@https://"):
        model, found, address = rest.partition(mark)
        if found and model:
            return model, (mark[1:] + address).rstrip("/")
    return rest, ""


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    return parts.scheme, parts.hostname, port
