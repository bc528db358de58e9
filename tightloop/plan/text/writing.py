"""A `Plan` as text that reads back as the same plan."""

import json
from typing import Any

import yaml

from tightloop.plan.document.plan import Plan
from tightloop.plan.document.step import StepKind
from tightloop.plan.text.yaml_text import plain_scalar

FORMS = ("yaml", "json", "dsl")
_INDENT = "  "
_DUMPER: Any = yaml.SafeDumper


def write_plan(plan: Plan, form: str = "yaml") -> str:
    """Return the plan in one of `FORMS`; fields with their default value are left out.

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
    raise ValueError(f"unknown form '{form}' for plans. Use one of {', '.join(FORMS)}")


class _Dumper(_DUMPER):  # type: ignore[misc]
    """Writes texts so that they are read back as texts by the core schema."""

    # Equal values would become anchors and aliases.
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True

    # PyYAML writes the items of a list in the column of its key.
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, False)


def _text(dumper: Any, text: str) -> Any:
    lines = text.split("\n")
    # In a block a text stands as it is; markers, comments and blanks at its ends would not come back.
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
        style = None if text.isprintable() and isinstance(plain_scalar(text), str) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _yaml(fields: dict[str, Any]) -> str:
    # By default lines are folded at 80 characters: commands stay whole here.
    written: str = yaml.dump(fields, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1_000_000)
    return written


def _block(word: str, fields: dict[str, Any]) -> str:
    header = [word, fields.pop("id")]
    if title := fields.pop("title", ""):
        header.append(json.dumps(title))
    arrows: list[str] = []
    body = fields
    if word == "task":
        kind = StepKind(fields.pop("kind", StepKind.TOOL))
        header += [f"kind:{kind.value}"] if kind is not StepKind.TOOL else []
        arrows = _arrows(fields)
        made: dict[str, Any] = {}
        if "needs" in fields:
            made["needs"] = " ".join(fields.pop("needs"))
        if "inputs" in fields:
            made["input"] = fields.pop("inputs")
        if set(fields.get("shell", {})) == {"run"}:
            made["run"] = fields.pop("shell")["run"]
        if "expect" in fields:
            made["expect"] = fields.pop("expect")
        body = made | fields
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
