"""A person's scope: the visible ledger, runs by id, and operations on runs.

Role, project, kind and state are checked here for all servers.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel

from gateway.access.site import RefusedError
from tightloop.client import CLOSED_STATUSES, TightloopClient
from tightloop.client.execution import Kind, Summary
from tightloop.database.ledger import Ledger
from tightloop.errors import (
    EpisodeNotFoundError,
    IdTakenError,
    InvalidRequestError,
    ProjectNotFoundError,
    WrongStateError,
)
from tightloop.host import state_folder
from tightloop.host.identity import host_identity, queue_of
from tightloop.ledger.model import ProjectLine, WorkflowFilter, WorkflowLine, WorkflowPage
from tightloop.loop.model import LoopStatus
from tightloop.operations import BY_NAME, KEYED, Operation, possible
from tightloop.run.core import Queues
from tightloop.run.question import Question
from tightloop.safety.seal import Person, Role, is_id
from tightloop.settings import Settings

EPISODES = ("episode",)
PLANS = ("plan", "loop")
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Services:
    """Dependencies that all servers share."""

    ledger: Ledger
    client: TightloopClient
    settings: Settings


class WorkflowRef(NamedTuple):
    """A workflow that is visible to a person."""

    id: str
    kind: str
    project: str
    line: WorkflowLine | None
    """The workflow's ledger row. None if it was just started and the ledger has no row yet."""


@dataclass(frozen=True)
class Scope:
    """Everything that one person can access."""

    person: Person
    services: Services

    @property
    def ledger(self) -> Ledger:
        """The ledger, limited to the person's projects."""
        whole = self.services.ledger
        return whole.limit_to(self.person.projects) if self.person.projects else whole

    @property
    def client(self) -> TightloopClient:
        """A client that is connected to Temporal."""
        return self.services.client

    def require(self, role: Role) -> None:
        """Check that the person has a role.

        Raises:
            RefusedError: the person's role is insufficient.
        """
        if not self.person.role.includes(role):
            raise RefusedError(
                HTTPStatus.FORBIDDEN,
                f"{self.person.name} is {_article(self.person.role)}, but this requires {_article(role)}",
            )

    async def find(self, workflow_id: str, kinds: tuple[str, ...], *, now: bool = False) -> WorkflowRef:
        """Return a workflow by id and kind.

        Args:
            workflow_id: the workflow's id.
            kinds: `EPISODES` or `PLANS`.
            now: check that the workflow's newest run is in the same project. This check is required before
                Temporal is queried about the workflow.

        Raises:
            EpisodeNotFoundError: the workflow does not exist or is not visible to this person.
        """
        # Rejected before Temporal or the database sees it: no id of ours has such characters.
        if not is_id(workflow_id):
            raise _not_found(workflow_id, kinds)
        try:
            line = await asyncio.to_thread(self.ledger.workflow, workflow_id)
            workflow = WorkflowRef(workflow_id, line.kind, line.project, line)
        except EpisodeNotFoundError:
            # A worker writes the ledger row, so a workflow that was just started may be known to Temporal only.
            workflow = await self._find_new_workflow(workflow_id, kinds)
        if workflow.kind not in kinds:
            raise _not_found(workflow_id, kinds, workflow.kind)
        # An id may be reused in another project.
        if now and workflow.line is not None and self.person.projects and not await self._is_still_in(workflow):
            raise _not_found(workflow_id, kinds)
        return workflow

    async def _find_new_workflow(self, workflow_id: str, kinds: tuple[str, ...]) -> WorkflowRef:
        try:
            summary = await self.client.summary(workflow_id)
        except EpisodeNotFoundError:
            raise _not_found(workflow_id, kinds) from None
        project = await self.project_of(summary.workspace) if summary.workspace else ""
        # The same error as for an unknown id: a refusal would reveal that the id exists in another project.
        if not self.person.sees(project):
            raise _not_found(workflow_id, kinds)
        return WorkflowRef(workflow_id, summary.kind.value, project, None)

    async def project_of(self, workspace: str) -> str:
        """Return the project id of a workspace path on this host."""
        name = await asyncio.to_thread(lambda: state_folder(Path(workspace)).name)
        hosts = (await asyncio.to_thread(host_identity, self.services.settings)).names
        return await asyncio.to_thread(self.services.ledger.id_of, name, hosts)

    def queues_of(self, project: ProjectLine) -> Queues:
        """Return the task queues for work in a project.

        These are the queues of the project's host, because another host may have a workspace with the same path.
        """
        is_own = self.services.ledger.database.is_file
        return Queues() if is_own or not project.host else Queues(home=queue_of(self.services.settings, project.host))

    async def _is_still_in(self, workflow: WorkflowRef) -> bool:
        try:
            workspace = (await self.client.summary(workflow.id)).workspace
        except EpisodeNotFoundError:
            return False
        if not workspace:
            return False
        if await self.project_of(workspace) == workflow.project:
            return True
        # Symbolic links may resolve differently on the project's host.
        return (await asyncio.to_thread(self.ledger.project, workflow.project)).workspace == workspace


