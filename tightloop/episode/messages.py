"""Plan messages, their review, and plan requests."""

import hashlib
import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import resources
from typing import Any

from diff_match_patch import diff_match_patch

from tightloop.episode.check import CheckReport, CheckResult
from tightloop.episode.model import EpisodeRequest, EpisodeState
from tightloop.episode.progress.course import history_line
from tightloop.errors import MessageError
from tightloop.executor.message import Alignment, PlanMessage, PlanRequestMessage, Reflection, parse_plan, render_plan
from tightloop.executor.model import ExecutorReport
from tightloop.safety.commands.rules import find_violations, find_violations_in_words
from tightloop.safety.commands.shell import plain
from tightloop.safety.rubric import (
    Finding,
    Rubric,
    Topic,
    Verdict,
    Violation,
    limit_findings,
    make_finding,
    planners_own,
)
from tightloop.value import ArtifactRef, Value, clip, shorten

CORRECTIONS = 2
"""Number of corrections to request before asking a person."""
LETTER_CHARACTERS = 4_000
_SENTENCE_CHARACTERS = 400


def gaps_of_plan(message: PlanMessage) -> str:
    """Return the errors in a plan message, or "" if the message is valid.

    The text is addressed to the author of the message and contains an example.
    """
    # Models reply in JSON: rendering it applies the same rules as to a message written by a person.
    try:
        parse_plan(render_plan(message))
    except MessageError as error:
        return shorten(error.message, LETTER_CHARACTERS)
    return ""


def given_up(name: str, problems: str, *, returned: int) -> str:
    """Return a sentence for the user about a message that is still invalid after all corrections."""
    lacks = "; ".join(line.removeprefix("- ") for line in problems.split("\n") if line.startswith("- ["))
    return shorten(
        f"the {name} is still invalid after {returned} correction attempts: {lacks}. Fix the program that writes "
        f"the {name}, or resume to ask for it again",
        _SENTENCE_CHARACTERS,
    )


SEARCH_S = 0.15
"""Time limit of the diff in seconds.

When it expires, the rest counts as replaced. A typical plan takes a few milliseconds.
"""
DELTA_CHARACTERS = 500_000
"""Maximum length of texts for which a delta is computed, because `SEARCH_S` does not limit the time to split them."""

_WORD = re.compile(r"\w+|\W")
_Step = tuple[int, str]
_MARKS = {-1: ("[-", "-]"), 0: ("", ""), 1: ("{+", "+}")}
"""Markers for removed and added text, as in `git diff --word-diff`."""


class PlanDelta(Value):
    """Difference between two consecutive plan texts."""

    base: ArtifactRef | None = None
    """Stored record of the previous plan."""
    base_sha256: str = ""
    result_sha256: str = ""
    delta: str
    """Delta in diff-match-patch notation, separated by tabs.

    `=n` keeps n characters, `-n` removes n characters, and `+text` adds text.
    """


def make_delta(old: str, new: str, base: ArtifactRef | None = None) -> PlanDelta | None:
    """Return the delta between two plan texts, or None if the texts are too long."""
    if len(old) + len(new) > DELTA_CHARACTERS:
        return None
    delta: str = diff_match_patch().diff_toDelta(_steps(old, new))
    return PlanDelta(base=base, base_sha256=_digest(old), result_sha256=_digest(new), delta=delta)


def show_delta(old: str, delta: PlanDelta) -> str:
    """Format the changes in a stored delta in the same way as `show_change`.

    Raises:
        ValueError: the delta belongs to another text or is corrupt.
    """
    if _digest(old) != delta.base_sha256:
        raise ValueError(f"the delta is for the plan {delta.base_sha256[:12]}, not for {_digest(old)[:12]}")
    steps: list[_Step] = diff_match_patch().diff_fromDelta(old, delta.delta)
    # diff_fromDelta accepts any text of the right length, so the result is compared as well.
    if _digest("".join(text for kind, text in steps if kind >= 0)) != delta.result_sha256:
        raise ValueError(f"the delta is damaged: it does not produce the plan {delta.result_sha256[:12]}")
    return _mark_changes(steps)


def show_change(old: str, new: str) -> str:
    """Return the changed lines with `[-removed-]` and `{+added+}` markers, or "" if nothing changed."""
    return _mark_changes(_steps(old, new))


