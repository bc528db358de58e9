"""The commands that look at the text of a plan: validate, graph, show."""

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import click

from tightloop.cli import FAILED
from tightloop.cli.parameters import Argument, AsJson, Option
from tightloop.cli.plan.commands import FileOrId, is_file, newest, plan_status
from tightloop.cli.plan.file import Examined, accepted, examine, examine_any, plan_text, problem_line, step_text
from tightloop.cli.session import session_of
from tightloop.cli.terminal import plain, remark, show_json
from tightloop.cli.views import record_lines
from tightloop.client import Kind, TightloopClient
from tightloop.client.store import Store
from tightloop.errors import InvalidRequestError, ServiceUnavailableError, WorkspaceError, did_you_mean
from tightloop.plan.child import StepRecord, StepStatus
from tightloop.plan.document.plan import Plan
from tightloop.plan.document.step import Step
from tightloop.plan.request import StepLine
from tightloop.plan.text.writing import FORMS, to_mermaid, write_plan
from tightloop.value import counted


def validate(
    _context: click.Context,
    files: Annotated[list[str], Argument(metavar="FILE...", help="Plan files; '-' is the standard input.")],
    as_json: AsJson = False,
) -> None:
    found = [examine_any(file) for file in files]
    if as_json:
        show_json([_examined_document(one) for one in found])
    for one in () if as_json else found:
        for problem in one.problems:
            click.echo(plain(problem_line(problem)))
        click.echo(_verdict(one))
    if any(one.errors for one in found):
        raise click.exceptions.Exit(FAILED)


def _examined_document(one: Examined) -> dict[str, Any]:
    problems = [
        {
            "severity": problem.severity.value,
            "line": problem.position.line,
            "column": problem.position.column,
            "message": problem.message,
            "suggestion": problem.suggestion,
            "code": problem.code,
        }
        for problem in one.problems
    ]
    return {"file": one.name, "ok": not one.errors, "problems": problems}


def _verdict(one: Examined) -> str:
    counts = [(len(one.errors), "error"), (len(one.warnings), "warning")]
    said = ", ".join(counted(count, word) for count, word in counts if count)
    if one.read is None or one.errors:
        return f"{one.name}: {said}"
    steps = len(one.read.plan.steps)
    return f"{one.name}: ok, {counted(steps, 'step')}{f', {said}' if said else ''}"


def graph(context: click.Context, what: FileOrId) -> None:
    if is_file(what):
        click.echo(to_mermaid(_readable(what)), nl=False)
        return

    async def look(client: TightloopClient, plan_id: str) -> str:
        plan = (await newest(client, await plan_status(client, plan_id))).plan
        return to_mermaid(plan, _states(await client.steps(plan_id)))

    click.echo(session_of(context).on(what, look, Kind.PLAN), nl=False)


def _readable(file: str) -> Plan:
    """Return the plan of a file, even with errors that only matter when it runs; those are printed."""
    found = examine(file)
    if found.read is None or found.read.left_out:
        accepted(file)
    for problem in found.errors:
        remark(problem_line(problem))
    assert found.read is not None
    return found.read.plan


def _states(lines: tuple[StepLine, ...]) -> dict[str, StepStatus]:
    return {line.id: line.status for line in lines}


def show(
    context: click.Context,
    what: FileOrId,
    step: Annotated[str | None, Option(help="Only this step, with all its attempts once it ran.")] = None,
    form: Annotated[str | None, Option("--as", help=f"Print the whole plan as {', '.join(FORMS)}.")] = None,
    as_json: AsJson = False,
) -> None:
    if form is not None and form not in FORMS:
        raise InvalidRequestError(f"--as {form}: unknown form. Use one of {', '.join(FORMS)}")
    if form is not None and step is not None:
        raise InvalidRequestError(f"--as {form} writes a whole plan. For one step with its attempts use --json")
    records: tuple[StepRecord, ...] = ()
    states: dict[str, StepStatus] = {}
    workspace = Path()
    if is_file(what):
        plan = _readable(what)
    else:
        plan, states, records, workspace = session_of(context).on(
            what, lambda client, key: _shown(client, key, step), Kind.PLAN
        )
    if step is not None:
        contract, status = _step_of(plan, step, states), states.get(step)
        if as_json:
            said = contract.model_dump(mode="json", by_alias=True)
            show_json({"step": said, "attempts": records, "status": status or ""})
            return
        lines = [line for record in records for line in ("", *record_lines(record, workspace))]
        click.echo(plain("\n".join([step_text(contract, status), *lines])))
    elif form is not None:
        click.echo(write_plan(plan, form), nl=False)
    elif as_json:
        show_json(plan.model_dump(mode="json", by_alias=True))
    else:
        click.echo(plain(plan_text(plan, states)), nl=False)


async def _shown(
    client: TightloopClient, plan_id: str, step: str | None
) -> tuple[Plan, dict[str, StepStatus], tuple[StepRecord, ...], Path]:
    status = await plan_status(client, plan_id)
    plan = (await newest(client, status)).plan
    states: dict[str, StepStatus] = {}
    try:
        states = _states(await client.steps(plan_id))
    except ServiceUnavailableError as error:
        remark(f"the states of the steps are not known: {error.message}")
    store = Store(Path(status.workspace), plan_id)
    if step is not None and not store.is_here:
        with contextlib.suppress(WorkspaceError):
            store.require()
        remark(f"the attempts of {step} are on the host of {status.workspace}")
    return plan, states, store.records(step) if step is not None else (), store.workspace


def _step_of(plan: Plan, name: str, states: Iterable[str]) -> Step:
    # `look-2` is an item of the template `look-*`, which is all that the text of the plan holds.
    stem = f"{name.rstrip('0123456789')}*"
    found = next((one for one in plan.steps if one.id == name), None)
    found = found or next((one for one in plan.steps if one.id == stem), None)
    if found is None:
        hint = did_you_mean(name, [*(one.id for one in plan.steps), *states])
        raise InvalidRequestError(f"plan {plan.id} has no step {name!r}. {hint}".rstrip())
    return found