async def perform(
    scope: Scope,
    operation: Operation,
    workflow_id: str,
    arguments: Mapping[str, Any],
    *,
    kinds: tuple[str, ...] = (),
    message_id: str = "",
) -> str:
    """Send a message to a run on behalf of the calling person.

    Return the run's reply. For a signal, return the operation's own text.

    Args:
        scope: the caller's scope.
        operation: operation that changes a run and has a client method.
        workflow_id: the run's id.
        arguments: arguments for the client method.
        kinds: kinds to allow. By default, all kinds that the operation allows.
        message_id: id of the message. Messages with the same id are delivered only once.

    Raises:
        RefusedError: the role is not sufficient.
        EpisodeNotFoundError: the run is not visible to this person, or is of another kind.
        WrongStateError: the run's state does not allow the message.
        InvalidRequestError: the run refuses the message.
    """
    workflow = await reach(scope, operation, workflow_id, kinds)
    call_arguments = {**dict(operation.fixed), **arguments}
    # No question needs more than an approver, so only lower roles pay for the query.
    if operation.handler == "answer" and not scope.person.role.includes(Role.APPROVER):
        await _require_role(scope, workflow, str(call_arguments.get("question", "")))
    if not operation.is_anonymous:
        call_arguments["by"] = scope.person.name
    if message_id and operation.repeat == KEYED and not operation.reply:
        call_arguments["message_id"] = message_id
    reply = await refused_by_state(
        scope, operation, workflow, getattr(scope.client, operation.client)(workflow.id, **call_arguments)
    )
    return reply or operation.reply


async def reach(scope: Scope, operation: Operation, workflow_id: str, kinds: tuple[str, ...] = ()) -> WorkflowRef:
    """Return a run after checking that the person's role allows an operation.

    Raises:
        RefusedError: the role does not permit the operation.
        EpisodeNotFoundError: the run is not visible to this person, or is of another kind.
    """
    scope.require(Role(operation.role))
    return await scope.find(workflow_id, kinds or operation.kinds, now=True)


async def refused_by_state(scope: Scope, operation: Operation, workflow: WorkflowRef, work: Awaitable[Any]) -> Any:
    """Await the result of a command to a run.

    If the run's state does not allow the command, the error names the operations that are possible.

    Raises:
        WrongStateError: the run's state does not allow the operation.
        InvalidRequestError: the operation is refused for another reason.
    """
    try:
        return await work
    except InvalidRequestError as error:
        if workflow.kind == "loop":
            status = await scope.client.status(workflow.id)
            assert isinstance(status, LoopStatus)
            messages = ("answer", "pause", "resume") if status.possible else ()
            state, options = status.status.value, (*status.possible, *messages)
        elif isinstance(error, WrongStateError) and error.state in CLOSED_STATUSES:
            state, options = error.state, possible(workflow.kind, is_open=False)
        else:
            raise
        # A gate of a plan is approved through the operation `answer`.
        name = BY_NAME[operation.client].word
        # The state allows it, so the refusal has another reason, which its own message gives.
        if name in options:
            raise
        raise WrongStateError(
            f"the operation {name!r} is not available while the status of {workflow.id} is {state}. "
            f"Available operations: {', '.join(options) or 'none'}",
            state,
            options,
        ) from error


