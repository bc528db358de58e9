"""The Reflexion-Aligned Template, which defines the two Markdown messages between planner and executor.

A plan message (A_n) contains the next steps, and a plan request (PR-A_n+1) contains their result. Rendering and parsing
are inverse operations. The template is taken from the seed "Plan-Execu Tight Loop".
"""

import json
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import AfterValidator, model_validator

from tightloop.errors import MessageError
from tightloop.executor.template import (
    Alignment,
    Items,
    Reflection,
    Section,
    Text,
    escape_lines,
    parse_alignment,
    parse_items,
    parse_reflection,
    problems_of,
    read_json,
    render_alignment,
    render_items,
    render_reflection,
    render_sections,
    split_sections,
    unescape_lines,
)
from tightloop.value import Value

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
    """Message from the planner to the executor, called A_n in the template."""

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
    """Report on a plan and request for the next one, called PR-A_n+1 in the template."""

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
_STEPS_NEEDED = "at least one step, a line starting with '- '"


def _parse(kind: type[M], sections: dict[Section, str], needed: Mapping[Section, str], example: str) -> M:
    reflection = parse_reflection(sections.get(Section.REFLECTION, ""))
    alignment = parse_alignment(sections.get(Section.ALIGNMENT_CHECK, ""))
    faults = [
        f"[{section.value}] is {'empty' if section in sections else 'missing'}: {hint}"
        for section, hint in needed.items()
        for body in [sections.get(section, "")]
        # An empty bullet is not a step.
        if not any(map(str.strip, parse_items(body) if section is Section.PLAN else [body]))
    ]
    if Section.REFLECTION not in sections:
        faults.append(f"[{Section.REFLECTION.value}] is missing: a diagnosis and action_items")
    else:
        faults.extend(problems_of(reflection, None))
    check = f"[{Section.ALIGNMENT_CHECK.value}]"
    if Section.ALIGNMENT_CHECK not in sections:
        faults.append(f"{check} is missing: yes or no, then ' // ' and why")
    elif alignment is None:
        answer = sections[Section.ALIGNMENT_CHECK].strip()[:40]
        faults.append(f"{check} must be yes or no, then ' // ' and why, got {answer!r}")
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
    """Conversion between a section and a field of a message."""

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
        MessageError: a required section is missing or invalid. The message names it and shows an example.
    """
    sections = split_sections(text)
    # A plan that claims to be done may have nothing left to do.
    steps = {} if _claims_done(sections.get(Section.CLAIM, "")) else {Section.PLAN: _STEPS_NEEDED}
    return _parse(PlanMessage, sections, {**_NEEDED, **steps}, _PLAN_EXAMPLE)


def parse_plan_request(text: str) -> PlanRequestMessage:
    """Parse a plan request from Markdown.

    Raises:
        MessageError: a required section is missing or invalid. The message names it and shows an example.
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
