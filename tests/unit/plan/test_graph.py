"""Plans compiled for their scheduler."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.plan.model import random_plan
from tightloop.errors import InvalidRequestError
from tightloop.plan.action import Approval, DecisionAction, GateAction, Option, Rule, ShellAction
from tightloop.plan.document import Plan
from tightloop.plan.engine.graph import Graph, compile_graph
from tightloop.plan.failing import Compensation, OnFailure
from tightloop.plan.step import Access, Capability, Step


def _compiled(*steps: Step, **inputs: object) -> Graph:
    return compile_graph(Plan(id="p", steps=steps, inputs={"hosts": ["a", "b"]}), inputs)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 60))
def test_a_graph_survives_its_way_through_the_history(seed: int, size: int) -> None:
    graph = compile_graph(random_plan(random.Random(seed), size))
    again = Graph.unpack(graph.pack())
    assert again.nodes == graph.nodes
    assert again.head == graph.head
    assert again.edges == graph.edges


def test_ten_thousand_steps_fit_into_an_activity_result() -> None:
    title = "Look at the files of package number {} and write down what they do"
    steps = [
        Step(
            id=f"step-{n:05}",
            title=title.format(n),
            needs=tuple(f"step-{n - k * 37:05}" for k in range(1, 5) if n >= k * 37),
            shell=ShellAction(run="x" * 500),
            timeout_s=n % 900 + 1,
        )
        for n in range(10_000)
    ]
    assert len(compile_graph(Plan(id="p", steps=tuple(steps))).pack()) < 1_000_000


def test_a_step_that_is_not_there_is_named() -> None:
    with pytest.raises(InvalidRequestError, match=r"'a' refers to 'b'"):
        _compiled(Step(id="a", needs=("b",)))


def test_steps_that_wait_for_each_other_are_named() -> None:
    with pytest.raises(InvalidRequestError, match=r"wait for each other in a cycle: a, b"):
        _compiled(Step(id="a", needs=("b",)), Step(id="b", needs=("a",)), Step(id="c"))


def test_decisions_and_gates_choose_among_all_steps_that_they_name() -> None:
    decision = DecisionAction(
        rules=(Rule(when="1 == 1", to=("a", "b")), Rule(when="1 == 2", to=("b",))),
        otherwise=("c",),
        hypotheses={"H1": ("d",)},
        options=(Option(name="e", to=("e",)),),
    )
    gate = GateAction(approval=Approval(options=(Option(name="yes", to=("a",)),)))
    graph = _compiled(
        Step(id="which", decision=decision), Step(id="gate", gate=gate), *(Step(id=name) for name in "abcde")
    )
    assert [graph.nodes[number].id for number in graph.nodes[0].choices] == ["a", "b", "c", "d", "e"]
    assert [graph.nodes[number].id for number in graph.nodes[1].choices] == ["a"]


def test_an_alternate_does_not_make_a_path_longer() -> None:
    graph = _compiled(
        Step(id="short", on_failure=OnFailure(to="rescue")),
        Step(id="long", estimate_s=5),
        Step(id="rescue", estimate_s=100),
    )
    order = sorted(graph.nodes, key=lambda node: node.position)
    assert [node.id for node in order] == ["rescue", "long", "short"]


@pytest.mark.parametrize(
    ("each", "items"),
    [((1, 2, 3), 3), ("${plan.hosts}", 2), ("${inputs.here}", 4), ("${inputs.there}", 2), ("${plan.missing}", None)],
)
def test_the_number_of_items_is_known_where_the_plan_holds_them(each: object, items: int | None) -> None:
    step = Step(id="t-*", for_each=each, inputs={"here": [1, 2, 3, 4], "there": "${plan.hosts}"})
    node = _compiled(step).nodes[0]
    assert (node.items, node.source) == (items, None)


def test_values_of_the_request_count_instead_of_those_of_the_plan() -> None:
    assert _compiled(Step(id="t-*", for_each="${plan.hosts}"), hosts=["x"] * 7).nodes[0].items == 7


def test_the_output_that_a_template_waits_for_is_found_though_ids_have_dots() -> None:
    graph = _compiled(
        Step(id="scan"), Step(id="scan.v2"), Step(id="t-*", needs=("scan.v2",), for_each="${scan.v2.report.files}")
    )
    assert graph.nodes[2].source == (1, "report.files")
    assert graph.counted[1] == ("report.files",)


def test_access_and_compensation_follow_from_the_capability() -> None:
    shell = ShellAction(run="make")
    graph = _compiled(
        Step(id="a", shell=shell),
        Step(id="b", shell=shell, access=Access.READS),
        Step(id="c", shell=shell, compensate=Compensation(none=True)),
        Step(id="d", compensate=Compensation(run="make undo")),
    )
    assert graph.nodes[0].capability is Capability.SHELL
    assert [node.access for node in graph.nodes] == [Access.WRITES, Access.READS, Access.WRITES, Access.NONE]
    assert [node.compensates for node in graph.nodes] == [True, False, False, True]
    assert [node.own_compensation for node in graph.nodes] == [False, False, False, True]
