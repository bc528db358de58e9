"""The table of outcomes: no plain success without work, all of its parts, and a check that failed first."""

from itertools import product

import pytest

from tightloop.plan.child import StepStatus
from tightloop.plan.document import Plan
from tightloop.plan.engine.graph import compile_graph
from tightloop.plan.engine.schedule import Schedule
from tightloop.plan.step import Step, StepKind
from tightloop.run.outcome import (
    FAILED,
    NEEDS_PERSON,
    PLAIN,
    QUALIFIED,
    Facts,
    exit_code,
    headline,
    is_plain_success,
    label,
    level,
    qualify,
)

FACTS = [
    Facts(
        has_checks=has_checks,
        seen_to_fail=seen,
        worked=worked,
        files_changed=files,
        accepted_by=accepted,
        finding="a test changed" if accepted else "",
        steps=3,
        skipped=skipped,
        failed=failed,
        partly=partly,
        unproven=unproven,
    )
    for has_checks, seen, worked, files, accepted, skipped, failed, partly, unproven in product(
        (True, False),
        (True, False),
        (True, False),
        (None, 0, 2),
        ("", "ada"),
        ((), ("b",)),
        ((), ("a",)),
        ((), ("c",)),
        ((), ("t",)),
    )
]


@pytest.mark.parametrize("status", ["succeeded", "completed", "verified"])
def test_a_plain_success_needs_work_all_parts_and_a_check_that_failed(status: str) -> None:
    for facts in FACTS:
        is_plain = is_plain_success(status, qualify(facts))
        proves = facts.has_checks and facts.seen_to_fail and facts.worked and facts.files_changed != 0
        left = facts.skipped or facts.failed or facts.partly
        assert is_plain == (proves and not (facts.accepted_by or left or facts.unproven))
        assert exit_code(status, qualify(facts), is_closed=True) == (PLAIN if is_plain else QUALIFIED)


@pytest.mark.parametrize("status", ["failed", "compensated", "cancelled", "terminated", "timed_out"])
def test_other_ends_are_failures_and_open_runs_need_a_person(status: str) -> None:
    assert exit_code(status, "", is_closed=True) == FAILED
    assert exit_code("paused", "", is_closed=False) == NEEDS_PERSON
    assert not is_plain_success(status, "")


@pytest.mark.parametrize(
    ("facts", "qualifier", "short"),
    [
        (Facts(), "", ""),
        (Facts(seen_to_fail=False), "not proven: no check ever failed", "not proven"),
        (
            Facts(seen_to_fail=False, flaky=["pytest"]),
            "not proven: no check ever failed (flaky: pytest)",
            "not proven",
        ),
        (
            Facts(worked=False, files_changed=0, seen_to_fail=False),
            "not proven: 0 files changed, no check ever failed",
            "not proven",
        ),
        (Facts(worked=False, files_changed=2), "not proven: no executor changed a file", "not proven"),
        (Facts(has_checks=False), "not proven: no definition of done", "not proven"),
        (
            Facts(steps=3, skipped=["build", "publish"]),
            "2 of 3 steps skipped: build, publish",
            "2 of 3 steps skipped",
        ),
        (Facts(steps=2, partly=["sub"]), "1 of 2 steps partly done: sub", "1 of 2 steps partly done"),
        (Facts(steps=1, failed=["lint"]), "1 of 1 step failed: lint", "1 of 1 step failed"),
        (
            Facts(steps=9, skipped=list("abcdefg"), has_checks=False),
            "7 of 9 steps skipped: a, b, c, d, e and 2 more; not proven: no definition of done",
            "7 of 9 steps skipped, not proven",
        ),
        (
            Facts(accepted_by="ada", finding="a test changed; not proven: x"),
            "not proven: ada accepted the result despite this finding: a test changed; not proven: x",
            "not proven",
        ),
        (Facts(dry_run=True, has_checks=False), "dry run: nothing was changed", "dry run"),
        (Facts(is_part=True, has_checks=False), "", ""),
    ],
)
def test_qualifier_says_what_is_missing_and_its_short_form_holds_no_names(
    facts: Facts, qualifier: str, short: str
) -> None:
    assert qualify(facts) == qualifier
    assert level(qualifier) == short
    assert label("completed", qualifier) == (f"completed, {short}" if short else "completed")


def test_the_line_of_a_run_begins_with_the_state_and_the_qualifier() -> None:
    assert headline("succeeded", "", "all checks pass") == "SUCCEEDED: all checks pass"
    assert headline("succeeded", "not proven: x", "all checks pass") == "SUCCEEDED, not proven: x (all checks pass)"
    assert headline("FAILED", "", "") == "FAILED: no reason was given"


def test_a_dry_run_is_what_was_asked_for() -> None:
    assert exit_code("completed", qualify(Facts(dry_run=True)), is_closed=True) == PLAIN


def _schedule(*steps: Step) -> Schedule:
    return Schedule(compile_graph(Plan(id="p", steps=steps)))


def _run(schedule: Schedule, **ends: StepStatus) -> tuple[list[str], list[str]]:
    while not schedule.is_settled:
        for number in schedule.take(9):
            status = ends.get(schedule.name(number).replace("-", "_"), StepStatus.COMPLETED)
            if status is StepStatus.FAILED:
                schedule.fail(number, tolerated=True)
            else:
                schedule.finish(number, status, counts={"l": 0})
    schedule.close()
    return schedule.list_skipped()


def test_steps_that_need_a_skipped_one_are_skipped_too() -> None:
    chain = (Step(id="a"), Step(id="b", needs=("a",)), Step(id="c", needs=("b",)), Step(id="d"))
    steps, skipped = _run(_schedule(*chain), a=StepStatus.SKIPPED)
    assert (steps, skipped) == (["a", "b", "c", "d"], ["a", "b", "c"])


def test_an_empty_list_skips_its_template_and_what_needs_it() -> None:
    steps, skipped = _run(
        _schedule(Step(id="a"), Step(id="x-*", needs=("a",), for_each=()), Step(id="b", needs=("x-*",)))
    )
    assert (steps, skipped) == (["a", "x-*", "b"], ["x-*", "b"])


def test_alternates_and_compensation_steps_that_were_not_needed_do_not_count() -> None:
    from tightloop.plan.failing import OnFailure

    steps, skipped = _run(
        _schedule(
            Step(id="a", on_failure=OnFailure(to="other")),
            Step(id="other"),
            Step(id="after-other", needs=("other",)),
            Step(id="undo", kind=StepKind.COMPENSATION),
        )
    )
    assert (steps, skipped) == (["a"], [])


def test_a_tolerated_failure_lets_the_rest_run_and_is_named() -> None:
    schedule = _schedule(Step(id="lint"), Step(id="build", needs=("lint",)))
    assert _run(schedule, lint=StepStatus.FAILED) == (["lint", "build"], [])
    assert schedule.list_tolerated() == ["lint"]
    assert schedule.list_unrecovered_steps() == []
    assert schedule.counts() == {"completed": 1, "failed": 1}
