"""Writes packs of git objects, without deltas (gitformat-pack(5), version 2)."""

import hashlib
import os
import struct
import tempfile
import zlib
from pathlib import Path
from typing import IO

TYPES = {"tree": 2, "blob": 3}
FAR = 0x80000000
"""Offsets from here on are in a table of their own."""


class PackFile:
    """A pack that grows; it can be read when it is finished."""

    def __init__(self, folder: Path, *, level: int) -> None:
        """Begin a pack in `folder`, compressed with `level`."""
        self._folder = folder
        self._level = level
        descriptor, self._name = tempfile.mkstemp(dir=folder, prefix="tmp_pack_")
        self._file = os.fdopen(descriptor, "w+b")
        self._rows: list[tuple[bytes, int, int]] = []
        self._size = 12
        # The number of objects is known at the end.
        self._file.write(b"PACK" + struct.pack(">II", 2, 0))

    def add(self, kind: str, digest: bytes, content: bytes) -> None:
        """Append an object that the pack does not have yet."""
        size = len(content)
        head = bytearray([(TYPES[kind] << 4) | (size & 15)])
        size >>= 4
        while size:
            head[-1] |= 0x80
            head.append(size & 0x7F)
            size >>= 7
        record = bytes(head) + zlib.compress(content, self._level)
        self._rows.append((digest, zlib.crc32(record), self._size))
        self._file.write(record)
        self._size += len(record)

    def finish(self) -> None:
        """Write head, checksum and index, durably."""
        self._file.seek(0)
        self._file.write(b"PACK" + struct.pack(">II", 2, len(self._rows)))
        self._file.flush()
        self._file.seek(0)
        digest = hashlib.sha1(usedforsecurity=False)
        while piece := self._file.read(1 << 20):
            digest.update(piece)
        checksum = digest.digest()
        self._file.seek(0, os.SEEK_END)
        self._file.write(checksum)
        _close_durably(self._file)
        index, index_name = tempfile.mkstemp(dir=self._folder, prefix="tmp_idx_")
        with os.fdopen(index, "wb") as file:
            file.write(self._index(checksum))
            _close_durably(file)
        stem = self._folder / f"pack-{checksum.hex()}"
        Path(self._name).replace(stem.with_suffix(".pack"))
        # Last: git finds a pack by its index.
        Path(index_name).replace(stem.with_suffix(".idx"))

    def close(self) -> None:
        """Remove what was not finished."""
        self._file.close()
        Path(self._name).unlink(missing_ok=True)

    def _index(self, checksum: bytes) -> bytes:
        rows = sorted(self._rows)
        counts = [0] * 256
        for name, _, _ in rows:
            counts[name[0]] += 1
        total, fanout = 0, []
        for count in counts:
            total += count
            fanout.append(total)
        far = [offset for _, _, offset in rows if offset >= FAR]
        places = {offset: FAR | number for number, offset in enumerate(far)}
        offsets = [places.get(offset, offset) for _, _, offset in rows]
        parts = [
            b"\377tOc" + struct.pack(">I", 2),
            struct.pack(">256I", *fanout),
            b"".join(name for name, _, _ in rows),
            struct.pack(f">{len(rows)}I", *(crc for _, crc, _ in rows)),
            struct.pack(f">{len(rows)}I", *offsets),
            struct.pack(f">{len(far)}Q", *far),
            checksum,
        ]
        content = b"".join(parts)
        return content + hashlib.sha1(content, usedforsecurity=False).digest()


def _close_durably(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()
