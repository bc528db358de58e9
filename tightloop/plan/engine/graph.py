"""The compiled form of a plan: numbered nodes and edges, with the data that the workflow needs to run them."""

import base64
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

from tightloop.errors import InvalidRequestError
from tightloop.plan.child import REASON_CHARACTERS, StepFailure
from tightloop.plan.document import Hypothesis, OnPlanFailure, Plan, PlanBudget
from tightloop.plan.failing import Recovery, Retry, Watchdog
from tightloop.plan.reference import head_of, is_one_reference
from tightloop.plan.step import Access, Capability, Join, Step, StepBudget, StepKind
from tightloop.value import Value, abridge, shorten

# Titles become activity summaries in the history.
TITLE_CHARACTERS = 80
# A workflow worker replays several plans at once; the graph of 10 000 steps is built once for all runs of one of them.
GRAPHS_KEPT = 4
ON_SUCCESS: Final = 1
ON_CHOICE: Final = 2
ON_FAILURE: Final = 4
"""Bits of a conditional edge, which specify the outcomes of the source that start the target."""


class CatchAll(Value):
    """A failure mode that matches any failure of a step."""

    name: str
    recover: Recovery

    def applied_to(self, failure: StepFailure) -> StepFailure:
        """Add this mode's name and recovery to an unclassified failure."""
        reason = abridge(f"{self.name}: {failure.reason}", REASON_CHARACTERS)
        return failure.evolve(reason=reason, mode=self.name, recover=self.recover)


class Node(Value):
    """A step of the plan. A node refers to other steps by their index in `Graph.nodes`."""

    id: str
    title: str = ""
    kind: StepKind = StepKind.TOOL
    capability: Capability = Capability.NONE
    access: Access = Access.NONE
    needs: tuple[int, ...] = ()
    join: Join = Join.ALL
    on_success: tuple[int, ...] = ()
    choices: tuple[int, ...] = ()
    """Steps from which a decision or a gate chooses."""
    alternate: int | None = None
    """Step to start when this one has failed and is not retried any more."""
    recovers: bool = True
    take_back: tuple[str, ...] = ()
    """IDs of the steps to compensate before the alternate starts."""
    priority: int = 0
    estimate_s: float = 1.0
    position: int = 0
    """Rank in the start order, which depends on the priority, then the longest remaining path, then the plan order."""
    retry: Retry = Retry.model_construct()
    timeout_s: float = 600.0
    timebox_s: float | None = None
    watchdog: Watchdog | None = None
    catch_all: CatchAll | None = None
    """Recovery for an attempt that ended without the results that are needed to match other failure modes."""
    compensates: bool = False
    """True if the step may leave something to compensate."""
    own_compensation: bool = False
    """True if a command or a step compensates this step. Otherwise, its file changes are undone."""
    template: bool = False
    """True if the step expands to one step per item of `for_each`."""
    items: int | None = None
    """Number of items, if the plan itself lists them."""
    source: tuple[int, str] | None = None
    """Step and output whose length is the number of items."""
    budget: StepBudget = StepBudget.model_construct()
    plain: bool = False
    """True if the step is a milestone without conditions and outputs, which completes immediately."""


class GraphHead(Value):
    """The plan-wide settings that the workflow needs."""

    plan_id: str
    title: str = ""
    max_parallel: int = 8
    on_failure: OnPlanFailure = OnPlanFailure.ASK
    budget: PlanBudget = PlanBudget.model_construct()
    hypotheses: tuple[Hypothesis, ...] = ()
    """Hypotheses, without their statements."""
    checks: int = 0
    """Number of commands in the definition of done."""
    seed: int = 0


class _Document(Value):
    head: GraphHead
    nodes: tuple[Node, ...]


