"""A plan as its scheduler sees it: numbered nodes, their edges, and what the workflow must know to run them."""

import base64
import heapq
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from tightloop.errors import InvalidRequestError
from tightloop.plan.model import (
    DEFAULT_ACCESS,
    Access,
    Capability,
    Hypothesis,
    Join,
    OnPlanFailure,
    Plan,
    PlanBudget,
    Retry,
    Step,
    StepBudget,
    StepKind,
    Watchdog,
)
from tightloop.value import Value, shorten

TITLE_CHARACTERS = 80
GRAPHS_KEPT = 4
ON_SUCCESS: Final = 1
ON_CHOICE: Final = 2
ON_FAILURE: Final = 4
"""Bits of a conditional edge: what makes its target start."""

_REFERENCE = re.compile(r"\$\{([^{}]+)\}")


class Node(Value):
    """One step of the plan. Other steps are named by their index in `Graph.nodes`."""

    id: str
    title: str = ""
    kind: StepKind = StepKind.TOOL
    capability: Capability = Capability.NONE
    access: Access = Access.NONE
    needs: tuple[int, ...] = ()
    join: Join = Join.ALL
    on_success: tuple[int, ...] = ()
    choices: tuple[int, ...] = ()
    """Steps that a decision or a gate chooses from."""
    alternate: int | None = None
    """Step that is started when this one has failed for good."""
    recovers: bool = True
    take_back: tuple[str, ...] = ()
    """Ids of steps to compensate before the alternate starts."""
    priority: int = 0
    estimate_s: float = 1.0
    position: int = 0
    """Place in the order of starting: priority, then longest remaining path, then the order in the plan."""
    retry: Retry = Retry()
    timeout_s: float = 600.0
    timebox_s: float | None = None
    watchdog: Watchdog | None = None
    compensates: bool = False
    """Something has to be done to take it back."""
    own_compensation: bool = False
    """By a command or a step; else its changes of files are undone."""
    template: bool = False
    """Becomes as many steps as `for_each` has items."""
    items: int | None = None
    """Number of items, where the plan itself holds them."""
    source: tuple[int, str] | None = None
    """Step and output whose length is the number of items."""
    budget: StepBudget = StepBudget()
    plain: bool = False
    """A milestone that promises and asks nothing: passing it takes no time."""


class GraphHead(Value):
    """What the workflow must know of the plan as a whole."""

    plan_id: str
    title: str = ""
    max_parallel: int = 8
    on_failure: OnPlanFailure = OnPlanFailure.ASK
    budget: PlanBudget = PlanBudget()
    hypotheses: tuple[Hypothesis, ...] = ()
    """Without their statements."""
    checks: int = 0
    """How many commands the definition of done has."""
    seed: int = 0


class _Document(Value):
    head: GraphHead
    nodes: tuple[Node, ...]


class Graph:
    """Nodes by index, with their edges turned round. Not changed by running the plan.

    Attributes:
        head: the plan as a whole.
        nodes: one for each step, in the order of the plan.
        index: step id -> index.
        dependents: for each node those that need it.
        edges: for each node its conditional edges as (target, bits of `ON_...`).
        recovers: for each node those that it recovers when it completes.
        counted: for each node the outputs whose lengths make templates grow.
    """

    def __init__(self, head: GraphHead, nodes: Sequence[Node]) -> None:
        """Index the nodes; linear in nodes and edges."""
        self.head = head
        self.nodes = list(nodes)
        self.index = {node.id: number for number, node in enumerate(self.nodes)}
        self.dependents: list[list[int]] = [[] for _ in self.nodes]
        self.edges: list[list[tuple[int, int]]] = [list(conditional_edges(node)) for node in self.nodes]
        self.recovers: list[list[int]] = [[] for _ in self.nodes]
        self.counted: list[tuple[str, ...]] = [()] * len(self.nodes)
        for number, node in enumerate(self.nodes):
            for need in node.needs:
                self.dependents[need].append(number)
            if node.alternate is not None and node.recovers:
                self.recovers[node.alternate].append(number)
            if node.source is not None:
                for each in self.stand_ins(node.source[0]):
                    self.counted[each] += (node.source[1],)

    def targets(self, number: int) -> list[int]:
        """Return where the node's conditional edges lead."""
        return [target for target, _ in self.edges[number]]

    def stand_ins(self, number: int) -> list[int]:
        """Return the node, its alternate, that one's alternate ...: whichever completes, its outputs are read."""
        found: list[int] = []
        each: int | None = number
        while each is not None and each not in found:
            found.append(each)
            each = self.nodes[each].alternate
        return found

    def packed(self) -> str:
        """Return the graph as compressed text for the history."""
        text = _Document(head=self.head, nodes=tuple(self.nodes)).model_dump_json(exclude_defaults=True)
        return base64.b64encode(zlib.compress(text.encode())).decode()

    @staticmethod
    def unpack(packed: str) -> "Graph":
        """Read what `packed` returned. The last few stay in memory: all runs of a workflow read the same text."""
        return _unpacked(packed)


