"""Commands that send a message to a run."""

import shlex
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import click

from tightloop.cli.parameters import Argument, AsJson, By, Id, Option
from tightloop.cli.session import Session, operator, session_of, wait_at_most
from tightloop.cli.terminal import show_either
from tightloop.cli.views import todo_lines
from tightloop.client import ExecutorAmendment, HiddenScenarios, Kind, TightloopClient
from tightloop.client.scenarios import ScenarioStore
from tightloop.episode.model import EpisodeStatus
from tightloop.errors import InvalidRequestError, ServiceUnavailableError
from tightloop.operations import BY_NAME, STARTS, Operation
from tightloop.run.question import QuestionKind, is_paused

END_SECONDS = 10
WITHDRAWN = "none"
"""Value of `--scenarios` that withdraws all hidden scenarios."""
LOOK_SECONDS = 3.0
"""Maximum time in seconds that a pause waits for the status of the running work."""
Asked = dict[str, Any]


def send(
    context: click.Context, operation: Operation, workflow: str, *, as_json: bool, by: str | None = None, **asked: Any
) -> str:
    """Send an operation's message to a run, print the reply, and return the run's id.

    Arguments that are None or empty are not sent.

    Raises:
        TightloopError: any error raised by the client.
    """
    arguments = {name: value for name, value in asked.items() if value not in (None, ())}
    prepare = PREPARE.get(operation.name)
    arguments = (prepare(arguments, session_of(context)) if prepare else arguments) | dict(operation.fixed)
    who = by or operator()
    # Operations of plans and project plans resolve to a plan; those that include episodes accept all kinds.
    kinds = list(operation.kinds)
    kind = None if len(kinds) > 1 and "episode" in kinds else Kind(kinds[0])

    async def call_operation(client: TightloopClient, key: str) -> tuple[str, str]:
        tell = TELL.get(operation.name)
        if tell is not None:
            return key, await tell(client, key, arguments, who)
        named = {} if operation.is_anonymous else {"by": who}
        return key, await getattr(client, operation.client)(key, **arguments, **named)

    key, answer = session_of(context).on(workflow, call_operation, kind)
    if operation.effect == STARTS:
        show_either({"id": answer}, f"started {answer}", as_json=as_json)
    else:
        show_either({"id": key, "message": answer}, answer, as_json=as_json)
    return key


