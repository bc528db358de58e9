"""What an iteration teaches: its failures, what made them go away, and what became of what was recalled."""

from collections.abc import Iterable
from datetime import datetime

from tightloop.episode.check import CheckReport, CheckResult, CheckStatus
from tightloop.episode.failure import signature
from tightloop.episode.failure.saying import failure_type, said_line
from tightloop.executor.messages.message import PlanMessage
from tightloop.memory.model import Match, Outcome, Pattern, Query, Recollection, SeenFailure
from tightloop.value import Value

ASKED_FOR = 3
"""Failing checks for which a briefing is made."""


class Followed(Value):
    """Something that was recalled for a check, and that a plan followed."""

    failure: str
    """Signature of the failure of earlier."""
    pattern: str
    check: str
    """The command that failed."""


def failure_signature(result: CheckResult) -> str:
    """Return the id of a failure: its check, what fails in it, and the line that says why.

    Coarser than that of the loop, which tells whether anything at all changed in an output.
    """
    return signature(result.run, result.status.value, said_line(result.tail), *result.failing)


def seen_failures(
    reports: Iterable[CheckReport | None], *, workflow_id: str, iteration: int, at: datetime
) -> tuple[SeenFailure, ...]:
    """Return what failed in these reports, each failure once."""
    found: dict[str, SeenFailure] = {}
    for result in (result for report in reports if report is not None for result in report.failed):
        mark = failure_signature(result)
        found[mark] = SeenFailure(
            signature=mark,
            type=problem_type(result),
            check=result.run,
            line=said_line(result.tail) or f"{result.name}: {result.status.value}",
            context=result.tail,
            workflow_id=workflow_id,
            iteration=iteration,
            at=at,
        )
    return tuple(found.values())


def problem_type(result: CheckResult) -> str:
    """Return what kind of failure it is: an exception, a rule, or the tool."""
    if result.status is not CheckStatus.FAILED:
        return result.status.value
    rules = [name for name in result.failing if "/" not in name and "::" not in name]
    return failure_type(result.tail) or (rules[0] if rules else "") or result.counts.tool


def turned_green(before: CheckReport, after: CheckReport) -> tuple[CheckResult, ...]:
    """Return the failures of the checks that pass now."""
    passed = {result.run for result in after.results if result.passed}
    return tuple(result for result in before.failed if result.run in passed)


def pattern_of(
    message: PlanMessage, solved: CheckResult, *, code: str, tests: str, workflow_id: str, iteration: int
) -> Pattern:
    """Return a plan that worked as a pattern; `code` and `tests` are its change as a diff."""
    steps = message.steps
    ran = all(step.run for step in steps)
    return Pattern(
        problem_type=problem_type(solved),
        title=steps[0].title if steps else "",
        steps=tuple(step.title for step in steps),
        commands=tuple(step.run for step in steps) if ran else (),
        code_template=code,
        test_template=tests,
        workflow_id=workflow_id,
        iteration=iteration,
    )


def outcomes_of_followed(
    followed: Iterable[Followed], after: CheckReport, *, key: str, at: datetime
) -> tuple[Outcome, ...]:
    """Return what became of what was recalled: it worked where its check passes now."""
    passed = {result.run: result.passed for result in after.results}
    return tuple(
        Outcome(signature=one.failure, pattern=one.pattern, worked=passed[one.check], key=key, at=at)
        for one in followed
        if one.check in passed
    )


def queries(report: CheckReport | None, limit: int) -> tuple[tuple[str, Query], ...]:
    """Return what to ask the memory about a report, each with the command that failed."""
    failed = report.failed[:ASKED_FOR] if report is not None else ()
    return tuple(
        (result.run, Query(text=result.tail, signature=failure_signature(result), limit=limit)) for result in failed
    )


def best_of(found: Iterable[tuple[str, Recollection]], limit: int) -> tuple[Recollection, ...]:
    """Return the best of what was found for several checks, each pattern once, with the check that it is for.

    The best one for each check comes before the second best for any.
    """
    ordered = sorted(found, key=lambda one: (one[1].match is not Match.SIGNATURE, -one[1].score, -one[1].evidence.rate))
    kept: dict[str, Recollection] = {}
    places: dict[str, int] = {}
    ranks: dict[str, int] = {}
    for check, one in ordered:
        if one.pattern is not None and one.pattern.id not in kept:
            kept[one.pattern.id] = one.evolve(check=check)
            ranks[one.pattern.id] = places[check] = places.get(check, -1) + 1
    best = sorted(kept, key=lambda name: (kept[name].match is not Match.SIGNATURE, ranks[name]))
    return tuple(kept[name] for name in best[:limit])
