"""What an iteration teaches, and what the planner without a model does with it."""

from datetime import UTC, datetime

import pytest

from activities.planner.planners import HeuristicPlanner
from tightloop.episode.check import Check, CheckReport, judge
from tightloop.episode.failure import failure_type, normalize_explaining_line
from tightloop.episode.fixes import RuffRules
from tightloop.episode.planning import (
    Briefing,
    FollowedPattern,
    PlannerAnswer,
    PlanVerdict,
    best_of,
    failure_signature,
    list_outcomes,
    queries,
    seen_failures,
    turned_green,
)
from tightloop.episode.progress.course import history_line
from tightloop.executor.message import PlanRequestMessage
from tightloop.memory import Evidence, Match, Pattern, Recollection

NOW = datetime(2026, 3, 1, tzinfo=UTC)
PYTEST = """\
E       AssertionError: assert 3 == 2
tests/test_a.py:4: AssertionError
FAILED tests/test_a.py::test_two - AssertionError
=== 1 failed, 3 passed in 0.12s ==="""
UNUSED = "a.py:1:8: F401 [*] `os` imported but unused\nFound 1 error.\n[*] 1 fixable with the `--fix` option."
FIX = ("ruff", "check", "--select", "F401", "--fix", "--exit-zero", ".")
OTHER = ("ruff", "format", ".")


def report(*outputs: tuple[str, str]) -> CheckReport:
    """Return the results of checks; one without an output passes."""
    results = [
        judge(Check(run=run), tree="t", exit_code=1 if output else 0, timed_out=False, duration_s=0.1, output=output)
        for run, output in outputs
    ]
    return CheckReport(tree="t", results=tuple(results))


def recollection(*commands: tuple[str, ...], match: Match = Match.SIGNATURE, **changes: object) -> Recollection:
    fields = {"failure": "f", "line": "it failed", "score": 1.0, "check": "ruff check .", **changes}
    pattern = Pattern(title="Do it again", steps=("Do it again",) * len(commands), commands=commands)
    return Recollection.model_validate(
        {**fields, "match": match, "pattern": pattern, "evidence": Evidence(worked=2, tried=2)}
    )


async def plan(checks: CheckReport, *remembered: Recollection, **changes: object) -> PlannerAnswer:
    class Ruff:
        def rules(self, start: tuple[str, ...], root: object) -> RuffRules:
            return RuffRules()

    fields = {"checks": checks, "remembered": remembered, "programs": ("ruff", "pytest"), **changes}
    return await HeuristicPlanner(Ruff()).plan(Briefing.model_validate(fields))


@pytest.mark.parametrize(
    ("output", "line", "kind"),
    [
        (PYTEST, "AssertionError: assert <n> == <n>", "AssertionError"),
        (UNUSED, "a.py<at>: F401 [*] `os` imported but unused", "F401"),
        ("Traceback ...\nKeyError: 'name'", "KeyError: 'name'", "KeyError"),
        ("", "", ""),
    ],
)
def test_line_that_says_most_is_kept_without_what_changes(output: str, line: str, kind: str) -> None:
    assert (normalize_explaining_line(output), failure_type(output)) == (line, kind)


def test_same_failure_has_the_same_signature_wherever_and_whenever_it_is_seen() -> None:
    [one] = report(("pytest -q", PYTEST)).results
    [later] = report(("pytest -q", PYTEST.replace("0.12s", "3.40s").replace(":4:", ":9:"))).results
    [other] = report(("pytest -q", PYTEST.replace("test_two", "test_three"))).results
    assert failure_signature(one) == failure_signature(later)
    assert failure_signature(one) != failure_signature(other)


def test_each_failure_is_seen_once() -> None:
    before, after = report(("pytest -q", PYTEST), ("ruff check .", UNUSED)), report(("pytest -q", PYTEST))
    seen = seen_failures((before, after, None), workflow_id="e", iteration=2, at=NOW)
    assert [(one.check, one.type) for one in seen] == [("pytest -q", "AssertionError"), ("ruff check .", "F401")]


def test_only_checks_that_pass_now_were_solved() -> None:
    before = report(("pytest -q", PYTEST), ("ruff check .", UNUSED))
    after = report(("pytest -q", PYTEST), ("ruff check .", ""))
    assert [result.run for result in turned_green(before, after)] == ["ruff check ."]
    followed = [
        FollowedPattern(failure=name, pattern="p", check=run)
        for name, run in (("a", "pytest -q"), ("b", "ruff check ."))
    ]
    found = list_outcomes([*followed, FollowedPattern(failure="c", pattern="p", check="gone")], after, key="k", at=NOW)
    assert {one.signature: one.worked for one in found} == {"a": False, "b": True}


