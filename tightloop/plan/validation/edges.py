"""Validation of the edges between steps."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from graphlib import CycleError, TopologicalSorter

from tightloop.errors import Problem, Severity, did_you_mean
from tightloop.plan.document import Plan
from tightloop.plan.step import Capability, Join, Step, StepKind
from tightloop.plan.text.located import Path, place_in
from tightloop.plan.text.reading import ReadPlan

SUGGESTIONS_LIMIT = 25
"""Maximum number of suggestions. Finding the closest ID takes milliseconds, and if more IDs are wrong, there is a
different cause.
"""


def find_repeats(names: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield the position and name of each repeated name."""
    previous: set[str] = set()
    for number, name in enumerate(names):
        if name in previous:
            yield number, name
        previous.add(name)


_OF_A_STEP = frozenset({"template", "kind", "action", "two-actions", "empty-gate", "unreachable", "unknown-output"})
_OF_ITS_NAME = frozenset({"unknown-step", "unknown-reference", "not-needed", "no-output", "unused-compensation"})
_OF_THE_PLAN = {
    "inputs": frozenset({"unknown-input"}),
    "hypotheses": frozenset({"unknown-hypothesis", "unknown-input"}),
    "policy": frozenset({"no-network", "value", "no-approver"}),
    "budget": frozenset({"step-budget", "fan-out", "depth"}),
    "steps": frozenset({"no-steps", "unknown-step"}),
}
"""Codes of problems that may be caused by an unreadable field of the plan, by field.

They are only reported once the field can be read.
"""


def _explains(left_out: Path, code: str, path: Path) -> bool:
    """Return True if a field that could not be read may have caused the problem."""
    if path[: len(left_out)] == left_out or left_out[: len(path)] == path:
        return True
    if len(left_out) == 1:
        return code in _OF_THE_PLAN.get(str(left_out[0]), ())
    # A whole step is missing: its id and outputs are unknown.
    whole = isinstance(left_out[-1], int)
    return code in _OF_A_STEP or (whole and code in _OF_ITS_NAME)


