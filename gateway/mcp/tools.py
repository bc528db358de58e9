"""MCP tools."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.access.scope import EPISODES, PLANS, WorkflowRef, check_workspace, refused_by_state, workspace_of
from gateway.mcp.report import Caller, awaited_work, is_report, read_report
from tightloop.client import Check, EpisodeRequest, EpisodeStatus, ExecutorChoice, HiddenScenarios, IdTakenError
from tightloop.client.store import TreeChange, read_number
from tightloop.database.access import KeyInUseError, derived_id
from tightloop.episode.checkpoint import CheckpointRecord, checkpoint_id
from tightloop.episode.progress.classification import class_of_ratio
from tightloop.episode.progress.tracking import ProbabilityClass, similarity
from tightloop.errors import InvalidRequestError
from tightloop.ledger.model import InboxItem, WorkflowFilter
from tightloop.operations import BY_NAME
from tightloop.value import Value

PATCH_CHARACTERS = 200_000
"""Maximum length of a patch. It is limited because a model has to read the patch."""


class Comparison(Value):
    """Changes between two checkpoints."""

    patch: str = Field(description="Unified diff of the files.")
    probability_class: ProbabilityClass = Field(
        description="HIGH, MEDIUM or LOW. For consecutive checkpoints, this is the class the tracker assigned to the "
        "iteration. For other checkpoints, it depends on the share of unchanged lines: HIGH at 0.6 or above, "
        "MEDIUM at 0.4 or above."
    )
    cut: bool = Field(default=False, description="True if the patch was truncated.")


def compare(workspace: str, episode_id: str, names: tuple[str, str], records: Sequence[CheckpointRecord]) -> Comparison:
    """Compare two checkpoints.

    Raises:
        InvalidRequestError: a checkpoint does not exist.
        WorkspaceError: the snapshots are not on this host.
    """
    numbers = [read_number(episode_id, name) for name in names]
    change = TreeChange(Path(workspace), episode_id, numbers, records)
    by_number = {record.number: record for record in records}
    before, after = (by_number.get(number) for number in numbers)
    probability_class = (
        after.probability_class if after is not None and before is not None and after.parent == before.id else None
    )
    if probability_class is None:
        files = change.files()
        added, removed = sum(file.added or 0 for file in files), sum(file.removed or 0 for file in files)
        # The list may lack an older checkpoint; the removed lines are a lower bound for its size.
        lines = before.lines if before is not None else removed
        probability_class = class_of_ratio(similarity(lines, added=added, removed=removed))
    patch = change.text()
    return Comparison(
        patch=patch[:PATCH_CHARACTERS], probability_class=probability_class, cut=len(patch) > PATCH_CHARACTERS
    )


TEXT_CHARACTERS = 4_000
MESSAGE_CHARACTERS = 20_000
REASON = "resumed by MCP"
_LATE = "no report is expected at the moment"
SCRATCHPAD_CHARACTERS = 1_900
"""Maximum length of a planner note, excluding its heading."""

Id = Annotated[str, Field(max_length=200, description="Id of an episode or a plan.", examples=["episode-1f2e3d4c5b6a"])]
Text = Annotated[str, Field(max_length=TEXT_CHARACTERS)]
Checkpoint = Annotated[
    str, Field(pattern=r"^(ckpt-)?[0-9]{1,7}$", description="Id of a checkpoint.", examples=["ckpt-2"])
]


class Recorded(Value):
    """The checkpoint that the scratchpad belongs to."""

    ckpt_id: str = Field(description="Checkpoint at the end of the iteration.")


class Ack(Value):
    """Reply to a message."""

    ack: str = Field(description="The episode's reply.")


class EpisodeNamed(Value):
    """The id of the episode that received the message."""

    episode_id: str


class Started(Value):
    """The id of the run that was started."""

    id: str


class Lines(Value):
    """Episodes and plans, most recently started first."""

    items: tuple[dict[str, Any], ...]


class Inbox(Value):
    """Questions that are waiting for a person, oldest first."""

    items: tuple[InboxItem, ...]


# -- the five tools of EP-12, for the connection's own episode --------------------------------------------------------


async def record_checkpoint(
    caller: Caller,
    iteration: Annotated[int, Field(ge=1, description="Current iteration of the episode.", examples=[2])],
    role: Annotated[Literal["planner", "executor"], Field(description="Who writes.")],
    scratchpad: Annotated[
        str,
        Field(
            min_length=1,
            max_length=SCRATCHPAD_CHARACTERS,
            description="What the next iteration needs to know when work continues from this checkpoint.",
            examples=["parse() is done; lexer.py has a second caller that is not"],
        ),
    ],
) -> Recorded:
    """The planner reads the scratchpad, even after a restore.

    The episode itself checkpoints files and state at the end of every iteration.
    """
    episode, scope = await caller.own(), caller.scope
    status = await _status_of(caller, episode)
    records = await asyncio.to_thread(scope.ledger.checkpoints, episode.id)
    ended = next((record.id for record in records if record.iteration == iteration and not record.discarded), "")
    if iteration != status.iteration or ended:
        over = f", and iteration {iteration} ended with {ended}" if ended else ""
        raise InvalidRequestError(
            f"episode {episode.id} is in iteration {status.iteration}{over}. Specify the current iteration"
        )
    # A scratchpad must not end a pause that a person requested.
    await _note(caller, episode, f"scratchpad of the {role}, iteration {iteration}: {scratchpad}", resumes=False)
    # The next number: discarded checkpoints keep theirs, so it is unique after a restore, too.
    return Recorded(ckpt_id=checkpoint_id(max((record.number for record in records), default=-1) + 1))


async def diff_and_classify(caller: Caller, from_id: Checkpoint, to_id: Checkpoint) -> Comparison:
    """Returns the file changes as a patch, and the patch's probability class."""
    episode = await caller.own()
    records = await asyncio.to_thread(caller.scope.ledger.checkpoints, episode.id)
    workspace = await workspace_of(caller.scope, episode)
    return await asyncio.to_thread(compare, workspace, episode.id, (from_id, to_id), records)


