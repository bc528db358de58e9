"""The commands that steer a plan: approve, answer, change, pause, give more, end."""

from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from tightloop.cli import render
from tightloop.cli.episodes import AsJson
from tightloop.cli.plan_file import accepted
from tightloop.cli.plan_session import PlanId
from tightloop.cli.session import operator, session_of, within
from tightloop.client.plans import Plans
from tightloop.errors import InvalidRequestError
from tightloop.plan.control import FailureAnswer
from tightloop.plan.request import PlanStatus, WaitingGate

app = typer.Typer()
PERSON, STEER = "Answer", "Steer"
END_SECONDS = 10

Gate = Annotated[str, typer.Argument(metavar="GATE", help="Step, or window; can be left out where one waits.")]
By = Annotated[str | None, typer.Option("--by", help="Who says so. Default: your user name.")]
Rationale = Annotated[str, typer.Option(help="Why; kept in the record.")]
Reason = Annotated[str, typer.Option(help="Why; kept in the timeline.")]
Steering = Callable[[Plans, str], Awaitable[str]]


def _steer(context: typer.Context, plan: str, work: Steering, *, as_json: bool) -> None:
    """Do one thing with a plan, and show the sentence that came of it."""

    async def named(plans: Plans, key: str) -> tuple[str, str]:
        return key, await work(plans, key)

    key, sentence = session_of(context).on_plan(plan, named)
    render.answer({"plan_id": key, "message": sentence}, sentence, as_json=as_json)


