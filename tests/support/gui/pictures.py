"""Pictures of windows, and a locator that points where the test says."""

import struct
import zlib
from collections.abc import Callable

from activities.executor.gui.port import DriverError, Frame


def png(width: int, height: int) -> bytes:
    """Return a grey picture."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\x80" * width) * height)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


class PointsAt:
    """Points at a place of the screen, or fails; something may happen meanwhile."""

    def __init__(self, where: tuple[int, int] | DriverError, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.where, self.meanwhile, self.asked = where, meanwhile, 0

    def problem(self) -> str:
        return ""

    def locate(self, png: bytes, frame: Frame) -> tuple[int, int]:
        self.asked += 1
        self.meanwhile()
        if isinstance(self.where, DriverError):
            raise self.where
        return self.where
