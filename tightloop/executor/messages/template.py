"""The layout of the Reflexion-Aligned Template: headers, lists and quotes, without their meaning.

A section starts with its header, `[<emoji> <NAME>]`. A text line that would be read as a header gets a
backslash in front. List items start with `- `, their further lines are indented by four more. Parsing
returns what was rendered, and also takes what people and models write instead.
"""

import json
import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator


class Section(StrEnum):
    """Headers of the template."""

    PROJECT = "📂 PROJECT"
    CURRENT_GOAL = "🗺️ CURRENT GOAL"
    ITERATION = "🔁 ITERATION"
    DEFINITION_OF_DONE = "🎯 DEFINITION_OF_DONE"
    CONTEXT = "📎 CONTEXT"
    PLAN = "📋 PLAN"
    SCOPE = "📁 SCOPE"
    CLAIM = "🏁 CLAIM"
    OUTCOME = "📨 OUTCOME"
    REPORT = "📝 REPORT"
    CHANGES = "🧾 CHANGES"
    CHECKS = "🧪 CHECKS"
    HISTORY = "📜 HISTORY"
    QUESTIONS = "❓ QUESTIONS"
    REFLECTION = "🪞 REFLECTION"
    ALIGNMENT_CHECK = "✅ ALIGNMENT_CHECK"


INLINE = frozenset({Section.ITERATION, Section.CLAIM, Section.ALIGNMENT_CHECK})
"""Sections of one line, written behind their header."""

CONTINUATION = 4
"""Spaces in front of the further lines of a list item."""

_HEADER = re.compile(r"^(?:#{1,6} |\*\*)?\[(?P<name>[^\]]{1,40})\](?:\*\*)?:?(?:\s+(?P<rest>.*))?$")
_BULLET = re.compile(r"^(?P<indent>[ \t]*)(?:[-*•]|\d{1,3}[.)])(?: +(?P<text>.*))?$")
_NOT_IN_NAMES = re.compile(r"[^A-Z0-9]")
_BY_LETTERS = {_NOT_IN_NAMES.sub("", section.value): section for section in Section}


def with_line_feeds(text: str) -> str:
    """Return `text` with line feeds as its only line ends, and fit for UTF-8."""
    return text.replace("\r\n", "\n").replace("\r", "\n").encode("utf-8", "replace").decode("utf-8")


def _strip(text: str) -> str:
    return with_line_feeds(text).strip()


def _strip_items(items: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(stripped for item in items if (stripped := _strip(item)))


Text = Annotated[str, AfterValidator(_strip)]
"""Text without white space at its ends and with line feeds only."""
Items = Annotated[tuple[str, ...], AfterValidator(_strip_items)]
"""Non-empty texts."""


def header_of(line: str) -> tuple[Section, str] | None:
    """Return the section that `line` opens and the text behind the header; None for any other line.

    Models drop the emoji or its variation selector, so only letters are compared. Without an emoji they
    must be capitals: `[project]` is a line of somebody's TOML file.
    """
    match = _HEADER.match(line)
    if match is None:
        return None
    name = match["name"]
    section = _BY_LETTERS.get(_NOT_IN_NAMES.sub("", name.upper()))
    if section is None or (name.isascii() and name != name.upper()):
        return None
    return section, (match["rest"] or "").strip()


def _is_header(line: str) -> bool:
    return header_of(line) is not None


def escaped(text: str, special: Callable[[str], bool]) -> str:
    """Put a backslash in front of each line that is special, or is after some backslashes."""
    return "\n".join("\\" + line if special(line.lstrip("\\")) else line for line in text.split("\n"))


def unescaped(text: str, special: Callable[[str], bool]) -> str:
    """Undo `escaped`."""
    return "\n".join(
        line[1:] if line.startswith("\\") and special(line.lstrip("\\")) else line for line in text.split("\n")
    )


def render_sections(parts: Iterable[tuple[Section, str]]) -> str:
    """Return the sections with their headers; empty ones are left out."""
    return "".join(
        f"[{section.value}] {body}\n\n" if section in INLINE else f"[{section.value}]\n{escaped(body, _is_header)}\n\n"
        for section, body in parts
        if body
    ).removesuffix("\n")


def split_sections(text: str) -> dict[Section, str]:
    """Split a message at its headers; text before the first header is ignored."""
    found: dict[Section, list[str]] = {}
    current: list[str] | None = None
    # Editors on Windows begin a file with a byte order mark, which would hide the first header.
    for line in with_line_feeds(text).removeprefix("\ufeff").split("\n"):
        header = header_of(line)
        if header is not None:
            section, rest = header
            current = found.setdefault(section, [])
            current.extend([rest] if rest else [])
        elif current is not None:
            current.append(line)
    return {section: unescaped("\n".join(lines), _is_header).strip("\n") for section, lines in found.items()}


def render_items(items: Iterable[str], *, indent: int = 0) -> str:
    """Return a list; no item may be empty or start with white space."""
    bullet, further = " " * indent + "- ", " " * (indent + CONTINUATION)
    lines: list[str] = []
    for item in items:
        first, *more = item.split("\n")
        lines.append(bullet + first)
        lines.extend(further + line if line else "" for line in more)
    return "\n".join(lines)


def parse_items(body: str) -> tuple[str, ...]:
    """Read a list; the first bullet sets its indent. Numbers and stars count as bullets too."""
    items: list[list[str]] = []
    indent: int | None = None
    for line in body.split("\n"):
        bullet = _BULLET.match(line)
        if bullet is not None and (indent is None or len(bullet["indent"]) <= indent):
            indent = len(bullet["indent"]) if indent is None else indent
            items.append([bullet["text"] or ""])
        elif items:
            items[-1].append(line[min(((indent or 0) + CONTINUATION), len(line) - len(line.lstrip(" "))) :])
        elif line.strip():
            items.append([line])
    return tuple("\n".join(item) for item in items)


def quoted(text: str) -> str:
    """Return `text` on one line, as JSON."""
    return json.dumps(text, ensure_ascii=False)


def unquoted(text: str) -> str:
    """Undo `quoted`; text without quotes is returned as it is."""
    value = read_json(text)
    if isinstance(value, str):
        return value
    mark, inner = text[:1], text[1:-1]
    return inner if inner and mark in ('"', "'") and text[-1] == mark and mark not in inner else text


def read_json(text: str) -> Any:
    """Return the value of a JSON text; None if it is not JSON."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
