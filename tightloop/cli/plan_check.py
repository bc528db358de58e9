"""The commands that look at a plan's text: check it, draw it, show what it promises."""

import contextlib
from pathlib import Path
from typing import Annotated, Any

import typer

from tightloop.cli import plan_render, render
from tightloop.cli.episodes import AsJson
from tightloop.cli.plan_file import Examined, accepted, examine, examine_any, problem_line
from tightloop.cli.plan_session import FileOrId, is_file, plan_with_states
from tightloop.cli.plan_store import PlanStore
from tightloop.cli.plan_text import plan_text, step_text
from tightloop.cli.session import session_of
from tightloop.client.plans import Plans
from tightloop.errors import InvalidRequestError, ServiceUnavailableError, WorkspaceError
from tightloop.plan.model import Plan
from tightloop.plan.problem import did_you_mean
from tightloop.plan.request import StepLine
from tightloop.plan.result import StepRecord, StepStatus
from tightloop.plan.text.mermaid import to_mermaid
from tightloop.plan.text.writing import FORMS, write_plan

app = typer.Typer()
CHECK = "Check a file"
FAILED = 1


@app.command(rich_help_panel=CHECK)
def validate(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Plan files; '-' is the standard input.")],
    as_json: AsJson = False,
) -> None:
    """Tell everything that is wrong with plan files; exit code 1 when one must not run."""
    found = [examine_any(file) for file in files]
    if as_json:
        render.show_json([_examined_document(one) for one in found])
    for one in () if as_json else found:
        for problem in one.problems:
            typer.echo(render.plain(problem_line(problem)))
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
    said = ", ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts if count)
    if one.read is None or one.errors:
        return f"{one.name}: {said}"
    steps = len(one.read.plan.steps)
    return f"{one.name}: ok, {steps} step{'' if steps == 1 else 's'}{f', {said}' if said else ''}"


@app.command(rich_help_panel=CHECK)
def graph(context: typer.Context, what: FileOrId) -> None:
    """Print a plan as a Mermaid flowchart; one that runs has the states of its steps."""
    if is_file(what):
        typer.echo(to_mermaid(_readable(what)), nl=False)
        return

    async def look(plans: Plans, plan_id: str) -> str:
        plan, _ = await plan_with_states(plans, plan_id)
        return to_mermaid(plan, _states(await plans.steps(plan_id)))

    typer.echo(session_of(context).on_plan(what, look), nl=False)


def _readable(file: str) -> Plan:
    """Return the plan of a file, also with errors that only matter when it runs; those are told."""
    found = examine(file)
    if found.read is None:
        accepted(file)
    for problem in found.errors:
        render.remark(problem_line(problem))
    assert found.read is not None
    return found.read.plan


def _states(lines: tuple[StepLine, ...]) -> dict[str, StepStatus]:
    return {line.id: line.status for line in lines}


@app.command(rich_help_panel=CHECK)
def show(
    context: typer.Context,
    what: FileOrId,
    step: Annotated[str | None, typer.Option(help="Only this step; of a plan that ran, with all its attempts.")] = None,
    form: Annotated[str | None, typer.Option("--as", help=f"Write it as one of {', '.join(FORMS)}.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a plan or a step promises: order, needs, budgets, rules, gates."""
    if form is not None and form not in FORMS:
        raise InvalidRequestError(f"--as {form}: there is no such form. Use one of {', '.join(FORMS)}")
    records: tuple[StepRecord, ...] = ()
    states: dict[str, StepStatus] = {}
    if is_file(what):
        plan = _readable(what)
    else:
        plan, states, records = session_of(context).on_plan(what, lambda plans, key: _shown(plans, key, step))
    if step is not None:
        _show_step(plan, step, records, states, as_json=as_json)
    elif form is not None:
        typer.echo(write_plan(plan, form), nl=False)
    elif as_json:
        render.show_json(plan.model_dump(mode="json", by_alias=True))
    else:
        typer.echo(render.plain(plan_text(plan, states)), nl=False)


async def _shown(
    plans: Plans, plan_id: str, step: str | None
) -> tuple[Plan, dict[str, StepStatus], tuple[StepRecord, ...]]:
    plan, status = await plan_with_states(plans, plan_id)
    states: dict[str, StepStatus] = {}
    try:
        states = _states(await plans.steps(plan_id))
    except ServiceUnavailableError as error:
        render.remark(f"where the steps stand is not known: {error.message}")
    store = PlanStore(Path(status.workspace), plan_id)
    if step is not None and not store.is_here:
        with contextlib.suppress(WorkspaceError):
            store.require()
        render.remark(f"the attempts of {step} are on the host of {status.workspace}")
    return plan, states, store.records(step) if step is not None else ()


def _show_step(
    plan: Plan, name: str, records: tuple[StepRecord, ...], states: dict[str, StepStatus], *, as_json: bool
) -> None:
    stem = f"{name.rstrip('0123456789')}*"
    found = next((one for one in plan.steps if one.id == name), None)
    found = found or next((one for one in plan.steps if one.id == stem), None)
    if found is None:
        hint = did_you_mean(name, [*(one.id for one in plan.steps), *states])
        raise InvalidRequestError(f"plan {plan.id} has no step {name!r}. {hint}".rstrip())
    if as_json:
        contract = found.model_dump(mode="json", by_alias=True)
        render.show_json({"step": contract, "attempts": records, "status": states.get(name, "")})
        return
    lines = [step_text(found, states.get(name))]
    lines += [line for record in records for line in ("", *plan_render.record_lines(record))]
    typer.echo(render.plain("\n".join(lines)))