class Graph:
    """The graph of a plan's steps. The graph does not change while the plan is running.

    Attributes:
        head: settings of the whole plan.
        nodes: one node per step, in plan order.
        index: mapping of step IDs to indexes.
        dependents: for each node, the nodes that depend on it.
        edges: for each node, its conditional edges as (target, bits of `ON_...`).
        counted: for each node, the outputs whose length determines the number of a template's instances.
    """

    def __init__(self, head: GraphHead, nodes: Sequence[Node]) -> None:
        self.head = head
        self.nodes = list(nodes)
        self.index = {node.id: number for number, node in enumerate(self.nodes)}
        self.dependents: list[list[int]] = [[] for _ in self.nodes]
        self.edges: list[list[tuple[int, int]]] = [_conditional_edges(node) for node in self.nodes]
        self.counted: list[tuple[str, ...]] = [()] * len(self.nodes)
        for number, node in enumerate(self.nodes):
            for need in node.needs:
                self.dependents[need].append(number)
            if node.source is not None:
                for stand_in in self.stand_ins(node.source[0]):
                    self.counted[stand_in] += (node.source[1],)

    def targets(self, number: int) -> list[int]:
        """Return the targets of a node's conditional edges."""
        return [target for target, _ in self.edges[number]]

    def stand_ins(self, number: int) -> list[int]:
        """Return a node and its chain of alternates.

        The outputs come from the node in the chain that completes.
        """
        numbers: list[int] = []
        current: int | None = number
        # Validation rejects a ring of alternates, but graphs are also built from stored text.
        while current is not None and current not in numbers:
            numbers.append(current)
            current = self.nodes[current].alternate
        return numbers

    def pack(self) -> str:
        """Compress the graph to text that is small enough for the history."""
        # Compressed, because every run of the workflow holds it, and Temporal refuses payloads of 2 MB.
        text = _Document(head=self.head, nodes=tuple(self.nodes)).model_dump_json(exclude_defaults=True)
        return base64.b64encode(zlib.compress(text.encode())).decode()

    @staticmethod
    @lru_cache(maxsize=GRAPHS_KEPT)
    def unpack(packed: str) -> "Graph":
        """Decode the result of `pack`.

        The result is cached, because all runs of a workflow decode the same text.
        """
        document = _Document.model_validate_json(zlib.decompress(base64.b64decode(packed)))
        return Graph(document.head, document.nodes)


def _conditional_edges(node: Node) -> list[tuple[int, int]]:
    bits: defaultdict[int, int] = defaultdict(int)
    for target in node.on_success:
        bits[target] |= ON_SUCCESS
    for target in node.choices:
        bits[target] |= ON_CHOICE
    if node.alternate is not None:
        bits[node.alternate] |= ON_FAILURE
    return list(bits.items())


def compile_graph(plan: Plan, inputs: Mapping[str, Any] | None = None) -> Graph:
    """Number the steps of a valid plan, and rank them by the order in which to start them.

    Args:
        plan: plan for which `validate` reports no errors.
        inputs: values that override `plan.inputs`.

    Raises:
        InvalidRequestError: a step references an unknown step, or steps form a cycle.
    """
    index = {step.id: number for number, step in enumerate(plan.steps)}
    values = {**plan.inputs, **(inputs or {})}
    nodes = [_node(step, index, values) for step in plan.steps]
    longest = _longest_paths(nodes)
    # List scheduling by critical path: measured within 4 % of simulated schedules (docs/reference/figures.md, Plans).
    order = sorted(range(len(nodes)), key=lambda number: (-nodes[number].priority, -longest[number], number))
    places = [0] * len(nodes)
    for rank, number in enumerate(order):
        places[number] = rank
    head = GraphHead.of(
        plan,
        plan_id=plan.id,
        title=shorten(plan.title, TITLE_CHARACTERS),
        # Statements are prose of any length; the history holds only the values that the workflow computes with.
        hypotheses=tuple(Hypothesis(id=hypothesis.id, prior=hypothesis.prior) for hypothesis in plan.hypotheses),
        checks=len(plan.definition_of_done),
    )
    return Graph(head, [node.evolve(position=rank) for node, rank in zip(nodes, places, strict=True)])


