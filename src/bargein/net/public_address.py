"""Decides which addresses a stranger's name may lead to: public ones, and networks allowed in the
settings. Pure.

A name is resolved once, all its addresses are checked, and the connection goes only to these. A
name server that changes its answer later has no effect.
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
        # A cloud's metadata service at an address that looks public.
        "168.63.129.16/32",
    )
]
# The only part of IPv6 in public use; the networks below it are not ordinary hosts.
_PUBLIC_6 = ipaddress.IPv6Network("2000::/3")
_NOT_PUBLIC_6 = [
    ipaddress.IPv6Network(network)
    for network in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
]
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def read_networks(networks: Iterable[str]) -> tuple[Network, ...]:
    """Parses networks. Raises a ValueError that names an invalid one."""
    return tuple(ipaddress.ip_network(network) for network in networks)


def is_reachable(text: str, allowed: Iterable[Network] = ()) -> bool:
    """Whether the address is public or in an allowed network."""
    try:
        address = _meant(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return False
    return any(address in network for network in allowed) or _is_public(address)


def _meant(address: Address) -> Address:
    """Returns the IPv4 address that an IPv6 address embeds and leads to, if any."""
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
    """Whether a host looks like a number but is not a plain address: `2130706433`, `0177.0.0.1`.

    Libraries disagree on what these mean, so they are refused.
    """
    looks = ":" in host or host.replace(".", "").isdigit()
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return looks
    return False
