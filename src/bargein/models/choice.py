"""Chooses a model if the user named none.

In this order: a provider whose key is in the environment, a model server on this machine, the
embedded model. All servers are asked at the same time, within a short time limit. Where nothing
listens the answer is immediate. A cancel of the token ends the search at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import msgspec

from bargein.cancel import Token
from bargein.models.errors import Secret
from bargein.models.http_endpoint import split_base_url
from bargein.models.naming import resolve_model
from bargein.models.retrying import RetryingModel
from bargein.models.settings import OPENAI_BASE_URL, ModelSettings

if TYPE_CHECKING:
    from bargein.models.local import LocalOptions

OPENAI_MODEL = "gpt-5-mini"
ANTHROPIC_MODEL = "claude-sonnet-4-5"
PROBE_S = 0.5
LIST_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model server that may run on this machine."""

    name: str
    base_url: str


CANDIDATES = (
    Candidate("Ollama", "http://127.0.0.1:11434/v1"),
    Candidate("LM Studio", "http://127.0.0.1:1234/v1"),
    Candidate("llama.cpp", "http://127.0.0.1:8080/v1"),
    Candidate("vLLM", "http://127.0.0.1:8000/v1"),
)


@dataclass(frozen=True, slots=True)
class Choice:
    """A model's name, and the reason for the choice in a few words."""

    name: str
    why: str


async def choose_model(
    settings: ModelSettings, token: Token, *, local: "LocalOptions | None" = None
) -> tuple[RetryingModel, Choice]:
    """Returns the named model, or the best available one."""
    choice = await choose_name(settings, token)
    return resolve_model(choice.name, settings, local=local), choice


async def choose_name(
    settings: ModelSettings, token: Token, *, candidates: Sequence[Candidate] = CANDIDATES
) -> Choice:
    if settings.model is not None:
        return Choice(settings.model, "it was named")
    missed = ""
    if settings.openai_base_url != OPENAI_BASE_URL:
        host = split_base_url(settings.openai_base_url, "OPENAI_BASE_URL")
        own = Candidate("OPENAI_BASE_URL", settings.openai_base_url)
        found = await find_server([own], token, key=settings.openai_key, timeout_s=10 * PROBE_S)
        if found is not None:
            return Choice(f"openai:{found[1]}", f"OPENAI_BASE_URL is set, and {found[1]} is there")
        missed = f"OPENAI_BASE_URL is set, but {host} offers no model; "
    if settings.anthropic_key is not None:
        return Choice(f"anthropic:{ANTHROPIC_MODEL}", "ANTHROPIC_API_KEY is set")
    if settings.openai_key is not None:
        return Choice(f"openai:{OPENAI_MODEL}", "OPENAI_API_KEY is set")
    found = await find_server(candidates, token)
    if found is not None:
        server, model = found
        why = f"{missed}{server.name} runs on this machine"
        return Choice(f"openai:{model}@{server.base_url}", why)
    return Choice("local", f"{missed}no key is set and no model server runs on this machine")


async def find_server(
    candidates: Sequence[Candidate],
    token: Token,
    *,
    key: Secret | None = None,
    timeout_s: float = PROBE_S,
) -> tuple[Candidate, str] | None:
    """Returns the first candidate, in order, that offers a model, and the model's name."""
    found: dict[int, str | None] = {}

    async def probe(number: int) -> None:
        found[number] = await _first_model(candidates[number].base_url, key)
        # The choice is final once all candidates before the first success have failed.
        for earlier in range(len(candidates)):
            if earlier not in found:
                return
            if found[earlier] is not None:
                group.cancel_scope.cancel()
                return

    with token.scope(), anyio.move_on_after(timeout_s):
        async with anyio.create_task_group() as group:
            for number in range(len(candidates)):
                group.start_soon(probe, number)
    token.check()
    for number, candidate in enumerate(candidates):
        model = found.get(number)
        if model is not None:
            return candidate, model
    return None


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model] | None = None


async def _first_model(base_url: str, key: Secret | None) -> str | None:
    """Returns the first chat model of a server; None if this is not a model server."""
    import aiohttp

    from bargein.net.resolver import ThreadResolver

    headers = {"Authorization": f"Bearer {key.reveal()}"} if key else {}
    connector = aiohttp.TCPConnector(
        force_close=True, resolver=ThreadResolver(), use_dns_cache=False
    )
    try:
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(
                f"{base_url.rstrip('/')}/models", headers=headers, allow_redirects=False
            ) as response,
        ):
            if response.status != 200:
                return None
            # A single `read` returns what has come so far, which may be half of it.
            body = bytearray()
            while len(body) < LIST_BYTES_MAX and (piece := await response.content.readany()):
                body += piece
            models = msgspec.json.decode(body, type=_Models).data or []
    except (aiohttp.ClientError, OSError, ValueError, msgspec.DecodeError):
        return None
    return next((model.id for model in models if "embed" not in model.id.lower()), None)
