"""The page's form actions. Each runs an operation under the person's name.

Nothing runs until the person has confirmed a sentence describing its effect.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from gateway.access.scope import Scope, perform, reach, refused_by_state
from gateway.web.pages import DispatchPreview, preview_dispatch, title_of
from tightloop.client import ExecutorChoice, TightloopClient
from tightloop.episode.decisions import ACCEPT, ALLOW, ASKED, CANCEL, END, EXTEND, UNDO
from tightloop.errors import EpisodeNotFoundError, InvalidRequestError
from tightloop.ledger.model import WorkflowLine
from tightloop.loop.model import LoopRequest, LoopStatus
from tightloop.operations import BY_NAME, OPERATIONS, Operation
from tightloop.run.question import Option, Question, QuestionKind
from tightloop.safety.seal import Role
from tightloop.value import first_problem

LOOK_SECONDS, RECORD_LOOKS = 0.2, 25
"""Interval in seconds between polls for a new run's ledger row, and the number of polls."""


CONFIRMED_OPTIONS = frozenset({ALLOW, ACCEPT, ASKED, EXTEND, CANCEL, UNDO, END})
"""Built-in options that approve, cancel or delete something."""
CONFIRMED_KINDS = frozenset({QuestionKind.GATE, QuestionKind.POLICY, QuestionKind.CLARIFICATION})
"""Questions that approve something, or whose options come from a plan and therefore have an unknown effect."""


class ActionContext(NamedTuple):
    """The person who submitted a form, and the form's fields."""

    scope: Scope
    target: str
    """Id of the workflow or project in the path. Empty when a project is added."""
    form: Mapping[str, str]

    @property
    def client(self) -> TightloopClient:
        """A client that is connected to Temporal."""
        return self.scope.client

    def text(self, name: str) -> str:
        """Return a form field, or "" if the field was not sent."""
        return self.form.get(name, "").strip()

    def line(self) -> WorkflowLine:
        """Return the workflow named in the path, if it is visible to the person."""
        return self.scope.ledger.workflow(self.target)

    def line_to_steer(self) -> WorkflowLine:
        """Return the workflow named in the path, if the person may steer it.

        This requires the operator role.
        """
        self.scope.require(Role.OPERATOR)
        return self.line()


class Intent(NamedTuple):
    """An action's effect, for confirmation."""

    sentence: str
    quoted: str = ""
    """Text that the person entered."""
    estimate: DispatchPreview | None = None


class ActionResult(NamedTuple):
    """Redirect target and flash message."""

    path: str
    """Path of the page to show next."""
    message: str
    """Flash message. It starts with `!` if the action was refused."""


class Action(NamedTuple):
    """An action on the page."""

    describe: Callable[[ActionContext], Intent]
    """Describes the effect of `run` without changing anything, and checks the role."""
    run: Callable[[ActionContext], Awaitable[ActionResult]]


def is_confirmed(question: Question, option: Option) -> bool:
    """Return whether the page asks for confirmation when an option is submitted."""
    return bool(question.role) or question.kind in CONFIRMED_KINDS or option.name in CONFIRMED_OPTIONS


def describe_answer(actor: ActionContext) -> Intent:
    """Describe the effect of answering a question with the selected option.

    Raises:
        InvalidRequestError: no option was selected, or the question is closed.
        RefusedError: the role does not allow this.
    """
    line, option, question_id = actor.line(), actor.text("option"), actor.text("question")
    if not option:
        raise InvalidRequestError("no option was selected, so nothing was sent. Go back and select an option")
    question = next((candidate for candidate in line.questions if candidate.id == question_id), None)
    # The role comes first: without it nobody learns which questions are open.
    actor.scope.require(question.required_role if question is not None else Role.APPROVER)
    if question is None:
        raise InvalidRequestError(f"{line.id} is no longer waiting for an answer to {question_id or 'this question'}")
    effect = next((choice.effect for choice in question.options if choice.name == option), "")
    return Intent(
        f"Answer “{question.title}” with “{option}”{effect and f': {effect}'.rstrip('.')}.", actor.text("text")
    )


def _intent(sentence: str) -> Callable[[ActionContext], Intent]:
    """Return a function that describes the effect of an action.

    The function inserts the run's title and the form's checkpoint into `sentence`.
    """

    def describe(actor: ActionContext) -> Intent:
        line = actor.line_to_steer()
        return Intent(sentence.format(title=title_of(line), checkpoint=actor.text("checkpoint_id")), actor.text("text"))

    return describe


def _send(operation: Operation) -> Callable[[ActionContext], Awaitable[ActionResult]]:
    """Return an action that sends the form's fields as a message to the run.

    The form uses the field names of the operation's request.
    """
    request = operation.load(operation.request)

    async def run(actor: ActionContext) -> ActionResult:
        form = {name: actor.text(name) for name in request.model_fields if name in actor.form}
        try:
            read = request.model_validate(form)
        except ValidationError as error:
            raise InvalidRequestError(first_problem(error)) from None
        # Fields that the form does not have keep the defaults of the operation.
        arguments = {name: value for name, value in read.arguments().items() if name in form}
        return ActionResult(_page(actor.target), await perform(actor.scope, operation, actor.target, arguments))

    return run


