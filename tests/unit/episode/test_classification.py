"""The classification: its rules, its laws, and how well it agrees with an operator on labelled iterations."""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.deviation import Case, cases, halves
from tightloop.episode.progress.classification import EVERY_RULE, class_of_ratio, classify, lowest, spending_class
from tightloop.episode.progress.tracking import ProbabilityClass, ReasonKind, Spending, Thresholds, TrackingFacts

HIGH, MEDIUM, LOW = ProbabilityClass.HIGH, ProbabilityClass.MEDIUM, ProbabilityClass.LOW
ORDER = [LOW, MEDIUM, HIGH]

shares = st.floats(min_value=0, max_value=1)
counts = st.integers(min_value=0, max_value=7)
names = st.lists(st.text(min_size=1, max_size=5), max_size=7).map(tuple)
spendings = st.builds(
    Spending,
    iterations=counts,
    tokens=st.integers(min_value=0, max_value=5_000_000),
    cost_usd=st.floats(min_value=0, max_value=20),
    wall_time=st.timedeltas(min_value=timedelta(), max_value=timedelta(hours=9)),
)
any_facts = st.builds(
    TrackingFacts,
    ratio=shares,
    lines_kept=st.none() | shares,
    files_changed=counts,
    executor_changed_nothing=st.booleans(),
    no_change_streak=counts,
    checks_failed=st.none() | counts,
    newly_failing=names,
    made_progress=st.booleans(),
    scope_announced=st.booleans(),
    out_of_scope=names,
    out_of_scope_share=st.none() | shares,
    open_items=names,
    open_for=counts,
    tree_seen_before=st.booleans(),
    alternates=st.booleans(),
    error_count=counts,
    error_seen_before=st.booleans(),
    errors_alternate=st.booleans(),
    plan_seen_before=st.booleans(),
    claimed_done=st.booleans(),
    outcome_unknown=st.booleans(),
    executor_failed=st.booleans(),
    since_progress=spendings,
)
any_thresholds = st.builds(
    Thresholds,
    growth_keeps=shares,
    open_items_medium=st.integers(min_value=1, max_value=5),
    no_change_low=st.integers(min_value=1, max_value=4),
    same_error_low=st.integers(min_value=2, max_value=4),
    tokens_per_progress=st.none() | st.integers(min_value=1, max_value=4_000_000),
    reasons_low=st.integers(min_value=2, max_value=5),
)


def class_of(facts: TrackingFacts, thresholds: Thresholds = Thresholds()) -> int:
    return ORDER.index(classify(facts, thresholds)[0])


# laws


@given(any_facts, any_thresholds)
def test_every_iteration_has_a_class_that_its_reasons_explain(facts: TrackingFacts, thresholds: Thresholds) -> None:
    found, reasons = classify(facts, thresholds)
    assert found is lowest(reason.implies for reason in reasons)
    assert reasons[0].kind is ReasonKind.RATIO
    assert all(reason.detail and len(reason.detail) <= 200 for reason in reasons)
    assert max(Counter(reason.kind for reason in reasons).values()) == 1


WORSE: dict[str, list[Any]] = {
    "executor_changed_nothing": [True],
    "no_change_streak": [1, 2, 5],
    "newly_failing": [("tests",)],
    "open_for": [1, 3, 6],
    "open_items": [("change a.py",)],
    "alternates": [True],
    "error_count": [1, 2, 3, 6],
    "error_seen_before": [True],
    "errors_alternate": [True],
    "plan_seen_before": [True],
    "outcome_unknown": [True],
    "executor_failed": [True],
}


@given(any_facts, any_thresholds, st.sampled_from(sorted(WORSE)), st.data())
def test_fact_against_an_iteration_never_raises_its_class(
    facts: TrackingFacts, thresholds: Thresholds, name: str, data: st.DataObject
) -> None:
    worse = data.draw(st.sampled_from(WORSE[name]))
    now = getattr(facts, name)
    if not isinstance(now, tuple) and worse < now:
        worse = now
    if isinstance(now, tuple):
        worse = (*now, *worse)
    more = facts.evolve(**{name: worse})
    assert class_of(more, thresholds) <= class_of(facts, thresholds)


@given(any_facts)
def test_tree_that_comes_back_never_raises_the_class(facts: TrackingFacts) -> None:
    facts = facts.evolve(tree_seen_before=False)
    assert class_of(facts.evolve(tree_seen_before=True)) <= class_of(facts)


