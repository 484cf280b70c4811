"""Fetches one page, with bounds on size, redirects and reach. Imported on first use.

Each hop is its own connection. Its name is looked up once, in a thread that may be abandoned; all
addresses are checked, and sockets connect only to checked ones. A redirect is a new hop with the
same checks. Leaving, also by a cancel, closes the connection.
"""

import asyncio
import socket
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from bargein.cancel import Token, run_thread, shield
from bargein.errors import ModelMisbehaved, WorldError
from bargein.net.public_address import Network, is_odd_number, is_reachable

REDIRECTS_MAX = 5
_LOOKUP_GRACE_S = 0.05
_CLOSE_S = 1.0
_REDIRECTS = {301, 302, 303, 307, 308}
_HEADERS = {
    "User-Agent": "Mozilla/5.0 (compatible; Bargein)",
    "Accept": "text/html, text/plain, application/json, */*;q=0.5",
    "Accept-Encoding": "gzip, deflate",
}

Lookup = Callable[..., list[Any]]
"""Called like `socket.getaddrinfo`."""


class NotFetched(WorldError):
    """The page could not be fetched. The message is for the model."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self.args, self.__dict__


class NotAllowed(ModelMisbehaved):
    """The address may not be fetched. The message is for the model."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """`charset` is the server's, if it names one. `truncated`: the page exceeds the bound."""

    url: str
    status: int
    reason: str
    media_type: str
    charset: str | None
    content: bytes
    truncated: bool


class WebClient:
    def __init__(
        self, *, bytes_max: int, allowed: tuple[Network, ...], lookup: Lookup = socket.getaddrinfo
    ) -> None:
        self._bytes_max = bytes_max
        self._allowed = allowed
        self._lookup = lookup

    async def fetch(self, address: str, token: Token) -> Fetched:
        url = _read_url(address)
        for _ in range(REDIRECTS_MAX + 1):
            try:
                answer = await self._hop(url, token)
            except (aiohttp.ClientError, OSError, EOFError, ValueError) as error:
                raise NotFetched(f"{url} could not be fetched: {_words(error)}.") from error
            if isinstance(answer, Fetched):
                return answer
            url = answer
        raise NotFetched(f"{address} redirects more than {REDIRECTS_MAX} times; last to {url}.")

    async def _hop(self, url: URL, token: Token) -> Fetched | URL:
        """Makes one request. Returns the page, or the URL it redirects to."""
        checked = await self._resolve(url, token)
        connector = aiohttp.TCPConnector(
            resolver=_Pinned(checked),
            use_dns_cache=False,
            force_close=True,
            socket_factory=_only_to({each["host"] for each in checked}),
        )
        session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            trust_env=False,
        )
        try:
            async with session.get(url, allow_redirects=False, headers=_HEADERS) as response:
                target = response.headers.get("Location")
                if response.status in _REDIRECTS and target:
                    return _read_url(str(url.join(_parse(target))))
                content, truncated = await _read_body(response, self._bytes_max)
                return Fetched(
                    url=str(url),
                    status=response.status,
                    reason=response.reason or "",
                    media_type=response.content_type if "Content-Type" in response.headers else "",
                    charset=response.charset,
                    content=content,
                    truncated=truncated,
                )
        finally:
            with shield(_CLOSE_S):
                await session.close()

    async def _resolve(self, url: URL, token: Token) -> list[ResolveResult]:
        host = url.raw_host or ""
        outcome = await run_thread(
            lambda: self._lookup(host, url.port, type=socket.SOCK_STREAM),
            token=token,
            grace_s=_LOOKUP_GRACE_S,
            name=f"lookup of {host}",
        )
        try:
            found = outcome.unwrap()
        except (OSError, UnicodeError) as error:
            raise NotFetched(f"The host {host!r} was not found ({_words(error)}).") from error
        refused = sorted({each[4][0] for each in found if not self._may_reach(each[4][0])})
        if refused or not found:
            raise NotAllowed(
                f"{url} leads to {', '.join(refused) or 'no address'}, which is not a public "
                "address; only public addresses may be fetched."
            )
        return [
            {
                "hostname": host,
                "host": each[4][0],
                "port": url.port or 0,
                "family": each[0],
                "proto": each[2],
                "flags": socket.AI_NUMERICHOST,
            }
            for each in found
        ]

    def _may_reach(self, address: str) -> bool:
        return is_reachable(address, self._allowed)


def _parse(text: str) -> URL:
    try:
        return URL(text)
    except (ValueError, TypeError) as error:
        raise NotFetched(f"{text!r} is not a URL: {error}.") from error


def _read_url(text: str) -> URL:
    url = _parse(text.strip())
    if url.scheme not in ("http", "https"):
        raise NotAllowed(f"{text!r}: only http:// and https:// can be fetched.")
    if not url.raw_host:
        raise NotAllowed(f"{text!r} names no host.")
    if url.user is not None or url.password is not None:
        raise NotAllowed(f"{url.with_user(None)}: a URL with a user or password is not fetched.")
    if is_odd_number(url.raw_host):
        raise NotAllowed(f"{text!r}: the host is neither a name nor a plainly written address.")
    return url.with_fragment(None)


class _Pinned(AbstractResolver):
    """A resolver that returns only the addresses that were checked."""

    def __init__(self, known: list[ResolveResult]) -> None:
        self._known = known

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [each for each in self._known if each["hostname"] == host]

    async def close(self) -> None:
        """Holds nothing to close."""


def _only_to(addresses: set[str]) -> Callable[[aiohttp.AddrInfoType], socket.socket]:
    """Returns a factory that makes sockets only for these addresses."""

    def create(address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, (host, *_) = address
        if host not in addresses:
            raise OSError(f"{host} is not a checked address")
        return socket.socket(family, kind, protocol)

    return create


async def _read_body(response: aiohttp.ClientResponse, bytes_max: int) -> tuple[bytes, bool]:
    """Returns the decompressed body, and whether it was cut."""
    unpack = _unpacker(response.headers.get("Content-Encoding", "").strip().lower())
    content = bytearray()
    async for chunk in response.content.iter_chunked(64 * 1024):
        content += unpack(chunk, bytes_max + 1 - len(content))
        if len(content) > bytes_max:
            return bytes(content[:bytes_max]), True
    return bytes(content), False


def _unpacker(encoding: str) -> Callable[[bytes, int], bytes]:
    if encoding in ("", "identity"):
        return lambda chunk, room: chunk
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise NotFetched(f"The page is compressed with {encoding!r}, which was not asked for.")
    # Detects gzip and zlib by itself; a bomb is decompressed only as far as there is room.
    unpacking = zlib.decompressobj(zlib.MAX_WBITS | 32)

    def unpack(chunk: bytes, room: int) -> bytes:
        try:
            return unpacking.decompress(chunk, room)
        except zlib.error as error:
            raise NotFetched(f"The page is not validly compressed ({error}).") from error

    return unpack


def _words(error: BaseException) -> str:
    if isinstance(error, asyncio.TimeoutError):
        return "it took too long"
    return (str(error) or type(error).__name__).rstrip(".")
