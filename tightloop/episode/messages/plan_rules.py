"""Reviews a plan before it is handed off: its commands, its scope, its words."""

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Any

from tightloop.executor.messages.message import PlanMessage
from tightloop.safety.commands.judge import find_violations, find_violations_in_words
from tightloop.safety.commands.shell import plain
from tightloop.safety.rubric import Finding, Rubric, Topic, Violation, bounded, make_finding, planners_own
from tightloop.safety.verdict import Verdict

_OUTSIDE = Violation("outside_workspace", Topic.DAMAGE, Verdict.ASK, "name only paths inside the workspace")
_CI = Violation(
    "changes_ci", Topic.CHECKS, Verdict.ASK, "leave CI and git hooks alone, or say in the goal that they change"
)


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads((resources.files("tightloop.episode.messages") / "plan_rules.toml").read_text("utf-8"))


@cache
def _pattern(name: str) -> re.Pattern[str]:
    return re.compile("".join(_data()["patterns"][name]))


@cache
def _words() -> tuple[tuple[re.Pattern[str], Violation], ...]:
    return tuple(
        (
            re.compile("".join(one["pattern"])),
            Violation(one["rule"], Topic(one["topic"]), Verdict.ASK, one["suggestion"]),
        )
        for one in _data()["words"]
    )


def review_plan(
    plan: PlanMessage, rubric: Rubric = Rubric(), *, goal: str = "", roots: tuple[str, ...] = ()
) -> tuple[Finding, ...]:
    """Return the findings in a plan, bounded by the rubric.

    The goal is that of the plan where none is given; `roots` are absolute paths of the workspace, which it may name.
    """
    findings: list[Finding] = []
    for number, step in enumerate(plan.steps, start=1):
        place = f"step {number}"
        if step.run:
            findings.extend(
                _finding(violation, " ".join(step.run), place) for violation in find_violations_in_words(step.run)
            )
        findings.extend(_review_text(step.title, place))
    findings.extend(_review_text(plan.context, "context"))
    findings.extend(_review_scope(plan, goal or plan.goal, roots))
    if plan.alignment.answer != "yes":
        findings.append(planners_own(plan.alignment.rationale))
    return bounded(findings, rubric)


def _finding(violation: Violation, text: str, place: str) -> Finding:
    shown = plain(text)
    return make_finding(violation, at=("", shown.strip()), where=place, evidence=shown)


def _review_text(text: str, place: str) -> Iterator[Finding]:
    text = plain(text)
    for match in (*_pattern("code").finditer(text), *_pattern("starts").finditer(text)):
        # 80 characters hold the longest of those words and the 40 that may stand behind it.
        if _pattern("leaves_it").search(
            text[max(match.start() - 80, 0) : match.start() + len(match[0]) - len(match[0].lstrip())]
        ):
            continue
        command = next(group for group in match.groups() if group)
        for violation in find_violations(command):
            yield _finding(violation, command, place)
    for pattern, violation in _words():
        for match in pattern.finditer(text):
            if not _pattern("leaves_it").search(text[max(match.start() - 80, 0) : match.start()]):
                yield _finding(violation, _sentence(text, match.start(), match.end()), place)
                break


def _sentence(text: str, start: int, end: int) -> str:
    """Return the sentence of a finding."""
    first = max(text.rfind(mark, 0, start) for mark in (". ", "\n", "; ")) + 1
    ends = [at for mark in (". ", "\n", "; ") if (at := text.find(mark, end)) >= 0]
    return text[first : min(ends, default=len(text))].strip()


def _review_scope(plan: PlanMessage, goal: str, roots: tuple[str, ...]) -> Iterator[Finding]:
    for item in plan.scope:
        path = plain(item).split(" - ")[0].strip("`'\" ")
        inside = any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)
        if (
            (path.startswith(("/", "~", "../", "$HOME")) and not inside)
            or "/../" in path
            or re.match(r"\.git(?:/|$)", path)
        ):
            yield _finding(_OUTSIDE, path, "scope")
        elif _pattern("ci_path").search(path) and not _pattern("ci_words").search(goal):
            yield _finding(_CI, path, "scope")