@app.command(rich_help_panel=PERSON)
def approve(
    context: typer.Context,
    plan: PlanId,
    gate: Gate = "",
    option: Annotated[str, typer.Option(help="Which of the gate's options; see: tightloop plan status ID.")] = "",
    role: Annotated[str, typer.Option(help="Refuse unless the gate asks for this role.")] = "",
    rationale: Rationale = "",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Approve what waits: one gate, or all gates of a window."""

    async def work(plans: Plans, key: str) -> str:
        if role:
            _check_role(await plans.status(key), gate, role)
        return await plans.approve(key, gate, option=option, rationale=rationale, by=by or operator())

    _steer(context, plan, work, as_json=as_json)


def _check_role(status: PlanStatus, gate: str, role: str) -> None:
    meant = [one for one in status.waiting if gate in ("", one.step, one.question.window)]
    other = next((one for one in meant if one.question.role != role), None)
    if other is not None:
        asked = f"role {other.question.role!r}" if other.question.role else "no role"
        raise InvalidRequestError(
            f"{other.step} asks for {asked}, not {role!r}. Ask one who has it, or leave out --role"
        )


@app.command(rich_help_panel=PERSON)
def reject(
    context: typer.Context,
    plan: PlanId,
    gate: Gate = "",
    rationale: Rationale = "",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Refuse what waits; for the plan that is a failure of class policy."""

    async def work(plans: Plans, key: str) -> str:
        return await plans.reject(key, gate, rationale=rationale, by=by or operator())

    _steer(context, plan, work, as_json=as_json)


@app.command(rich_help_panel=PERSON)
def answer(
    context: typer.Context,
    plan: PlanId,
    word: Annotated[FailureAnswer, typer.Argument(metavar="ANSWER", help="retry, skip, abort or replan.")],
    step: Annotated[str, typer.Argument(metavar="STEP", help="Failed step. Default: all that were asked about.")] = "",
    file: Annotated[str | None, typer.Option(help="With replan: the new plan. Default: a planner writes it.")] = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Say what follows a failure that the plan asks about."""
    if file is not None and word is not FailureAnswer.REPLAN:
        raise InvalidRequestError(f"--file belongs to replan, not to {word.value}. Leave it out")
    source = accepted(file)[0].text if file is not None else ""

    async def work(plans: Plans, key: str) -> str:
        return await plans.answer(key, word.value, step, text=source, by=by or operator())

    _steer(context, plan, work, as_json=as_json)


@app.command(rich_help_panel=STEER)
def replan(
    context: typer.Context,
    plan: PlanId,
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="The whole new plan. Default: a planner writes it.")
    ] = None,
    rationale: Rationale = "",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Change a plan that runs; steps that are done or run stay as they are."""
    source = accepted(file)[0].text if file is not None else ""

    async def work(plans: Plans, key: str) -> str:
        return await plans.replan(key, source, rationale=rationale, by=by or operator())

    _steer(context, plan, work, as_json=as_json)


@app.command("run-step", rich_help_panel=STEER)
def run_step(
    context: typer.Context,
    plan: PlanId,
    step: Annotated[str, typer.Argument(metavar="STEP", help="A step that is ready, or has failed.")],
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Start one step now, also in a pause, or a failed one again."""

    async def work(plans: Plans, key: str) -> str:
        return await plans.run_step(key, step, by=by or operator())

    _steer(context, plan, work, as_json=as_json)


@app.command("top-up", rich_help_panel=STEER)
def top_up(
    context: typer.Context,
    plan: PlanId,
    steps: Annotated[int, typer.Option(help="More attempts of steps.")] = 0,
    cost_usd: Annotated[float, typer.Option(help="More dollars.")] = 0.0,
    tokens: Annotated[int, typer.Option(help="More tokens.")] = 0,
    api_calls: Annotated[int, typer.Option(help="More calls of models and hosts.")] = 0,
    wall_minutes: Annotated[float, typer.Option(help="More minutes of work.")] = 0.0,
    fan_out: Annotated[int, typer.Option(help="More steps of one template.")] = 0,
    revisions: Annotated[int, typer.Option(help="More revisions.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Raise the budget; a plan that waits for it goes on."""

    async def work(plans: Plans, key: str) -> str:
        return await plans.top_up(
            key,
            steps=steps,
            cost_usd=cost_usd,
            tokens=tokens,
            api_calls=api_calls,
            wall_minutes=wall_minutes,
            fan_out=fan_out,
            revisions=revisions,
        )

    _steer(context, plan, work, as_json=as_json)


@app.command(rich_help_panel=STEER)
def pause(context: typer.Context, plan: PlanId, reason: Reason = "", as_json: AsJson = False) -> None:
    """Start no new steps; those that run go on."""

    async def work(plans: Plans, key: str) -> str:
        await plans.pause(key, reason, by=operator())
        return f"{key} starts no new steps. Go on with: tightloop plan resume {key}"

    _steer(context, plan, work, as_json=as_json)


@app.command(rich_help_panel=STEER)
def resume(
    context: typer.Context,
    plan: PlanId,
    note: Annotated[str, typer.Option(help="Kept in the timeline.")] = "",
    as_json: AsJson = False,
) -> None:
    """End a pause; failed steps are tried again, and your edits of files are kept."""

    async def work(plans: Plans, key: str) -> str:
        status = await plans.status(key)
        await plans.resume(key, note=note, by=operator())
        if status.status == "paused":
            return f"{key} goes on"
        return f"{key} is {status.status} and was not paused{_still(status.waiting)}"

    _steer(context, plan, work, as_json=as_json)


def _still(waiting: tuple[WaitingGate, ...]) -> str:
    names = ", ".join(gate.step for gate in waiting[:3])
    return f". It waits for approval of {names}: tightloop plan approve" if names else ""


@app.command(rich_help_panel=STEER)
def cancel(context: typer.Context, plan: PlanId, reason: Reason = "", as_json: AsJson = False) -> None:
    """End a plan for good: what runs is stopped, and taken back where the plan says so."""

    async def work(plans: Plans, key: str) -> str:
        await plans.cancel(key, reason, by=operator())
        result = await within(END_SECONDS, plans.result(key))
        if result is None:
            return f"{key} ends as soon as what runs has stopped: tightloop plan watch {key}"
        return f"{key} is {result.outcome.value.lower()}: {result.reason}"

    _steer(context, plan, work, as_json=as_json)