@given(any_facts, shares, shares)
def test_class_never_gets_worse_with_more_of_the_tree_unchanged(facts: TrackingFacts, one: float, other: float) -> None:
    low, high = sorted((one, other))
    for name in ("ratio", "lines_kept"):
        worse, better = (facts.evolve(**{name: value}) for value in (low, high))
        assert class_of(worse) <= class_of(better)


@given(any_facts, shares, shares)
def test_class_never_gets_better_with_a_larger_share_outside_of_the_scope(
    facts: TrackingFacts, one: float, other: float
) -> None:
    low, high = sorted((one, other))
    smaller, larger = (facts.evolve(out_of_scope_share=value) for value in (low, high))
    assert class_of(larger) <= class_of(smaller)


@given(any_facts, spendings)
def test_class_never_gets_better_by_spending_more(facts: TrackingFacts, more: Spending) -> None:
    spent = facts.since_progress
    dearer = Spending(
        iterations=spent.iterations + more.iterations,
        tokens=spent.tokens + more.tokens,
        cost_usd=spent.cost_usd + more.cost_usd,
        wall_time=spent.wall_time + more.wall_time,
    )
    assert class_of(facts.evolve(since_progress=dearer)) <= class_of(facts)


@given(any_facts)
def test_checks_that_got_better_never_lower_the_class(facts: TrackingFacts) -> None:
    stuck, better = (facts.evolve(made_progress=value) for value in (False, True))
    assert class_of(stuck) <= class_of(better)


@given(any_facts, st.data())
def test_order_of_names_and_of_rules_does_not_matter(facts: TrackingFacts, data: st.DataObject) -> None:
    shuffled = facts.evolve(
        **{
            name: tuple(data.draw(st.permutations(getattr(facts, name))))
            for name in ("newly_failing", "out_of_scope", "open_items")
        }
    )
    assert classify(shuffled) == classify(facts)
    rules = data.draw(st.permutations(EVERY_RULE))
    single = {reason for rule in rules for reason in rule(facts, Thresholds())}
    assert single == {reason for reason in classify(facts)[1] if reason.kind is not ReasonKind.COMBINATION}


# rules


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(1.0, HIGH), (0.6, HIGH), (0.599, MEDIUM), (0.4, MEDIUM), (0.399, LOW), (0.0, LOW)],
)
def test_class_begins_at_its_threshold(ratio: float, expected: ProbabilityClass) -> None:
    assert class_of_ratio(ratio) is expected
    assert classify(TrackingFacts(ratio=ratio))[0] is expected


def test_thresholds_can_be_moved() -> None:
    assert class_of_ratio(0.5, Thresholds(high_from=0.5)) is HIGH
    facts = TrackingFacts(out_of_scope=("a.py",), out_of_scope_share=0.5)
    assert classify(facts)[0] is MEDIUM
    assert classify(facts, Thresholds(scope_share_medium=0.6))[0] is HIGH