@dataclass
class Report:
    """Collects problems with their positions."""

    read: ReadPlan
    problems: list[Problem] = field(default_factory=list)
    suggested: int = 0

    def closest(self, name: str, candidates: Collection[str], *, but: str = "") -> str:
        """Suggest a correction for a misspelled ID. The step `but` is never suggested.

        After `SUGGESTIONS_LIMIT` suggestions, return "".
        """
        self.suggested += 1
        if self.suggested > SUGGESTIONS_LIMIT:
            return ""
        if f"{name}-*" in candidates:
            return f"Did you mean '{name}-*'?"
        return did_you_mean(name, [candidate for candidate in candidates if candidate != but] if but else candidates)

    def error(self, code: str, path: Path, message: str, suggestion: str = "") -> None:
        """Add an error to the report."""
        self._add(code, path, message, suggestion)

    def warning(self, code: str, path: Path, message: str, suggestion: str = "") -> None:
        """Add a warning to the report."""
        self._add(code, path, message, suggestion, severity=Severity.WARNING)

    def within(self, code: str, path: Path, at: tuple[str, int], message: str, suggestion: str) -> None:
        """Add an error to the report, at a position inside a text."""
        self._add(code, path, message, suggestion, text_offset=at)

    def _add(
        self,
        code: str,
        path: Path,
        message: str,
        suggestion: str,
        *,
        severity: Severity = Severity.ERROR,
        text_offset: tuple[str, int] | None = None,
    ) -> None:
        if any(_explains(omitted_path, code, path) for omitted_path in self.read.left_out):
            return
        position = self.read.where(path)
        if text_offset:
            position = place_in(*text_offset, position)
        fields = {"message": message, "suggestion": suggestion, "code": code, "file": self.read.name}
        self.problems.append(Problem(severity=severity, position=position, **fields))


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Steps that can reference each other.

    These are the steps of a plan, a subplan or a single alternative.
    """

    plan: Plan
    """The outermost plan."""
    steps: tuple[Step, ...]
    path: Path = ("steps",)
    """Path to the field `steps`."""
    depth: int = 1
    inputs: frozenset[str]
    """Names that are valid in `${plan.<name>}`."""
    report: Report
    capabilities: frozenset[str] | None = None
    """Available capabilities. None means that all are available."""
    index: dict[str, int] = field(default_factory=dict)
    """Position of each ID in `steps`. If an ID is used more than once, it is the first position."""

    def at(self, step: int, *fields: str | int) -> Path:
        """Return the path to a field of a step."""
        return (*self.path, step, *fields)


# Each cycle takes a graph search, and one wrong edge can close thousands.
CYCLES_SHOWN = 5
_INSTANCE = re.compile(r"(.*?)(\d+)")
Conditions = dict[tuple[str, int], frozenset[str]]
"""Outcomes of steps, or choices of decisions, with which a step can run. If a key is missing, there is no restriction.
"""


@dataclass(frozen=True)
class Edge:
    """Edge from `source` to a later `target`."""

    source: int
    target: int
    path: Path
    """Location of the reference in the plan."""
    kind: str = "need"
    """Kind of the edge: `need`, `success`, `failure` or `choice`."""
    option: str = ""
    """Option to which a choice belongs."""


@dataclass
class Edges:
    """Graph of the edges between the steps of one list."""

    scope: Scope
    into: list[list[Edge]] = field(default_factory=list)
    out: list[list[Edge]] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    """Topological order. It is empty if there is a cycle."""
    before: list[int] = field(default_factory=list)
    """For each step, the steps that have completed before it starts, as a bit set. It is empty if there is a cycle."""


def check_edges(scope: Scope) -> Edges:
    """Validate the graph and return it for use by other rules.

    Apart from the bit sets, the time is linear in the number of steps and edges.
    """
    count = len(scope.steps)
    edges = Edges(scope, [[] for _ in range(count)], [[] for _ in range(count)])
    for index, step in enumerate(scope.steps):
        for edge in _edges(scope, index, step):
            edges.into[edge.target].append(edge)
            edges.out[edge.source].append(edge)
    _compensations(edges)
    try:
        edges.order = list(_sorter(edges, range(count)).static_order())
    except CycleError:
        _cycles(edges)
        return edges
    # Bit sets, because one set of ids per step would take quadratic memory in objects.
    edges.before = _before(edges)
    _alternates(edges)
    _reachable(edges)
    return edges


def named_step(scope: Scope, name: str) -> int | None:
    """Return the position of the step with this name, or None.

    For an instance such as `look-2`, return the position of the template `look-*`.
    """
    if name in scope.index:
        return scope.index[name]
    match = _INSTANCE.fullmatch(name)
    return scope.index.get(f"{match[1]}*") if match else None


def _edges(scope: Scope, index: int, step: Step) -> Iterator[Edge]:
    for number, name in enumerate(step.needs):
        source = _find_step(scope, name, scope.at(index, "needs", number), step.id, "needs")
        if source is not None:
            yield Edge(source, index, scope.at(index, "needs", number))
        # The search is quadratic; the bound keeps it cheap for a step with thousands of needs.
        if name in step.needs[:number] and number < 100:
            scope.report.warning("double-need", scope.at(index, "needs", number), f"'{step.id}' lists '{name}' twice")
    named: list[tuple[Path, str, str, str]] = [
        (("on_success", number), name, "success", "") for number, name in enumerate(step.on_success)
    ]
    if step.on_failure:
        named.append((("on_failure", "to"), step.on_failure.to, "failure", ""))
    for choice in step.choices():
        option = ".".join(map(str, choice.path))
        named += [((*choice.path, number), name, "choice", option) for number, name in enumerate(choice.to)]
    for fields, name, kind, option in named:
        path = scope.at(index, *fields)
        target = _find_step(scope, name, path, step.id, "leads to")
        if target is not None:
            yield Edge(index, target, path, kind, option)


def _find_step(scope: Scope, name: str, path: Path, step_id: str, relation: str) -> int | None:
    if name in scope.index:
        return scope.index[name]
    template = named_step(scope, name)
    if template is not None:
        hint = f"Write '{scope.steps[template].id}', which refers to all instances of the template"
    else:
        hint = scope.report.closest(name, scope.index, but=step_id)
    scope.report.error("unknown-step", path, f"'{step_id}' {relation} '{name}', which is not a step", hint)
    return None


def _sorter(edges: Edges, among: Collection[int]) -> TopologicalSorter[int]:
    return TopologicalSorter(
        {index: [edge.source for edge in edges.into[index] if edge.source in among] for index in among}
    )


def _cycles(edges: Edges) -> None:
    """Report up to `CYCLES_SHOWN` disjoint cycles. Each is described by the path along its edges."""
    scope, left = edges.scope, set(range(len(edges.scope.steps)))
    for _ in range(CYCLES_SHOWN):
        try:
            _sorter(edges, left).prepare()
        except CycleError as error:
            # CycleError repeats the first node at the end.
            cycle: list[int] = error.args[1][1:]
        else:
            return
        # Begin at the first step of the plan, wherever the search entered the cycle.
        first = cycle.index(min(cycle))
        cycle = [*cycle[first:], *cycle[:first]]
        closing = next(edge for edge in edges.into[cycle[0]] if edge.source == cycle[-1])
        if len(cycle) == 1:
            message = f"'{scope.steps[cycle[0]].id}' depends on itself"
            scope.report.error("cycle", closing.path, message, "Remove the step's own id")
            left.difference_update(cycle)
            continue
        names = [scope.steps[index].id for index in (*cycle, cycle[0])]
        short_names = names if len(names) <= 12 else [*names[:6], "...", *names[-5:]]
        hint = "Remove one of these edges so that a step can start first"
        scope.report.error("cycle", closing.path, f"cycle: {' -> '.join(short_names)}", hint)
        left.difference_update(cycle)


def _before(edges: Edges, kinds: frozenset[str] = frozenset({"need", "success", "failure", "choice"})) -> list[int]:
    before = [0] * len(edges.into)
    for index in edges.order:
        for edge in edges.into[index]:
            if edge.kind in kinds:
                # A failed step has no outputs, but the steps it needed do.
                before[index] |= before[edge.source] | (0 if edge.kind == "failure" else 1 << edge.source)
    return before


def _compensations(edges: Edges) -> None:
    scope = edges.scope
    used = {step.compensate.step for step in scope.steps if step.compensate and step.compensate.step}
    for index, step in enumerate(scope.steps):
        if step.kind is not StepKind.COMPENSATION:
            continue
        if step.needs:
            message = f"compensation step '{step.id}' has needs, but it only runs to undo another step"
            scope.report.error("compensation-needs", scope.at(index, "needs"), message, "Remove `needs`")
        for edge in (*edges.into[index], *edges.out[index]):
            # Its own needs were reported above.
            if edge.kind != "need" or edge.source == index:
                other = scope.steps[edge.source if edge.target == index else edge.target].id
                message = f"'{other}' is connected to compensation step '{step.id}', which only starts to undo a step"
                hint = (
                    f"Write `compensate: {{step: {step.id}}}` in the step that '{step.id}' undoes, or change its kind"
                )
                scope.report.error("compensation-edge", edge.path, message, hint)
        if step.id not in used:
            message = f"compensation step '{step.id}' does not undo any step"
            hint = f"Add `compensate: {{step: {step.id}}}` to the step that '{step.id}' should undo"
            scope.report.warning("unused-compensation", scope.at(index, "id"), message, hint)


def _alternates(edges: Edges) -> None:
    """Report alternates that depend on the step whose failure starts them."""
    scope = edges.scope
    failures = [edge for incoming in edges.into for edge in incoming if edge.kind == "failure"]
    needed = _before(edges, frozenset({"need"})) if failures else []
    for edge in failures:
        failed, alternate = scope.steps[edge.source], scope.steps[edge.target]
        if needed[edge.target] >> edge.source & 1:
            message = f"'{alternate.id}' starts when '{failed.id}' fails, but it also needs '{failed.id}'"
            scope.report.error("alternate-needs-failed", edge.path, message, f"Remove '{failed.id}' from its needs")
        taken_back = failed.on_failure.compensate if failed.on_failure else ()
        for number, name in enumerate(taken_back):
            path = scope.at(edge.source, "on_failure", "compensate", number)
            other = _find_step(scope, name, path, failed.id, "undoes")
            if other not in (None, edge.source) and not edges.before[edge.source] >> (other or 0) & 1:
                message = f"'{failed.id}' undoes '{name}', which may not have completed before '{failed.id}'"
                scope.report.error("compensates-stranger", path, message, f"Add '{name}' to the needs of '{failed.id}'")


def _can_fail(step: Step) -> bool:
    checked = (step.when, step.preconditions, step.expect, step.outputs, step.for_each)
    return step.capability is not Capability.NONE or any(checked)


def _reachable(edges: Edges) -> None:
    """Report steps that can never start.

    In a chain of such steps, only the first step is reported.
    """
    steps, scope = edges.scope.steps, edges.scope
    dead: set[int] = {index for index, step in enumerate(steps) if step.kind is StepKind.COMPENSATION}
    conditions: list[Conditions] = [{} for _ in steps]
    everything: defaultdict[tuple[str, int], frozenset[str]] = defaultdict(frozenset)
    for edge in (edge for out in edges.out for edge in out if edge.kind != "need"):
        key, option = _condition(edge)
        everything[key] |= option
    for index in edges.order:
        step = steps[index]
        needs = [edge for edge in edges.into[index] if edge.kind == "need"]
        triggers = [edge for edge in edges.into[index] if edge.kind != "need"]
        alive = [
            edge
            for edge in triggers
            if edge.source not in dead and (edge.kind != "failure" or _can_fail(steps[edge.source]))
        ]
        if triggers and not alive:
            dead.add(index)
            if not any(edge.source in dead for edge in triggers):
                names = " and ".join(f"'{steps[edge.source].id}'" for edge in triggers)
                message = f"'{step.id}' can never start: it only starts after a failure of {names}, which cannot fail"
                scope.report.error(
                    "unreachable", scope.at(index, "id"), message, "Add an action to that step, or use `needs`"
                )
            continue
        if step.join is Join.ALL and any(edge.source in dead for edge in needs):
            dead.add(index)
            continue
        step_conditions = _conditions(edges, index, (needs, alive), conditions)
        # A step reachable through every option is unrestricted; dropping the key keeps long chains of decisions linear.
        conditions[index] = {key: options for key, options in step_conditions.items() if options != everything[key]}


def _conditions(
    edges: Edges, index: int, incoming: tuple[list[Edge], list[Edge]], conditions: list[Conditions]
) -> Conditions:
    needs, alive = incoming
    step, scope = edges.scope.steps[index], edges.scope
    if not alive and len(needs) == 1:
        # Shared and not copied, so that long chains of steps take no memory.
        return conditions[needs[0].source]
    from_needs = [conditions[edge.source] for edge in needs]
    parts = [reduce(_either, from_needs)] if step.join is Join.ANY and needs else [part for part in from_needs if part]
    if alive:
        parts.append(reduce(_either, (_with(conditions[edge.source], edge) for edge in alive)))
    combined: Conditions = {}
    for part in parts:
        for key, options in part.items():
            combined[key] = combined[key] & options if key in combined else options
    empty = [key for key, options in combined.items() if not options]
    if not empty:
        return combined
    ends = [f"'{scope.steps[edge.source].id}'" for edge in needs if empty[0] in conditions[edge.source]]
    decider = empty[0][1]
    message = (
        f"'{step.id}' needs {', '.join(ends[:4])}, which are on mutually exclusive paths of "
        f"'{scope.steps[decider].id}', so it would always be skipped"
    )
    scope.report.error("exclusive-needs", scope.at(index, "needs"), message, "Write `join: any`")
    # Without the contradiction, so that it is reported once and not for every step behind.
    return {key: options for key, options in combined.items() if options}


def _condition(edge: Edge) -> tuple[tuple[str, int], frozenset[str]]:
    if edge.kind == "choice":
        return ("choice", edge.source), frozenset({edge.option})
    return ("end", edge.source), frozenset({edge.kind})


def _with(source: Conditions, edge: Edge) -> Conditions:
    key, option = _condition(edge)
    return source | {key: source[key] & option if key in source else option}


def _either(first: Conditions, other: Conditions) -> Conditions:
    return {key: first[key] | other[key] for key in first.keys() & other.keys()}


def longest(edges: Edges) -> tuple[float, list[str]]:
    """Return the estimated duration of the critical path in seconds, and the IDs of its steps.

    The duration is 0 if there is a cycle.
    """
    steps = edges.scope.steps
    ends: dict[int, float] = defaultdict(float)
    previous: dict[int, int] = {}
    for index in edges.order:
        for edge in edges.into[index]:
            if index not in previous or ends[edge.source] > ends[previous[index]]:
                previous[index] = edge.source
        ends[index] = steps[index].estimate_s + (ends[previous[index]] if index in previous else 0.0)
    if not ends:
        return 0.0, []
    last = max(ends, key=lambda place: ends[place])
    path = [last]
    while path[-1] in previous:
        path.append(previous[path[-1]])
    return ends[last], [steps[index].id for index in reversed(path)]
