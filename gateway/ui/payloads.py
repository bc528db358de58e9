"""Encodes and decodes the payloads of a codec request.

The protocol is what Temporal's UI 2.54 and CLI 1.9 use: https://docs.temporal.io/codec-server
"""

import asyncio
from collections.abc import Iterable

from google.protobuf.json_format import MessageToJson, Parse, ParseError
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.converter import PayloadCodec

from tightloop.errors import InvalidRequestError

ROUTES = ("encode", "decode", "download")
_REFERENCE = b"temporal.api.sdk.v1.ExternalStorageReference"


def transformed(codec: PayloadCodec | None, route: str, body: bytes) -> bytes:
    """Return the answer to one request, as JSON of the same shape.

    Payloads that the codec did not make pass through `decode` unchanged, references to external storage
    included, with and without `preserveStorageRefs`: tightloop keeps nothing there.

    Raises:
        InvalidRequestError: the body is not a list of payloads, or one is in an external storage.
        SettingsError: a key is missing.
    """
    given = _read(body).payloads
    if codec is None:
        return _written(given)
    if route == "encode":
        return _written(asyncio.run(codec.encode(given)))
    # Temporal's UI also posts payloads that were never encrypted, such as summaries: they pass through.
    plain = asyncio.run(codec.decode(given))
    if route == "download" and any(payload.metadata.get("messageType") == _REFERENCE for payload in plain):
        raise InvalidRequestError(
            "this payload is in an external storage of another program; tightloop has none to fetch it from"
        )
    return _written(plain)


def _read(body: bytes) -> Payloads:
    try:
        return Parse(body, Payloads(), ignore_unknown_fields=True)
    except (ParseError, ValueError, RecursionError):
        # The parser's own words quote the content.
        raise InvalidRequestError(
            'the body is not JSON like {"payloads": [{"metadata": {...}, "data": "..."}]}'
        ) from None


def _written(payloads: Iterable[Payload]) -> bytes:
    return MessageToJson(Payloads(payloads=payloads), indent=None).encode()