async def fork(actor: ActionContext) -> ActionResult:
    """Start a new episode from a checkpoint."""
    operation, scope = BY_NAME["fork"], actor.scope
    episode = await reach(scope, operation, actor.target)
    work = scope.client.fork(episode.id, actor.text("checkpoint_id"), by=scope.person.name)
    new_id = await refused_by_state(scope, operation, episode, work)
    return ActionResult(_page(episode.id), f"Forked as {new_id}. The fork appears here once it starts.")


def describe_plan(actor: ActionContext) -> Intent:
    """Describe the effect of planning a project."""
    actor.scope.require(Role.OPERATOR)
    return _describe_planning(actor.scope.ledger.project(actor.target).workspace, actor)


async def plan(actor: ActionContext) -> ActionResult:
    """Inspect a project and split the work into tasks. The tasks are not started."""
    actor.scope.require(Role.OPERATOR)
    project = actor.scope.ledger.project(actor.target)
    plan_id = await actor.client.plan_project(_loop_request(project.workspace, actor))
    # The next page reads the ledger, where the plan appears with its first activity.
    await _wait_for_record(actor, plan_id)
    return ActionResult(
        f"/projects/{project.id}", "The project is being inspected and planned. Nothing has been started yet."
    )


def describe_add(actor: ActionContext) -> Intent:
    """Describe the effect of adding a project."""
    _need_all_projects(actor)
    return _describe_planning(actor.text("workspace") or "no folder", actor)


async def add(actor: ActionContext) -> ActionResult:
    """Inspect and plan a project that is not in the ledger yet."""
    _need_all_projects(actor)
    workspace = actor.text("workspace").rstrip("/")
    await actor.client.check_workspace(workspace)
    plan_id = await actor.client.plan_project(_loop_request(workspace, actor))
    line = await _wait_for_record(actor, plan_id)
    if line is None:
        return ActionResult(
            "/projects", f"{plan_id} is inspecting {workspace}. The project will appear here once a worker starts."
        )
    return ActionResult(
        f"/projects/{line.project}", "The project is being inspected and planned. Nothing has been started yet."
    )


def _need_all_projects(actor: ActionContext) -> None:
    actor.scope.require(Role.OPERATOR)
    if actor.scope.person.projects:
        raise InvalidRequestError(
            "only a person with access to all projects can add a project. Ask an operator with that access"
        )


def _describe_planning(workspace: str, actor: ActionContext) -> Intent:
    sentence = f"This inspects {workspace} and splits the work into tasks. Nothing runs until you dispatch the tasks."
    return Intent(sentence, actor.text("goal"))


def _loop_request(workspace: str, actor: ActionContext) -> LoopRequest:
    name, parallel = actor.text("executor"), actor.text("parallel")
    request = LoopRequest(workspace=workspace, goal=actor.text("goal"))
    if name:
        request = request.evolve(executor=ExecutorChoice(name=name))
    return request.evolve(parallel=int(parallel)) if parallel.isdigit() else request


async def _wait_for_record(actor: ActionContext, workflow_id: str) -> WorkflowLine | None:
    """Wait up to about 5 s until the ledger contains a new run. Return None if it does not appear."""
    for _ in range(RECORD_LOOKS):
        try:
            return await run_in_threadpool(actor.scope.ledger.workflow, workflow_id)
        except EpisodeNotFoundError:
            await asyncio.sleep(LOOK_SECONDS)
    return None


def describe_dispatch(actor: ActionContext) -> Intent:
    """Describe how many episodes a dispatch will start, according to the plan."""
    line = actor.line_to_steer()
    estimate = preview_dispatch(LoopStatus.model_validate(line.details))
    tasks = "1 task becomes an episode" if estimate.runs == 1 else f"{estimate.runs} tasks become episodes"
    sentence = f"{tasks}, each in its own worktree. If two of the tasks conflict, an extra task resolves the conflict."
    return Intent(sentence, estimate=estimate)


def _page(workflow_id: str) -> str:
    return f"/workflows/{workflow_id}"


DESCRIBED: dict[str, Callable[[ActionContext], Intent]] = {
    "answer": describe_answer,
    "add_project": describe_add,
    "plan_project": describe_plan,
    "dispatch": describe_dispatch,
}
"""Functions for operations whose table entry has no fixed confirmation sentence."""
WRITTEN: dict[str, Callable[[ActionContext], Awaitable[ActionResult]]] = {
    "fork": fork,
    "add_project": add,
    "plan_project": plan,
}
ACTIONS: dict[str, Action] = {
    operation.page.path: Action(
        DESCRIBED.get(operation.name) or _intent(operation.page.confirmation),
        WRITTEN.get(operation.name) or _send(operation),
    )
    for operation in OPERATIONS
    if operation.page is not None
}
"""Actions, by path."""
