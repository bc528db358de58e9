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

from deploy.combinations import combination_rows, impossible_combinations
from deploy.plan_examples import EXPLAINED, INTERNAL, MERGED, SECTIONS, Section
from tightloop.cli.main import app
from tightloop.ledger.metrics import MEANINGS
from tightloop.run.outcome import Facts, exit_code, qualify
from tightloop.settings import Settings

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
GENERATED = "<!-- Generated from the code by `make docs`; do not edit. -->"
_ABOUT_SETTINGS = (
    "For the location and precedence of settings files, see [settings.md](../operate/settings.md). "
    "Each key is also an environment variable: `TIGHTLOOP_<SECTION>__<KEY>`."
)
_ABOUT_SMALL = "These sections have only a few keys. `server.http_port` is the key `http_port` of the section `server`."
_ABOUT_METRICS = (
    "`tightloop metrics`, the page `/metrics` and `GET /api/metrics` show figures about the episodes that ended in a "
    "time range. Deleted episodes are not included. For each figure, `n` is the number of known values, and `unknown` "
    "is the number of values that are missing. `p90` is the 90th percentile. The API uses camelCase field names."
)
_ABOUT_PLANS = (
    "For an introduction, see [plans.md](../plans.md). Durations and fields that end with `_s` accept a number of "
    "seconds, or a value such as `90s`, `5m`, `2h` or `1d`. If a list has only one item, it can be written as a "
    "plain string. Omitted fields have their default values. `gate.checks.name` is the field `name` of "
    "`gate.checks`, or of each item if that is a list."
)
_ABOUT_COMMANDS = (
    "`ID` is the id of an episode or of a plan, a unique prefix of the id, or `last`. The options of a command follow "
    'it. "Also" names [options of many commands](#options-of-many-commands).'
)
_ALSO = "Also {}."
_AS_START = "As for [`start`](#start): {}."
_EXIT_CODES = {
    0: "Done. For commands that wait for a run (`watch`, `plan run`, `start --watch`): a plain success; see "
    "[outcomes](outcomes.md).",
    1: "Failure: the run failed or was cancelled, a plan file has errors (`plan validate`), something required "
    "is missing (`doctor`), a proof does not hold (`verify`), code and history differ (`replay`), the id is unknown, "
    "or Temporal or a worker does not respond.",
    2: "Usage error: an invalid option, value or setting, a file that cannot be read, or a message that the episode "
    "or plan rejects, for example because it is closed. Nothing was changed.",
    3: "A person is needed: the run that is followed waits for an answer, and the command was started without a "
    "terminal or with `--no-wait`. The run continues after the answer.",
    4: "The run succeeded, but parts of it were skipped or the result is not proven. The last line names the "
    "reason; see [outcomes](outcomes.md).",
    130: "Ctrl-C. A run that was only followed continues.",
}
_SECTION = re.compile(r"\bsection(?: ([A-Z]\w+))?")
_CHOICE = re.compile(r"\^\(([a-z_|]+)\)\$")
COMMON = 3
"""An option that is equal in so many commands is explained once."""
WIDTH = 120
"""Longest line of a paragraph."""
SMALL = 8
"""A section of settings with so many keys has no table of its own."""
_WORDS = {
    "null": "null",
    "number": "number",
    "string": "string",
    "boolean": "true or false",
    "integer": "whole number",
    "array": "list",
}


def _page(title: str, *parts: str) -> str:
    """Return a page with the lines of its paragraphs wrapped."""
    lines = [line for part in (f"# {title}\n{GENERATED}", *parts) for line in (*part.splitlines(), "")]
    is_wrapped = (len(line) > WIDTH and not line.startswith("|") for line in lines)
    return "\n".join(
        textwrap.fill(line, WIDTH, break_long_words=False, break_on_hyphens=False) if wrapped else line
        for line, wrapped in zip(lines, is_wrapped, strict=True)
    )


def pages() -> dict[str, str]:
    """Return the text of each page by file name."""
    return {
        "settings.md": settings_page(),
        "cli.md": cli_page(),
        "plan.md": plan_page(),
        "metrics.md": metrics_page(),
        "outcomes.md": outcomes_page(),
    }


def metrics_page() -> str:
    """Return the page of the figures of `tightloop metrics`."""
    rows = [f"| {one.title} | `{name}` | {one.definition} |" for name, one in MEANINGS.items()]
    table = ["| figure | field | meaning |", "|---|---|---|", *rows]
    return _page("Figures of metrics", _ABOUT_METRICS, "\n".join(table))


