"""What HTTP clients of this host trust, and whom they reach without leaving it."""

import os
from functools import cache
from ipaddress import ip_address
from ssl import SSLContext

import httpx2


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
