"""HTTP between two nodes: the secret, the certificate, and what a caller that goes away ends."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import anyio
import pytest

from bargein.cluster.address import ListeningPlace, NodeAddress, parse_node_address, place_from
from bargein.cluster.certificate import OwnCertificate, make_certificate
from bargein.cluster.listener import listening
from bargein.cluster.peers import Peers
from bargein.contracts.mail import RoadBlocked

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
SECRET = "the secret"


async def echo(key: str, body: bytes) -> bytes:
    return key.encode() + b" " + body


async def count(session: str, after: int | None) -> AsyncGenerator[bytes, None]:
    for number in range(after or 0, 3):
        yield f"{session} {number}".encode()


@asynccontextmanager
async def node(certificate: OwnCertificate | None = None) -> AsyncIterator[NodeAddress]:
    place = ListeningPlace("127.0.0.1")
    async with listening(place, SECRET, echo, count, certificate=certificate) as address:
        yield address


async def watched(peers: Peers, address: str, after: int | None) -> list[bytes]:
    async with aclosing(peers.watch(address, "s", after)) as frames:
        return [frame async for frame in frames if frame]


@pytest.mark.parametrize("certificate", [None, make_certificate()], ids=["http", "tls"])
async def test_a_node_is_asked_and_watched(certificate: OwnCertificate | None) -> None:
    async with node(certificate) as address, Peers(SECRET) as peers:
        assert str(address).startswith("http:" if certificate is None else "https:")
        assert await peers.ask(str(address), "k", b"\x00body") == b"k \x00body"
        assert await watched(peers, str(address), None) == [b"s 0", b"s 1", b"s 2"]
        assert await watched(peers, str(address), 2) == [b"s 2"]


async def test_another_certificate_is_not_accepted() -> None:
    async with node(make_certificate()) as address, Peers(SECRET) as peers:
        wrong = NodeAddress(address.url, make_certificate().fingerprint)
        with pytest.raises(RoadBlocked):
            await peers.ask(str(wrong), "k", b"")


async def test_without_the_secret_nothing_is_answered() -> None:
    async with node() as address, Peers("a guess") as peers:
        with pytest.raises(RoadBlocked, match="401"):
            await peers.ask(str(address), "k", b"")
        with pytest.raises(RoadBlocked, match="401"):
            await watched(peers, str(address), None)


async def test_a_node_that_is_gone_is_noticed_at_once() -> None:
    async with Peers(SECRET) as peers:
        async with node() as address:
            await peers.ask(str(address), "k", b"")
        with anyio.fail_after(2), pytest.raises(RoadBlocked):
            await peers.ask(str(address), "k", b"")


async def test_plain_http_is_for_loopback_only() -> None:
    assert parse_node_address("http://10.0.0.1:80") is None
    assert parse_node_address("https://10.0.0.1:80") is None, "without a fingerprint"
    assert parse_node_address("") is None
    named = "https://10.0.0.1:80#sha256=00ff"
    assert parse_node_address(named) == NodeAddress("https://10.0.0.1:80", b"\x00\xff")
    assert str(parse_node_address(named)) == named


async def test_the_place_of_a_node() -> None:
    assert place_from("", "127.0.0.1") == ListeningPlace("127.0.0.1")
    assert place_from("", "") in (ListeningPlace("127.0.0.1"), ListeningPlace("::1"))
    assert place_from("10.0.0.7:8485", "") == ListeningPlace("10.0.0.7", 8485)
    assert place_from("[::1]:8485", "") == ListeningPlace("::1", 8485)
    assert place_from("::1", "") == ListeningPlace("::1")
    assert place_from("node7", "") == ListeningPlace("node7")