@lru_cache(maxsize=GRAPHS_KEPT)
def _unpacked(packed: str) -> Graph:
    document = _Document.model_validate_json(zlib.decompress(base64.b64decode(packed)))
    return Graph(document.head, document.nodes)


def conditional_edges(node: Node) -> Iterator[tuple[int, int]]:
    """Return each target once, with all that makes it start."""
    bits: dict[int, int] = {}
    for target in node.on_success:
        bits[target] = bits.get(target, 0) | ON_SUCCESS
    for target in node.choices:
        bits[target] = bits.get(target, 0) | ON_CHOICE
    if node.alternate is not None:
        bits[node.alternate] = bits.get(node.alternate, 0) | ON_FAILURE
    yield from bits.items()


def compile_graph(plan: Plan, inputs: Mapping[str, Any] | None = None) -> Graph:
    """Number the steps of a valid plan and put them into the order in which they start when several can.

    Args:
        plan: a plan that `validate` found no error in.
        inputs: values that replace those of `plan.inputs`.

    Raises:
        InvalidRequestError: a step names one that is not there, or steps need each other in a circle.
    """
    index = {step.id: number for number, step in enumerate(plan.steps)}
    values = {**plan.inputs, **(inputs or {})}
    nodes = [_node(step, index, values) for step in plan.steps]
    places = _places(nodes)
    head = GraphHead(
        plan_id=plan.id,
        title=shorten(plan.title, TITLE_CHARACTERS),
        max_parallel=plan.max_parallel,
        on_failure=plan.on_failure,
        budget=plan.budget,
        hypotheses=tuple(Hypothesis(id=each.id, prior=each.prior) for each in plan.hypotheses),
        checks=len(plan.definition_of_done),
        seed=plan.seed,
    )
    return Graph(head, [node.model_copy(update={"position": place}) for node, place in zip(nodes, places, strict=True)])


def choices(step: Step) -> tuple[str, ...]:
    """Return the steps that a decision or a gate chooses from, each once."""
    found: list[str] = []
    if step.decision is not None:
        decision = step.decision
        for rule in decision.rules:
            found += rule.to
        found += decision.otherwise
        for targets in decision.hypotheses.values():
            found += targets
        for option in decision.options:
            found += option.to
    if step.gate is not None and step.gate.approval is not None:
        for option in step.gate.approval.options:
            found += option.to
    return tuple(dict.fromkeys(found))


