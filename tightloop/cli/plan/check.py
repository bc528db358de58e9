"""The commands that look at the text of a plan: validate, graph, show."""

import contextlib
from pathlib import Path
from typing import Annotated, Any

import typer

from tightloop.cli.plan.file import Examined, accepted, examine, examine_any, problem_line
from tightloop.cli.plan.stored import FileOrId, is_file, newest, plan_status
from tightloop.cli.plan.text import plan_text, step_text
from tightloop.cli.render.plan import record_lines
from tightloop.cli.render.terminal import plain, remark, show_json
from tightloop.cli.session import FAILED, AsJson, session_of
from tightloop.cli.store import Store
from tightloop.client import Kind, TightloopClient
from tightloop.errors import InvalidRequestError, ServiceUnavailableError, WorkspaceError, did_you_mean
from tightloop.plan.document.plan import Plan
from tightloop.plan.request import StepLine
from tightloop.plan.result import StepRecord, StepStatus
from tightloop.plan.text.mermaid import to_mermaid
from tightloop.plan.text.writing import FORMS, write_plan
from tightloop.value import counted

app = typer.Typer()
CHECK = "Look at a plan's text"


@app.command(rich_help_panel=CHECK)
def validate(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Plan files; '-' is the standard input.")],
    as_json: AsJson = False,
) -> None:
    """Report every problem of plan files; exit code 1 when one of them cannot run."""
    found = [examine_any(file) for file in files]
    if as_json:
        show_json([_examined_document(one) for one in found])
    for one in () if as_json else found:
        for problem in one.problems:
            typer.echo(plain(problem_line(problem)))
        typer.echo(_verdict(one))
    if any(one.errors for one in found):
        raise typer.Exit(FAILED)


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


@app.command(rich_help_panel=CHECK)
def graph(context: typer.Context, what: FileOrId) -> None:
    """Print a plan as a Mermaid flowchart, with the states of its steps once it was started."""
    if is_file(what):
        typer.echo(to_mermaid(_readable(what)), nl=False)
        return

    async def look(client: TightloopClient, plan_id: str) -> str:
        plan = (await newest(client, await plan_status(client, plan_id))).plan
        return to_mermaid(plan, _states(await client.steps(plan_id)))

    typer.echo(session_of(context).on(what, look, Kind.PLAN), nl=False)


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


@app.command(rich_help_panel=CHECK)
def show(
    context: typer.Context,
    what: FileOrId,
    step: Annotated[str | None, typer.Option(help="Only this step, with all its attempts once it ran.")] = None,
    form: Annotated[str | None, typer.Option("--as", help=f"Print the plan as {', '.join(FORMS)}.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the steps of a plan in order, with needs, budgets, rules and gates."""
    if form is not None and form not in FORMS:
        raise InvalidRequestError(f"--as {form}: unknown form. Use one of {', '.join(FORMS)}")
    records: tuple[StepRecord, ...] = ()
    states: dict[str, StepStatus] = {}
    if is_file(what):
        plan = _readable(what)
    else:
        plan, states, records = session_of(context).on(what, lambda client, key: _shown(client, key, step), Kind.PLAN)
    if step is not None:
        _show_step(plan, step, records, states, as_json=as_json)
    elif form is not None:
        typer.echo(write_plan(plan, form), nl=False)
    elif as_json:
        show_json(plan.model_dump(mode="json", by_alias=True))
    else:
        typer.echo(plain(plan_text(plan, states)), nl=False)


async def _shown(
    client: TightloopClient, plan_id: str, step: str | None
) -> tuple[Plan, dict[str, StepStatus], tuple[StepRecord, ...]]:
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
    return plan, states, store.records(step) if step is not None else ()


def _show_step(
    plan: Plan, name: str, records: tuple[StepRecord, ...], states: dict[str, StepStatus], *, as_json: bool
) -> None:
    # `look-2` is an item of the template `look-*`, which is all that the text of the plan holds.
    stem = f"{name.rstrip('0123456789')}*"
    found = next((one for one in plan.steps if one.id == name), None)
    found = found or next((one for one in plan.steps if one.id == stem), None)
    if found is None:
        hint = did_you_mean(name, [*(one.id for one in plan.steps), *states])
        raise InvalidRequestError(f"plan {plan.id} has no step {name!r}. {hint}".rstrip())
    if as_json:
        contract = found.model_dump(mode="json", by_alias=True)
        show_json({"step": contract, "attempts": records, "status": states.get(name, "")})
        return
    lines = [step_text(found, states.get(name))]
    lines += [line for record in records for line in ("", *record_lines(record))]
    typer.echo(plain("\n".join(lines)))
