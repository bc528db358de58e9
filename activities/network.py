"""What clients of this host trust, which addresses they may connect to, and how much of an answer they take."""

import asyncio
import os
import socket
import zlib
from collections.abc import Awaitable, Callable, Iterator
from functools import cache
from ipaddress import ip_address
from ssl import SSLContext

import httpx2

from tightloop.safety.address import is_private

ADDRESSES = 4
"""Addresses of one name that are tried."""

_PART_BYTES = 65_536

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


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine itself."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def certificates() -> SSLContext:
    """Return what is trusted: the system's authorities, or those that `SSL_CERT_FILE` and `SSL_CERT_DIR` name."""
    return _loaded(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@cache
def _loaded(_file: str | None, _folder: str | None) -> SSLContext:
    # Kept: reading them takes longer than all the rest of opening a connection.
    return httpx2.create_ssl_context()


class AnswerError(Exception):
    """The body of an answer is too large, or cannot be unpacked."""


class Unpacker:
    """Unpacks and counts the body of an answer as it comes, so that no small one can become a huge one."""

    def __init__(self, encoding: str, limit_bytes: int) -> None:
        """Take the value of `Content-Encoding` and the bound of what comes out.

        Raises:
            AnswerError: the encoding is not known.
        """
        self._left = self._limit = limit_bytes
        packed = encoding.strip().lower() or "identity"
        if packed not in ("identity", "gzip", "x-gzip", "deflate"):
            raise AnswerError(f"the answer is packed as {packed[:40]!r}, although a plain one was asked for")
        # 47 = 32 + 15: zlib tells gzip and deflate apart by their headers.
        self._zip = None if packed == "identity" else zlib.decompressobj(wbits=47)

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield what a part of the body holds, in parts.

        Raises:
            AnswerError: it is more than the bound, or not what its encoding says.
        """
        if self._zip is None:
            yield self._counted(chunk)
            return
        try:
            while chunk:
                # What follows the end would be kept by zlib, without a bound.
                if self._zip.eof:
                    raise AnswerError("the answer goes on behind its end")
                yield self._counted(self._zip.decompress(chunk, _PART_BYTES))
                chunk = self._zip.unconsumed_tail
        except zlib.error:
            raise AnswerError("the answer cannot be unpacked") from None

    def _counted(self, part: bytes) -> bytes:
        self._left -= len(part)
        if self._left < 0:
            raise AnswerError(f"the answer is larger than {self._limit / 2**20:.0f} MiB")
        return part