async def send_message(
    caller: Caller,
    target: Annotated[
        Literal["planner", "operator"],
        Field(
            description="planner: sends the report on the plan, or saves a note if no report is expected. operator: "
            "asks a person and pauses the episode. Only the planner sends plans to the executor."
        ),
    ],
    message: Annotated[
        str,
        Field(
            min_length=1,
            max_length=MESSAGE_CHARACTERS,
            description="A report follows the plan request template, from [📂 PROJECT] to [✅ ALIGNMENT_CHECK].",
        ),
    ],
) -> Ack:
    """Sending a report starts the checks."""
    episode, scope = await caller.own(), caller.scope
    if target == "operator":
        await pause_episode(caller, message[:TEXT_CHARACTERS])
        return Ack(ack="your question has been sent to a person. The episode will pause at the next safe point")
    status = await _status_of(caller, episode)
    question = awaited_work(status)
    # A late report becomes a note: the agent must not send it again as the report on the present work.
    if question is None or is_report(message, before=status.iteration):
        return Ack(ack=await _keep(caller, episode, message))
    report = read_report(message, status, question)
    if report.is_long:
        # If the planner's queue is full, the delivery still stores the beginning of the text.
        with suppress(InvalidRequestError):
            await _note(caller, episode, report.text, resumes=False)
    work = scope.client.answer(episode.id, report.option, report.text, question=report.question, by=scope.person.name)
    try:
        return Ack(ack=str(await refused_by_state(scope, BY_NAME["answer"], episode, work)))
    except InvalidRequestError:
        now = awaited_work(await _status_of(caller, episode))
        # The same question is still open, so the answer itself was refused.
        if now is not None and now.id == question.id:
            raise
        # Another message has meanwhile reported the work as done.
        return Ack(ack=await _keep(caller, episode, message))


async def pause_episode(
    caller: Caller,
    reason: Annotated[
        Text, Field(min_length=1, description="Reason to show to the user.", examples=["the API key is missing"])
    ],
) -> EpisodeNamed:
    """A person is asked to look at the episode."""
    episode, scope = await caller.own(), caller.scope
    work = scope.client.pause(episode.id, reason, by=scope.person.name)
    await refused_by_state(scope, BY_NAME["pause"], episode, work)
    return EpisodeNamed(episode_id=episode.id)


async def resume_episode(caller: Caller, ckpt_id: Checkpoint) -> Ack:
    """The episode continues from the given checkpoint."""
    episode = await caller.own()
    return Ack(ack=await caller.perform(BY_NAME["restore"], episode.id, {"checkpoint_id": ckpt_id, "reason": REASON}))


# -- tools for all visible runs ---------------------------------------------------------------------------------------