_ABOUT_OUTCOMES = (
    "The last line of a run, `status`, `list`, the page, the API, webhooks and agents' tools all show the same words. "
    "A success without a qualifier is a *plain success*: every part of the work was done, files changed, and a check "
    "that failed before passes now. Any other success has a qualifier, and commands that wait for the run exit with "
    "code 4. In JSON, `status` is the first word of the last line in lower case, `qualifier` is the rest, and "
    "`filesChanged` counts the files that differ from the start."
)
_ABOUT_BASELINE = (
    "The checks run once before the work begins. When a check fails for the first time, tightloop runs it again. If it "
    "passes the second time, the check is flaky, and the failure does not count. If you restore or fork a run, it "
    "keeps these first results. If you replace the command of a check, only failures of the new command count."
)
_ABOUT_COMBINATIONS = (
    "*Work* is what executors did: `none` if none ran or only a person edited files, `unchanged` if no tracked file "
    "differs at the end. *Checks* compares the start with the end; `killed` is by a signal or at its time limit. "
    "*Skipped* counts the steps of a plan, or the tasks of a project plan that did not complete. *Answer* is the last "
    "one that a person gave. A successful plan says `COMPLETED` instead of `SUCCEEDED`, and first which steps were "
    "skipped: `COMPLETED, 2 of 3 steps skipped: lint, publish; not proven: no check ever failed`, with exit code 4."
)
_OUTCOMES: tuple[tuple[str, str, Facts | None], ...] = (
    ("Files changed, and a check failed before it passed", "succeeded", Facts(files_changed=2)),
    ("All checks passed from the start to the end, or found no tests", "succeeded",
     Facts(files_changed=2, seen_to_fail=False)),
    ("A check failed once and passed when it was repeated", "succeeded",
     Facts(files_changed=2, seen_to_fail=False, flaky=["pytest -q"])),
    ("The executor changed nothing", "succeeded", Facts(files_changed=0)),
    ("The planner claimed at once that the goal is met", "succeeded",
     Facts(files_changed=0, worked=False, seen_to_fail=False)),
    ("Only a person edited files", "succeeded", Facts(files_changed=1, worked=False)),
    ("A person answered `accept` to a finding of the proof", "succeeded",
     Facts(files_changed=2, accepted_by="ada", finding="a check fails with the original tests")),
    ("All steps ran, and the definition of done is proven", "completed", Facts(files_changed=2, steps=3)),
    ("The plan has no definition of done", "completed", Facts(has_checks=False, steps=3)),
    ("A failed step was answered with `skip`, or has `recover: skip`", "completed",
     Facts(files_changed=2, steps=3, skipped=["build", "publish"])),
    ("`when` was false, or `for_each` had no items", "completed", Facts(files_changed=2, steps=3, skipped=["deploy"])),
    ("A step failed and has `recover: continue`", "completed", Facts(files_changed=2, steps=3, failed=["lint"])),
    ("A step with a plan of its own left out some of that plan's steps", "completed",
     Facts(files_changed=2, steps=3, partly=["release"])),
    ("Only a person edited files while the plan ran", "completed", Facts(files_changed=1, worked=False, steps=3)),
    ("A plan was started with `--dry-run`", "completed", Facts(dry_run=True, steps=3)),
    ("All tasks are complete and proven, and all gates passed", "verified", Facts()),
    ("A task's episode succeeded without a proof", "verified", Facts(unproven=["ptask_2"])),
    ("Later tasks undid the changes of earlier ones", "verified", Facts(files_changed=0)),
    ("A check fails or was killed, or a budget was spent, and nobody continued the run", "failed", None),
    ("A task did not complete, or a gate did not pass", "failed", None),
    ("A step failed, and all changes were undone", "compensated", None),
    ("A person ended the run", "cancelled", None),
)  # fmt: skip


def outcomes_page() -> str:
    """Return the page of the outcomes of runs."""
    rows = ["| what happened | last line | exit code |", "|---|---|---|"]
    for what, status, facts in _OUTCOMES:
        qualifier = "" if facts is None else qualify(facts)
        line = f"{status.upper()}, {qualifier}" if qualifier else status.upper()
        rows.append(f"| {what} | `{line}` | {exit_code(status, qualifier, is_closed=True)} |")
    return _page(
        "Outcomes", _ABOUT_OUTCOMES, "\n".join(rows), _ABOUT_BASELINE,
        f"## All combinations\n{_ABOUT_COMBINATIONS}", "\n".join(combination_rows()),
        "\n".join(("Other combinations cannot occur:\n", *(f"- {reason}" for reason in impossible_combinations()))),
    )  # fmt: skip


