"""The commands that steer episodes and plans: pause, answer, give more, change, go back, end."""

import shlex
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from tightloop.cli.session import AsJson, By, Checkpoint, EpisodeId, Id, PlanId, Reason, operator, session_of, within
from tightloop.cli.views import todo_lines
from tightloop.client import Kind, TightloopClient
from tightloop.client.status import word_of_status
from tightloop.episode.control import ExecutorAmendment
from tightloop.episode.model import EpisodeStatus
from tightloop.errors import InvalidRequestError, ServiceUnavailableError
from tightloop.executor.model import OnCrash
from tightloop.plan.request import PlanStatus
from tightloop.question import is_paused
from tightloop.safety.rubric import Verdict

END_SECONDS = 10
LOOK_SECONDS = 3.0
"""How long a pause waits to learn what still runs."""

QuestionId = Annotated[
    str,
    typer.Option("--question", help="Id of the question, or its step. Without it: the only one, or all failed steps."),
]
Gate = Annotated[str, typer.Argument(metavar="GATE", help="Step or review window. Not needed where only one waits.")]
Rationale = Annotated[str, typer.Option(help="Why; kept in the record.")]


def answer(
    context: typer.Context,
    workflow: Id,
    option: Annotated[str, typer.Argument(metavar="OPTION", help="One of the options; see: tightloop status ID.")],
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="What you did, or why; or the files that a choice holds for."),
    ] = None,
    question: QuestionId = "",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    session_of(context).steer(
        workflow,
        lambda client, key: client.answer(key, option, _joined(text or []), question=question, by=by or operator()),
        as_json=as_json,
    )


def _joined(words: list[str]) -> str:
    """Return the words as one text, in which names of files with spaces can still be told apart."""
    return words[0] if len(words) == 1 else shlex.join(words)


def approve(
    context: typer.Context,
    workflow: PlanId,
    gate: Gate = "",
    option: Annotated[str, typer.Option(help="One of the gate's options; see: tightloop status ID.")] = "",
    role: Annotated[str, typer.Option(help="Refuse unless the gate asks for this role.")] = "",
    rationale: Rationale = "",
    by: By = None,
    as_json: AsJson = False,
) -> None:

    async def work(client: TightloopClient, key: str) -> str:
        if role:
            status = await client.status(key)
            waiting = status.questions if isinstance(status, PlanStatus) else ()
            meant = [one for one in waiting if gate in ("", one.id, one.step, one.window)]
            other = next((one for one in meant if one.role != role), None)
            if other is not None:
                asked = f"role {other.role!r}" if other.role else "no role"
                raise InvalidRequestError(
                    f"{other.step} asks for {asked}, not {role!r}. Ask a person with that role, or omit --role"
                )
        return await client.answer(key, option or "approve", rationale, question=gate, by=by or operator())

    session_of(context).steer(workflow, work, as_json=as_json, kind=Kind.PLAN)


