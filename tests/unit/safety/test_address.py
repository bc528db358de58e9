"""Which addresses lead to this host or a private network."""

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.safety.scope import is_private

INSIDE = [
    *("127.0.0.1", "10.0.0.7", "192.168.1.1", "172.16.0.1", "169.254.169.254", "100.64.0.1"),
    *("0.0.0.0", "224.0.0.1", "255.255.255.255"),
]
OUTSIDE = ["93.184.216.34", "8.8.8.8", "1.1.1.1"]


def carried(address: str) -> list[str]:
    """Return an IPv4 address in every notation of IPv6 that packets may be sent on by."""
    number = int(IPv4Address(address))
    return [
        f"::ffff:{address}",
        f"::{address}",
        f"::ffff:0:{address}",
        f"64:ff9b::{address}",
        str(IPv6Address(0x2002 << 112 | number << 80 | 1)),
        f"2a00:1450:4001::5efe:{address}",
        f"2a00:1450:4001::200:5efe:{address}",
    ]


@pytest.mark.parametrize("address", INSIDE)
def test_private_address_is_private_in_every_notation(address: str) -> None:
    assert is_private(address)
    assert [one for one in carried(address) if not is_private(one)] == []


@pytest.mark.parametrize("address", OUTSIDE)
def test_public_address_is_public_in_every_notation(address: str) -> None:
    assert not is_private(address)
    assert [one for one in carried(address) if is_private(one)] == []


@pytest.mark.parametrize(
    "address",
    [
        *("::1", "::", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "[::1]"),
        *("64:ff9b:1::8.8.8.8", "2001:0:5ef5:79fb::1", "2001:db8::1", "3fff::1", "100::1", "5f00::1", "4000::1"),
        *("168.63.129.16", "192.88.99.1", "::ffff:168.63.129.16", "fe80::5efe:8.8.8.8", "fd00::200:5efe:8.8.8.8"),
    ],
)
def test_addresses_that_are_not_of_the_internet_are_private(address: str) -> None:
    assert is_private(address)


@pytest.mark.parametrize("name", ["example.org", "localhost", "", "1.2.3", "::g", "0x7f000001"])
def test_names_are_judged_once_they_are_resolved(name: str) -> None:
    assert not is_private(name)


@given(st.ip_addresses(v=4))
def test_carrying_an_address_never_makes_it_public(address: IPv4Address) -> None:
    if is_private(str(address)):
        assert all(is_private(one) for one in carried(str(address)))