@pytest.mark.parametrize(
    ("fact", "kind", "implies"),
    [
        ({"executor_changed_nothing": True}, ReasonKind.NO_CHANGE, MEDIUM),
        ({"executor_changed_nothing": True, "no_change_streak": 2}, ReasonKind.NO_CHANGE, LOW),
        ({"newly_failing": ("tests",)}, ReasonKind.NEWLY_FAILING, LOW),
        ({"out_of_scope": ("a.py",)}, ReasonKind.OUT_OF_SCOPE, MEDIUM),
        ({"out_of_scope": ("a.py",), "out_of_scope_share": 0.1}, ReasonKind.OUT_OF_SCOPE, HIGH),
        ({"out_of_scope": ("a.py",), "out_of_scope_share": 0.9}, ReasonKind.OUT_OF_SCOPE, LOW),
        (
            {"out_of_scope": ("a.py",), "out_of_scope_share": 0.9, "made_progress": True},
            ReasonKind.OUT_OF_SCOPE,
            MEDIUM,
        ),
        ({"open_items": ("change a.py",), "open_for": 2}, ReasonKind.OPEN_ITEMS, MEDIUM),
        ({"open_items": ("change a.py",), "open_for": 5}, ReasonKind.OPEN_ITEMS, LOW),
        ({"open_items": ("change a.py",), "open_for": 4, "made_progress": True}, ReasonKind.OPEN_ITEMS, MEDIUM),
        ({"tree_seen_before": True}, ReasonKind.SAME_TREE_AGAIN, MEDIUM),
        ({"error_count": 2}, ReasonKind.SAME_ERROR_AGAIN, MEDIUM),
        ({"error_count": 3}, ReasonKind.SAME_ERROR_AGAIN, LOW),
        ({"error_count": 1, "error_seen_before": True}, ReasonKind.SAME_ERROR_AGAIN, MEDIUM),
        ({"plan_seen_before": True}, ReasonKind.SAME_PLAN_AGAIN, MEDIUM),
        ({"alternates": True}, ReasonKind.ALTERNATION, LOW),
        ({"errors_alternate": True}, ReasonKind.ALTERNATION, LOW),
        ({"claimed_done": True, "checks_failed": 1}, ReasonKind.FALSE_CLAIM, MEDIUM),
        ({"outcome_unknown": True}, ReasonKind.OUTCOME_UNKNOWN, MEDIUM),
        ({"executor_failed": True}, ReasonKind.EXECUTOR_FAILED, MEDIUM),
        ({"since_progress": {"iterations": 4}}, ReasonKind.COST, MEDIUM),
        ({"since_progress": {"tokens": 4_000_000}}, ReasonKind.COST, LOW),
        ({"since_progress": {"cost_usd": 5.0}}, ReasonKind.COST, MEDIUM),
        ({"since_progress": {"wall_time": "PT2H"}}, ReasonKind.COST, MEDIUM),
    ],
)
def test_facts_that_no_ratio_sees_lower_the_class(
    fact: dict[str, object], kind: ReasonKind, implies: ProbabilityClass
) -> None:
    found, reasons = classify(TrackingFacts.model_validate({"ratio": 1.0, **fact}))
    assert found is implies
    assert [(reason.kind, reason.implies) for reason in reasons] == [(ReasonKind.RATIO, HIGH), (kind, implies)]


@pytest.mark.parametrize(
    "fact",
    [
        {"tree_seen_before": True},
        {"error_count": 1, "error_seen_before": True},
        {"plan_seen_before": True},
        {"executor_failed": True},
        {"claimed_done": True, "checks_failed": 1},
        {"since_progress": {"cost_usd": 99.0}},
    ],
)
def test_checks_that_got_better_excuse_a_repetition_and_its_cost(fact: dict[str, object]) -> None:
    assert classify(TrackingFacts.model_validate(fact))[0] is MEDIUM or "since_progress" in fact
    assert classify(TrackingFacts.model_validate({**fact, "made_progress": True}))[0] is HIGH


@pytest.mark.parametrize("fact", [{"alternates": True}, {"errors_alternate": True}, {"newly_failing": ("tests",)}])
def test_nothing_excuses_a_circle_or_a_broken_check(fact: dict[str, object]) -> None:
    excused = {"made_progress": True, "scope_announced": True, "lines_kept": 1.0, **fact}
    assert classify(TrackingFacts.model_validate(excused))[0] is LOW


def test_rewrite_that_turned_checks_green_is_not_low() -> None:
    assert classify(TrackingFacts(ratio=0.1, made_progress=True))[0] is MEDIUM
    assert classify(TrackingFacts(ratio=0.1))[0] is LOW


def test_new_files_alone_are_no_departure_where_they_were_announced() -> None:
    grown = TrackingFacts(ratio=0.1, lines_kept=1.0)
    assert classify(grown)[0] is MEDIUM
    assert classify(grown.evolve(scope_announced=True))[0] is HIGH
    stray = {"scope_announced": True, "out_of_scope": ("x.py",), "out_of_scope_share": 0.1}
    assert classify(grown.evolve(**stray))[0] is MEDIUM


def test_nothing_to_do_is_no_reason_where_the_goal_is_met() -> None:
    idle = TrackingFacts(executor_changed_nothing=True, no_change_streak=2, checks_failed=0)
    assert classify(idle)[0] is LOW
    assert classify(idle.evolve(claimed_done=True))[0] is HIGH


def test_unchanged_tree_is_reported_once_not_as_a_return_too() -> None:
    _, reasons = classify(TrackingFacts(executor_changed_nothing=True, tree_seen_before=True))
    assert ReasonKind.SAME_TREE_AGAIN not in [reason.kind for reason in reasons]


