"""Every surface against the table of operations: what exists, what it says, and what it takes."""

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from temporalio import workflow

from gateway import web
from gateway.http.app import api
from gateway.http.hub import Hub
from gateway.mcp.server import ALL_TOOLS
from gateway.web.acting import ACTIONS
from tightloop import errors
from tightloop.cli.commands import COMMANDS
from tightloop.client import ExecutorAmendment, SyncTightloopClient, TightloopClient
from tightloop.operations import BY_NAME, CHANGES, DESTROYS, OPERATIONS, READS, Operation, possible
from workflows.episode.workflow import EpisodeWorkflow
from workflows.plan.project import ProjectWorkflow
from workflows.plan.workflow import PlanWorkflow

API = Path(__file__).parents[1] / "data" / "api.txt"
TEMPLATES = Path(web.__file__).parent / "templates"
FIELD = re.compile(r'"/(\w+)", "[^"]*", \{"(\w+)":')
"""Name of the operation and of a field that a button of the page sends."""
WORKFLOWS = {"episode": EpisodeWorkflow, "plan": PlanWorkflow, "loop": ProjectWorkflow}
OWN = frozenset({"workflow", "by", "as_json", "role", "release", "watch", *ExecutorAmendment.model_fields})
"""Parameters of commands besides the fields of the request: how it is sent and shown, and the parts of an executor."""
INTERNAL = frozenset({"child_waits", "child_steps", "events"})
"""Handlers that only our own workflows and client call."""
NOT_ASKED = frozenset({"self", "by", "message_id", "request_id", "new_id", "replace", "resumes"})
"""Parameters of the client's methods that no surface asks a person for."""


def test_the_table_loads_the_standard_library_alone() -> None:
    program = "import sys, tightloop.operations; print(*sys.modules)"
    done = subprocess.run((sys.executable, "-c", program), capture_output=True, text=True, check=True, timeout=60)
    assert "tightloop.operations" in done.stdout
    assert not {"pydantic", "temporalio", "asyncio", "tightloop.client"} & set(done.stdout.split())


def test_everything_that_a_row_names_exists() -> None:
    assert len({operation.name for operation in OPERATIONS}) == len(OPERATIONS)
    for operation in OPERATIONS:
        models = (operation.request, operation.plan_request, operation.result, *(row.result for row in operation.http))
        for model in filter(None, models):
            assert operation.load(model), (operation.name, model)
        for error in operation.errors:
            assert issubclass(getattr(errors, error), errors.TightloopError), (operation.name, error)
        assert not operation.reply or operation.handler, operation.name


def test_every_surface_is_as_the_table_says() -> None:
    assert sorted(differences(OPERATIONS)) == []


def test_what_is_possible_follows_from_the_table() -> None:
    episode = ("answer", "pause", "resume", "cancel", "top-up", "respond", "amend", "restore", "fork")
    assert possible("episode", is_open=True) == episode
    assert possible("episode", is_open=False) == ("restore", "fork")
    assert possible("plan", is_open=True) == ("answer", "pause", "resume", "cancel", "top-up", "run", "replan")
    assert possible("plan", is_open=False) == ()


def differences(operations: tuple[Operation, ...]) -> Iterator[str]:
    """Yield what differs, each as `surface, name: what`."""
    for compare in (in_http, in_command_line, in_tools, in_forms, in_clients, in_handlers):
        yield from compare(operations)


def in_http(operations: tuple[Operation, ...]) -> Iterator[str]:
    nothing: Any = None
    app: Any = api(nothing, Hub(nothing), nothing)
    document = app._app.openapi()
    known = {
        (f"/api{path}", row.method.lower()): (each, row)
        for each in operations
        for row in each.http
        for path in row.paths
    }
    shown = {(path, method): item for path, methods in document["paths"].items() for method, item in methods.items()}
    for where in known.keys() ^ shown.keys():
        yield f"http, {where[1]} {where[0]}: only {'in the table' if where in known else 'there'}"
    for where in known.keys() & shown.keys():
        (operation, row), item = known[where], shown[where]
        if not item["description"].startswith(operation.summary):
            yield f"http, {where[1]} {where[0]}: another sentence"
        if str(row.status) not in item["responses"]:
            yield f"http, {where[1]} {where[0]}: another status"


def commands() -> dict[str, click.Command]:
    """Commands by their words."""
    entries = {entry: getattr(entry, "commands", {"": entry}) for entry in COMMANDS}
    return {
        f"{entry.name} {name}".strip(): command for entry, each in entries.items() for name, command in each.items()
    }


def in_command_line(operations: tuple[Operation, ...]) -> Iterator[str]:
    found, named = commands(), {operation.cli: operation for operation in operations if operation.cli}
    for words in named.keys() - found.keys():
        yield f"command line, {words}: only in the table"
    for words, operation in named.items():
        if words not in found or operation.effect not in (CHANGES, DESTROYS):
            continue
        found[words].get_params(click.Context(found[words]))
        parameters = {str(each.name): each for each in found[words].params}
        fields = fields_of(operation)
        for name in sorted(fields - parameters.keys()):
            yield f"command line, {words}: lacks {name}"
        for name in sorted(parameters.keys() - fields - OWN):
            yield f"command line, {words}: alone has {name}"
        for name, sentence in sentences_of(operation).items():
            # What follows names an option, or a rule of the API.
            if name in parameters and not parameters[name].help.startswith(re.split("[;.]", sentence)[0]):
                yield f"command line, {words}: another sentence of {name}"
        if ("by" in parameters) is operation.is_anonymous:
            yield f"command line, {words}: {'lacks' if 'by' not in parameters else 'alone has'} by"


