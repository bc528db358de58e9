"""The commands about plans: run one, look at what runs."""

import contextlib
import re
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.syntax import Syntax
from rich.text import Text

from tightloop.cli import plan_audit, plan_check, plan_render, plan_steer, render
from tightloop.cli.episodes import AsJson
from tightloop.cli.opening import opened
from tightloop.cli.plan_file import Examined, accepted, problem_line, read_inputs
from tightloop.cli.plan_follow import Follower, follow_plan_as_json
from tightloop.cli.plan_session import PlanId, newest
from tightloop.cli.plan_store import PlanStore
from tightloop.cli.session import INTERRUPTED, Session, on_terminal, session_of
from tightloop.client import OPEN_STATUSES, TightloopClient
from tightloop.client.plan_kind import PLAN_CLOSED_STATUSES
from tightloop.client.plans import Plans
from tightloop.errors import EpisodeNotFoundError, InvalidRequestError
from tightloop.plan.request import SOURCE_CHARACTERS, PlanRequest, PlanStatus, StepLine
from tightloop.scrub import scrub

app = typer.Typer(
    help="Plans: steps with their contracts, run as a graph. A first one: tightloop plan run plan.yaml",
    no_args_is_help=True,
)
RUN, LOOK = "Run", "Look"
FAILED = 1
_SECRET = re.compile(r"\[secret:[^\]]+\]")


@dataclass(frozen=True)
class Wanted:
    """What `run` was asked for."""

    file: str | None = None
    again: str | None = None
    plan_id: str | None = None
    workspace: str | None = None
    values: list[str] = field(default_factory=list)
    goal: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    """Fields of the request that were given."""

    def check(self) -> None:
        """Refuse options that exclude each other."""
        if bool(self.file) + bool(self.goal) > 1:
            raise InvalidRequestError("a FILE and a --goal were given. The plan is either written or asked for")
        if not (self.file or self.goal or self.again):
            raise InvalidRequestError("there is no plan. Name a file: tightloop plan run plan.yaml")
        if self.again and self.plan_id:
            raise InvalidRequestError("--again and --id exclude each other: a plan that runs again keeps its id")
        if self.again and self.options.get("dry_run"):
            raise InvalidRequestError(
                "--dry-run would hide what the plan has done from its next run. Look at it under another id: "
                f"tightloop plan show {self.again} --as yaml > plan.yaml; tightloop plan run plan.yaml --dry-run"
            )


@app.command(rich_help_panel=RUN)
def run(
    context: typer.Context,
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="Plan file; '-' is the standard input.")] = None,
    workspace: Annotated[str | None, typer.Option(help="Top of the git working tree. Default: this folder.")] = None,
    values: Annotated[
        list[str] | None, typer.Option("--set", help="name=value of an input, the value as JSON. Repeatable.")
    ] = None,
    again: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Run a closed plan again: what is done is taken over.", autocompletion=None),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what each step would do; change nothing.")] = False,
    worktree: Annotated[bool, typer.Option("--worktree", help="Work in a git worktree of its own.")] = False,
    max_parallel: Annotated[int | None, typer.Option(help="At most so many steps at once.")] = None,
    goal: Annotated[
        str, typer.Option(help="Have a model write the plan; needs the setting plans.agent_planning.")
    ] = "",
    plan_id: Annotated[str | None, typer.Option("--id", help="Id of the run. Default: a new one.")] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Start it and return at once.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout: a line for each change.")] = False,
) -> None:
    """Run a plan and follow it; exit code 0 when it completed. Ctrl-C leaves it running."""
    given = {"dry_run": dry_run or None, "worktree": worktree or None, "max_parallel": max_parallel}
    options = {name: value for name, value in given.items() if value is not None}
    wanted = Wanted(file, again, plan_id, workspace, values or [], goal, options)
    wanted.check()
    session = session_of(context)
    text = accepted(file)[0] if file else None
    if text is not None:
        _remark_on(text)
    started, note = session.run(lambda client: _started(client, session, wanted, text))
    if note:
        render.remark(note)
    if detach:
        document = {"plan_id": started}
        render.answer(document, f"started {started}\nFollow it: tightloop plan watch {started}", as_json=as_json)
        return
    if not as_json:
        render.show(f"started {started}" + (" (dry run: nothing is changed)" if dry_run else ""))
    last = _watch(session, started, as_json=as_json, dry_run=dry_run)
    if dry_run and last is not None and not as_json:
        _show_previews(last)
    _leave(last)


def _remark_on(text: Examined) -> None:
    for problem in text.warnings:
        render.remark(problem_line(problem))
    secrets = sorted(set(_SECRET.findall(scrub(text.text))) - set(_SECRET.findall(text.text)))
    if secrets:
        render.remark(
            f"{text.name}: warning: it holds what looks like {', '.join(secrets)}, and its text is kept with the plan. "
            "Put it into the worker's environment and name the variable: secret_headers of an http step"
        )


async def _started(client: TightloopClient, session: Session, wanted: Wanted, text: Examined | None) -> tuple[str, str]:
    """Start a plan, and stay for the moment in which it may be refused. Returns its id and a remark."""
    request, known_id = await _request(client, wanted, text)
    new_id = await client.plans.start(request, plan_id=known_id)
    changes, queue = client.plans.watch(new_id), session.settings.temporal.task_queue
    return new_id, await opened(client, queue, new_id, changes, lambda status: bool(status.counts))


