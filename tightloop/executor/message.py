"""The Reflexion-Aligned Template, which defines the two Markdown messages between planner and executor.

A plan message (A_n) contains the next steps, and a plan request (PR-A_n+1) contains their result. Rendering and parsing
are inverse operations. The template is taken from the seed "Plan-Execu Tight Loop".
"""

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import AfterValidator, model_validator

from tightloop.errors import MessageError
from tightloop.value import Value


class Section(StrEnum):
    """Section headers in the template."""

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
    """Return `text` with LF line endings, in a form that can be encoded as UTF-8."""
    return text.replace("\r\n", "\n").replace("\r", "\n").encode("utf-8", "replace").decode("utf-8")


def _strip(text: str) -> str:
    return with_line_feeds(text).strip()


Text = Annotated[str, AfterValidator(_strip)]
"""Text without leading or trailing white space, with LF line ends only."""
Items = Annotated[tuple[str, ...], AfterValidator(lambda items: tuple(filter(None, map(_strip, items))))]
"""Texts that are not empty."""


def header_of(line: str) -> tuple[Section, str] | None:
    """Parse the section header on a line.

    Return the section and the rest of the line, or None if there is no header. Models sometimes drop the
    emoji or its variation selector, so only letters are compared. Without an emoji, the name must be in
    capital letters, because `[project]` may be a line of a TOML file.
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
    """Parse a list. Numbers and asterisks are also accepted as bullets.

    The first bullet determines the indentation.
    """
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
    """Reverse `quote_text`. Text without quotes is returned unchanged."""
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
    """The author's opinion on whether the work serves the goal."""

    answer: Literal["yes", "no"] = "yes"
    rationale: Text = ""


def problems_of(reflection: Reflection, alignment: Alignment | None) -> tuple[str, ...]:
    """Return the problems in the reflection and alignment sections, as sentences."""
    problems: list[str] = []
    if not reflection.diagnosis:
        problems.append(
            f"[{Section.REFLECTION.value}] has no diagnosis: write one sentence on why things are the way they are"
        )
    if not reflection.action_items:
        problems.append(f"[{Section.REFLECTION.value}] has no action_items: write at least one line starting with '- '")
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
    """Parse the body of the reflection section.

    The body may also be a JSON object. Missing parts are left empty.
    """
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
    """Render the alignment section as a single line."""
    why = alignment.rationale
    if "\n" in why or unquote_text(why) != why:
        why = quote_text(why)
    return f"{alignment.answer} // {why}" if why else alignment.answer


def parse_alignment(body: str) -> Alignment | None:
    """Parse the body of the alignment section. Return None if the body is invalid.

    If the message is enclosed in a code block, the end of the block is removed.
    """
    match = _ANSWER.match(re.sub(r"\n```\s*$", "", body.strip()))
    if match is None:
        return None
    return Alignment(
        answer="yes" if match["answer"].lower() == "yes" else "no", rationale=unquote_text((match["why"] or "").strip())
    )


__all__ = [
    "Alignment",
    "PlanMessage",
    "PlanRequestMessage",
    "PlannedStep",
    "Reflection",
    "Section",
    "parse_plan",
    "parse_plan_request",
    "problems_of",
    "render_plan",
    "render_plan_request",
]


class PlannedStep(Value):
    """Single step of a plan message."""

    title: Text
    run: tuple[Annotated[str, AfterValidator(lambda word: word.encode("utf-8", "replace").decode("utf-8"))], ...] = ()
    """Program and arguments, if the step is a command. They are never passed to a shell."""

    @model_validator(mode="before")
    @classmethod
    def _name_a_bare_command(cls, value: Any) -> Any:
        # Models often give a command without a title, and an empty title would drop the step.
        if (
            isinstance(value, dict)
            and isinstance(value.get("run"), list | tuple)
            and not str(value.get("title") or "").strip()
        ):
            return value | {"title": " ".join(str(argument) for argument in value["run"])}
        return value


_drop_empty = AfterValidator(lambda steps: tuple(step for step in steps if step.title or step.run))