def test_memory_is_asked_about_the_first_failures_only() -> None:
    many = report(*((f"check {n}", "KeyError: 'a'") for n in range(9)))
    assert [check for check, _ in queries(many, 3)] == ["check 0", "check 1", "check 2"]
    assert queries(None, 3) == ()


def test_same_failure_comes_first_and_each_pattern_once() -> None:
    similar, same = recollection(FIX, match=Match.SIMILAR, score=0.9), recollection(OTHER)
    found = best_of([("a", similar), ("b", same), ("c", similar)], 3)
    assert [(one.check, one.pattern.commands if one.pattern else ()) for one in found] == [
        ("b", (OTHER,)),
        ("a", (FIX,)),
    ]
    assert len(best_of([("a", similar), ("b", same)], 1)) == 1


async def test_what_fixed_the_same_failure_is_tried_before_any_rule() -> None:
    answer = await plan(report(("ruff check .", UNUSED)), recollection(OTHER, FIX))
    assert answer.message is not None
    assert [step.run for step in answer.message.steps] == [OTHER, FIX]
    assert answer.followed == (Pattern(commands=(OTHER, FIX)).id,)
    assert "worked 2 out of 2 times" in answer.message.reflection.diagnosis


async def test_what_fixed_each_of_several_failures_is_done_at_once() -> None:
    one = recollection(FIX, check="ruff check .")
    both, late = recollection(FIX, OTHER, check="ruff format --check ."), recollection(OTHER, check="ruff check .")
    checks = report(("ruff check .", UNUSED), ("ruff format --check .", "1 file would be reformatted"))
    answer = await plan(checks, one, both, late)
    assert answer.message is not None
    assert [step.run for step in answer.message.steps] == [FIX, OTHER]
    assert len(answer.followed) == 2


async def test_what_fixed_a_similar_failure_is_tried_before_giving_up_only() -> None:
    similar = recollection(OTHER, match=Match.SIMILAR, score=0.9)
    known = await plan(report(("ruff check .", UNUSED)), similar)
    assert known.message is not None
    assert [step.run for step in known.message.steps] == [FIX]
    unknown = await plan(report(("make check", "Error: it is broken")), similar)
    assert unknown.message is not None
    assert [step.run for step in unknown.message.steps] == [OTHER]


async def test_program_that_may_not_be_run_is_not_tried_again() -> None:
    answer = await plan(report(("make check", "Error: it is broken")), recollection(("rm", "-rf", "build")))
    assert answer.verdict is PlanVerdict.GAVE_UP


async def test_what_did_not_help_in_this_episode_is_not_tried_again() -> None:
    line = history_line(1, "Do it again", command=OTHER, before="0/1", after="0/1", changed=True)
    answer = await plan(
        report(("ruff check .", UNUSED)), recollection(OTHER), plan_request=PlanRequestMessage(history=(line,))
    )
    assert answer.message is not None
    assert [step.run for step in answer.message.steps] == [FIX]


async def test_agent_gets_the_goal_once_although_every_check_passes() -> None:
    green = report(("pytest -q", ""))
    first = await plan(green, takes_whole_plans=True, notes=("ada: use tabs",))
    second = await plan(green, takes_whole_plans=True, iteration=2)
    asked = await plan(green, takes_whole_plans=True, iteration=2, asked_for=("ada: use tabs",))
    rules = await plan(green)
    assert first.verdict is PlanVerdict.PLANNED
    assert first.message is not None
    assert (first.message.steps[0].title, "use tabs" in first.message.context) == ("Reach the goal", True)
    assert (second.verdict, rules.verdict) == (PlanVerdict.CLAIMS_DONE, PlanVerdict.CLAIMS_DONE)
    assert asked.message is not None
    assert asked.message.steps[0].title == "Do what the message asks for"


async def test_agent_is_told_what_helped_before() -> None:
    answer = await plan(report(("make check", "Error: it is broken")), recollection(), takes_whole_plans=True)
    assert answer.message is not None
    assert (
        "What helped before in this project: it failed (the same failure; worked 2 out of 2 times)"
        in answer.message.context
    )
