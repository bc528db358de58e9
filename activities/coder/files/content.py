"""What is written into files: with the line ends that they have, and never with what stands for a secret."""

import re

from activities.coder.port import ToolError

_PLACEHOLDER = re.compile(rb"\[(?:secret|pii):[a-z0-9-]+\]")


def has_placeholder(text: str) -> bool:
    """Return whether a text has what a model is shown in place of a secret."""
    return _PLACEHOLDER.search(text.encode("utf-8", "replace")) is not None


def check_placeholders(before: bytes, after: bytes) -> None:
    """Refuse to write what only stands for a secret: the secret would be lost.

    Raises:
        ToolError: the file would have more placeholders than it had.
    """
    if len(_PLACEHOLDER.findall(after)) > len(_PLACEHOLDER.findall(before)):
        found = _PLACEHOLDER.findall(after)[0].decode()
        raise ToolError(f"{found} stands for something that you are not shown. Change only the lines around it")


def line_ends_of(before: bytes | None, text: str) -> str:
    """Return a text with CRLF line ends and a byte order mark where the file that it replaces has them."""
    if before is None:
        return text
    if before.count(b"\n") and before.count(b"\r\n") == before.count(b"\n"):
        text = text.replace("\r\n", "\n").replace("\n", "\r\n")
    is_marked = before.startswith(b"\xef\xbb\xbf") and not text.startswith("\ufeff")
    return f"\ufeff{text}" if is_marked else text