def answer(
    context: click.Context,
    workflow: Id,
    option: Annotated[
        str, Argument(metavar="OPTION", help="One of the question's options. List them with: tightloop status ID")
    ],
    text: Annotated[
        list[str] | None,
        Argument(metavar="TEXT", help="Explanation of the answer, or the file names if the option applies to files."),
    ] = None,
    question: Annotated[
        str | None,
        Option(
            help="Question to answer: its id, step or review window. Default: the only open question, or every "
            "question about a failed step."
        ),
    ] = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    texts = text or ()
    # Quoting keeps file names with spaces apart.
    joined = texts[0] if len(texts) == 1 else shlex.join(texts)
    send(context, BY_NAME["answer"], workflow, as_json=as_json, by=by, option=option, text=joined, question=question)


def _amounts(arguments: Asked, _session: Session) -> Asked:
    if not any(arguments.values()):
        raise InvalidRequestError(
            "no amount was specified. Add one, for example --iterations 5, or --attempts 100 for a plan"
        )
    return arguments


def _amendment(arguments: Asked, session: Session) -> Asked:
    # Only this command needs it, and it imports much.
    from tightloop.cli.start import drop_none, executor_values

    names = {"executor": "name", "options": "options"} | {
        name: name for name in ("fallback", "permissions", "on_crash")
    }
    arguments |= drop_none(options=executor_values(arguments.get("options")))
    choice = ExecutorAmendment(**{name: arguments[option] for option, name in names.items() if option in arguments})
    rest = {name: value for name, value in arguments.items() if name not in names}
    checks = [command for command in arguments.get("definition_of_done", ()) if command.strip()]
    if path := arguments.get("scenarios"):
        # `_amend` stores them, because it knows the workspace, in which they must not be.
        rest["scenarios"] = (ScenarioStore(session.settings), path)
    others = (arguments.get("goal", "").strip(), checks, arguments.get("planner"), path, arguments.get("no_drafts"))
    if not any(others) and choice == ExecutorAmendment():
        raise InvalidRequestError('nothing to change. Specify --goal "...", --done "pytest -q" or --executor NAME')
    return rest if choice == ExecutorAmendment() else {**rest, "executor": choice}


def _text_of_plan(arguments: Asked, _session: Session) -> Asked:
    from tightloop.cli.plan_file import load_valid_plan

    return {**arguments, "source": load_valid_plan(arguments["source"])[0].text} if "source" in arguments else arguments


def _new_id(arguments: Asked, _session: Session) -> Asked:
    return {"new_id" if name == "id" else name: value for name, value in arguments.items()}


async def _approve(client: TightloopClient, key: str, arguments: Asked, by: str) -> str:
    gate, role = arguments.get("question", ""), arguments.pop("role", "")
    if role:
        status = await client.status(key)
        questions = [
            question for question in status.questions if gate in ("", question.id, question.step, question.window)
        ]
        # Without GATE the answer may reach any of them, so all must ask for this role.
        other = next((question for question in questions if question.role != role), None)
        if other is not None:
            expected = f"role {other.role!r}" if other.role else "no role"
            raise InvalidRequestError(
                f"{other.step} requires {expected}, not {role!r}. Check that this is the right gate, or omit --role"
            )
    return await client.answer(key, arguments.pop("option", "approve"), **arguments, by=by)


async def _amend(client: TightloopClient, key: str, arguments: Asked, by: str) -> str:
    if "scenarios" in arguments:
        store, path = arguments["scenarios"]
        workspace = Path((await client.status(key)).workspace)
        hidden = HiddenScenarios() if path == WITHDRAWN else store.commit(Path(path), workspace=workspace)
        arguments = {**arguments, "scenarios": hidden}
    return await client.amend(key, **arguments, by=by)


async def _pause(client: TightloopClient, key: str, arguments: Asked, by: str) -> str:
    # Read first: afterwards a run that was already paused looks like one paused by this command.
    before = await wait_at_most(LOOK_SECONDS, client.status(key))
    await client.pause(key, **arguments, by=by)
    if before is not None and before.list_status == "paused":
        return "\n".join([f"{key} is already paused", *todo_lines(before)])
    # If no worker answered the first time, do not wait a second time.
    status = await wait_at_most(LOOK_SECONDS, client.status(key)) if before is not None else None
    running = status.work if isinstance(status, EpisodeStatus) and not is_paused(status.questions) else None
    if running is None:
        return f"{key} will pause at its next safe point. Continue with: tightloop resume {key}"
    end = f"\nEnd the work now: tightloop answer {key} end" if running.ends_early else ""
    return f"{key} will pause when the running work ends: {running.describe(datetime.now(UTC))}{end}"


async def _resume(client: TightloopClient, key: str, arguments: Asked, by: str) -> str:
    # Read first: the message may end the pause that the reply is about.
    status = await wait_at_most(END_SECONDS, client.status(key))
    checkpoint = arguments.get("checkpoint_id", "")
    is_paused_now = status is not None and status.list_status == "paused"
    is_undecided = (
        status is not None
        and is_paused_now
        and not checkpoint
        and not any(question.default for question in status.questions)
    )
    # A note reaches the planner in any case.
    if not is_undecided or arguments.get("note"):
        await client.resume(key, **arguments, by=by)
    # A bare resume takes the default of a question. Without one the workflow stays paused, and silence would look
    # like success.
    if status is not None and is_undecided:
        needed = (
            f"{key} cannot continue without a decision: "
            f"{', '.join(question.id or question.title for question in status.questions)}"
        )
        raise InvalidRequestError("\n".join([needed, *todo_lines(status)]))
    if status is None or is_paused_now:
        if checkpoint:
            return f"{key} continues from {checkpoint}"
        questions = status.questions if status is not None else ()
        chosen = dict.fromkeys(question.default for question in questions if question.kind != QuestionKind.OPERATOR)
        names = ", ".join(filter(None, chosen))
        return f"{key} continues{f' with the answer {names}' if names else ''}"
    return "\n".join([f"{key} is {status.list_status} and was not paused", *todo_lines(status)])


async def _respond(client: TightloopClient, key: str, arguments: Asked, by: str) -> str:
    reply = await client.respond(key, **arguments, by=by)
    status = await wait_at_most(LOOK_SECONDS, client.status(key))
    # A message answers no question, so the reply shows what is still open and how to answer it.
    is_asked = status is not None and is_paused(status.questions)
    return "\n".join([reply, *todo_lines(status)]) if is_asked else reply


async def _cancel(client: TightloopClient, key: str, arguments: Asked, by: str) -> str:
    await client.cancel(key, **arguments, by=by)
    result = await wait_at_most(END_SECONDS, client.result(key))
    if result is None:
        try:
            # Distinguishes work that is still stopping, and ends by itself, from a missing worker.
            await client.status(key)
        except ServiceUnavailableError as error:
            return f"{key} will end when a worker responds: {error.message}"
        return f"{key} will end when its running work has stopped. Follow it: tightloop watch {key}"
    outcome = result.outcome.lower()
    return f"{key} is {outcome}" + (f": {result.reason}" if result.reason not in ("", outcome) else "")


PREPARE: dict[str, Callable[[Asked, Session], Asked]] = {
    "top_up": _amounts,
    "amend": _amendment,
    "replan": _text_of_plan,
    "fork": _new_id,
}
"""Functions that convert command arguments to client arguments before connecting."""
TELL: dict[str, Callable[[TightloopClient, str, Asked, str], Awaitable[str]]] = {
    "amend": _amend,
    "approve": _approve,
    "pause": _pause,
    "resume": _resume,
    "respond": _respond,
    "cancel": _cancel,
}
"""Operations for which the command prints a more detailed reply than that of the workflow."""
