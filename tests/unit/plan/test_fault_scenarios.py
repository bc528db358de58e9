"""What is drawn for the test of random plans on a server: it covers what it claims, and shrinks to what matters."""

from collections import Counter

from hypothesis import HealthCheck, Phase, find, given, settings

from tests.support.plan.fault_scenarios import LARGEST, FaultScenario, Way, check_round, fault_scenarios
from tests.support.plan.model import at_cancellation, predicted
from tightloop.plan.child import StepStatus
from tightloop.plan.engine.graph import compile_graph
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

    def look(scenario: FaultScenario) -> None:
        seen["largest"] = max(seen["largest"], len(scenario.plan.steps))
        seen.update({disturbance.way.value for disturbance in scenario.disturbances})
        seen.update(set(predicted(scenario.plan, scenario.script).values()))

    for number in range(10):
        check_round(look, str(number))
    assert LARGEST // 2 < seen["largest"] <= LARGEST
    assert all(seen[way.value] for way in Way)
    ends = (StepStatus.COMPLETED, StepStatus.SKIPPED, StepStatus.FAILED, StepStatus.RECOVERED, StepStatus.ABANDONED)
    assert all(seen[status] for status in ends)


@settings(REPEATABLE, max_examples=25)
@given(fault_scenarios(largest=40))
def test_a_drawn_plan_can_be_written_read_and_compiled(scenario: FaultScenario) -> None:
    plan = read_plan(write_plan(scenario.plan, "json")).plan
    assert len(compile_graph(plan).nodes) == len(scenario.plan.steps)
    assert predicted(plan, scenario.script) == predicted(scenario.plan, scenario.script)


def test_a_failing_example_shrinks_to_the_step_and_the_disturbance_that_matter() -> None:
    def fails_with_a_restart(scenario: FaultScenario) -> bool:
        ends = predicted(scenario.plan, scenario.script).values()
        return StepStatus.FAILED in ends and any(each.way is Way.RESTART for each in scenario.disturbances)

    found = find(fault_scenarios(largest=4), fails_with_a_restart, settings=REPEATABLE)

    assert len(found.plan.steps) == 1
    assert [each.way for each in found.disturbances] == [Way.RESTART]
    assert found.max_parallel == 1


def test_a_cancelled_plan_has_decided_nothing_otherwise() -> None:
    assert at_cancellation(StepStatus.COMPLETED) == {StepStatus.COMPLETED, StepStatus.ABANDONED}
    assert at_cancellation(StepStatus.RECOVERED) == {StepStatus.RECOVERED, StepStatus.FAILED, StepStatus.ABANDONED}
    assert at_cancellation(StepStatus.ABANDONED) == {StepStatus.ABANDONED}
