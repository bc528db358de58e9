"""Sections and syntax of the hand-off template."""

import json
import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from tightloop.value import Value


class Section(StrEnum):
    """Headers of the sections in the template."""

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
"""Sections of a single line, which is written next to the header."""

CONTINUATION = 4
"""Number of spaces by which the continuation lines of a list item are indented."""

_HEADER = re.compile(r"^(?:#{1,6} |\*\*)?\[(?P<name>[^\]]{1,40})\](?:\*\*)?:?(?:\s+(?P<rest>.*))?$")
_BULLET = re.compile(r"^(?P<indent>[ \t]*)(?:[-*•]|\d{1,3}[.)])(?: +(?P<text>.*))?$")
_NOT_IN_NAMES = re.compile(r"[^A-Z0-9]")
_BY_LETTERS = {_NOT_IN_NAMES.sub("", section.value): section for section in Section}


def with_line_feeds(text: str) -> str:
    """Return `text` with LF line ends only, in a form that can be encoded as UTF-8."""
    return text.replace("\r\n", "\n").replace("\r", "\n").encode("utf-8", "replace").decode("utf-8")


def _strip(text: str) -> str:
    return with_line_feeds(text).strip()


Text = Annotated[str, AfterValidator(_strip)]
"""Text without leading or trailing white space, with LF line ends only."""
Items = Annotated[tuple[str, ...], AfterValidator(lambda items: tuple(filter(None, map(_strip, items))))]
"""Texts that are not empty."""


def header_of(line: str) -> tuple[Section, str] | None:
    """Return the section that starts on `line` and the rest of the line after the header, or None.

    Models sometimes drop the emoji or its variation selector, so only letters are compared. Without an emoji, the name
    must be in capital letters, because `[project]` may be a line of a TOML file.
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


def escape_lines(text: str, special: Callable[[str], bool]) -> str:
    """Escape each special line with a backslash. Lines that are already escaped get another backslash."""
    return "\n".join("\\" + line if special(line.lstrip("\\")) else line for line in text.split("\n"))


def unescape_lines(text: str, special: Callable[[str], bool]) -> str:
    """Reverse `escape_lines`."""
    return "\n".join(
        line[1:] if line.startswith("\\") and special(line.lstrip("\\")) else line for line in text.split("\n")
    )


def render_sections(parts: Iterable[tuple[Section, str]]) -> str:
    """Return the sections that are not empty, with their headers."""
    return "".join(
        f"[{section.value}] {body}\n\n"
        if section in INLINE
        else f"[{section.value}]\n{escape_lines(body, _is_header)}\n\n"
        for section, body in parts
        if body
    ).removesuffix("\n")


def split_sections(text: str) -> dict[Section, str]:
    """Split a message at its headers. Text before the first header is ignored."""
    sections: dict[Section, list[str]] = {}
    current: list[str] | None = None
    # Editors on Windows start a file with a byte order mark, which would hide the first header.
    for line in with_line_feeds(text).removeprefix("\ufeff").split("\n"):
        header = header_of(line)
        if header is not None:
            section, rest = header
            # A repeated header continues its section: models sometimes split one.
            current = sections.setdefault(section, [])
            current.extend([rest] if rest else [])
        elif current is not None:
            current.append(line)
    return {section: unescape_lines("\n".join(lines), _is_header).strip("\n") for section, lines in sections.items()}


def render_items(items: Iterable[str], *, indent: int = 0) -> str:
    """Render items as a bullet list. Items must not be empty and must not start with white space."""
    bullet, further = " " * indent + "- ", " " * (indent + CONTINUATION)
    lines: list[str] = []
    for item in items:
        first, *more = item.split("\n")
        lines.append(bullet + first)
        lines.extend(further + line if line else "" for line in more)
    return "\n".join(lines)


def parse_items(body: str) -> tuple[str, ...]:
    """Parse a list. The first bullet determines the indentation. Numbers and asterisks are also accepted as bullets."""
    items: list[list[str]] = []
    indent: int | None = None
    for line in body.split("\n"):
        bullet = _BULLET.match(line)
        # Deeper bullets belong to the item above, because models nest lists.
        if bullet is not None and (indent is None or len(bullet["indent"]) <= indent):
            indent = len(bullet["indent"]) if indent is None else indent
            items.append([bullet["text"] or ""])
        elif items:
            items[-1].append(line[min(((indent or 0) + CONTINUATION), len(line) - len(line.lstrip(" "))) :])
        elif line.strip():
            items.append([line])
    return tuple("\n".join(item) for item in items)


def quote_text(text: str) -> str:
    """Return `text` as JSON on a single line."""
    return json.dumps(text, ensure_ascii=False)


def unquote_text(text: str) -> str:
    """Reverse `quote_text`. A text without quotes is returned unchanged."""
    value = read_json(text)
    if isinstance(value, str):
        return value
    quote, inner = text[:1], text[1:-1]
    # A text such as "a" and "b" is not one quoted text.
    return inner if inner and quote in ('"', "'") and text[-1] == quote and quote not in inner else text


def read_json(text: str) -> Any:
    """Return the value of a JSON text, or None if the text is invalid."""
    try:
        # Not strict: models put raw line breaks into strings.
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None


class Reflection(Value):
    """Diagnosis of the last iteration, and the next actions."""

    diagnosis: Text = ""
    action_items: Items = ()


class Alignment(Value):
    """The author's verdict on whether the work is the right thing to do."""

    answer: Literal["yes", "no"] = "yes"
    rationale: Text = ""


