"""Which addresses count as public."""

from __future__ import annotations

import pytest

from bargein.net.public_address import is_odd_number, is_reachable, read_networks

PRIVATE = [
    *("127.0.0.1", "127.255.255.254", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
    *("169.254.169.254", "169.254.0.1", "0.0.0.0", "100.64.0.1", "100.100.100.200"),
    *("192.0.0.192", "198.18.0.1", "224.0.0.1", "255.255.255.255", "240.0.0.1", "168.63.129.16"),
    *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "fec0::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:a9fe:a9fe", "::127.0.0.1"),
    *("64:ff9b::7f00:1", "64:ff9b::10.0.0.1", "64:ff9b:1::1", "2002:7f00:1::", "2001:db8::1"),
    *("2001:0:4136:e378:8000:63bf:3fff:fdd2", "not an address", ""),
]
PUBLIC = [
    *("8.8.8.8", "1.1.1.1", "172.32.0.1", "172.15.0.1", "100.128.0.1", "223.255.255.255"),
    *("2001:4860:4860::8888", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"),
]


@pytest.mark.parametrize("address", PRIVATE)
def test_what_is_not_public_is_not_reachable(address: str) -> None:
    assert not is_reachable(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_hosts_are_reachable(address: str) -> None:
    assert is_reachable(address)


def test_networks_can_be_allowed_exactly() -> None:
    allowed = read_networks(["127.0.0.1/32", "fd00::/8"])
    assert is_reachable("127.0.0.1", allowed)
    assert is_reachable("::ffff:127.0.0.1", allowed)
    assert is_reachable("fd12::1", allowed)
    assert not is_reachable("127.0.0.2", allowed)
    assert not is_reachable("::1", allowed)
    with pytest.raises(ValueError, match="localhost"):
        read_networks(["localhost"])


@pytest.mark.parametrize(
    "host", ["2130706433", "0177.0.0.1", "127.1", "1", "0127.0.0.1", "1.2.3.4.5"]
)
def test_numbers_that_are_no_plain_addresses_are_odd(host: str) -> None:
    assert is_odd_number(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fe80::1%eth0", "example.org", "1.2.3.4a"])
def test_names_and_plain_addresses_are_not_odd(host: str) -> None:
    assert not is_odd_number(host)