class PlanMessage(Value):
    """A message from the planner to the executor. The template calls it A_n."""

    project: Text = ""
    goal: Text = ""
    iteration: int = 0
    definition_of_done: Items = ()
    context: Text = ""
    steps: Annotated[tuple[PlannedStep, ...], _drop_empty] = ()
    scope: Items = ()
    """Paths or glob patterns that the plan expects to change. Empty if the plan does not announce any."""
    final: bool = False
    """Claim that the goal will be met after this plan. The checks decide whether this is true."""
    reflection: Reflection = Reflection.model_construct()
    alignment: Alignment = Alignment.model_construct()


class PlanRequestMessage(Value):
    """A report on a plan and a request for the next plan. The template calls it PR-A_n+1."""

    project: Text = ""
    goal: Text = ""
    iteration: int = 0
    outcome: Text = ""
    """Status reported by the executor, such as `completed`."""
    report: Text = ""
    changes: Items = ()
    checks: Items = ()
    history: Items = ()
    """One line per recent iteration, oldest first."""
    questions: Items = ()
    reflection: Reflection = Reflection.model_construct()
    alignment: Alignment = Alignment.model_construct()


M = TypeVar("M", PlanMessage, PlanRequestMessage)

_NEEDED: Mapping[Section, str] = {
    Section.PROJECT: "the name of the project",
    Section.CURRENT_GOAL: "the goal in one sentence",
}
"""Sections that must not be empty in any message, with a description of their content. The two closing sections are
checked separately.
"""
_STEPS_NEEDED = "at least one step as a line starting with '- '"


def _parse(kind: type[M], sections: dict[Section, str], needed: Mapping[Section, str], example: str) -> M:
    reflection = parse_reflection(sections.get(Section.REFLECTION, ""))
    alignment = parse_alignment(sections.get(Section.ALIGNMENT_CHECK, ""))
    faults = [
        f"[{section.value}] is {'empty' if section in sections else 'missing'}: write {hint}"
        for section, hint in needed.items()
        for body in [sections.get(section, "")]
        # An empty bullet is not a step.
        if not any(map(str.strip, parse_items(body) if section is Section.PLAN else [body]))
    ]
    if Section.REFLECTION not in sections:
        faults.append(f"[{Section.REFLECTION.value}] is missing: write a diagnosis and action_items")
    else:
        faults.extend(problems_of(reflection, None))
    check = f"[{Section.ALIGNMENT_CHECK.value}]"
    if Section.ALIGNMENT_CHECK not in sections:
        faults.append(f"{check} is missing: write yes or no, then ' // ' and the reason")
    elif alignment is None:
        answer = sections[Section.ALIGNMENT_CHECK].strip()[:40]
        faults.append(f"{check} must be yes or no, followed by ' // ' and the reason, got {answer!r}")
    else:
        # The reflection was judged above; a flawless one adds no faults.
        faults.extend(problems_of(_FLAWLESS, alignment))
    if faults:
        problems = "\n".join(f"- {problem}" for problem in faults)
        raise MessageError(
            f"the message does not follow the template:\n{problems}\nA correct message looks like this:\n{example}"
        )
    parts = ((part, sections.get(section, "")) for section, part in _PARTS.items())
    return kind(**{part.field: part.read(body) for part, body in parts if part.field in kind.model_fields})


def _number(text: str) -> int:
    # Bounded: Python raises an error for numbers with thousands of digits.
    match = re.search(r"(?:(?<!\w)-)?[0-9]{1,18}", text)
    return int(match.group()) if match else 0


def _claims_done(text: str) -> bool:
    return text.lower().startswith(("done", "yes", "true"))


_RUN = "run:"


def _is_run_line(line: str) -> bool:
    return line.startswith(_RUN)


def _render_step(step: PlannedStep) -> str:
    command = f"{_RUN} {json.dumps(step.run, ensure_ascii=False)}" if step.run else ""
    return "\n".join(part for part in (escape_lines(step.title, _is_run_line), command) if part)


def _parse_step(item: str) -> PlannedStep:
    lines = item.strip().split("\n")
    # The last one: earlier ones belong to a title with several lines.
    at = max((number for number, line in enumerate(lines) if _is_run_line(line)), default=None)
    run: tuple[str, ...] = ()
    if at is not None:
        command, further = lines[at].removeprefix(_RUN), lines[at + 1 :]
        # A model may format the command as JSON over several lines.
        if isinstance(arguments := read_json("\n".join([command, *further])), list):
            further = []
        elif not isinstance(arguments := read_json(command), list):
            bare = command.strip().strip("`")
            try:
                arguments = shlex.split(bare)
            except ValueError:
                arguments = bare.split()
        run = tuple(map(str, arguments))
        lines = [*lines[:at], *further]
    return PlannedStep(title=unescape_lines("\n".join(lines), _is_run_line), run=run)


