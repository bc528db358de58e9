"""The last parts of a message: the reflection and the alignment check."""

import re
from typing import Literal

from tightloop.executor.messages.template import (
    Items,
    Section,
    Text,
    parse_items,
    quoted,
    read_json,
    render_items,
    unquoted,
)
from tightloop.value import Value


class Reflection(Value):
    """Why the last iteration went as it did, and what to do about it."""

    diagnosis: Text = ""
    action_items: Items = ()


class Alignment(Value):
    """The author's answer to whether the work is right to do."""

    answer: Literal["yes", "no"] = "yes"
    rationale: Text = ""


def problems_of(reflection: Reflection, alignment: Alignment | None) -> tuple[str, ...]:
    """Return what the two closing sections lack, as sentences; empty when they are in order."""
    found: list[str] = []
    if not reflection.diagnosis:
        found.append(f"[{Section.REFLECTION.value}] has no diagnosis: one sentence on why things are as they are")
    if not reflection.action_items:
        found.append(f"[{Section.REFLECTION.value}] has no action_items: at least one line starting with '- '")
    if alignment is not None and not alignment.rationale:
        found.append(f"[{Section.ALIGNMENT_CHECK.value}] has no rationale: write it after '//'")
    return tuple(found)


_LABEL = r"^[ \t*_#\"-]*{}[*_\"]*[ \t]*:[*_]*[ \t]*"
_DIAGNOSIS = re.compile(_LABEL.format("diagnosis"), re.IGNORECASE | re.MULTILINE)
_ACTION_ITEMS = re.compile(_LABEL.format("action[_ ]items"), re.IGNORECASE | re.MULTILINE)


def render_reflection(reflection: Reflection) -> str:
    """Return the body of the section."""
    items = render_items(reflection.action_items, indent=4)
    return f"  diagnosis: {quoted(reflection.diagnosis)}\n  action_items:" + (f"\n{items}" if items else "")


def parse_reflection(body: str) -> Reflection:
    """Read the body of the section, or a JSON object in its place; what is missing stays empty."""
    whole = read_json(re.sub(r"^\s*```\w*\n|```\s*$", "", body))
    if isinstance(whole, dict):
        diagnosis, given = whole.get("diagnosis"), whole.get("action_items")
        items = tuple(str(item) for item in given) if isinstance(given, list) else ()
        return Reflection(diagnosis=str(diagnosis or ""), action_items=items)
    label = _ACTION_ITEMS.search(body)
    before, after = (body[: label.start()], body[label.end() :]) if label else (body, "")
    start = _DIAGNOSIS.search(before)
    listed = read_json(after)
    return Reflection(
        diagnosis=unquoted(before[start.end() :].strip()) if start else "",
        action_items=tuple(str(item) for item in listed) if isinstance(listed, list) else parse_items(after),
    )


# Models also write "**yes**", "no - why" and "Yes. Why" in place of "yes // why".
_ANSWER = re.compile(
    r"^[*_`\"]*(?P<answer>yes|no)[*_`\"]*\s*(?:(?:[-–—:,.\s]*//|[-–—:,.]+)(?P<why>.*))?$", re.IGNORECASE | re.DOTALL
)


def render_alignment(alignment: Alignment) -> str:
    """Return the one line of the section."""
    why = alignment.rationale
    if "\n" in why or unquoted(why) != why:
        why = quoted(why)
    return f"{alignment.answer} // {why}" if why else alignment.answer


def parse_alignment(body: str) -> Alignment | None:
    """Read the answer, or return None. A code fence around the whole message ends here."""
    match = _ANSWER.match(re.sub(r"\n```\s*$", "", body.strip()))
    if match is None:
        return None
    return Alignment(
        answer="yes" if match["answer"].lower() == "yes" else "no", rationale=unquoted((match["why"] or "").strip())
    )
