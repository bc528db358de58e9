"""Generates `docs/reference/` from the code: `make docs`."""

import ast
import inspect
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import click
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from deploy.plan_examples import EXAMPLES, INTERNAL, TITLES
from tightloop.cli.main import app
from tightloop.ledger.metrics import MEANINGS
from tightloop.settings import Settings

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
GENERATED = "<!-- Generated from the code by `make docs`; do not edit. -->"
_ABOUT_SETTINGS = (
    "Where the file is, and what wins over what: [settings.md](../operate/settings.md). "
    "Each key is also an environment variable: `TIGHTLOOP_<SECTION>__<KEY>`."
)
_ABOUT_METRICS = (
    "`tightloop metrics`, the page `/metrics` and `GET /api/metrics` show these of the episodes that ended in a time "
    "range and are still in the ledger. Each has the number `n` of known values, and how many are not known: these are "
    "in no median, rate or sum. The 90th percentile (`p90`) is the smallest value that is not below 90 % of them. "
    "Field names are those of `--json`; in the API they are camelCase."
)
_ABOUT_PLANS = (
    "What they do together: [plans.md](../plans.md). Fields that end with `_s`, and durations, take seconds, or `90s`, "
    "`5m`, `2h`, `1d`. A list takes a bare text as its only item. What is left out has its default."
)
_EXIT_CODES = {
    0: "Done. Of a command that follows (`watch`, `plan run`, `start --watch`): the episode succeeded, the plan is "
    "completed.",
    1: "It did not work: what was followed ended otherwise, a plan file has errors (`plan validate`), something "
    "that is needed is missing (`doctor`), a success was not proven (`proof`, `verify`), code and history "
    "differ (`replay`), the id is unknown, or Temporal or a worker does not answer.",
    2: "Wrong use: an option, a value, a setting, a file that cannot be read, or a message that the episode or plan "
    "refuses, such as one to a closed episode. Nothing was changed.",
    3: "A person is needed: without a terminal, and with `--no-wait`, what is followed waits for an answer. It goes on "
    "once it has one.",
    130: "Ctrl-C. What was only followed goes on.",
}
_SECTION = re.compile(r"\bsection(?: ([A-Z]\w+))?")
_CHOICE = re.compile(r"\^\(([a-z_|]+)\)\$")
COMMON = 8
"""An option that is equal in so many commands is explained once."""
_WORDS = {
    "null": "null",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "integer": "whole number",
    "array": "list",
}


def pages() -> dict[str, str]:
    """Return the text of each page by file name."""
    return {
        "settings.md": settings_page(),
        "cli.md": cli_page(),
        "plan.md": plan_page(),
        "metrics.md": metrics_page(),
    }


def metrics_page() -> str:
    """Return the page of the figures of `tightloop metrics`."""
    rows = [f"| {one.title} | `{name}` | {one.definition} |" for name, one in MEANINGS.items()]
    table = ["| figure | field | meaning |", "|---|---|---|", *rows]
    return "\n\n".join(["# Figures of metrics", GENERATED, _ABOUT_METRICS, "\n".join(table)]) + "\n"


def settings_page() -> str:
    """Return the page of all settings: section, key, allowed values, default, meaning."""
    parts = [
        "# All settings",
        GENERATED,
        _ABOUT_SETTINGS,
    ]
    for name, field in Settings.model_fields.items():
        section = field.annotation
        assert isinstance(section, type)
        assert issubclass(section, BaseModel)
        parts += [f"## {name}", inspect.getdoc(section) or "", _table(section)]
        for inner in _inner_models(section):
            parts += [f"### {inner.__name__}", inspect.getdoc(inner) or "", _table(inner)]
    return "\n\n".join(parts) + "\n"


def plan_page() -> str:
    """Return the page of all plan models, with their fields and an example."""
    parts = [
        "# All fields of a plan",
        GENERATED,
        _ABOUT_PLANS,
    ]
    for model, example in EXAMPLES.items():
        table = _SECTION.sub(_linked, _table(model, without=INTERNAL))
        parts += [f"## {TITLES[model]}", inspect.getdoc(model) or "", table, f"```yaml\n{example}\n```"]
    return "\n\n".join(parts) + "\n"


def _about(annotation: Any) -> str:
    """Return the first paragraph of the docstring of the model in a field's annotation."""
    held = annotation if isinstance(annotation, type) else None
    held = held or next((each for each in get_args(annotation) if isinstance(each, type)), None)
    if held is None or not issubclass(held, BaseModel):
        return next((said for each in get_args(annotation) if (said := _about(each))), "") if held is None else ""
    return " ".join((inspect.getdoc(held) or "").split("\n\n", maxsplit=1)[0].split()).replace("|", "\\|")


def _linked(found: re.Match[str]) -> str:
    title = next((title for model, title in TITLES.items() if model.__name__ == found[1]), "")
    if not title:
        return "values by name"
    anchor = re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-")
    return f"[{title}](#{anchor})"


