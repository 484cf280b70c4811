"""Which addresses a page may be fetched from: public ones, and what is allowed by name. Pure.

A name is resolved once, every address it has is checked, and the connection goes to exactly those:
what a name server says later does not matter.
"""

import ipaddress
from collections.abc import Iterable

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NOT_PUBLIC_4 = [
    ipaddress.IPv4Network(network)
    for network in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
        *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16"),
        *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        # Metadata of a cloud at an address that looks public.
        "168.63.129.16/32",
    )
]
# Of IPv6 only this is in public use, and inside it these are not ordinary hosts.
_PUBLIC_6 = ipaddress.IPv6Network("2000::/3")
_NOT_PUBLIC_6 = [
    ipaddress.IPv6Network(network)
    for network in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
]
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def read_networks(networks: Iterable[str]) -> tuple[Network, ...]:
    """Raises ValueError that names the one that is wrong."""
    return tuple(ipaddress.ip_network(network) for network in networks)


def is_reachable(text: str, allowed: Iterable[Network] = ()) -> bool:
    """Whether the address is public, or in a network that is allowed."""
    try:
        address = _meant(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return False
    return any(address in network for network in allowed) or _is_public(address)


def _meant(address: Address) -> Address:
    """The IPv4 address that is written inside some IPv6 addresses, and is where they lead."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    return address in _PUBLIC_6 and not any(address in network for network in _NOT_PUBLIC_6)


def is_odd_number(host: str) -> bool:
    """Whether a host looks like a number but is no plain address: `2130706433`, `0177.0.0.1`.

    Libraries differ in what they take these for, so they are not used at all.
    """
    looks = ":" in host or host.replace(".", "").isdigit()
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return looks
    return False
