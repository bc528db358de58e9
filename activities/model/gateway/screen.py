"""What of a provider's answer reaches the agent: plain bytes, not too many, and never the key."""

import base64
import re
from collections.abc import AsyncIterator, Iterator
from http import HTTPStatus
from urllib.parse import quote

from activities.model.gateway.exchange import BrokenOffError, Headers, NoAnswerError
from activities.model.unpacking import AnswerError, Unpacker

LARGEST_ANSWER_BYTES = 64 * 2**20
"""As much as a request may have; unpacked."""
SHORTEST_KEY = 8
"""A shorter one is a word for services that want any key; masking it would garble answers."""


class Screen:
    """Screens the answers of one provider."""

    def __init__(self, key: str) -> None:
        self._forms = sorted(forms(key), key=len, reverse=True) if len(key) >= SHORTEST_KEY else []
        self._key = re.compile(b"|".join(map(re.escape, self._forms))) if self._forms else None

    def headers(self, headers: Headers) -> Headers:
        """Return the headers of an answer as the agent gets them; those of the packing are for `body`.

        Raises:
            NoAnswerError: it says itself that the body is too large, or packed in a way that is not known.
        """
        named = dict(headers)
        try:
            Unpacker(named.get("content-encoding", ""), 0)
        except AnswerError as error:
            raise NoAnswerError(HTTPStatus.BAD_GATEWAY, f"{error}. Check the model provider") from None
        declared = named.get("content-length", "")
        if declared.isdigit() and int(declared) > LARGEST_ANSWER_BYTES:
            size = LARGEST_ANSWER_BYTES // 2**20
            message = f"the answer of the model provider is larger than {size} MiB. Ask for less"
            raise NoAnswerError(HTTPStatus.BAD_GATEWAY, message)
        packed = named.get("content-encoding", "identity").lower() != "identity"
        dropped = {"content-encoding", "content-length"} if packed else {"content-encoding"}
        return tuple((name, self._masked(value)) for name, value in headers if name not in dropped)

    async def body(self, headers: Headers, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the body: unpacked, within the bound, with the key masked in each of its `forms`.

        Every part is passed on at once, but for an end that may be the begin of a key.

        Args:
            headers: of the answer as it came.
            chunks: as they came.

        Raises:
            BrokenOffError: it is too large, or cannot be unpacked.
        """
        unpacker = Unpacker(dict(headers).get("content-encoding", ""), LARGEST_ANSWER_BYTES)
        held = b""
        try:
            async for chunk in chunks:
                for part in unpacker.feed(chunk):
                    ready, held = self._cut(held + part)
                    if ready:
                        yield ready
        except AnswerError as error:
            raise BrokenOffError(str(error)) from None
        if held:
            yield held

    def _masked(self, text: str) -> str:
        return self._mask(text.encode("latin-1")).decode("latin-1")

    def _mask(self, data: bytes) -> bytes:
        # As long as before: lengths that were announced stay true.
        return self._key.sub(lambda found: b"*" * len(found[0]), data) if self._key else data

    def _cut(self, data: bytes) -> tuple[bytes, bytes]:
        masked = self._mask(data)
        end = len(masked)
        for form in self._forms:
            start = max(0, len(masked) - len(form) + 1)
            while (start := masked.find(form[:1], start, end)) >= 0:
                if form.startswith(masked[start:]):
                    end = start
                    break
                start += 1
        return masked[:end], masked[end:]


def forms(key: str) -> Iterator[bytes]:
    """Yield how a key may stand in an answer: as it is, quoted for a URL, in hex, in base64 amid other text."""
    raw = key.encode()
    yield from {raw, quote(key, safe="").encode(), raw.hex().encode(), raw.hex().upper().encode()}
    for before in range(3):
        text = base64.b64encode(bytes(before) + raw)
        # Of the characters at both ends some bits belong to what stands around.
        inner = text[-(-8 * before // 6) : 8 * (before + len(raw)) // 6]
        yield from {inner, inner.translate(bytes.maketrans(b"+/", b"-_"))}
