"""The Reflexion-Aligned Template: the two Markdown messages between planner and executor.

A plan message (A_n) says what to do next, a plan request (PR-A_n+1) what came of it. Rendering and
parsing are inverse to each other. The template is the one of the seed "Plan-Execu Tight Loop".
"""

import json
import re
import shlex
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, model_validator

from tightloop.errors import MessageError
from tightloop.reflection import (
    Alignment,
    Reflection,
    parse_alignment,
    parse_reflection,
    problems_of,
    render_alignment,
    render_reflection,
)
from tightloop.template import (
    Items,
    Section,
    Text,
    escaped,
    parse_items,
    read_json,
    render_items,
    render_sections,
    split_sections,
    unescaped,
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


def _fit_for_utf8(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word.encode("utf-8", "replace").decode("utf-8") for word in words)


class PlannedStep(Value):
    """One thing to do."""

    title: Text
    run: Annotated[tuple[str, ...], AfterValidator(_fit_for_utf8)] = ()
    """Program and arguments, where the step is a command. Never given to a shell."""

    @model_validator(mode="before")
    @classmethod
    def _name_a_bare_command(cls, value: Any) -> Any:
        if (
            isinstance(value, dict)
            and isinstance(value.get("run"), list | tuple)
            and not str(value.get("title") or "").strip()
        ):
            return value | {"title": " ".join(str(word) for word in value["run"])}
        return value


def _drop_empty(steps: tuple[PlannedStep, ...]) -> tuple[PlannedStep, ...]:
    return tuple(step for step in steps if step.title or step.run)


class PlanMessage(Value):
    """A_n: the planner's message to the executor."""

    project: Text = ""
    goal: Text = ""
    iteration: int = 0
    definition_of_done: Items = ()
    context: Text = ""
    steps: Annotated[tuple[PlannedStep, ...], AfterValidator(_drop_empty)] = ()
    scope: Items = ()
    """Paths or globs that the plan expects to change; empty: not announced."""
    final: bool = False
    """The planner claims that the goal is met once this plan is done. Checks decide, not the claim."""
    reflection: Reflection = Reflection()
    alignment: Alignment = Alignment()


class PlanRequestMessage(Value):
    """PR-A_n+1: the report on a plan, and the request for the next one."""

    project: Text = ""
    goal: Text = ""
    iteration: int = 0
    outcome: Text = ""
    """Status of the executor, such as `completed`."""
    report: Text = ""
    changes: Items = ()
    checks: Items = ()
    history: Items = ()
    """One line for each of the last iterations, oldest first."""
    questions: Items = ()
    reflection: Reflection = Reflection()
    alignment: Alignment = Alignment()


def render_plan(message: PlanMessage) -> str:
    """Return the Markdown of a plan message."""
    return render_sections(
        (
            (Section.PROJECT, message.project),
            (Section.CURRENT_GOAL, message.goal),
            (Section.ITERATION, str(message.iteration)),
            (Section.DEFINITION_OF_DONE, render_items(message.definition_of_done)),
            (Section.CONTEXT, message.context),
            (Section.PLAN, render_items(_render_step(step) for step in message.steps)),
            (Section.SCOPE, render_items(message.scope)),
            (Section.CLAIM, "done after this plan" if message.final else "not done yet"),
            (Section.REFLECTION, render_reflection(message.reflection)),
            (Section.ALIGNMENT_CHECK, render_alignment(message.alignment)),
        )
    )


def render_plan_request(message: PlanRequestMessage) -> str:
    """Return the Markdown of a plan request."""
    return render_sections(
        (
            (Section.PROJECT, message.project),
            (Section.CURRENT_GOAL, message.goal),
            (Section.ITERATION, str(message.iteration)),
            (Section.OUTCOME, message.outcome),
            (Section.REPORT, message.report),
            (Section.CHANGES, render_items(message.changes)),
            (Section.CHECKS, render_items(message.checks)),
            (Section.HISTORY, render_items(message.history)),
            (Section.QUESTIONS, render_items(message.questions)),
            (Section.REFLECTION, render_reflection(message.reflection)),
            (Section.ALIGNMENT_CHECK, render_alignment(message.alignment)),
        )
    )


def parse_plan(text: str) -> PlanMessage:
    """Read a plan message.

    Raises:
        MessageError: a required section is missing or wrong; the message names it with an example.
    """
    sections = split_sections(text)
    final = sections.get(Section.CLAIM, "").lower().startswith(("done", "yes", "true"))
    needed = dict(_NEEDED) if final else {**_NEEDED, Section.PLAN: "at least one step, a line starting with '- '"}
    reflection, alignment = _enforced(sections, needed, _PLAN_EXAMPLE)
    return PlanMessage(
        project=sections.get(Section.PROJECT, ""),
        goal=sections[Section.CURRENT_GOAL],
        iteration=_number(sections.get(Section.ITERATION, "")),
        definition_of_done=parse_items(sections.get(Section.DEFINITION_OF_DONE, "")),
        context=sections.get(Section.CONTEXT, ""),
        steps=tuple(_parse_step(item) for item in parse_items(sections.get(Section.PLAN, ""))),
        scope=parse_items(sections.get(Section.SCOPE, "")),
        final=final,
        reflection=reflection,
        alignment=alignment,
    )


def parse_plan_request(text: str) -> PlanRequestMessage:
    """Read a plan request.

    Raises:
        MessageError: a required section is missing or wrong; the message names it with an example.
    """
    sections = split_sections(text)
    needed = {**_NEEDED, Section.OUTCOME: "how the work ended, such as completed"}
    reflection, alignment = _enforced(sections, needed, _REQUEST_EXAMPLE)
    return PlanRequestMessage(
        project=sections.get(Section.PROJECT, ""),
        goal=sections.get(Section.CURRENT_GOAL, ""),
        iteration=_number(sections.get(Section.ITERATION, "")),
        outcome=sections[Section.OUTCOME],
        report=sections.get(Section.REPORT, ""),
        changes=parse_items(sections.get(Section.CHANGES, "")),
        checks=parse_items(sections.get(Section.CHECKS, "")),
        history=parse_items(sections.get(Section.HISTORY, "")),
        questions=parse_items(sections.get(Section.QUESTIONS, "")),
        reflection=reflection,
        alignment=alignment,
    )


_NEEDED: Mapping[Section, str] = {
    Section.PROJECT: "the name of the project",
    Section.CURRENT_GOAL: "the goal in one sentence",
}
"""Sections that no message may leave empty, and what belongs into them; besides the two that close it."""


def _enforced(
    sections: dict[Section, str], needed: Mapping[Section, str], example: str
) -> tuple[Reflection, Alignment]:
    reflection = parse_reflection(sections.get(Section.REFLECTION, ""))
    alignment = parse_alignment(sections.get(Section.ALIGNMENT_CHECK, ""))
    found = [
        f"[{section.value}] is {'empty' if section in sections else 'missing'}: {hint}"
        for section, hint in needed.items()
        if _is_empty(section, sections.get(section, ""))
    ]
    if Section.REFLECTION not in sections:
        found.append(f"[{Section.REFLECTION.value}] is missing: a diagnosis and action_items")
    else:
        found.extend(problems_of(reflection, None))
    check = f"[{Section.ALIGNMENT_CHECK.value}]"
    if Section.ALIGNMENT_CHECK not in sections:
        found.append(f"{check} is missing: yes or no, then ' // ' and why")
    elif alignment is None:
        said = sections[Section.ALIGNMENT_CHECK].strip()[:40]
        found.append(f"{check} says {said!r}: it must be yes or no, then ' // ' and why")
    else:
        found.extend(problems_of(_FLAWLESS, alignment))
    if found or alignment is None:
        problems = "\n".join(f"- {problem}" for problem in found)
        raise MessageError(
            f"the message does not follow the template:\n{problems}\nA right message looks like this:\n{example}"
        )
    return reflection, alignment


def _is_empty(section: Section, body: str) -> bool:
    """Return whether a section says nothing; a bullet without words is no step."""
    parts = parse_items(body) if section is Section.PLAN else (body,)
    return not any(part.strip() for part in parts)


def _number(text: str) -> int:
    found = re.search(r"(?:(?<!\w)-)?[0-9]{1,18}", text)
    return int(found.group()) if found else 0


_RUN = "run:"


def _is_run_line(line: str) -> bool:
    return line.startswith(_RUN)


def _render_step(step: PlannedStep) -> str:
    command = f"{_RUN} {json.dumps(step.run, ensure_ascii=False)}" if step.run else ""
    return "\n".join(part for part in (escaped(step.title, _is_run_line), command) if part)


def _parse_step(item: str) -> PlannedStep:
    lines = item.strip().split("\n")
    at = max((number for number, line in enumerate(lines) if _is_run_line(line)), default=None)
    run: tuple[str, ...] = ()
    if at is not None:
        command, further = lines[at].removeprefix(_RUN), lines[at + 1 :]
        words = read_json("\n".join([command, *further]))
        if isinstance(words, list):
            run, further = tuple(str(word) for word in words), []
        else:
            run = _words(command)
        lines = [*lines[:at], *further]
    return PlannedStep(title=unescaped("\n".join(lines), _is_run_line), run=run)


def _words(command: str) -> tuple[str, ...]:
    """Split a command that was not written as JSON, the way a shell would."""
    words = read_json(command)
    if isinstance(words, list):
        return tuple(str(word) for word in words)
    bare = command.strip().strip("`")
    try:
        return tuple(shlex.split(bare))
    except ValueError:
        return tuple(bare.split())


_FLAWLESS = Reflection(
    diagnosis="two tests fail because parse() drops the last line", action_items=("keep the last line in parse()",)
)
_AGREED = Alignment(rationale="touches only the parser and its tests")
_PLAN_EXAMPLE = render_plan(
    PlanMessage(
        project="shop",
        goal="make the tests pass",
        iteration=1,
        steps=(
            PlannedStep(title="keep the last line in parse()"),
            PlannedStep(title="format the parser", run=("ruff", "format", "parser.py")),
        ),
        reflection=_FLAWLESS,
        alignment=_AGREED,
    )
)
_REQUEST_EXAMPLE = render_plan_request(
    PlanRequestMessage(
        project="shop",
        goal="make the tests pass",
        iteration=2,
        outcome="completed",
        reflection=_FLAWLESS,
        alignment=_AGREED,
    )
)