def settings_page() -> str:
    """Return the page of all settings: section, key, allowed values, default, meaning."""
    parts = [_ABOUT_SETTINGS]
    small: dict[str, list[str]] = {}
    for name, field in Settings.model_fields.items():
        section = field.annotation
        assert isinstance(section, type)
        assert issubclass(section, BaseModel)
        inner = _inner_models(section)
        if not inner and len(section.model_fields) <= SMALL:
            small[name] = [f"| `{name}` | section | | {_about(section)} |", *_rows(section, f"{name}.")]
            continue
        rows = _rows(section)
        for model in inner:
            rows = _with_inner(rows, model)
        parts += [f"## {name}\n{_paragraph(section)}", _table(rows)]
    names = ", ".join(small)
    return _page(
        "All settings", *parts, f"## {names}\n{_ABOUT_SMALL}", _table(row for rows in small.values() for row in rows)
    )


def _with_inner(rows: list[str], model: type[BaseModel]) -> list[str]:
    """Return rows of settings; the first one that holds a model is followed by the keys of that model."""
    name = f"section {model.__name__}"
    place = next(place for place, row in enumerate(rows) if name in row)
    key = rows[place].split("`")[1]
    path = f"{key}.NAME." if "by name" in rows[place] else f"{key}."
    rows = [row.replace(name, f"`{path}*`") for row in rows]
    rows[place] = _explained_row(rows[place], model)
    return [*rows[: place + 1], *_rows(model, path), *rows[place + 1 :]]


def _explained_row(row: str, model: type[BaseModel]) -> str:
    """Return the row of a field that holds a model, with the meaning of the model where that adds something."""
    return f"{row.removesuffix(' |')} {_about(model)} |" if model in EXPLAINED else row


def plan_page() -> str:
    """Return the page of all plan models, with their fields and examples."""
    parts = [_ABOUT_PLANS]
    for section in SECTIONS:
        about = f"\n{_paragraph(section.models[''])}" if "" in section.models else ""
        rows = [_linked(row, section) for row in _plan_rows(section)]
        parts += [f"## {section.title}{about}", f"{_table(rows)}\n```yaml\n{section.example}\n```"]
    return _page("All fields of a plan", *parts)


def _plan_rows(section: Section) -> list[str]:
    """Return the rows of a section; those of an inner model follow the row that holds it."""
    rows: list[str] = []
    for path, model in section.models.items():
        mine = _rows(model, f"{path}." if path else "")
        holder = next((place for place, row in enumerate(rows) if row.startswith(f"| `{path}` |")), len(rows))
        if holder < len(rows):
            rows[holder] = _explained_row(rows[holder], model)
        rows[holder + 1 : holder + 1] = mine
    return rows


def _linked(row: str, section: Section) -> str:
    def link(found: re.Match[str]) -> str:
        for other in SECTIONS:
            for path, model in other.models.items():
                if model.__name__ == found[1]:
                    name = f"`{path}.*`" if path else other.title
                    return name if other is section and path else f"[{name}](#{_anchor(other.title)})"
        return "values by name"

    return _SECTION.sub(link, row)


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-")


def _paragraph(model: type[BaseModel]) -> str:
    """Return the docstring of a model as one line."""
    return " ".join((inspect.getdoc(model) or "").split())


def _about(annotation: Any) -> str:
    """Return the docstring of the model in a field's annotation, for a table."""
    if isinstance(annotation, type):
        return _paragraph(annotation).replace("|", "\\|") if issubclass(annotation, BaseModel) else ""
    return next((meaning for part in get_args(annotation) if (meaning := _about(part))), "")


def _table(rows: Iterable[str]) -> str:
    return "\n".join(["| key | is | default | meaning |", "|---|---|---|---|", *rows])


def _rows(model: type[BaseModel], path: str = "") -> list[str]:
    """Return a row for each field of a model; `path` precedes their names."""
    meanings, properties = field_meanings(model), model.model_json_schema(mode="validation")
    if "$ref" in properties:
        # A recursive model.
        properties = {**properties, **properties["$defs"][model.__name__]}
    merged = {names[0]: (names, meaning) for names, meaning in MERGED.get(model, {}).items()}
    later = {name for names, _ in merged.values() for name in names[1:]}
    cells: dict[str, str] = {}
    for plain, field in model.model_fields.items():
        name = field.alias or plain
        default = field.get_default(call_default_factory=True)
        shown = "required" if default is PydanticUndefined else f"`{_shown(default)}`"
        cells[name] = f"{_allowed(properties['properties'][name], properties.get('$defs', {}))} | {shown}"
        meanings[name] = meanings.get(plain) or _about(field.annotation)
    rows = []
    for name in (name for name in cells if name not in later | INTERNAL):
        names, meaning = merged.get(name, ((name,), meanings[name]))
        assert {cells[other] for other in names} == {cells[name]}, f"{names} differ in type or default"
        rows.append(f"| {', '.join(f'`{path}{other}`' for other in names)} | {cells[name]} | {meaning} |")
    return rows


