"""The two eras of the protocol, and what differs between them. Pure.

Since 2026-07-28 the protocol has no handshake and no session: the `_meta` of each request names its
version and what the client can do, and a server that needs something from the user ends the request
with `input_required`. Earlier versions begin a connection with `initialize`, and their servers send
requests of their own.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from bargein.calls.text import one_line
from bargein.mcp.wire import UNSUPPORTED_VERSION, RpcError, parse_object

STATELESS_VERSION: Final = "2026-07-28"
HANDSHAKE_VERSION: Final = "2025-11-25"
HANDSHAKE_VERSIONS: Final = (HANDSHAKE_VERSION, "2025-06-18", "2025-03-26", "2024-11-05")
"""What a server may choose. The last two are older than what this client is written for; calls of
tools are the same in them."""

META: Final = "io.modelcontextprotocol/"

CLIENT_CAPABILITIES: Final[Mapping[str, Any]] = {"elicitation": {"form": {}, "url": {}}}
STATELESS_CAPABILITIES: Final[Mapping[str, Any]] = {
    **CLIENT_CAPABILITIES,
    "extensions": {f"{META}tasks": {}},
}

_CLIENT_NAME: Final = "bargein"


class ServerFacts(msgspec.Struct, frozen=True):
    """What a server says about itself. Shown to people, never trusted."""

    version: str = ""
    name: str = ""
    server_version: str = ""
    capabilities: Mapping[str, Any] = msgspec.field(default_factory=dict)
    instructions: str = ""

    def can(self, capability: str, feature: str = "") -> bool:
        found = self.capabilities.get(capability)
        if not isinstance(found, dict):
            return False
        return not feature or bool(found.get(feature))


class Era(msgspec.Struct, frozen=True):
    version: str
    stateless: bool
    client_version: str = "0"

    @property
    def check_method(self) -> str:
        """A request without any effect that every server answers."""
        return "server/discover" if self.stateless else "ping"

    def params(
        self, params: Mapping[str, Any] | None = None, *, progress_token: int | None = None
    ) -> dict[str, Any]:
        """The parameters of a request, with what the era wants in each."""
        meta: dict[str, Any] = {}
        if progress_token is not None:
            meta["progressToken"] = progress_token
        if self.stateless:
            meta[f"{META}protocolVersion"] = self.version
            meta[f"{META}clientInfo"] = self._client
            meta[f"{META}clientCapabilities"] = STATELESS_CAPABILITIES
        full = dict(params or {})
        if meta:
            full["_meta"] = meta
        return full

    def handshake(self) -> dict[str, Any]:
        """The parameters of `initialize`."""
        return {
            "protocolVersion": self.version,
            "capabilities": CLIENT_CAPABILITIES,
            "clientInfo": self._client,
        }

    @property
    def _client(self) -> dict[str, str]:
        return {"name": _CLIENT_NAME, "version": self.client_version}


def stateless_era(client_version: str) -> Era:
    return Era(STATELESS_VERSION, True, client_version)


def handshake_era(client_version: str, version: str = HANDSHAKE_VERSION) -> Era:
    return Era(version, False, client_version)


def facts_of_discovery(result: Mapping[str, Any]) -> ServerFacts | None:
    """What `server/discover` said; None if the server does not speak our stateless version."""
    versions = result.get("supportedVersions")
    if not isinstance(versions, list) or STATELESS_VERSION not in versions:
        return None
    meta = result.get("_meta")
    info = meta.get(f"{META}serverInfo") if isinstance(meta, dict) else None
    return _facts(STATELESS_VERSION, result, info)


def facts_of_handshake(result: Mapping[str, Any]) -> ServerFacts:
    return _facts(str(result.get("protocolVersion", "")), result, result.get("serverInfo"))


def _facts(version: str, result: Mapping[str, Any], info: object) -> ServerFacts:
    named = info if isinstance(info, dict) else {}
    capabilities = result.get("capabilities")
    return ServerFacts(
        version=one_line(version),
        name=one_line(str(named.get("name", "")), 200),
        server_version=one_line(str(named.get("version", "")), 100),
        capabilities=capabilities if isinstance(capabilities, dict) else {},
        instructions=str(result.get("instructions") or "")[:4000],
    )


def supported_versions(error: RpcError) -> list[object] | None:
    """The versions that a server of the stateless era names when ours does not fit."""
    if error.code != UNSUPPORTED_VERSION:
        return None
    supported = parse_object(error.data).get("supported")
    return supported if isinstance(supported, list) else None
