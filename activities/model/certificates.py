"""What clients of this host trust."""

import os
from functools import cache
from ssl import SSLContext

import httpx2


def certificates() -> SSLContext:
    """Return what is trusted: the system's authorities, or those that `SSL_CERT_FILE` and `SSL_CERT_DIR` name."""
    return _loaded(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@cache
def _loaded(_file: str | None, _folder: str | None) -> SSLContext:
    # Kept: reading them takes longer than all the rest of opening a connection.
    return httpx2.create_ssl_context()
