"""Writes plan files and diagrams."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from tightloop.plan.child import StepStatus
from tightloop.plan.document import Plan
from tightloop.plan.step import Capability, Step, StepKind, walk
from tightloop.plan.text.documents import plain_scalar

FORMS = ("yaml", "json", "dsl")
_INDENT = "  "
_DUMPER: Any = yaml.SafeDumper


def write_plan(plan: Plan, form: str = "yaml") -> str:
    """Write a plan as text in one of the `FORMS`.

    Fields with default values are omitted.

    Raises:
        ValueError: the form is unknown.
    """
    fields = plan.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    if form == "yaml":
        return _yaml(fields)
    if form == "json":
        return json.dumps(fields, indent=2, ensure_ascii=False) + "\n"
    if form == "dsl":
        steps = fields.pop("steps", [])
        blocks = [_block("plan", fields)]
        blocks += [_block("task", step) for step in steps]
        return "\n".join(blocks)
    raise ValueError(f"unknown plan format '{form}'. Use one of: {', '.join(FORMS)}")


class _Dumper(_DUMPER):  # type: ignore[misc]
    """YAML dumper that writes strings so that the core schema reads them as strings."""

    # Equal values would otherwise become anchors and aliases.
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True

    # PyYAML puts list items in the column of their key.
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, False)


def _text(dumper: Any, text: str) -> Any:
    lines = text.split("\n")
    # A block scalar is literal, but leading markers and comments and outer blanks would not survive.
    if (
        lines[0][:1].strip()
        and not lines[-1]
        and all(
            line == line.rstrip()
            and (line == "" or line.isprintable())
            and not line.startswith(("#", "%", "---", "..."))
            for line in lines
        )
    ):
        style: str | None = "|"
    else:
        # PyYAML quotes by YAML 1.1; texts that only the core schema reads as another type, such as `0o17`, need it too.
        style = None if text.isprintable() and isinstance(plain_scalar(text), str) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _yaml(fields: dict[str, Any]) -> str:
    # PyYAML folds at 80 characters by default, which would split commands.
    written: str = yaml.dump(fields, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1_000_000)
    return written


def _block(keyword: str, fields: dict[str, Any]) -> str:
    header = [keyword, fields.pop("id")]
    if title := fields.pop("title", ""):
        header.append(json.dumps(title))
    arrows: list[str] = []
    body = fields
    if keyword == "task":
        kind = StepKind(fields.pop("kind", StepKind.TOOL))
        header += [f"kind:{kind.value}"] if kind is not StepKind.TOOL else []
        arrows = _arrows(fields)
        first_fields: dict[str, Any] = {}
        if "needs" in fields:
            first_fields["needs"] = " ".join(fields.pop("needs"))
        if "inputs" in fields:
            first_fields["input"] = fields.pop("inputs")
        # The short form has no place for other fields, so an action that sets any is written in full.
        if set(fields.get("shell", {})) == {"run"}:
            first_fields["run"] = fields.pop("shell")["run"]
        if "expect" in fields:
            first_fields["expect"] = fields.pop("expect")
        body = first_fields | fields
    text = _yaml(body) if body else ""
    lines = [" ".join(header), *(_INDENT + line if line else line for line in text.splitlines()), *arrows]
    return "\n".join(lines) + "\n"


def _arrows(fields: dict[str, Any]) -> list[str]:
    lines = []
    if "on_success" in fields:
        lines.append(f"{_INDENT}on success -> {' '.join(fields.pop('on_success'))}")
    if set(fields.get("on_failure", {})) == {"to"}:
        lines.append(f"{_INDENT}on failure -> {fields.pop('on_failure')['to']}")
    return lines


NODES_LIMIT = 300
"""Maximum number of steps in a diagram. Larger diagrams are unreadable, and Mermaid rejects more than 500 edges (its
`maxEdges`).
"""
LABEL_CHARACTERS = 80
# Mermaid parses `#name;` as an entity; quotes, brackets and `|` end a label, and backticks start Markdown.
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
    """Draw a plan as a Mermaid flowchart.

    If there are more than `NODES_LIMIT` steps, an extra node shows the number of steps drawn.

    Args:
        plan: the plan, including subplans and alternatives.
        statuses: statuses of top-level steps, by ID. Other steps are not coloured.
    """
    drawing = _Drawing(statuses or {})
    drawing.lines.append("flowchart TD")
    drawing.steps(plan.steps, "s", 1)
    total = sum(1 for _ in walk(plan.steps))
    if total > drawing.drawn:
        drawing.lines.append(f'{_INDENT}more["{drawing.drawn} of {total} steps are shown"]')
    # Sorted, so that equal plans have equal diagrams.
    for status in sorted(drawing.used):
        drawing.lines.append(f"{_INDENT}classDef {status.value} {_COLOURS[status]}")
    return "\n".join(drawing.lines) + "\n"


@dataclass
class _Drawing:
    """State of a diagram while it is being built."""

    statuses: Mapping[str, StepStatus]
    lines: list[str] = field(default_factory=list)
    drawn: int = 0
    used: set[StepStatus] = field(default_factory=set)

    def steps(self, steps: tuple[Step, ...], prefix: str, level: int) -> None:
        """Draw the steps, followed by the edges between them."""
        names: dict[str, str] = {}
        for number, step in enumerate(steps):
            if self.drawn >= NODES_LIMIT:
                break
            name = names[step.id] = f"{prefix}{number}"
            self.drawn += 1
            self._step(step, name, level)
        # After all nodes: Mermaid creates a node where it is first named, which may be outside of its subgraph.
        for step in steps:
            for source, target, arrow in _mermaid_arrows(step):
                if source in names and target in names:
                    self._line(level, f"{names[source]} {arrow} {names[target]}")

    def _line(self, level: int, text: str) -> None:
        self.lines.append(_INDENT * level + text)

    def _step(self, step: Step, name: str, level: int) -> None:
        status = self.statuses.get(step.id) if level == 1 else None
        inner = list(step.inner())
        if inner:
            self._line(level, f'subgraph {name}["{_label(step)}"]')
            for number, nested in enumerate(inner):
                prefix = f"{name}_{number}_"
                if nested.title:
                    self._line(level + 1, f'subgraph {prefix}a["{_escape(nested.title)}"]')
                self.steps(nested.steps, prefix, level + 1 + bool(nested.title))
                if nested.title:
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
    return f"{_escape(step.title)}<br/>{_escape(step.id)}" if step.title else _escape(step.id)


def _escape(text: str) -> str:
    line = " ".join(text.split())
    short = line if len(line) <= LABEL_CHARACTERS else line[: LABEL_CHARACTERS - 3] + "..."
    return short.translate(_ESCAPES)


def _mermaid_arrows(step: Step) -> Iterator[tuple[str, str, str]]:
    """Yield the source, target and arrow of every edge that the step declares."""
    yield from ((need, step.id, "-->") for need in step.needs)
    yield from ((step.id, target, '-->|"success"|') for target in step.on_success)
    if step.on_failure:
        yield step.id, step.on_failure.to, '-.->|"failure"|'
    for choice in step.choices():
        yield from ((step.id, target, f'-->|"{_escape(choice.label)}"|') for target in choice.to)
    if step.compensate and step.compensate.step:
        yield step.id, step.compensate.step, '-.->|"undone by"|'
