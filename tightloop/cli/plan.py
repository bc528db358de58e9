"""`tightloop plan`: run, validate, graph and show."""

import contextlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import click
from rich.syntax import Syntax
from rich.text import Text

from tightloop.cli.follow import follow
from tightloop.cli.parameters import Argument, AsJson, JsonLines, NewId, Option, Wait, complete_id
from tightloop.cli.plan_file import (
    Examined,
    examine,
    examine_any,
    load_valid_plan,
    plan_text,
    problem_line,
    read_inputs,
    step_text,
)
from tightloop.cli.session import exit_with_status, session_of
from tightloop.cli.start import (
    Executor,
    ExecutorOptions,
    Result,
    Scenarios,
    Setup,
    Unattended,
    Until,
    commit,
    drop_none,
    executor_values,
    read_until,
    start_and_wait,
)
from tightloop.cli.terminal import on_terminal, plain, print_note, show, show_either, show_json
from tightloop.cli.views import record_lines
from tightloop.client import Kind, RunStatus, TightloopClient
from tightloop.client.store import Store
from tightloop.episode.check import ProofRule
from tightloop.errors import InvalidRequestError, ServiceUnavailableError, WorkspaceError, did_you_mean
from tightloop.plan.child import StepRecord, StepStatus
from tightloop.plan.document import Plan, StoredPlan
from tightloop.plan.request import SOURCE_BYTES, PlanRequest, PlanStatus, StepLine
from tightloop.plan.step import Step
from tightloop.plan.text.reading import read_plan
from tightloop.plan.text.writing import FORMS, to_mermaid, write_plan
from tightloop.run.outcome import FAILED
from tightloop.value import format_count
from tightloop.value.scrub import scrub

FileOrId = Annotated[str, Argument(metavar="FILE|ID", help="Plan file or plan id.", complete=complete_id)]


def is_file(what: str) -> bool:
    """Return whether an argument is a plan file rather than a plan id."""
    # Anything that looks like a path is a file even if it does not exist, so that the error is about the file.
    return what == "-" or Path(what).expanduser().is_file() or "/" in what or Path(what).suffix != ""


async def plan_status(client: TightloopClient, plan_id: str) -> PlanStatus:
    """Return the status of a plan. The id must belong to a plan."""
    status = await client.status(plan_id)
    assert isinstance(status, PlanStatus)
    return status


def with_records(status: RunStatus) -> RunStatus:
    """Add the step records on this host to a stored status."""
    if not isinstance(status, PlanStatus) or not status.workspace:
        return status
    store = Store(Path(status.workspace), status.plan_id)
    # Records are in order of time, so the last attempt of each step wins.
    records = {record.step: record for record in store.records() if not record.undone} if store.is_here else {}
    counts = Counter(record.result.status.value for record in records.values())
    failed = tuple(
        StepLine(id=step, status=StepStatus.FAILED, attempt=record.attempt, failure=record.result.failure)
        for step, record in records.items()
        if record.result.status is StepStatus.FAILED
    )
    times = [moment for moment in (status.as_of, *(record.ended for record in records.values())) if moment is not None]
    return status.evolve(counts=dict(counts), failed=failed, as_of=max(times, default=None))


async def newest(client: TightloopClient, status: PlanStatus) -> StoredPlan:
    """Return the newest revision stored on this host.

    If nothing is stored, the first revision can be rebuilt from the plan's request.

    Raises:
        InvalidRequestError: the plan was rejected before it was stored.
        WorkspaceError: the revision is stored only on the host of the workspace.
    """
    store = Store(Path(status.workspace), status.plan_id)
    if store.is_here and (revisions := store.revisions()):
        return revisions[-1]
    request = await client.request(status.plan_id)
    # Later revisions exist only beside the workspace; Temporal has the text of the first one.
    if status.revision == 1 and isinstance(request, PlanRequest) and request.source:
        return StoredPlan(
            plan_id=status.plan_id, plan=read_plan(request.source).plan, inputs=request.inputs, source=request.source
        )
    # The workspace is here, so the plan is not missing because of another host.
    if store.workspace.is_dir():
        raise InvalidRequestError(
            f"{status.plan_id} has no stored plan because the run ended before the plan was opened. "
            f"{status.reason}".rstrip()
        )
    store.require()
    raise WorkspaceError(f"{status.plan_id} has no stored revision in {store.folder}")


