"""What is drawn for the test of random plans on a server: it covers what it claims, and shrinks to what matters."""

from collections import Counter

from hypothesis import HealthCheck, Phase, find, given, settings

from tests.plan_model import at_cancellation, predicted
from tests.plan_ordeals import LARGEST, Ordeal, Way, check_round, ordeals
from tightloop.plan.engine.graph import compile_graph
from tightloop.plan.result import StepStatus
from tightloop.plan.text.reading import read_plan
from tightloop.plan.text.writing import write_plan

REPEATABLE = settings(
    max_examples=100,
    deadline=None,
    database=None,
    derandomize=True,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=(HealthCheck.too_slow,),
)


def test_what_the_server_test_draws_has_large_plans_and_every_disturbance() -> None:
    seen: Counter[str] = Counter()

    def look(ordeal: Ordeal) -> None:
        seen["largest"] = max(seen["largest"], len(ordeal.plan.steps))
        seen.update({disturbance.way.value for disturbance in ordeal.disturbances})
        seen.update(set(predicted(ordeal.plan, ordeal.script).values()))

    for number in range(10):
        check_round(look, str(number))
    assert LARGEST // 2 < seen["largest"] <= LARGEST
    assert all(seen[way.value] for way in Way)
    ends = (StepStatus.COMPLETED, StepStatus.SKIPPED, StepStatus.FAILED, StepStatus.RECOVERED, StepStatus.ABANDONED)
    assert all(seen[status] for status in ends)


@settings(REPEATABLE, max_examples=25)
@given(ordeals(largest=40))
def test_a_drawn_plan_can_be_written_read_and_compiled(ordeal: Ordeal) -> None:
    plan = read_plan(write_plan(ordeal.plan, "json")).plan
    assert len(compile_graph(plan).nodes) == len(ordeal.plan.steps)
    assert predicted(plan, ordeal.script) == predicted(ordeal.plan, ordeal.script)


def test_a_failing_example_shrinks_to_the_step_and_the_disturbance_that_matter() -> None:
    def fails_with_a_restart(ordeal: Ordeal) -> bool:
        ends = predicted(ordeal.plan, ordeal.script).values()
        return StepStatus.FAILED in ends and any(each.way is Way.RESTART for each in ordeal.disturbances)

    found = find(ordeals(largest=4), fails_with_a_restart, settings=REPEATABLE)

    assert len(found.plan.steps) == 1
    assert [each.way for each in found.disturbances] == [Way.RESTART]
    assert found.max_parallel == 1


def test_a_cancelled_plan_has_decided_nothing_otherwise() -> None:
    assert at_cancellation(StepStatus.COMPLETED) == {StepStatus.COMPLETED, StepStatus.ABANDONED}
    assert at_cancellation(StepStatus.RECOVERED) == {StepStatus.RECOVERED, StepStatus.FAILED, StepStatus.ABANDONED}
    assert at_cancellation(StepStatus.ABANDONED) == {StepStatus.ABANDONED}
