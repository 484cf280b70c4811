"""The address of a node, in the form in which its row in the database has it.

    http://127.0.0.1:40123                   on the same machine: plain HTTP
    https://10.0.0.7:8485#sha256=FINGERPRINT over a network: TLS with exactly this certificate

The database names each node's certificate, and has the secret that nodes show each other. So
everybody who can write to it is trusted, and nothing else has to be set up.
"""

import socket
from ipaddress import ip_address
from urllib.parse import urlsplit

from bargein.contracts.value import Value
from bargein.errors import UserError

FINGERPRINT = "sha256="


class NodeAddress(Value, frozen=True):
    """`fingerprint` is the SHA-256 of the certificate; None for plain HTTP."""

    url: str
    fingerprint: bytes | None

    def __str__(self) -> str:
        if self.fingerprint is None:
            return self.url
        return f"{self.url}#{FINGERPRINT}{self.fingerprint.hex()}"


def parse_node_address(text: str) -> NodeAddress | None:
    """Returns None for an address that this version cannot use."""
    url, _, rest = text.partition("#")
    parts = urlsplit(url)
    if not parts.hostname:
        return None
    if parts.scheme == "http":
        return NodeAddress(url, None) if is_loopback(parts.hostname) else None
    if parts.scheme != "https" or not rest.startswith(FINGERPRINT):
        return None
    try:
        return NodeAddress(url, bytes.fromhex(rest.removeprefix(FINGERPRINT)))
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class ListeningPlace(Value, frozen=True):
    """The place at which a node listens for others."""

    host: str
    port: int = 0

    @property
    def shown_host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


def place_from(setting: str, towards: str) -> ListeningPlace:
    """Reads `cluster.address`: HOST or HOST:PORT. If it is empty, the place is the address by which
    this machine reaches the database, on any port."""
    if not setting:
        return ListeningPlace(_own_address(towards))
    host, colon, port = setting.rpartition(":")
    if colon and port.isdigit() and not (":" in host and not host.startswith("[")):
        return ListeningPlace(host.strip("[]"), int(port))
    return ListeningPlace(setting.strip("[]"))


def _own_address(towards: str) -> str:
    """Returns this machine's address on the way to a host. Nothing is sent."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            towards or "localhost", 9, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(where)
            found: str = probe.getsockname()[0]
            return found
    except OSError as error:
        raise UserError(
            f"this machine's own address cannot be found ({error}); set cluster.address to "
            "HOST:PORT, by which the other nodes reach it"
        ) from error