_SECRET = re.compile(r"\[secret:[^\]]+\]")


@dataclass(frozen=True)
class RunArguments:
    """Arguments of `plan run`."""

    file: str | None = None
    again: str | None = None
    plan_id: str | None = None
    workspace: str | None = None
    values: list[str] = field(default_factory=list)
    goal: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    """Request fields given as options."""

    def check(self) -> None:
        """Reject options that cannot be used together."""
        if bool(self.file) + bool(self.goal) > 1:
            raise InvalidRequestError(
                "FILE and --goal cannot be used together. Specify a plan or let a model write one"
            )
        if not (self.file or self.goal or self.again):
            raise InvalidRequestError("no plan was specified. Specify a file: tightloop plan run plan.yaml")
        if self.again and self.plan_id:
            raise InvalidRequestError("--again cannot be used with --id: the plan is run again under its own id")
        if self.again and self.options.get("dry_run"):
            raise InvalidRequestError(
                "--again and --dry-run cannot be used together, because the next run would not see the plan's "
                "completed work. Preview the plan under another id: "
                f"tightloop plan show {self.again} --as yaml > plan.yaml; tightloop plan run plan.yaml --dry-run"
            )


def run(
    context: click.Context,
    file: Annotated[str | None, Argument(metavar="FILE", help="Plan file, or '-' for standard input.")] = None,
    workspace: Annotated[str | None, Option(help="Root of the git working tree. Default: the current folder.")] = None,
    values: Annotated[
        list[str] | None,
        Option(
            "--set",
            help="Input as name=value. If the plan sets the input to a string, the value is also a string "
            "(version=1.10). Otherwise, the value is parsed as JSON (3, true, [1, 2]). A value that is not valid "
            "JSON is used as a string. Repeatable.",
        ),
    ] = None,
    again: Annotated[str | None, Option(metavar="ID", help="Run a closed plan again, reusing completed steps.")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Preview each step without changing anything.")] = False,
    worktree: Annotated[bool, Option("--worktree", help="Work in a new git worktree.")] = False,
    executor: Executor = None,
    executor_option: ExecutorOptions = None,
    unattended: Unattended = None,
    until: Until = None,
    setup: Setup = None,
    result: Result = None,
    max_parallel: Annotated[int | None, Option(help="Maximum number of steps to run at the same time.")] = None,
    allow: Annotated[
        list[ProofRule] | None,
        Option(help="Accept findings of this kind without asking, for example tests_changed. Repeatable."),
    ] = None,
    scenarios: Scenarios = None,
    goal: Annotated[str, Option(help="Have a model write a plan for this goal. Requires plans.agent_planning.")] = "",
    plan_id: NewId = None,
    detach: Annotated[bool, Option("--detach", "-d", help="Start the plan and return immediately.")] = False,
    wait: Wait = None,
    as_json: JsonLines = False,
) -> None:
    # False counts as omitted: with --again, the value of the earlier run then stays.
    options = drop_none(dry_run=dry_run or None, worktree=worktree or None, max_parallel=max_parallel, allow=allow)
    options |= drop_none(result=result, setup=setup, unattended=unattended)
    options |= drop_none(until=read_until(until, datetime.now().astimezone()))
    choice = drop_none(name=executor, options=executor_values(executor_option))
    options |= {"executor": choice} if choice else {}
    arguments = RunArguments(file, again, plan_id, workspace, values or [], goal, options)
    arguments.check()
    if wait is not None and detach:
        raise InvalidRequestError("--detach does not wait, so it cannot be combined with --wait or --no-wait")
    session = session_of(context)
    if hidden := commit(session, scenarios, str(Path(workspace or ".").expanduser().resolve())):
        arguments.options["scenarios"] = hidden
    # Before connecting: errors in the text need no server.
    text = load_valid_plan(file)[0] if file else None
    if text is not None:
        _remark_on(text)
    queue = session.settings.temporal.task_queue

    async def start(client: TightloopClient) -> tuple[str, tuple[str, ...]]:
        request, known_id = await _request(client, arguments, text)
        return await start_and_wait(client, request, queue, known_id, replace=arguments.again is not None)

    started, notes = session.run(start)
    for note in notes:
        print_note(note)
    if detach:
        show_either({"id": started}, f"started {started}\nFollow it: tightloop watch {started}", as_json=as_json)
        return
    if not as_json:
        show(f"started {started}" + (" (dry run: nothing is changed)" if dry_run else ""))
    last = follow(session, started, as_json=as_json, dry_run=dry_run, wait=wait)
    if dry_run and isinstance(last, PlanStatus) and not as_json:
        _show_previews(last)
    exit_with_status(last)


def _remark_on(text: Examined) -> None:
    for problem in text.warnings:
        print_note(problem_line(problem))
    # The difference, because the text itself may already contain such a mark.
    secrets = sorted(set(_SECRET.findall(scrub(text.text))) - set(_SECRET.findall(text.text)))
    if secrets:
        print_note(
            f"{text.name}: warning: the plan, which will be stored, appears to contain {', '.join(secrets)}. Move "
            "the secret to the worker's environment, and name its variable in the secret_headers of an http step"
        )


async def _request(
    client: TightloopClient, arguments: RunArguments, text: Examined | None
) -> tuple[PlanRequest, str | None]:
    """Build the request for a new plan. Return the request and the plan's id."""
    fields: dict[str, Any] = {"goal": arguments.goal}
    plan_id, folder = arguments.plan_id, arguments.workspace
    plan_inputs = dict(text.read.plan.inputs) if text is not None and text.read is not None else None
    if arguments.again:
        plan_id = await client.resolve(arguments.again, kind=Kind.PLAN)
        before = await client.request(plan_id)
        assert isinstance(before, PlanRequest)
        # A dry run and the time to stop have to be requested each time; everything else is kept.
        fields = {name: getattr(before, name) for name in PlanRequest.model_fields if name not in ("dry_run", "until")}
        folder = folder or before.workspace
        # The newest revision, because the first text may have been replaced since.
        if text is None and not arguments.goal and before.source:
            stored = await newest(client, await plan_status(client, plan_id))
            fields["source"], plan_inputs = stored.source or before.source, dict(stored.plan.inputs)
        else:
            fields.update(
                source="", file="" if text is not None or arguments.goal else before.file, goal=arguments.goal
            )
    if text is not None:
        fields.update(_text_fields(arguments.file or "", text.text))
    inputs = read_inputs(arguments.values, plan_inputs)
    if arguments.again:
        # The text may have lost an input since then.
        old_inputs = {
            name: value for name, value in fields["inputs"].items() if plan_inputs is None or name in plan_inputs
        }
        inputs = old_inputs | inputs
    # Workers have another current folder.
    absolute = Path(folder or ".").expanduser().resolve()
    request = PlanRequest(**{**fields, "workspace": str(absolute), "inputs": inputs, **arguments.options})
    return request, plan_id


def _text_fields(file: str, text: str) -> dict[str, str]:
    """Return the request field for a plan's text.

    If the text is too large for a message, return the field for its file name.
    """
    if len(text.encode()) <= SOURCE_BYTES or file == "-":
        return {"source": text}
    return {"file": str(Path(file).expanduser().resolve())}


def _show_previews(status: PlanStatus) -> None:
    """Show the previews of a dry run, with highlighted diffs."""
    store = Store(Path(status.workspace), status.plan_id)
    store.require()
    show("Dry run: nothing was changed. Each step would:")
    for step, preview in store.previews().items():
        show("", Text(f"{step}:", "bold"))
        is_diff = re.search(r"^(--- |diff --git )", preview, re.MULTILINE) is not None
        text = plain(preview).rstrip()
        show(Syntax(text, "diff", background_color="default") if is_diff and on_terminal() else Text(text))


def validate(
    _context: click.Context,
    files: Annotated[list[str], Argument(metavar="FILE...", help="Plan files, or '-' for standard input.")],
    as_json: AsJson = False,
) -> None:
    results = [examine_any(file) for file in files]
    if as_json:
        show_json([_examined_document(result) for result in results])
    for result in () if as_json else results:
        for problem in result.problems:
            click.echo(plain(problem_line(problem)))
        click.echo(_verdict(result))
    if any(result.errors for result in results):
        raise click.exceptions.Exit(FAILED)


def _examined_document(result: Examined) -> dict[str, Any]:
    problems = [
        {
            "severity": problem.severity.value,
            "line": problem.position.line,
            "column": problem.position.column,
            "message": problem.message,
            "suggestion": problem.suggestion,
            "code": problem.code,
        }
        for problem in result.problems
    ]
    return {"file": result.name, "ok": not result.errors, "problems": problems}


def _verdict(result: Examined) -> str:
    counts = [(len(result.errors), "error"), (len(result.warnings), "warning")]
    summary = ", ".join(format_count(count, noun) for count, noun in counts if count)
    if result.read is None or result.errors:
        return f"{result.name}: {summary}"
    steps = len(result.read.plan.steps)
    return f"{result.name}: ok, {format_count(steps, 'step')}{f', {summary}' if summary else ''}"


def graph(context: click.Context, what: FileOrId) -> None:
    if is_file(what):
        click.echo(to_mermaid(_readable(what)), nl=False)
        return

    async def look(client: TightloopClient, plan_id: str) -> str:
        plan = (await newest(client, await plan_status(client, plan_id))).plan
        return to_mermaid(plan, _states(await client.steps(plan_id)))

    click.echo(session_of(context).on(what, look, Kind.PLAN), nl=False)


def _readable(file: str) -> Plan:
    """Parse a plan file and print its errors. Raise only errors that prevent parsing."""
    result = examine(file)
    # This raises: a part that cannot be parsed would be missing from the output without notice.
    if result.read is None or result.read.left_out:
        load_valid_plan(file)
    for problem in result.errors:
        print_note(problem_line(problem))
    assert result.read is not None
    return result.read.plan


def _states(lines: tuple[StepLine, ...]) -> dict[str, StepStatus]:
    return {line.id: line.status for line in lines}


def show_plan(
    context: click.Context,
    what: FileOrId,
    step: Annotated[str | None, Option(help="Show only this step, including all of its attempts.")] = None,
    form: Annotated[str | None, Option("--as", help=f"Print the whole plan as {', '.join(FORMS)}.")] = None,
    as_json: AsJson = False,
) -> None:
    if form is not None and form not in FORMS:
        raise InvalidRequestError(f"--as {form} is not a valid format. Use one of {', '.join(FORMS)}")
    if form is not None and step is not None:
        raise InvalidRequestError(f"--as {form} prints the whole plan. Use --json for one step with its attempts")
    records: tuple[StepRecord, ...] = ()
    states: dict[str, StepStatus] = {}
    workspace = Path()
    if is_file(what):
        plan = _readable(what)
    else:
        plan, states, records, workspace = session_of(context).on(
            what, lambda client, key: _load_plan(client, key, step), Kind.PLAN
        )
    if step is not None:
        contract, status = _step_of(plan, step, states), states.get(step)
        if as_json:
            document = contract.model_dump(mode="json", by_alias=True)
            show_json({"step": document, "attempts": records, "status": status or ""})
            return
        lines = [line for record in records for line in ("", *record_lines(record, workspace))]
        click.echo(plain("\n".join([step_text(contract, status), *lines])))
    elif form is not None:
        click.echo(write_plan(plan, form), nl=False)
    elif as_json:
        show_json(plan.model_dump(mode="json", by_alias=True))
    else:
        click.echo(plain(plan_text(plan, states)), nl=False)


async def _load_plan(
    client: TightloopClient, plan_id: str, step: str | None
) -> tuple[Plan, dict[str, StepStatus], tuple[StepRecord, ...], Path]:
    status = await plan_status(client, plan_id)
    plan = (await newest(client, status)).plan
    states: dict[str, StepStatus] = {}
    try:
        states = _states(await client.steps(plan_id))
    except ServiceUnavailableError as error:
        print_note(f"the step states are unknown: {error.message}")
    store = Store(Path(status.workspace), plan_id)
    if step is not None and not store.is_here:
        with contextlib.suppress(WorkspaceError):
            store.require()
        print_note(f"the attempts at {step} are not shown: they are stored on the host of {status.workspace}")
    return plan, states, store.records(step) if step is not None else (), store.workspace


def _step_of(plan: Plan, name: str, states: Iterable[str]) -> Step:
    # `look-2` is an item of the template `look-*`; the plan's text only contains the template.
    stem = f"{name.rstrip('0123456789')}*"
    match = next((step for step in plan.steps if step.id == name), None)
    match = match or next((step for step in plan.steps if step.id == stem), None)
    if match is None:
        hint = did_you_mean(name, [*(step.id for step in plan.steps), *states])
        raise InvalidRequestError(f"no such step in plan {plan.id}: {name!r}. {hint}".rstrip())
    return match