def _shown(value: Any) -> str:
    if isinstance(value, BaseModel):
        return _shown(value.model_dump(exclude_defaults=True))
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {_shown(part)}' for name, part in value.items())}}}"
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
        items = re.sub(r"^(string|number|whole number)\b", r"\1s", _allowed(schema.get("items", {}), models))
        return f"list of {items}" if "items" in schema else "list"
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
    """Return the page of all commands with their arguments and options, in a table for each help panel."""
    commands = list(_commands("tightloop", app))
    start = [_option(param) for param in _parameters_of(app.commands["start"])]
    counts = Counter(_option(param) for _, command, _ in commands for param in _parameters_of(command))
    common = [option for option, count in counts.items() if count >= COMMON and not _is_id(option)]
    common = [option for option in common if option not in start or "`--json`" in option]
    names = Counter(option.split("`")[1] for option in common)
    common = [option for option in common if names[option.split("`")[1]] == 1 or counts[option] > COMMON]
    codes = ["| code | meaning |", "|---|---|", *(f"| {code} | {meaning} |" for code, meaning in _EXIT_CODES.items())]
    parts = [
        _ABOUT_COMMANDS,
        _commands_table("Options before the command", map(_option, _parameters_of(app))),
        _commands_table("Options of many commands", common),
        "\n".join(["## Exit codes", *codes]),
        "With `--json` they are the same; errors are sentences on standard error in any case.",
    ]
    panels: dict[str, list[str]] = {}
    for path, command, panel in commands:
        usage, about, options = _explained(path, command, common, [] if path == "tightloop start" else start)
        panels.setdefault(panel, []).extend([f"| **`{usage}`** | {about} |", *options])
    return _page("The command line", *parts, *(_commands_table(panel, rows) for panel, rows in panels.items()))


def _commands_table(title: str, rows: Iterable[str]) -> str:
    return "\n".join([f"## {title}", "| command, option | meaning |", "|---|---|", *rows])


def _explained(path: str, command: click.Command, common: list[str], start: list[str]) -> tuple[str, str, list[str]]:
    """Return usage, meaning and own options of a command; the meaning ends with the options explained elsewhere."""
    params = _parameters_of(command)
    context = click.Context(command)
    arguments = [param.make_metavar(context) for param in params if param.param_type_name == "argument"]
    about, options = [" ".join(inspect.cleandoc(command.help or "").split())], []
    elsewhere: dict[str, list[str]] = {_ALSO: [], _AS_START: []}
    for param in params:
        option = _option(param)
        if kind := _is_id(option):
            about += [f"`ID`: {kind[1]}."] if kind[1] != "an episode or a plan" else []
        elif param.param_type_name == "argument" and option not in start:
            about.append(option.strip("| ").replace(" | ", ": "))
        elif option in common:
            elsewhere[_ALSO].append(option)
        elif option in start:
            elsewhere[_AS_START].append(option)
        else:
            options.append(option)
    for words, shared in elsewhere.items():
        if shared:
            about.append(words.format(", ".join(f"`{option.split('`')[1]}`" for option in shared)))
    return " ".join([path, *arguments]), " ".join(about), options


def _is_id(option: str) -> re.Match[str] | None:
    return re.fullmatch(r"\| `\[?ID\]?` \| Id of (.+), a unique prefix of the id, or 'last'\. \|", option)


def _commands(path: str, group: Any, panel: str = "") -> Iterable[tuple[str, Any, str]]:
    """Yield path, command and help panel of the commands of a group; those of an inner group are in its panel."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _commands(f"{path} {name}", command, panel or command.panel)
        else:
            yield f"{path} {name}", command, panel or command.panel


def _parameters_of(command: click.Command) -> list[click.Parameter]:
    # `get_params` loads them lazily; `--help` is not among `command.params`.
    command.get_params(click.Context(command))
    return [each for each in command.params if each.name not in ("install_completion", "show_completion")]


def _option(param: click.Parameter) -> str:
    """Return the row that explains an argument or option."""
    if isinstance(param, click.Option):
        value = "" if param.is_flag else f" {_value(param.type)}"
        name = f"{', '.join(f'`{name}`' for name in param.opts)}{value}"
    else:
        name = f"`{param.human_readable_name}`"
    return f"| {name} | {' '.join((getattr(param, 'help', None) or '').split())} |".replace("FILE|ID", "FILE\\|ID")


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
