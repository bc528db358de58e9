"""Which addresses a connection out of this host may go to."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

from tightloop.safety.address import is_private

ADDRESSES = 4
"""Addresses of one name that are tried."""

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Returns the IP addresses of a host and port; raises `OSError` for an unknown one."""


class PrivateAddressError(ConnectionError):
    """A name leads to this host or a private network, which is not allowed for it."""

    def __init__(self, host: str, address: str) -> None:
        """Say which address stands behind the name."""
        super().__init__(f"{host} has the private address {address}")
        self.address = address


async def system_addresses(name: str, port: int) -> list[str]:
    """Return what the system's resolver knows.

    Raises:
        OSError, UnicodeError: nothing.
    """
    found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


async def judged_addresses(
    name: str, port: int, *, allow_private: bool, resolve: Resolve = system_addresses
) -> list[str]:
    """Return the addresses of a host, 1 to `ADDRESSES`, once all of them are judged.

    Connect to one of these, never to the name: a second lookup could answer with another one (DNS rebinding).

    Args:
        name: a host name, or an address.
        port: of the service.
        allow_private: the host is listed with this port by whoever decides where connections go.
        resolve: for tests.

    Raises:
        PrivateAddressError: one of them leads to this host or a private network, see `is_private`.
        OSError, UnicodeError: the name is not known.
    """
    found = await resolve(name, port)
    addresses = list(dict.fromkeys(found))[:ADDRESSES]
    if not addresses:
        raise OSError(f"the host {name} has no address")
    inside = next((address for address in addresses if is_private(address)), None)
    if inside is not None and not allow_private:
        raise PrivateAddressError(name, inside)
    return addresses