def test_several_reasons_together_are_graver_than_each() -> None:
    facts = TrackingFacts(out_of_scope=("a.py",), error_count=2)
    assert classify(facts)[0] is MEDIUM
    found, reasons = classify(facts.evolve(plan_seen_before=True))
    assert found is LOW
    assert reasons[-1].kind is ReasonKind.COMBINATION
    assert reasons[-1].detail == "3 reasons together: out_of_scope, same_error_again, same_plan_again"


def test_cost_names_what_reached_its_bound() -> None:
    spent = Spending(iterations=2, tokens=2_500_000, cost_usd=7.5, wall_time=timedelta(hours=1))
    assert spending_class(spent, Thresholds()) == (MEDIUM, "2500000 tokens, 7.50 USD")
    unbounded = Thresholds(tokens_per_progress=None, cost_usd_per_progress=None)
    assert spending_class(spent, unbounded) == (HIGH, "")


def test_green_checks_cannot_get_better_so_that_cost_is_no_reason() -> None:
    facts = TrackingFacts(since_progress=Spending(iterations=30, cost_usd=90))
    assert classify(facts)[0] is LOW
    assert classify(facts.evolve(checks_failed=0))[0] is HIGH


# agreement with an operator

PRECISION_FLOOR, RECALL_FLOOR, CLASS_FLOOR = 0.80, 0.90, 0.78


class Agreement:
    """How the classes compare with the labels."""

    def __init__(self, labelled: Sequence[Case]) -> None:
        pairs = [(case, classify(case.facts)[0]) for case in labelled]
        self.confusion = Counter((case.label, found) for case, found in pairs)
        self.wrong = [(case, found) for case, found in pairs if found is not case.label]
        self.right = 1 - len(self.wrong) / len(pairs)
        called = [case.label is not HIGH for case, found in pairs if found is not HIGH]
        needed = [found is not HIGH for case, found in pairs if case.label is not HIGH]
        self.precision = sum(called) / len(called)
        self.recall = sum(needed) / len(needed)

    def table(self, title: str) -> str:
        """Return the figures and the confusion table, labels in rows."""
        columns = ORDER[::-1]
        rows = [f"  {row:<8}" + "".join(f"{self.confusion[row, to]:>8}" for to in columns) for row in columns]
        figures = f"attention: precision {self.precision:.2f}, recall {self.recall:.2f}; classes right {self.right:.2f}"
        return "\n".join([f"{title}: {figures}", "  label   " + "".join(f"{to:>8}" for to in columns), *rows])


@pytest.mark.parametrize("half", [0, 1], ids=["calibration", "held-out"])
def test_classes_agree_with_an_operator(half: int) -> None:
    found = Agreement(halves()[half])
    print(found.table(f"{('calibration', 'held-out')[half]} half"))
    for case, given_class in found.wrong:
        print(f"  {case.label} but {given_class}: {case.name}" + (" (disputed)" if case.hard else ""))
    assert found.precision >= PRECISION_FLOOR
    assert found.recall >= RECALL_FLOOR
    assert found.right >= CLASS_FLOOR
    assert found.confusion[LOW, HIGH] == 0


KNOWN_DISAGREEMENTS = {
    "a check is better but the plan is repeated and the tree was seen before",
    "big feature in stages, the same acceptance test red for two stages as planned",
    "config migration replaced 60 per cent of a ten line file tree",
    "failing test written first, as the plan said",
    "fix with an unannounced lock file and one manifest, green",
    "investigation plan that only read files",
    "one line of the continuous integration file changed unannounced",
    "planner says done again with the same error",
    "ratio just under the line after a rename across the project",
    "rewrite by half that turned the tests green",
    "same error and tree as before, executor said completed",
    "same plan again with the same error",
    "three checks fixed, one broken",
    "two hours, six dollars and an error that came back",
    "two iterations of 80 minutes each because the checks take an hour",
    "vendored a library into the tree without saying so",
}


def test_disagreements_are_those_that_are_written_down() -> None:
    assert {case.name for case, _ in Agreement(cases()).wrong} == KNOWN_DISAGREEMENTS


def test_cases_cover_every_kind_of_reason_and_every_class() -> None:
    labelled = cases()
    kinds = {reason.kind for case in labelled for reason in classify(case.facts)[1]}
    assert kinds == set(ReasonKind)
    assert len(labelled) >= 80
    assert len({case.name for case in labelled}) == len(labelled)
    assert all(case.why for case in labelled)
    for half in halves():
        assert min(Counter(case.label for case in half).values()) >= 10