def reject(
    context: typer.Context,
    workflow: PlanId,
    gate: Gate = "",
    rationale: Rationale = "",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    session_of(context).steer(
        workflow,
        lambda client, key: client.answer(key, "reject", rationale, question=gate, by=by or operator()),
        as_json=as_json,
        kind=Kind.PLAN,
    )


def respond(
    context: typer.Context,
    workflow: EpisodeId,
    text: Annotated[str, typer.Argument(help="The message.")],
    as_json: AsJson = False,
) -> None:
    session_of(context).steer(
        workflow, lambda client, key: client.respond(key, text, by=operator()), as_json=as_json, kind=Kind.EPISODE
    )


def pause(context: typer.Context, workflow: Id, reason: Reason = "", as_json: AsJson = False) -> None:

    async def work(client: TightloopClient, key: str) -> str:
        before = await within(LOOK_SECONDS, client.status(key))
        await client.pause(key, reason, by=operator())
        if before is not None and before.status == "paused":
            return "\n".join([f"{key} is paused already", *todo_lines(before)])
        status = await within(LOOK_SECONDS, client.status(key)) if before is not None else None
        running = status.work if isinstance(status, EpisodeStatus) and not is_paused(status.questions) else None
        if running is None:
            return f"{key} pauses at its next safe point. Continue with: tightloop resume {key}"
        end = f"\nEnd it now: tightloop answer {key} end" if running.ends_early else ""
        return f"{key} pauses when this has ended: {running.told(datetime.now(UTC))}{end}"

    session_of(context).steer(workflow, work, as_json=as_json)


def resume(
    context: typer.Context,
    workflow: Id,
    note: Annotated[str, typer.Option(help="A message for the planner; kept in the timeline.")] = "",
    checkpoint: Annotated[str | None, typer.Option(help="Go back to this checkpoint of an episode first.")] = None,
    as_json: AsJson = False,
) -> None:

    async def work(client: TightloopClient, key: str) -> str:
        status = await within(END_SECONDS, client.status(key))
        await client.resume(key, note=note, checkpoint_id=checkpoint, by=operator())
        start = f" from {checkpoint}" if checkpoint else ""
        is_paused_now = status is not None and word_of_status(status) == "paused"
        if status is not None and is_paused_now and not checkpoint and not any(one.default for one in status.questions):
            needed = (
                f"{key} goes on only after a decision: {', '.join(one.id or one.title for one in status.questions)}"
            )
            raise InvalidRequestError("\n".join([needed, *todo_lines(status)]))
        if status is None or is_paused_now:
            return f"{key} continues{start}"
        todo = todo_lines(status)
        return "\n".join([f"{key} is {word_of_status(status)} and was not paused", *todo])

    session_of(context).steer(workflow, work, as_json=as_json)


def top_up(
    context: typer.Context,
    workflow: Id,
    tokens: Annotated[int, typer.Option(help="More tokens.")] = 0,
    cost_usd: Annotated[float, typer.Option(help="More dollars.")] = 0.0,
    wall_minutes: Annotated[float, typer.Option(help="More minutes of work.")] = 0.0,
    iterations: Annotated[int, typer.Option(help="Episode: more iterations.")] = 0,
    executor_failures: Annotated[int, typer.Option(help="Episode: more failures of the executor.")] = 0,
    attempts: Annotated[int, typer.Option(help="Plan: more attempts of steps.")] = 0,
    api_calls: Annotated[int, typer.Option(help="Plan: more calls to models and hosts.")] = 0,
    fan_out: Annotated[int, typer.Option(help="Plan: more steps of one template.")] = 0,
    revisions: Annotated[int, typer.Option(help="Plan: more revisions.")] = 0,
    as_json: AsJson = False,
) -> None:
    amounts: dict[str, Any] = {
        "tokens": tokens,
        "cost_usd": cost_usd,
        "wall_minutes": wall_minutes,
        "iterations": iterations,
        "executor_failures": executor_failures,
        "attempts": attempts,
        "api_calls": api_calls,
        "fan_out": fan_out,
        "revisions": revisions,
    }
    if not any(amounts.values()):
        raise InvalidRequestError(
            "nothing is added. Give an amount, such as --iterations 5, or of a plan --attempts 100"
        )
    session_of(context).steer(workflow, lambda client, key: client.top_up(key, **amounts), as_json=as_json)


def amend(
    context: typer.Context,
    workflow: EpisodeId,
    goal: Annotated[str, typer.Option(help="The new goal.")] = "",
    done: Annotated[list[str] | None, typer.Option(help="The new definition of done. Repeatable.")] = None,
    executor: Annotated[str, typer.Option(help="The new executor.")] = "",
    fallback: Annotated[list[str] | None, typer.Option(help="Its fallbacks. Repeatable.")] = None,
    permissions: Annotated[Verdict | None, typer.Option(help="Answer to an agent that asks for permission.")] = None,
    on_crash: Annotated[OnCrash | None, typer.Option(help="What to do when the worker dies during a delivery.")] = None,
    planner: Annotated[str, typer.Option(help="The new planner.")] = "",
    as_json: AsJson = False,
) -> None:
    others = tuple(fallback) if fallback else None
    choice = ExecutorAmendment(name=executor, fallback=others, permissions=permissions, on_crash=on_crash)
    checks = [command for command in done or () if command.strip()]
    if not (goal.strip() or checks or planner or choice != ExecutorAmendment()):
        raise InvalidRequestError('nothing is changed. Give --goal "...", --done "pytest -q" or --executor NAME')
    session_of(context).steer(
        workflow,
        lambda client, key: client.amend(
            key,
            goal=goal,
            definition_of_done=done or (),
            executor=None if choice == ExecutorAmendment() else choice,
            planner=planner,
            by=operator(),
        ),
        as_json=as_json,
        kind=Kind.EPISODE,
    )


def restore(
    context: typer.Context, workflow: EpisodeId, checkpoint: Checkpoint, reason: Reason = "", as_json: AsJson = False
) -> None:
    session_of(context).steer(
        workflow,
        lambda client, key: client.restore(key, checkpoint, reason=reason, by=operator()),
        as_json=as_json,
        kind=Kind.EPISODE,
    )


def move(
    context: typer.Context,
    workflow: EpisodeId,
    to: Annotated[str, typer.Option(help="Host that goes on with it, or its task queue; see tightloop doctor.")],
    workspace: Annotated[str, typer.Option(help="Absolute path of the workspace there. Default: as before.")] = "",
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    session_of(context).steer(
        workflow,
        lambda client, key: client.move(key, to, workspace=workspace, reason=reason, by=operator()),
        as_json=as_json,
        kind=Kind.EPISODE,
    )


def cancel(context: typer.Context, workflow: Id, reason: Reason = "", as_json: AsJson = False) -> None:

    async def work(client: TightloopClient, key: str) -> str:
        await client.cancel(key, reason, by=operator())
        result = await within(END_SECONDS, client.result(key))
        if result is None:
            try:
                await client.status(key)
            except ServiceUnavailableError as error:
                return f"{key} ends once a worker answers: {error.message}"
            return f"{key} ends as soon as its running work has stopped. Follow it: tightloop watch {key}"
        ended = result.outcome
        return f"{key} is {ended.value.lower()}: {result.reason}"

    session_of(context).steer(workflow, work, as_json=as_json)