class _Part(NamedTuple):
    """Describes how a section of a message is converted to a field and back."""

    field: str
    write: Callable[[Any], str] = str
    read: Callable[[str], Any] = str


def _list_of(field: str) -> _Part:
    return _Part(field, render_items, parse_items)


_PARTS: Mapping[Section, _Part] = {
    Section.PROJECT: _Part("project"),
    Section.CURRENT_GOAL: _Part("goal"),
    Section.ITERATION: _Part("iteration", read=_number),
    Section.DEFINITION_OF_DONE: _list_of("definition_of_done"),
    Section.CONTEXT: _Part("context"),
    Section.PLAN: _Part(
        "steps",
        lambda steps: render_items(map(_render_step, steps)),
        lambda body: tuple(map(_parse_step, parse_items(body))),
    ),
    Section.SCOPE: _list_of("scope"),
    Section.CLAIM: _Part("final", lambda final: "done after this plan" if final else "not done yet", _claims_done),
    Section.OUTCOME: _Part("outcome"),
    Section.REPORT: _Part("report"),
    Section.CHANGES: _list_of("changes"),
    Section.CHECKS: _list_of("checks"),
    Section.HISTORY: _list_of("history"),
    Section.QUESTIONS: _list_of("questions"),
    Section.REFLECTION: _Part("reflection", render_reflection, parse_reflection),
    Section.ALIGNMENT_CHECK: _Part("alignment", render_alignment, parse_alignment),
}
"""Parts in the order of the template. A message contains the sections of its fields."""


def _render(message: Value) -> str:
    fields = type(message).model_fields
    return render_sections(
        (section, part.write(getattr(message, part.field))) for section, part in _PARTS.items() if part.field in fields
    )


def render_plan(message: PlanMessage) -> str:
    """Render a plan message as Markdown."""
    return _render(message)


def render_plan_request(message: PlanRequestMessage) -> str:
    """Render a plan request as Markdown."""
    return _render(message)


def parse_plan(text: str) -> PlanMessage:
    """Parse a plan message from Markdown.

    Raises:
        MessageError: a required section is missing or invalid. The message names the section and shows an
            example.
    """
    sections = split_sections(text)
    # A plan that claims to be done may have nothing left to do.
    steps = {} if _claims_done(sections.get(Section.CLAIM, "")) else {Section.PLAN: _STEPS_NEEDED}
    return _parse(PlanMessage, sections, {**_NEEDED, **steps}, _PLAN_EXAMPLE)


def parse_plan_request(text: str) -> PlanRequestMessage:
    """Parse a plan request from Markdown.

    Raises:
        MessageError: a required section is missing or invalid. The message names the section and shows an
            example.
    """
    needed = {**_NEEDED, Section.OUTCOME: "how the work ended, such as completed"}
    return _parse(PlanRequestMessage, split_sections(text), needed, REQUEST_EXAMPLE)


# Not validated, because every client builds these examples at import.
_FLAWLESS = Reflection.model_construct(
    diagnosis="two tests fail because parse() drops the last line", action_items=("keep the last line in parse()",)
)
_AGREED = Alignment.model_construct(rationale="touches only the parser and its tests")
_PLAN_EXAMPLE = render_plan(
    PlanMessage.model_construct(
        project="shop",
        goal="make the tests pass",
        iteration=1,
        steps=(
            PlannedStep.model_construct(title="keep the last line in parse()"),
            PlannedStep.model_construct(title="format the parser", run=("ruff", "format", "parser.py")),
        ),
        reflection=_FLAWLESS,
        alignment=_AGREED,
    )
)
REQUEST_EXAMPLE = render_plan_request(
    PlanRequestMessage.model_construct(
        project="shop",
        goal="make the tests pass",
        iteration=2,
        outcome="completed",
        report="parse() keeps the last line; both tests pass",
        reflection=_FLAWLESS,
        alignment=_AGREED,
    )
)
