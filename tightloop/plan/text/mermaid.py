"""A plan as a Mermaid flowchart, with the steps' statuses as colours."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tightloop.plan.model import Capability, Plan, Step, StepKind
from tightloop.plan.result import StepStatus

NODES_LIMIT = 300
"""A larger picture is not readable, and renderers refuse it."""
LABEL_CHARACTERS = 80
_INDENT = "  "
_ESCAPES = str.maketrans(
    {
        "#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "`": "#96;", "\\": "#92;", "|": "#124;",
        "{": "#123;", "}": "#125;", "[": "#91;", "]": "#93;", "(": "#40;", ")": "#41;",
    }
)  # fmt: skip
_SHAPES = {
    Capability.GATE: ('{"', '"}'),
    Capability.DECISION: ('{"', '"}'),
    Capability.CHECKPOINT: ('[("', '")]'),
    Capability.MODEL: ('[/"', '"/]'),
    Capability.EPISODE: ('[["', '"]]'),
    Capability.NONE: ('(["', '"])'),
}
_RECTANGLE = ('["', '"]')
_HEXAGON = ('{{"', '"}}')
_COLOURS = {
    StepStatus.PENDING: "fill:#f5f5f5,stroke:#9e9e9e,color:#424242",
    StepStatus.RUNNING: "fill:#bbdefb,stroke:#1565c0,color:#0d2a4d",
    StepStatus.WAITING: "fill:#fff3c4,stroke:#b7791f,color:#4a3200",
    StepStatus.COMPLETED: "fill:#c8e6c9,stroke:#2e7d32,color:#12330f",
    StepStatus.SKIPPED: "fill:#eeeeee,stroke:#bdbdbd,color:#757575,stroke-dasharray:4",
    StepStatus.FAILED: "fill:#ffcdd2,stroke:#c62828,color:#5c0b0b",
    StepStatus.RECOVERED: "fill:#dcedc8,stroke:#c62828,color:#12330f",
    StepStatus.BLOCKED: "fill:#ffe0b2,stroke:#e65100,color:#4e2500",
    StepStatus.COMPENSATED: "fill:#e1bee7,stroke:#6a1b9a,color:#33083d",
    StepStatus.ABANDONED: "fill:#cfd8dc,stroke:#546e7a,color:#263238",
}


def to_mermaid(plan: Plan, statuses: Mapping[str, StepStatus] | None = None) -> str:
    """Return a flowchart; of a plan with more than `NODES_LIMIT` steps the first ones, and a node that says so.

    Args:
        plan: the plan, subplans and alternatives included.
        statuses: by id, of the plan's own steps; others have no colour.
    """
    drawing = _Drawing(statuses or {})
    drawing.lines.append("flowchart TD")
    drawing.steps(plan.steps, "s", 1)
    total = sum(1 for _ in _all(plan.steps))
    if total > drawing.drawn:
        drawing.lines.append(f'{_INDENT}more["{drawing.drawn} of {total} steps are shown"]')
    for status in sorted(drawing.used):
        drawing.lines.append(f"{_INDENT}classDef {status.value} {_COLOURS[status]}")
    return "\n".join(drawing.lines) + "\n"


def _all(steps: tuple[Step, ...]) -> Iterator[Step]:
    for step in steps:
        yield step
        for _, inner in _within(step):
            yield from _all(inner)


def _within(step: Step) -> Iterator[tuple[str, tuple[Step, ...]]]:
    if step.subplan and step.subplan.steps:
        yield "", step.subplan.steps
    for alternative in step.branch.alternatives if step.branch else ():
        yield alternative.name, alternative.steps


@dataclass
class _Drawing:
    """The lines so far."""

    statuses: Mapping[str, StepStatus]
    lines: list[str] = field(default_factory=list)
    drawn: int = 0
    used: set[StepStatus] = field(default_factory=set)

    def steps(self, steps: tuple[Step, ...], prefix: str, level: int) -> None:
        """Draw steps, then the edges between those that were drawn."""
        names: dict[str, str] = {}
        for place, step in enumerate(steps):
            if self.drawn >= NODES_LIMIT:
                break
            name = names[step.id] = f"{prefix}{place}"
            self.drawn += 1
            self._step(step, name, level)
        for step in steps:
            for source, target, arrow in _arrows(step):
                if source in names and target in names:
                    self._line(level, f"{names[source]} {arrow} {names[target]}")

    def _line(self, level: int, text: str) -> None:
        self.lines.append(_INDENT * level + text)

    def _step(self, step: Step, name: str, level: int) -> None:
        status = self.statuses.get(step.id) if level == 1 else None
        inner = list(_within(step))
        if inner:
            self._line(level, f'subgraph {name}["{_label(step)}"]')
            for number, (title, steps) in enumerate(inner):
                self._inner(title, steps, f"{name}_{number}_", level + 1)
            self._line(level, "end")
        else:
            start, end = _shape(step)
            self._line(level, f"{name}{start}{_label(step)}{end}")
        if status is not None:
            self.used.add(status)
            self._line(level, f"class {name} {status.value}")

    def _inner(self, title: str, steps: tuple[Step, ...], prefix: str, level: int) -> None:
        if not title:
            self.steps(steps, prefix, level)
            return
        self._line(level, f'subgraph {prefix}a["{_escaped(title)}"]')
        self.steps(steps, prefix, level + 1)
        self._line(level, "end")


def _shape(step: Step) -> tuple[str, str]:
    if step.kind is StepKind.COMPENSATION:
        return _HEXAGON
    if step.kind in (StepKind.GATE, StepKind.DECISION):
        return _SHAPES[Capability.GATE]
    return _SHAPES.get(step.capability, _RECTANGLE)


def _label(step: Step) -> str:
    return f"{_escaped(step.title)}<br/>{_escaped(step.id)}" if step.title else _escaped(step.id)


def _escaped(text: str) -> str:
    line = " ".join(text.split())
    short = line if len(line) <= LABEL_CHARACTERS else line[: LABEL_CHARACTERS - 3] + "..."
    return short.translate(_ESCAPES)


def _arrows(step: Step) -> Iterator[tuple[str, str, str]]:
    """Yield source, target and arrow of all edges that the step names."""
    yield from ((need, step.id, "-->") for need in step.needs)
    yield from ((step.id, target, '-->|"success"|') for target in step.on_success)
    if step.on_failure:
        yield step.id, step.on_failure.to, '-.->|"failure"|'
    for label, targets in _choices(step):
        yield from ((step.id, target, f'-->|"{_escaped(label)}"|') for target in targets)
    if step.compensate and step.compensate.step:
        yield step.id, step.compensate.step, '-.->|"taken back by"|'


def _choices(step: Step) -> Iterator[tuple[str, tuple[str, ...]]]:
    if step.decision:
        yield from ((rule.note or rule.when, rule.to) for rule in step.decision.rules)
        yield "otherwise", step.decision.otherwise
        yield from step.decision.hypotheses.items()
        yield from ((option.name, option.to) for option in step.decision.options)
    if step.gate and step.gate.approval:
        yield from ((option.name, option.to) for option in step.gate.approval.options)
