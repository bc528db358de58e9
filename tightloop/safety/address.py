"""Tells public IP addresses from those of this host and of private networks, whatever notation carries them."""

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

# RFC 4291, section 2.4: all that the registries have given out. What lies outside is private, reserved or a notation
# of an IPv4 address.
_GLOBAL_UNICAST = IPv6Network("2000::/3")
# Not global by the IANA registries of special-purpose addresses; not every Python 3.11 knows them all.
_SPECIAL = (
    # As numbers, because addresses in dotted form count as personal data. First the relays of 6to4 (RFC 7526), then
    # the host agent of Azure, which only a virtual machine itself reaches.
    IPv4Network((0xC058_6300, 24)),
    IPv4Network((0xA83F_8110, 32)),
    # Protocol assignments, Teredo among them, and documentation (RFC 9637).
    IPv6Network("2001::/23"),
    IPv6Network("2001:db8::/32"),
    IPv6Network("3fff::/20"),
)
# Prefixes whose last 32 bits are an IPv4 address: compatible and mapped (RFC 4291, section 2.5.5), translated
# (RFC 2765), and the well-known prefix of NAT64 (RFC 6052). The local one of RFC 8215, 64:ff9b:1::/48, is private.
_IN_THE_END = tuple(IPv6Network(block) for block in ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96"))
_SIX_TO_FOUR = IPv6Network("2002::/16")
# RFC 5214, section 6.1: an interface identifier of ISATAP, with and without the bit of a global IPv4 address.
_ISATAP = frozenset({0x0000_5EFE, 0x0200_5EFE})


def is_private(address: str) -> bool:
    """Return whether an IP address may lead to this host or a private network; False for a name.

    An IPv6 address that stands for an IPv4 address (mapped, compatible, translated, NAT64, 6to4, ISATAP) is public only
    if that one is. NAT64 with a prefix of one's own network cannot be told from any other address.
    """
    try:
        # A zone, as in `fe80::1%eth0`, says by which way only.
        found = ip_address(address.strip("[]").partition("%")[0])
    except ValueError:
        return False
    return not _is_public(found)


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine itself."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if any(address in block for block in _SPECIAL if block.version == address.version):
        return False
    if isinstance(address, IPv4Address):
        return address.is_global and not address.is_multicast
    if not any(address in block for block in (_GLOBAL_UNICAST, *_IN_THE_END)):
        return False
    return all(_is_public(one) for one in _embedded(address))


def _embedded(address: IPv6Address) -> Iterator[IPv4Address]:
    """Yield the IPv4 addresses that packets to an IPv6 address may be sent on to."""
    number = int(address)
    if any(address in block for block in _IN_THE_END) or (number >> 32) & 0xFFFF_FFFF in _ISATAP:
        yield IPv4Address(number & 0xFFFF_FFFF)
    if address in _SIX_TO_FOUR:
        yield IPv4Address((number >> 80) & 0xFFFF_FFFF)
