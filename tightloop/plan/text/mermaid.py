"""A plan as a Mermaid flowchart, with the steps' statuses as colours."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tightloop.plan.document.plan import Plan
from tightloop.plan.document.step import Capability, Step, StepKind, walk
from tightloop.plan.result import StepStatus

NODES_LIMIT = 300
"""A larger picture is not readable, and Mermaid refuses a text with more than 500 edges (its `maxEdges`)."""
LABEL_CHARACTERS = 80
_INDENT = "  "
# Mermaid reads `#name;` as an entity; quotes, brackets and `|` end a label, and backticks begin Markdown.
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
    total = sum(1 for _ in walk(plan.steps))
    if total > drawing.drawn:
        drawing.lines.append(f'{_INDENT}more["{drawing.drawn} of {total} steps are shown"]')
    for status in sorted(drawing.used):
        drawing.lines.append(f"{_INDENT}classDef {status.value} {_COLOURS[status]}")
    return "\n".join(drawing.lines) + "\n"


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
        inner = list(step.inner())
        if inner:
            self._line(level, f'subgraph {name}["{_label(step)}"]')
            for number, within in enumerate(inner):
                prefix = f"{name}_{number}_"
                if within.title:
                    self._line(level + 1, f'subgraph {prefix}a["{_escaped(within.title)}"]')
                self.steps(within.steps, prefix, level + 1 + bool(within.title))
                if within.title:
                    self._line(level + 1, "end")
            self._line(level, "end")
        else:
            start, end = _SHAPES.get(step.capability, _RECTANGLE)
            if step.kind is StepKind.COMPENSATION:
                start, end = _HEXAGON
            elif step.kind in (StepKind.GATE, StepKind.DECISION):
                start, end = _SHAPES[Capability.GATE]
            self._line(level, f"{name}{start}{_label(step)}{end}")
        if status is not None:
            self.used.add(status)
            self._line(level, f"class {name} {status.value}")


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
    for choice in step.choices():
        yield from ((step.id, target, f'-->|"{_escaped(choice.label)}"|') for target in choice.to)
    if step.compensate and step.compensate.step:
        yield step.id, step.compensate.step, '-.->|"taken back by"|'