def _steps(old: str, new: str) -> list[_Step]:
    # Map each word to one character, so that whole words are replaced. The characters start after the surrogates,
    # which are invalid on their own.
    code_by_token: dict[str, str] = {}
    coded = [
        "".join(code_by_token.setdefault(token, chr(0xE000 + len(code_by_token))) for token in _WORD.findall(it))
        for it in (old, new)
    ]
    decoded = {code: token for token, code in code_by_token.items()}
    engine = diff_match_patch()
    engine.Diff_Timeout = SEARCH_S
    # Not by lines: the coded texts have no line breaks.
    steps: list[_Step] = engine.diff_main(*coded, checklines=False)
    engine.diff_cleanupSemantic(steps)
    return [(kind, "".join(map(decoded.__getitem__, codes))) for kind, codes in steps]


def _mark_changes(steps: Iterable[_Step]) -> str:
    lines: list[str] = []
    line, changed = "", False
    for kind, text in steps:
        before, after = _MARKS[kind]
        for number, piece in enumerate(text.split("\n")):
            if number:
                lines += [line] if changed else []
                line, changed = "", False
            line += f"{before}{piece}{after}" if piece else ""
            changed = changed or (kind != 0 and bool(piece))
    return "\n".join([*lines, line] if changed else lines)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


_OUTSIDE = Violation("outside_workspace", Topic.DAMAGE, Verdict.ASK, "name only paths inside the workspace")
_CI = Violation(
    "changes_ci", Topic.CHECKS, Verdict.ASK, "leave CI and git hooks alone, or state in the goal that they will change"
)


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads((resources.files("tightloop.episode") / "plan_rules.toml").read_text("utf-8"))


@cache
def _pattern(name: str) -> re.Pattern[str]:
    return re.compile("".join(_data()["patterns"][name]))


@cache
def _words() -> tuple[tuple[re.Pattern[str], Violation], ...]:
    return tuple(
        (
            re.compile("".join(entry["pattern"])),
            Violation(entry["rule"], Topic(entry["topic"]), Verdict.ASK, entry["suggestion"]),
        )
        for entry in _data()["words"]
    )


def review_plan(
    plan: PlanMessage, rubric: Rubric = Rubric(), *, goal: str = "", roots: tuple[str, ...] = ()
) -> tuple[Finding, ...]:
    """Review a plan and return the findings.

    The rubric determines which findings are returned. If `goal` is empty, the plan's own goal is used.
    `roots` are the absolute workspace paths that the plan may refer to.
    """
    findings: list[Finding] = []
    for number, step in enumerate(plan.steps, start=1):
        location = f"step {number}"
        if step.run:
            findings.extend(
                _finding(violation, " ".join(step.run), location) for violation in find_violations_in_words(step.run)
            )
        findings.extend(_review_text(step.title, location))
    findings.extend(_review_text(plan.context, "context"))
    findings.extend(_review_scope(plan, goal or plan.goal, roots))
    if plan.alignment.answer != "yes":
        findings.append(planners_own(plan.alignment.rationale))
    return limit_findings(findings, rubric)


def _finding(violation: Violation, text: str, location: str) -> Finding:
    plain_text = plain(text)
    return make_finding(violation, at=("", plain_text.strip()), where=location, evidence=plain_text)


def _review_text(text: str, location: str) -> Iterator[Finding]:
    text = plain(text)
    for match in (*_pattern("code").finditer(text), *_pattern("starts").finditer(text)):
        # 80 characters hold the longest of those words plus the 40 that may follow it.
        if _pattern("leaves_it").search(
            text[max(match.start() - 80, 0) : match.start() + len(match[0]) - len(match[0].lstrip())]
        ):
            continue
        command = next(group for group in match.groups() if group)
        for violation in find_violations(command):
            yield _finding(violation, command, location)
    for pattern, violation in _words():
        for match in pattern.finditer(text):
            if not _pattern("leaves_it").search(text[max(match.start() - 80, 0) : match.start()]):
                yield _finding(violation, _sentence(text, match.start(), match.end()), location)
                break