def choices(step: Step) -> tuple[str, ...]:
    """Return the distinct steps that a decision or a gate can choose."""
    return tuple(dict.fromkeys(target for choice in step.choices() for target in choice.to))


def _node(step: Step, index: Mapping[str, int], values: Mapping[str, Any]) -> Node:
    def numbers(ids: Sequence[str]) -> tuple[int, ...]:
        # Without duplicates: a step starts when as many needs have ended as it has, and each source counts once.
        return tuple(_number(step, step_id, index) for step_id in dict.fromkeys(ids))

    failure, access = step.on_failure, step.tree_access
    items, source = _items(step, index, values)
    return Node.of(
        step,
        title=shorten(step.title, TITLE_CHARACTERS),
        capability=step.capability,
        access=access,
        needs=numbers(step.needs),
        on_success=numbers(step.on_success),
        choices=numbers(choices(step)),
        alternate=None if failure is None else _number(step, failure.to, index),
        recovers=failure is None or failure.recovers,
        take_back=() if failure is None else failure.compensate,
        catch_all=_catch_all(step),
        compensates=access.changes_tree if step.compensate is None else not step.compensate.none,
        own_compensation=step.compensate is not None and bool(step.compensate.run or step.compensate.step),
        template=step.id.endswith("*"),
        items=items,
        source=source,
        plain=is_plain(step),
    )


def _catch_all(step: Step) -> CatchAll | None:
    mode = next((mode for mode in step.failure_modes if not mode.detect), None)
    return None if mode is None else CatchAll(name=shorten(mode.name, TITLE_CHARACTERS), recover=mode.recover)


def is_plain(step: Step) -> bool:
    """Return True if a step is a milestone without conditions or outputs.

    Such a step has nothing to evaluate.
    """
    asks = step.when or step.preconditions or step.expect or step.outputs or step.inputs or step.evidence
    return step.capability is Capability.NONE and not asks and not step.failure_modes


def _number(step: Step, named: str, index: Mapping[str, int]) -> int:
    if named not in index:
        raise InvalidRequestError(f"step {step.id!r} refers to {named!r}, but the plan has no such step. Fix the id")
    return index[named]


def _items(
    step: Step, index: Mapping[str, int], values: Mapping[str, Any]
) -> tuple[int | None, tuple[int, str] | None]:
    """Return the number of a template's items, if it is known.

    Otherwise, return the (step, output) pair whose length is the number of items.
    """
    source: Any = step.for_each
    for _ in range(3):  # an input of the step may itself be one reference
        if isinstance(source, (list, tuple)):
            return len(source), None
        if not isinstance(source, str) or not is_one_reference(source):
            return None, None
        name = source.strip()[2:-1].strip()
        if name.startswith("inputs."):
            source = step.inputs.get(name.removeprefix("inputs."))
        elif name.startswith("plan."):
            source = values.get(name.removeprefix("plan."))
        else:
            head = head_of(name, index)
            return None, (index[head], name[len(head) + 1 :]) if head and head != name else None
    return None, None


def _longest_paths(nodes: Sequence[Node]) -> list[float]:
    """Return the estimated duration of the longest path from each node to an end.

    The estimate of the node itself is included. Alternates are ignored, because they are not expected to
    run.
    """
    behind: dict[int, set[int]] = {number: {*node.on_success, *node.choices} for number, node in enumerate(nodes)}
    for number, node in enumerate(nodes):
        for need in node.needs:
            behind[need].add(number)
    longest = [node.estimate_s for node in nodes]
    try:
        # In this order the successors of a node are complete before the node itself.
        for number in TopologicalSorter(behind).static_order():
            longest[number] += max((longest[successor] for successor in behind[number]), default=0.0)
    except CycleError as error:
        circle = ", ".join(nodes[number].id for number in sorted(set(error.args[1])))
        message = (
            f"these steps wait for each other in a cycle: {shorten(circle, 300)}. Remove one of their dependencies"
        )
        raise InvalidRequestError(message) from None
    return longest