def fields_of(operation: Operation) -> set[str]:
    """Names of what an operation asks for besides the run."""
    fields = {name for row in operation.http for name, _ in row.fields}
    for model in filter(None, (operation.request, operation.plan_request)):
        fields |= set(operation.load(model).model_fields)
    return fields


def sentences_of(operation: Operation) -> dict[str, str]:
    """Field descriptions of an operation's models."""
    models = [operation.load(model) for model in (operation.request, operation.plan_request) if model]
    return {name: info.description or "" for model in models for name, info in model.model_fields.items()}


def in_tools(operations: tuple[Operation, ...]) -> Iterator[str]:
    named = {operation.mcp: operation for operation in operations if operation.mcp}
    found = {tool.name: tool for tool in ALL_TOOLS}
    for name in named.keys() ^ found.keys():
        yield f"mcp, {name}: only {'in the table' if name in named else 'there'}"
    for name in named.keys() & found.keys():
        if not str(found[name].shown.description).startswith(named[name].summary):
            yield f"mcp, {name}: another sentence"
        if "id" in found[name].shown.input_schema["properties"] and named[name].effect != READS:
            for field in fields_of(named[name]) ^ (set(found[name].shown.input_schema["properties"]) - {"id"}):
                yield f"mcp, {name}: another field {field}"


def in_forms(operations: tuple[Operation, ...]) -> Iterator[str]:
    named = {operation.page.path for operation in operations if operation.page is not None}
    for path in named ^ ACTIONS.keys():
        yield f"page, {path}: only {'in the table' if path in named else 'there'}"
    for template in TEMPLATES.glob("*.html"):
        for name, field in FIELD.findall(template.read_text(encoding="utf-8")):
            if field not in fields_of(BY_NAME[name]):
                yield f"page, {name}: another field {field}"


def in_clients(operations: tuple[Operation, ...]) -> Iterator[str]:
    methods = {name for name, _ in inspect.getmembers(TightloopClient, inspect.isfunction) if not name.startswith("_")}
    for name in methods - set(dir(SyncTightloopClient)):
        yield f"sync client, {name}: is missing"
    for operation in operations:
        if not operation.client:
            continue
        if operation.client not in methods:
            yield f"client, {operation.client}: is missing"
            continue
        if operation.client != operation.name or operation.effect not in (CHANGES, DESTROYS):
            continue
        signature = inspect.signature(getattr(TightloopClient, operation.client)).parameters
        parameters = set(signature)
        asked = parameters - NOT_ASKED - {"workflow_id", "episode_id", "plan_id"}
        takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in signature.values())
        for name in sorted(asked ^ fields_of(operation) if not takes_any else ()):
            yield f"client, {operation.client}: another field {name}"
        # A signal has no id under which Temporal would know it again.
        for name in ("by",) if operation.reply else ("by", "message_id"):
            if name not in parameters:
                yield f"client, {operation.client}: lacks {name}"


def in_handlers(operations: tuple[Operation, ...]) -> Iterator[str]:
    for kind, made in WORKFLOWS.items():
        definition = workflow._Definition.must_from_class(made)
        found = {*map(str, definition.signals), *map(str, definition.updates), *map(str, definition.queries)}
        named = {operation.handler for operation in operations if operation.handler and kind in operation.kinds}
        for name in named ^ (found - INTERNAL):
            yield f"handlers, {kind} {name}: only {'in the table' if name in named else 'there'}"


def test_programs_find_every_path_of_the_api_as_before() -> None:
    nothing: Any = None
    app: Any = api(nothing, Hub(nothing), nothing)
    paths = app._app.openapi()["paths"]
    lines = [line_of(path, method, item) for path, items in paths.items() for method, item in items.items()]
    assert sorted(lines) == API.read_text(encoding="utf-8").splitlines(), "a change here is one that programs notice"


def line_of(path: str, method: str, item: dict[str, Any]) -> str:
    """Return one path in a line: its operationId, parameters, body and answer."""
    parameters = [
        f"{each['in']}:{each['name']}{'' if each.get('required') else '?'}" for each in item.get("parameters", [])
    ]
    body = item.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    [status, answer] = next((status, each) for status, each in item["responses"].items() if status.startswith("2"))
    [kind, content] = next(iter(answer["content"].items()))
    names = [_name_of(schema) for schema in (body, content.get("schema", {}))]
    words = [path, method.upper(), item["operationId"], *sorted(parameters), f"{names[0]}->", status, kind, names[1]]
    return " ".join(filter(None, words))


def _name_of(schema: dict[str, Any]) -> str:
    parts = schema.get("anyOf", [schema])
    return "|".join(str(each.get("$ref", each.get("type", ""))).rpartition("/")[2] for each in parts)