def _sentence(text: str, start: int, end: int) -> str:
    """Return the sentence that contains the match."""
    first = max(text.rfind(separator, 0, start) for separator in (". ", "\n", "; ")) + 1
    ends = [at for separator in (". ", "\n", "; ") if (at := text.find(separator, end)) >= 0]
    return text[first : min(ends, default=len(text))].strip()


def _review_scope(plan: PlanMessage, goal: str, roots: tuple[str, ...]) -> Iterator[Finding]:
    for item in plan.scope:
        path = plain(item).split(" - ")[0].strip("`'\" ")
        inside = any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)
        # `.github` and `.gitignore` are ordinary files; only the repository itself is out of bounds.
        if (
            (path.startswith(("/", "~", "../", "$HOME")) and not inside)
            or "/../" in path
            or re.match(r"\.git(?:/|$)", path)
        ):
            yield _finding(_OUTSIDE, path, "scope")
        elif _pattern("ci_path").search(path) and not _pattern("ci_words").search(goal):
            yield _finding(_CI, path, "scope")


# The bounds keep prompts flat over an episode: 1 986 tokens at iteration 10, 2 070 at 100 (docs/reference/figures.md).
HISTORY_LINES = 20
CHANGES_LISTED = 40
TAIL_IN_MESSAGE = 400


def plan_request_of(
    episode: EpisodeRequest,
    state: EpisodeState,
    *,
    plan: PlanMessage | None,
    report: ExecutorReport | None,
    checks: CheckReport | None,
    changes: tuple[str, ...],
    before: PlanRequestMessage | None,
    checks_before: str,
) -> PlanRequestMessage:
    """Build the plan request (PR-A_n+1) after an iteration has completed.

    `before` is the previous plan request, whose history is continued. `checks_before` shows how many
    checks passed before the iteration, such as `1/3`. `changes` has one line per changed file.
    """
    command = plan.steps[0].run if plan and plan.steps else ()
    line = history_line(
        state.iteration,
        state.plan_title or "no plan",
        command=command,
        before=checks_before,
        after=state.checks_text,
        changed=bool(changes),
    )
    failed = checks.failed if checks else ()
    listed = changes[:CHANGES_LISTED]
    if len(changes) > len(listed):
        listed = (*listed, f"... and {len(changes) - len(listed)} more")
    return PlanRequestMessage(
        project=episode.project_name,
        goal=episode.goal,
        iteration=state.iteration + 1,
        outcome=report.status.value if report else "nothing was delivered",
        report=_report_text(state, report),
        changes=listed,
        checks=tuple(_check_line(result) for result in checks.results) if checks else (),
        history=(*(before.history if before else ()), line)[-HISTORY_LINES:],
        reflection=_reflection(report, failed),
        # The format requires an answer, and a request proposes nothing that could be misaligned.
        alignment=Alignment(answer="yes", rationale="the report states what was executed, not what was claimed"),
    )


def _report_text(state: EpisodeState, report: ExecutorReport | None) -> str:
    if report is None:
        return state.plan_title or "The planner returned no plan."
    denied = tuple(f"Not allowed: {line}" for line in report.denied)
    return (
        "\n".join(part for part in (report.summary, report.error, *denied) if part) or "The executor reported nothing."
    )


def _check_line(result: CheckResult) -> str:
    line = f"{result.status.value}: {result.name}"
    if result.failing:
        line += " (" + ", ".join(result.failing[:5]) + ")"
    # The end of the output: tools print the cause last.
    return line if result.passed else f"{line}\n{clip(result.tail, TAIL_IN_MESSAGE)}"


def _reflection(report: ExecutorReport | None, failed: tuple[CheckResult, ...]) -> Reflection:
    diagnosis = "all checks pass"
    items: tuple[str, ...] = ("compare the result with the goal: claim it met, or plan what is missing",)
    if failed:
        diagnosis = f"failing checks ({len(failed)}): {', '.join(result.name for result in failed[:3])}"
        items = tuple(f"make '{result.name}' pass" for result in failed[:5])
    elif report is not None and not report.succeeded:
        diagnosis = f"the executor ended with {report.status.value}: {report.error or report.summary}"
        items = ("find out why the executor did not finish, then plan the rest of the work",)
    return Reflection(diagnosis=diagnosis, action_items=items)
