"""Where a server is: addresses, and TLS with a certificate that nobody signed. `test_door` has unix
sockets."""

from __future__ import annotations

import hashlib
import ssl
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from bargein.client import Client
from bargein.client.address import parse_address
from bargein.errors import UserError
from bargein.models.script import Say
from tests.client.joined import port_of
from tests.client.relay import CuttingRelay
from tests.server.stage import START_TOKEN, serving

pytestmark = pytest.mark.anyio


async def test_over_tls_only_with_the_certificate_that_was_named(tmp_path: Path) -> None:
    issued = trustme.CA().issue_cert("127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    issued.configure_cert(context)
    pem = issued.cert_chain_pems[0].bytes()
    der = x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)
    digest = hashlib.sha256(der).hexdigest()
    async with (
        serving([[Say("Hello")]], tmp_path) as stage,
        CuttingRelay(port_of(stage.url), context) as relay,
    ):
        async with Client(f"{relay.url}/#token={START_TOKEN}", fingerprint=digest) as client:
            session = await client.new_session()
            assert (await (await session.send("Hi")).result()).text == "Hello"
        for wrong in (hashlib.sha256(b"another").hexdigest(), None):
            with pytest.raises(UserError, match="certificate"):
                async with Client(relay.url, token=START_TOKEN, fingerprint=wrong):
                    raise AssertionError


@pytest.mark.parametrize(
    ("address", "fingerprint", "why"),
    [
        ("127.0.0.1:8484", None, "not the address of a server"),
        ("ftp://127.0.0.1/", None, "not the address of a server"),
        ("http://127.0.0.1/v1/sessions", None, "without a path"),
        ("http://example.org/", None, "unencrypted"),
        ("http://127.0.0.1/", "ab" * 32, "no certificate"),
        ("https://example.org/", "abc", "not a fingerprint"),
    ],
)
def test_what_is_no_address_is_refused(address: str, fingerprint: str | None, why: str) -> None:
    with pytest.raises(UserError, match=why):
        parse_address(address, fingerprint)


def test_addresses() -> None:
    assert parse_address("http://localhost:8484/#token=a%20b").token == "a b"
    assert parse_address("http://[::1]:8484/").socket_url == "ws://[::1]:8484/v1/socket"
    assert parse_address("http://example.org/", plain=True).url == "http://example.org"
    assert parse_address("https://example.org").socket_url == "wss://example.org/v1/socket"
    found = parse_address("https://example.org", "SHA256 " + ":".join(["AB"] * 32))
    assert found.fingerprint == b"\xab" * 32