def _node(step: Step, index: Mapping[str, int], values: Mapping[str, Any]) -> Node:
    def numbers(ids: Sequence[str]) -> tuple[int, ...]:
        return tuple(_number(step, each, index) for each in dict.fromkeys(ids))

    failure, capability = step.on_failure, step.capability
    access = step.access or DEFAULT_ACCESS[capability]
    items, source = _items(step, index, values)
    return Node(
        id=step.id,
        title=shorten(step.title, TITLE_CHARACTERS),
        kind=step.kind,
        capability=capability,
        access=access,
        needs=numbers(step.needs),
        join=step.join,
        on_success=numbers(step.on_success),
        choices=numbers(choices(step)),
        alternate=None if failure is None else _number(step, failure.to, index),
        recovers=failure is None or failure.recovers,
        take_back=() if failure is None else failure.compensate,
        priority=step.priority,
        estimate_s=step.estimate_s,
        retry=step.retry,
        timeout_s=step.timeout_s,
        timebox_s=step.timebox_s,
        watchdog=step.watchdog,
        compensates=access is Access.WRITES if step.compensate is None else not step.compensate.none,
        own_compensation=step.compensate is not None and bool(step.compensate.run or step.compensate.step),
        template=step.id.endswith("*"),
        items=items,
        source=source,
        budget=step.budget,
        plain=is_plain(step),
    )


def is_plain(step: Step) -> bool:
    """Return whether a step is a milestone that promises and asks nothing, so that nothing has to be looked at."""
    asks = step.when or step.preconditions or step.expect or step.outputs or step.inputs or step.evidence
    return step.capability is Capability.NONE and not asks and not step.failure_modes


def _number(step: Step, named: str, index: Mapping[str, int]) -> int:
    if named not in index:
        raise InvalidRequestError(f"step {step.id!r} names {named!r}, which is no step of the plan; correct the id")
    return index[named]


def _items(
    step: Step, index: Mapping[str, int], values: Mapping[str, Any]
) -> tuple[int | None, tuple[int, str] | None]:
    """Return how many items a template has, or which output tells."""
    each: Any = step.for_each
    for _ in range(3):  # an input of the step may itself be one reference
        if isinstance(each, (list, tuple)):
            return len(each), None
        found = _REFERENCE.fullmatch(each.strip()) if isinstance(each, str) else None
        if found is None:
            return None, None
        name = found[1].strip()
        if name.startswith("inputs."):
            each = step.inputs.get(name.removeprefix("inputs."))
        elif name.startswith("plan."):
            each = values.get(name.removeprefix("plan."))
        else:
            return None, _output(name, index)
    return None, None


def _output(name: str, index: Mapping[str, int]) -> tuple[int, str] | None:
    # ids may hold dots themselves: the longest one that is a step
    for dot in reversed([at for at, letter in enumerate(name) if letter == "."]):
        if name[:dot] in index:
            return index[name[:dot]], name[dot + 1 :]
    return None


def _places(nodes: Sequence[Node]) -> list[int]:
    """Return each node's place when sorted by priority, longest remaining path by estimates, and order."""
    longest = _longest_paths(nodes)
    order = sorted(range(len(nodes)), key=lambda number: (-nodes[number].priority, -longest[number], number))
    places = [0] * len(nodes)
    for place, number in enumerate(order):
        places[number] = place
    return places


def _longest_paths(nodes: Sequence[Node]) -> list[float]:
    """Return for each node the estimates along the longest path from it to an end, its own included.

    Alternates do not lengthen a path: they are not expected to run.
    """
    before: list[list[int]] = [list(node.needs) for node in nodes]
    ahead = [0] * len(nodes)
    for number, node in enumerate(nodes):
        for target in dict.fromkeys((*node.on_success, *node.choices)):
            if number not in node.needs:
                before[target].append(number)
    for sources in before:
        for source in sources:
            ahead[source] += 1
    longest = [node.estimate_s for node in nodes]
    ends = [number for number, count in enumerate(ahead) if count == 0]
    heapq.heapify(ends)
    done = 0
    while ends:
        number = heapq.heappop(ends)
        done += 1
        for source in before[number]:
            longest[source] = max(longest[source], nodes[source].estimate_s + longest[number])
            ahead[source] -= 1
            if ahead[source] == 0:
                heapq.heappush(ends, source)
    if done < len(nodes):
        circle = ", ".join(nodes[number].id for number, count in enumerate(ahead) if count)
        raise InvalidRequestError(f"these steps wait for each other: {shorten(circle, 300)}; remove one of the edges")
    return longest
