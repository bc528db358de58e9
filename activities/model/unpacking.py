"""How much of an answer the clients of models take."""

import zlib
from collections.abc import Iterator

_PART_BYTES = 65_536


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