def problems_of(reflection: Reflection, alignment: Alignment | None) -> tuple[str, ...]:
    """Return the problems with a message's two closing sections, as sentences."""
    problems: list[str] = []
    if not reflection.diagnosis:
        problems.append(f"[{Section.REFLECTION.value}] has no diagnosis: one sentence on why things are as they are")
    if not reflection.action_items:
        problems.append(f"[{Section.REFLECTION.value}] has no action_items: at least one line starting with '- '")
    if alignment is not None and not alignment.rationale:
        problems.append(f"[{Section.ALIGNMENT_CHECK.value}] has no rationale: write it after '//'")
    return tuple(problems)


_LABEL = r"^[ \t*_#\"-]*{}[*_\"]*[ \t]*:[*_]*[ \t]*"
_DIAGNOSIS = re.compile(_LABEL.format("diagnosis"), re.IGNORECASE | re.MULTILINE)
_ACTION_ITEMS = re.compile(_LABEL.format("action[_ ]items"), re.IGNORECASE | re.MULTILINE)


def render_reflection(reflection: Reflection) -> str:
    """Render the body of the reflection section."""
    items = render_items(reflection.action_items, indent=4)
    return f"  diagnosis: {quote_text(reflection.diagnosis)}\n  action_items:" + (f"\n{items}" if items else "")


def parse_reflection(body: str) -> Reflection:
    """Parse the body of the reflection section. It may also be a JSON object. Missing parts are left empty."""
    # Models put JSON into a code block.
    whole = read_json(re.sub(r"^\s*```\w*\n|```\s*$", "", body))
    if isinstance(whole, dict):
        diagnosis, raw_items = whole.get("diagnosis"), whole.get("action_items")
        items = tuple(str(item) for item in raw_items) if isinstance(raw_items, list) else ()
        return Reflection(diagnosis=str(diagnosis or ""), action_items=items)
    label = _ACTION_ITEMS.search(body)
    before, after = (body[: label.start()], body[label.end() :]) if label else (body, "")
    start = _DIAGNOSIS.search(before)
    listed = read_json(after)
    return Reflection(
        diagnosis=unquote_text(before[start.end() :].strip()) if start else "",
        action_items=tuple(str(item) for item in listed) if isinstance(listed, list) else parse_items(after),
    )


# Models also write "**yes**", "no - why" and "Yes. Why" instead of "yes // why".
_ANSWER = re.compile(
    r"^[*_`\"]*(?P<answer>yes|no)[*_`\"]*\s*(?:(?:[-–—:,.\s]*//|[-–—:,.]+)(?P<why>.*))?$", re.IGNORECASE | re.DOTALL
)


def render_alignment(alignment: Alignment) -> str:
    """Render the alignment section, which is a single line."""
    why = alignment.rationale
    if "\n" in why or unquote_text(why) != why:
        why = quote_text(why)
    return f"{alignment.answer} // {why}" if why else alignment.answer


def parse_alignment(body: str) -> Alignment | None:
    """Parse the body of the alignment section, or return None if it is invalid.

    If the message is enclosed in a code block, the end of the block is removed too.
    """
    match = _ANSWER.match(re.sub(r"\n```\s*$", "", body.strip()))
    if match is None:
        return None
    return Alignment(
        answer="yes" if match["answer"].lower() == "yes" else "no", rationale=unquote_text((match["why"] or "").strip())
    )