async def _require_role(scope: Scope, workflow: WorkflowRef, question: str) -> None:
    """Check that the person has the roles that are required to answer an open question.

    If `question` is empty, check all open questions of the run.
    """
    for open_question in (await scope.client.status(workflow.id)).questions:
        if not question or question in (open_question.id, open_question.step, open_question.window):
            scope.require(open_question.required_role)


async def check_workspace(scope: Scope, workspace: str) -> Queues:
    """Check that the person may use a workspace, and return the task queues for work in it.

    Raises:
        ProjectNotFoundError: the workspace is not in any of this person's projects.
    """
    if not scope.person.projects or scope.person.sees(await scope.project_of(workspace)):
        return Queues()
    # The gateway may run on another host than the project, so compare the recorded path too.
    matches = [project for project in await asyncio.to_thread(scope.ledger.projects) if project.workspace == workspace]
    # Two hosts can have the same path, and a guess could start the work in the wrong project.
    if len(matches) != 1:
        raise ProjectNotFoundError(
            f"this token has no access to a project with the workspace {workspace[:200]!r}. List the projects with: "
            "GET /api/projects"
        )
    return scope.queues_of(matches[0])


def require_all_projects(scope: Scope, what: str) -> None:
    """Check that the token is valid for all projects.

    Args:
        scope: the request's scope.
        what: the action, as a verb phrase for the error message.

    Raises:
        RefusedError: the token is limited to certain projects.
    """
    if scope.person.projects:
        raise RefusedError(
            HTTPStatus.FORBIDDEN, f"{what} requires a token for all projects. Ask an operator who has one"
        )


async def check_id_choice(scope: Scope, new_id: str | None, kinds: tuple[str, ...], *, replace: bool = False) -> None:
    """Check that the person may choose an id, and that no workflow of another kind has used it.

    A token that is limited to certain projects may not choose ids, because this would reveal ids of other
    projects.

    Raises:
        InvalidRequestError: the person may not choose an id, or `replace` is used without an id.
        IdTakenError: a workflow of another kind uses or has used the id.
    """
    if replace and new_id is None:
        raise InvalidRequestError("replace requires the id of a closed episode or plan: ?id=...&replace=true")
    if new_id is None:
        return
    if scope.person.projects:
        raise InvalidRequestError(
            "choosing an id requires a token that covers all projects. To avoid starting a run twice, send an "
            "Idempotency-Key instead"
        )
    with suppress(EpisodeNotFoundError):
        entry = await asyncio.to_thread(scope.ledger.workflow, new_id)
        if entry.kind not in kinds:
            raise IdTakenError(f"the id {new_id} already belongs to {Kind(entry.kind).noun}. Choose another id")


async def workspace_of(scope: Scope, workflow: WorkflowRef) -> str:
    """Return a workflow's workspace path."""
    workspace = str(workflow.line.details.get("workspace", "")) if workflow.line is not None else ""
    return workspace or (await asyncio.to_thread(scope.ledger.project, workflow.project)).workspace


