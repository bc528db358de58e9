"""A `Plan` as text that reads back as the same plan."""

import json
from typing import Any

import yaml

from tightloop.plan.model import Capability, Plan, StepKind
from tightloop.plan.text.yaml_text import plain_scalar

FORMS = ("yaml", "json", "dsl")
_INDENT = "  "
_DUMPER: Any = yaml.SafeDumper


def write_plan(plan: Plan, form: str = "yaml") -> str:
    """Return the plan in one of `FORMS`; fields with their default value are left out.

    Raises:
        ValueError: there is no such form.
    """
    fields = plan.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    if form == "yaml":
        return _yaml(fields)
    if form == "json":
        return json.dumps(fields, indent=2, ensure_ascii=False) + "\n"
    if form == "dsl":
        return _dsl(fields)
    raise ValueError(f"there is no form '{form}' of plans. Use one of {', '.join(FORMS)}")


class _Dumper(_DUMPER):  # type: ignore[misc]
    """Writes texts so that they are read back as texts by the core schema."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, False)


def _text(dumper: Any, text: str) -> Any:
    block = "\n" in text and text.endswith("\n") and _fits_block(text)
    style = "|" if block else None if text.isprintable() and isinstance(plain_scalar(text), str) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _fits_block(text: str) -> bool:
    """Return whether a text can be written as it is, line by line."""
    lines = text.split("\n")
    return all(
        line == line.rstrip() and (line == "" or line.isprintable()) and not line.startswith(("#", "%", "---", "..."))
        for line in lines
    ) and not (lines[0] == "" or lines[0][0].isspace())


_Dumper.add_representer(str, _text)


def _yaml(fields: dict[str, Any]) -> str:
    written: str = yaml.dump(fields, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1_000_000)
    return written


def _dsl(fields: dict[str, Any]) -> str:
    steps = fields.pop("steps", [])
    blocks = [_block("plan", fields)]
    blocks += [_block("task", step) for step in steps]
    return "\n".join(blocks)


def _block(word: str, fields: dict[str, Any]) -> str:
    header = [word, fields.pop("id")]
    if title := fields.pop("title", ""):
        header.append(json.dumps(title))
    arrows: list[str] = []
    body = fields
    if word == "task":
        kind = StepKind(fields.pop("kind", StepKind.TOOL))
        header += [f"kind:{kind.value}"] if kind is not StepKind.TOOL else []
        header += [f"using:{using}"] if (using := fields.pop("using", "")) else []
        arrows = _arrows(fields)
        body = _task_body(fields, using)
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


def _task_body(fields: dict[str, Any], using: str) -> dict[str, Any]:
    """Return the fields in the words of the text form, what a reader looks for first coming first."""
    made: dict[str, Any] = {}
    if "needs" in fields:
        made["needs"] = " ".join(fields.pop("needs"))
    if "inputs" in fields:
        made["input"] = fields.pop("inputs")
    if set(fields.get("shell", {})) == {"run"} and using in ("", Capability.SHELL):
        made["run"] = fields.pop("shell")["run"]
    if "expect" in fields:
        made["expect"] = fields.pop("expect")
    return made | fields