async def start_episode(
    caller: Caller,
    goal: Annotated[Text, Field(min_length=1, examples=["Get the tests green"])],
    workspace: Annotated[
        str,
        Field(
            pattern=r"^/[^\x00]*$",
            max_length=1_000,
            description="Absolute path of the root of a git working tree on the worker's host.",
            examples=["/home/me/orders"],
        ),
    ],
    definition_of_done: Annotated[
        tuple[Annotated[Text, Field(min_length=1)], ...],
        Field(
            description="Commands that must all exit with 0. If empty, the project's own checks are used.",
            examples=[["pytest -q"]],
        ),
    ] = (),
    executor: Annotated[
        str, Field(max_length=80, description="Executor that does the work. Defaults to the executor in the settings.")
    ] = "",
    scenarios: Annotated[
        HiddenScenarios | None,
        Field(description="The owner's hidden scenarios, as printed by `tightloop scenarios pack`."),
    ] = None,
    key: Annotated[
        str,
        Field(
            max_length=200,
            description=(
                "Repeating a call with the same key does not start anything new. Use a new key for a different call."
            ),
        ),
    ] = "",
) -> Started:
    scope = caller.scope
    queues = await check_workspace(scope, workspace)
    checks = tuple(Check(run=command) for command in definition_of_done)
    request = EpisodeRequest(goal=goal, workspace=workspace, definition_of_done=checks, queues=queues)
    if executor:
        request = request.evolve(executor=ExecutorChoice(name=executor))
    request = request.evolve(scenarios=scenarios)
    # MCP has no header for an idempotency key. Temporal rejects a second start under the derived id.
    new_id = derived_id("episode-", scope.person.name, key) if key else None
    try:
        return Started(id=await scope.client.start(request, new_id=new_id, request_id=new_id or ""))
    except IdTakenError as error:
        if new_id is None:
            raise
        raise KeyInUseError(f"the key {key!r} was already used for another request. Choose a new key") from error


async def status(
    caller: Caller, id: Annotated[Id, Field(description="Defaults to the episode of this connection.")] = ""
) -> dict[str, Any]:
    workflow = await caller.find(id, (*EPISODES, *PLANS), now=True) if id else await caller.own()
    return (await caller.scope.client.status(workflow.id)).model_dump(mode="json", exclude_defaults=True)


async def list_workflows(
    caller: Caller,
    kind: Annotated[
        Literal["", "episode", "plan", "loop"],
        Field(description="`loop` means plans of the project loop. Leave it empty for all kinds."),
    ] = "",
    status: Annotated[str, Field(pattern="^[a-z_]*$", max_length=40, examples=["paused"])] = "",
    text: Annotated[str, Field(max_length=200, description="Part of the id or the goal.")] = "",
    limit: Annotated[int, Field(ge=1, le=100)] = 20,
) -> Lines:
    workflow_filter = WorkflowFilter(kind=kind, status=status, text=text)
    page = await asyncio.to_thread(caller.scope.ledger.workflows, workflow_filter, limit=limit)
    fields = {
        "id",
        "kind",
        "status",
        "qualifier",
        "files_changed",
        "project",
        "goal",
        "executor",
        "iteration",
        "started",
        "closed",
    }
    return Lines(items=tuple(line.model_dump(mode="json", include=fields) for line in page.lines))


async def plan(caller: Caller, id: Id) -> dict[str, Any]:
    """For a project's plan, the response includes tasks and gates."""
    workflow = await caller.find(id, PLANS, now=True)
    document = (await caller.scope.client.status(workflow.id)).model_dump(mode="json", exclude_defaults=True)
    if workflow.kind == "plan":
        rows = await asyncio.to_thread(caller.scope.ledger.steps, workflow.id)
        document["steps"] = [row.model_dump(mode="json", exclude_defaults=True) for row in rows]
    return document


async def inbox(
    caller: Caller,
    project: Annotated[str, Field(max_length=80, description="Id of a project. Leave it empty for all projects.")] = "",
) -> Inbox:
    return Inbox(items=await asyncio.to_thread(caller.scope.ledger.inbox, project))


async def _status_of(caller: Caller, episode: WorkflowRef) -> EpisodeStatus:
    status = await caller.scope.client.status(episode.id)
    assert isinstance(status, EpisodeStatus)
    return status


async def _keep(caller: Caller, episode: WorkflowRef, message: str) -> str:
    """Store a message that does not answer a question as a note, and return the reply.

    A report is never rejected.
    """
    try:
        # An agent must not end a pause that a person requested.
        noted = await _note(caller, episode, message, resumes=not caller.is_agent)
    except InvalidRequestError as error:
        if not is_report(message):
            raise
        return f"{_LATE}, and the message was not saved: {error.message}. You do not need to do anything"
    return f"{_LATE}, so the message was saved as a note: {noted}" if is_report(message) else noted


async def _note(caller: Caller, episode: WorkflowRef, text: str, *, resumes: bool) -> str:
    scope = caller.scope
    work = scope.client.respond(episode.id, text[:TEXT_CHARACTERS], by=scope.person.name, resumes=resumes)
    return str(await refused_by_state(scope, BY_NAME["respond"], episode, work))


TOOLS: dict[str, Callable[..., Awaitable[Value | dict[str, Any]]]] = {
    tool.__name__: tool
    for tool in (
        record_checkpoint, diff_and_classify, send_message, pause_episode, resume_episode,
        start_episode, status, list_workflows, plan, inbox,
    )
}  # fmt: skip
"""Functions for the tools that do more than send a message to a run."""
FOR_AGENTS = frozenset({"pause_episode"})
"""Tools that an episode's agent may use on that episode, although the operation requires an operator for other runs."""