async def details_of(scope: Scope, workflow: WorkflowRef, kind: type[M], *, is_fresh: bool) -> dict[str, Any]:
    """Return a workflow's ledger row. The row's `details` contain the workflow's full status.

    Args:
        scope: the request's scope.
        workflow: the workflow.
        kind: model class of the workflow's status.
        is_fresh: query the workflow instead of the ledger.
    """
    line = workflow.line
    if is_fresh or line is None:
        status = await scope.client.status(workflow.id)
        summary = await scope.client.summary(workflow.id)
        if not isinstance(status, kind):
            # A newer run under the same id, which the ledger does not have yet.
            raise _not_found(workflow.id, (workflow.kind,), summary.kind.value)
        return {**_fields(_line_of(summary, workflow.project, line, status.questions)), "details": status}
    return {**_fields(line), "details": kind.model_validate(line.details)}


async def fresh_page(scope: Scope, workflow_filter: WorkflowFilter, limit: int) -> WorkflowPage:
    """Return the newest workflows from Temporal, including workflows that no worker has opened yet.

    Args:
        scope: the request's scope.
        workflow_filter: filter that selects a single kind.
        limit: maximum number of workflows to list. Rows of other projects and parents are removed
            afterwards.

    Raises:
        InvalidRequestError: the status is unknown.
        ServiceUnavailableError: Temporal does not respond.
    """
    summaries = await scope.client.list(workflow_filter.status or None, limit, kind=Kind(workflow_filter.kind).value)
    # Without the status, which may be older in the ledger than in Temporal.
    entered = await asyncio.to_thread(scope.ledger.workflows, workflow_filter.evolve(status=""), limit=limit)
    lines_by_id = {line.id: line for line in entered.lines}
    workspaces = {summary.workspace for summary in summaries if summary.workspace}
    projects = {"": "", **{workspace: await scope.project_of(workspace) for workspace in workspaces}}
    # Filtered by Temporal's workspace: the ledger row may belong to an earlier run in another project.
    visible = [summary for summary in summaries if scope.person.sees(projects[summary.workspace])]
    lines = [_line_of(summary, projects[summary.workspace], lines_by_id.get(summary.id)) for summary in visible]
    matching = [
        line
        for line in lines
        if workflow_filter.project in ("", line.project)
        and workflow_filter.parent in (None, line.parent)
        and workflow_filter.text.lower() in f"{line.id}\n{line.goal}".lower()
    ]
    return WorkflowPage(lines=tuple(matching))


def _line_of(
    summary: Summary, project: str, ledger_line: WorkflowLine | None, questions: tuple[Question, ...] | None = None
) -> WorkflowLine:
    """Build a workflow's row from Temporal's summary and the ledger.

    Args:
        summary: the workflow's summary from Temporal.
        project: the project of the workflow's workspace.
        ledger_line: ledger row, if any.
        questions: questions that the workflow reported. None uses the questions in the ledger while the
            workflow is open.
    """
    if questions is None:
        questions = ledger_line.questions if ledger_line is not None and summary.closed is None else ()
    line = ledger_line or WorkflowLine(
        id=summary.id, kind=summary.kind.value, status=summary.status, project=project, goal=summary.goal,
        executor=summary.executor, parent=summary.parent, started=summary.started, at=datetime.now(UTC),
    )  # fmt: skip
    return line.evolve(
        status=summary.status,
        iteration=summary.iteration,
        closed=summary.closed,
        at=datetime.now(UTC),
        questions=questions,
    )


def _fields(line: WorkflowLine) -> dict[str, Any]:
    return {name: getattr(line, name) for name in WorkflowLine.model_fields if name != "details"}


def _not_found(workflow_id: str, kinds: tuple[str, ...], other: str = "") -> EpisodeNotFoundError:
    what, where = ("episode", "/api/plans") if kinds == EPISODES else ("plan", "/api/episodes")
    if other:
        return EpisodeNotFoundError(
            f"{workflow_id} is {Kind(other).noun}, not {Kind(what).noun}. Request it at {where}"
        )
    return EpisodeNotFoundError(f"no such {what}: {workflow_id[:120]!r}. List all {what}s with: GET /api/{what}s")


def _article(role: Role) -> str:
    return f"{'an' if role.value[0] in 'aeiou' else 'a'} {role.value}"