async def _request(client: TightloopClient, wanted: Wanted, text: Examined | None) -> tuple[PlanRequest, str | None]:
    """Return what is to be started, and under which id."""
    fields: dict[str, Any] = {"goal": wanted.goal}
    plan_id, folder = wanted.plan_id, wanted.workspace
    known = dict(text.read.plan.inputs) if text is not None and text.read is not None else None
    if plan_id is not None:
        await _refuse_known(client.plans, plan_id)
    if wanted.again:
        plan_id = await client.plans.resolve(wanted.again)
        before = await client.plans.request(plan_id)
        fields = {name: getattr(before, name) for name in PlanRequest.model_fields if name != "dry_run"}
        folder = folder or before.workspace
        if text is None and not wanted.goal and before.source:
            stored = await newest(client.plans, await client.plans.status(plan_id))
            fields["source"], known = stored.source or before.source, dict(stored.plan.inputs)
        else:
            fields.update(source="", file="" if text is not None or wanted.goal else before.file, goal=wanted.goal)
    if text is not None:
        fields.update(_text_fields(wanted.file or "", text.text))
    inputs = read_inputs(wanted.values, known)
    inputs = {**fields.get("inputs", {}), **inputs} if wanted.again else inputs
    absolute = Path(folder or ".").expanduser().resolve()
    request = PlanRequest(**{**fields, "workspace": str(absolute), "inputs": inputs, **wanted.options})
    return request, plan_id


async def _refuse_known(plans: Plans, plan_id: str) -> None:
    """Refuse an id that a plan has: taking over what that one did must be meant."""
    with contextlib.suppress(EpisodeNotFoundError):
        known = await plans.summary(plan_id)
        hint = f"Watch it: tightloop plan watch {plan_id}"
        if known.status in PLAN_CLOSED_STATUSES:
            hint = f"Run it again, with what is done taken over: tightloop plan run --again {plan_id}"
        raise InvalidRequestError(f"--id {plan_id}: there is a plan of this id; it is {known.status}. {hint}")


def _text_fields(file: str, text: str) -> dict[str, str]:
    """Send a plan as what was read here; one that is too large for a message by its name."""
    if len(text) <= SOURCE_CHARACTERS or file == "-":
        return {"source": text}
    return {"file": str(Path(file).expanduser().resolve())}


def _watch(session: Session, plan_id: str, *, as_json: bool, dry_run: bool = False) -> PlanStatus | None:
    def followed(client: TightloopClient) -> Awaitable[PlanStatus | None]:
        return follow_plan_as_json(client, plan_id) if as_json else Follower(client, plan_id, dry_run=dry_run).run()

    try:
        return session.run(followed)
    except typer.Exit as left:
        if left.exit_code == INTERRUPTED:
            render.remark(
                f"{plan_id} goes on without you. Look: tightloop plan watch {plan_id}   "
                f"Stop it: tightloop plan cancel {plan_id}"
            )
        raise


def _leave(last: PlanStatus | None) -> None:
    if last is not None and last.status in PLAN_CLOSED_STATUSES and last.status != "completed":
        raise typer.Exit(FAILED)


def _show_previews(status: PlanStatus) -> None:
    """Show what a dry run found, diffs as diffs."""
    store = PlanStore(Path(status.workspace), status.plan_id)
    store.require()
    render.show("Dry run: nothing was changed. Each step would:")
    for step, preview in store.previews().items():
        render.show("", Text(f"{step}:", "bold"))
        is_diff = re.search(r"^(--- |diff --git )", preview, re.MULTILINE) is not None
        plain = render.plain(preview).rstrip()
        render.show(Syntax(plain, "diff", background_color="default") if is_diff and on_terminal() else Text(plain))


@app.command("list", rich_help_panel=LOOK)
def list_plans(
    context: typer.Context,
    status: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(OPEN_STATUSES + PLAN_CLOSED_STATUSES)}.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List plans, the newest first."""
    rows = session_of(context).run(lambda client: client.plans.list(status, limit))
    if as_json:
        render.show_json(rows)
    elif rows:
        render.show(plan_render.plans_table(rows))
    else:
        which = f"no plan is {status}" if status else "there are no plans yet"
        render.show(f"{which}. Start one: tightloop plan run plan.yaml")


@app.command(rich_help_panel=LOOK)
def status(
    context: typer.Context,
    plan: PlanId,
    steps: Annotated[bool, typer.Option("--steps", help="All steps, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show where a plan is, what it waits for, and how to answer."""

    async def look(plans: Plans, key: str) -> tuple[PlanStatus, tuple[StepLine, ...]]:
        return await plans.status(key), await plans.steps(key) if steps else ()

    found, lines = session_of(context).on_plan(plan, look)
    if as_json:
        document = found.model_dump(mode="json")
        render.show_json({**document, "steps": render.as_plain_values(lines)} if steps else document)
        return
    render.show(plan_render.status_panel(found), *([plan_render.steps_table(lines)] if steps else []))


@app.command(rich_help_panel=LOOK)
def watch(
    context: typer.Context,
    plan: PlanId,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document a line, one line a change.")] = False,
) -> None:
    """Show what happens until the plan ends; exit code 0 when it completed, 1 when not."""
    session = session_of(context)

    async def named(_: Plans, key: str) -> str:
        return key

    key = session.on_plan(plan, named)
    _leave(_watch(session, key, as_json=as_json))


@app.command(rich_help_panel=LOOK)
def timeline(context: typer.Context, plan: PlanId, as_json: AsJson = False) -> None:
    """Show what happened in a plan, newest last; at most 200 lines."""
    found = session_of(context).on_plan(plan, lambda plans, key: plans.timeline(key))
    render.answer(found, plan_render.timeline_table(found), as_json=as_json)


app.add_typer(plan_check.app)
app.add_typer(plan_steer.app)
app.add_typer(plan_audit.app)