def _table(model: type[BaseModel], without: frozenset[str] = frozenset()) -> str:
    meanings, properties = field_meanings(model), model.model_json_schema(mode="validation")
    if "$ref" in properties:
        # A recursive model.
        properties = {**properties, **properties["$defs"][model.__name__]}
    rows = ["| key | is | default | meaning |", "|---|---|---|---|"]
    for plain, field in model.model_fields.items():
        name = field.alias or plain
        if name in without:
            continue
        default = field.get_default(call_default_factory=True)
        shown = "required" if default is PydanticUndefined else f"`{_shown(default)}`"
        allowed = _allowed(properties["properties"][name], properties.get("$defs", {}))
        rows.append(f"| `{name}` | {allowed} | {shown} | {meanings.get(plain) or _about(field.annotation)} |")
    return "\n".join(rows)


def _shown(value: Any) -> str:
    if isinstance(value, BaseModel):
        return "{}"
    if isinstance(value, tuple | list | frozenset):
        return f"[{', '.join(str(each) for each in value)}]"
    if value is None:
        return "null"
    if isinstance(value, timedelta):
        return f"{value / timedelta(hours=1):g}h"
    return str(value).lower() if isinstance(value, bool) else str(value) or '""'


def _allowed(schema: dict[str, Any], models: dict[str, Any]) -> str:
    """Return the values that a JSON schema allows, as text."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return _allowed(models[name], models) if "enum" in models[name] else f"section {name}"
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_allowed(option, models) for option in options))
    if schema.get("format") == "duration":
        return "duration"
    kind = schema.get("type", "anything")
    if kind == "object":
        inner = schema.get("additionalProperties")
        return f"by name: {_allowed(inner, models)}" if isinstance(inner, dict) else "section"
    if kind == "array":
        return f"list of {_allowed(schema['items'], models)}" if "items" in schema else "list"
    if choice := _CHOICE.fullmatch(schema.get("pattern", "")):
        return ", ".join(f"`{each}`" for each in choice[1].split("|"))
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    above = "above" if "exclusiveMinimum" in schema else "from"
    bounds = [f"{above} {low:g}" if low is not None else "", f"to {high:g}" if high is not None else ""]
    return " ".join(filter(None, [_WORDS.get(kind, kind), *bounds]))


def _inner_models(model: type[BaseModel]) -> list[type[BaseModel]]:
    """Return the models used by the fields of a section."""
    found: list[type[BaseModel]] = []

    def look(annotation: Any) -> None:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            found.append(annotation)
        for part in get_args(annotation):
            look(part)

    for field in model.model_fields.values():
        look(field.annotation)
    return list(dict.fromkeys(found))


def field_meanings(model: type[BaseModel]) -> dict[str, str]:
    """Return the attribute docstring of each field, including inherited ones."""
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if each is BaseModel or not issubclass(each, BaseModel):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(each))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, after in zip(body.body, body.body[1:], strict=False):
            match field, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(meaning))):
                    found[name] = " ".join(meaning.split()).replace("|", "\\|")
    return found


def cli_page() -> str:
    """Return the page of all commands with their arguments and options."""
    commands = list(_commands("tightloop", app))
    counts = Counter(_option(param) for _, command in commands for param in _parameters_of(command))
    common = [option for option, count in counts.items() if count >= COMMON]
    parts = [
        "# The command line",
        GENERATED,
        "`ID` is the id of an episode or of a plan, its beginning, or `last`.",
        "## Options before the command",
        "\n".join(_option(param) for param in _parameters_of(app)),
        "## Options of many commands",
        "\n".join(common),
        "## Exit codes",
        "\n".join(["| | |", "|---|---|", *(f"| {code} | {meaning} |" for code, meaning in _EXIT_CODES.items())]),
        "With `--json` they are the same; errors are sentences on standard error in any case.",
    ]
    for path, command in commands:
        context, params = click.Context(command), _parameters_of(command)
        arguments = [param.make_metavar(context) for param in params if param.param_type_name == "argument"]
        options = [option for param in params if (option := _option(param)) not in common]
        shared = [
            f"`{param.opts[0]}`" for param in params if _option(param) in common and param.opts[0].startswith("-")
        ]
        if shared:
            options.append(f"- {', '.join(shared)}: see [above](#options-of-many-commands).")
        parts += [f"## {' '.join([path, *arguments])}", "\n".join([_paragraphs(command.help), *options])]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _commands(path: str, group: Any) -> Iterable[tuple[str, Any]]:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _commands(f"{path} {name}", command)
        else:
            yield f"{path} {name}", command


def _parameters_of(command: click.Command) -> list[click.Parameter]:
    # `get_params` loads them lazily; `--help` is not among `command.params`.
    command.get_params(click.Context(command))
    return [each for each in command.params if each.name not in ("install_completion", "show_completion")]


def _paragraphs(text: str | None) -> str:
    return "\n\n".join(" ".join(each.split()) for each in inspect.cleandoc(text or "").split("\n\n"))


def _option(param: click.Parameter) -> str:
    """Return the list item that explains an argument or option."""
    if isinstance(param, click.Option):
        value = "" if param.is_flag else f" {_value(param.type)}"
        name = f"{', '.join(f'`{name}`' for name in param.opts)}{value}"
    else:
        name = f"`{param.human_readable_name}`"
    return f"- {name}: {' '.join((getattr(param, 'help', None) or '').split())}"


def _value(kind: click.ParamType) -> str:
    if isinstance(kind, click.Choice):
        return ", ".join(f"`{each}`" for each in kind.choices)
    words = {"text": "text", "integer": "whole number", "float": "number", "path": "path"}
    return words[kind.name.removesuffix(" range")]


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
