"""What Temporal itself knows about episodes and plans, without asking a worker."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import temporalio.api.workflow.v1 as workflow
from google.protobuf.timestamp_pb2 import Timestamp
from pydantic import ValidationError
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import VersioningBehavior
from temporalio.api.failure.v1 import Failure
from temporalio.converter import DataConverter, decode_typed_search_attributes
from temporalio.exceptions import ApplicationError

from tightloop.client.encryption import open_all
from tightloop.client.sealing import ENCRYPTED, OPENED_FIELD, SealingCodec
from tightloop.errors import SettingsError
from tightloop.run.core import PROBLEM_CHARACTERS, REFUSED, Work, wait_for_worker
from tightloop.run.routing import EPISODE_WORKFLOW_TYPE, LOOP_WORKFLOW_TYPE, PLAN_WORKFLOW_TYPE
from tightloop.value import Value, shorten
from tightloop.value.scrub import scrub
from tightloop.wording import CLOSED_STATUSES as CLOSED_STATUSES
from tightloop.wording import OPEN_STATUSES as OPEN_STATUSES

if TYPE_CHECKING:
    from tightloop.episode.control import EpisodeInput
    from tightloop.loop.model import LoopInput
    from tightloop.plan.progress import PlanInput

STATUS, ITERATION, PAUSE_KIND = "TightloopStatus", "TightloopIteration", "TightloopPauseKind"
REQUEST = "request"
"""In the memo: the digest of the request that started a workflow."""
SEARCH_ATTRIBUTES = {STATUS: "Keyword", ITERATION: "Int", PAUSE_KIND: "Keyword"}
TEMPORAL = 'eval "$(tightloop env)"; temporal'
"""Temporal's command line as a shell runs it against the server of the settings."""
SEALS = "+sealed"
"""In the identity of a worker that encrypts what Temporal stores; `:` and the id of its current key follow."""
# Raw numbers, because the SDK's own enum (1.35) raises ValueError on 8, a workflow paused by Temporal itself.
RUNNING, COMPLETED, FAILED, PAUSED = 1, 2, 3, 8
CONTINUED = "continued"
_CLOSED_AS = {FAILED: "failed", 4: "cancelled", 5: "terminated", 6: CONTINUED, 7: "timed_out"}
_DONE = {"episode": "succeeded", "plan": "completed", "loop": "verified"}
# A run that Temporal calls completed or failed may say more precisely how it ended.
_ENDS = {COMPLETED: ("cancelled",), FAILED: ("compensated",)}
_SCHEDULED = 1
_LONG_WAIT = timedelta(seconds=3)
# Temporal warns of memos over 2 KiB.
_MEMO_CHARACTERS = 200


class Kind(StrEnum):
    """The kinds of workflows."""

    EPISODE = "episode"
    PLAN = "plan"
    LOOP = "loop"
    """A project's plan."""

    @property
    def noun(self) -> str:
        """How a sentence calls it."""
        return {"episode": "an episode", "plan": "a plan", "loop": "a project's plan"}[self.value]


KINDS = {EPISODE_WORKFLOW_TYPE: Kind.EPISODE, PLAN_WORKFLOW_TYPE: Kind.PLAN, LOOP_WORKFLOW_TYPE: Kind.LOOP}


class Summary(Value):
    """One line in the list of episodes and plans."""

    id: str
    kind: Kind
    status: str
    """One of `OPEN_STATUSES` or `CLOSED_STATUSES`."""
    iteration: int = 0
    """Of an episode."""
    pause_kind: str = ""
    """Why it waits for a person; a plan may wait for an approval while it runs."""
    goal: str = ""
    """The first characters of the goal, or the title of a plan."""
    workspace: str = ""
    executor: str = ""
    started: datetime | None = None
    """Start of the newest run."""
    closed: datetime | None = None
    parent: str = ""
    """Id of the plan whose step started it."""


class Run(Value):
    """One run of an episode or a plan: a new one follows after much work, a restore, a reset, or a start over."""

    run_id: str
    status: str
    """As of a `Summary`; `continued` where the next run goes on with the same work."""
    started: datetime | None = None
    closed: datetime | None = None


class Execution(Summary):
    """The newest run of an episode or a plan."""

    run_id: str
    is_open: bool
    refused: bool = False
    """It ended before it began, and must not hide an earlier run with its id."""
    frozen: str = ""
    """Why Temporal's own pause holds the workflow; then it answers neither queries nor updates."""
    waits_for: str = ""
    """The task queue on which a step waits for a worker or a free slot, and since when."""
    task_queue: str
    sealed: bool = False
    """What Temporal stores of it is encrypted."""
    request: str = ""
    """Digest of the request that started it; empty: that request had no id."""
    version: str = ""
    """The only version of workers that goes on with the run; empty: those that get new work."""
    work: Work | None = None
    """What its activity says that it does, with its attempts; None: none runs, or more than one."""
    coder: str = ""
    """Id of the coder that works for it; empty: none does."""

    @property
    def asked_run(self) -> str:
        """The run that queries go to; empty: the newest, which may be another one by then."""
        return "" if self.is_open else self.run_id

    @property
    def summary(self) -> Summary:
        """The line in the list."""
        return Summary.of(self)

    @property
    def unfreeze(self) -> str:
        """How to lift Temporal's own pause."""
        return f"Lift it: {TEMPORAL} workflow unpause -w {self.id}"


async def read_execution(
    info: workflow.WorkflowExecutionInfo,
    converter: DataConverter,
    pause_reason: str = "",
    pending: Iterable[workflow.PendingActivityInfo] = (),
) -> Execution:
    """Read Temporal's description of a run.

    Args:
        info: Temporal's answer, about a workflow type of `KINDS`.
        converter: decodes the memo of this workflow; a value that it cannot decode is shown as not readable.
        pause_reason: why Temporal's own pause holds the workflow, where that is known.
        pending: its activities that have not ended.
    """
    attributes = {pair.key.name: pair.value for pair in decode_typed_search_attributes(info.search_attributes)}
    frozen = f"paused by Temporal itself{f': {pause_reason}' if pause_reason else ''}"
    kind, is_open = KINDS[info.type.name], info.status in (RUNNING, PAUSED)
    status = _status_word(kind, info.status, str(attributes.get(STATUS, "")))
    waits = status == "paused" if kind is Kind.EPISODE else is_open
    return Execution(
        id=info.execution.workflow_id,
        kind=kind,
        run_id=info.execution.run_id,
        status=status,
        is_open=is_open,
        refused=info.status == FAILED and attributes.get(STATUS) == REFUSED,
        frozen=frozen if info.status == PAUSED else "",
        task_queue=info.task_queue,
        sealed=any(one.metadata.get("encoding") == ENCRYPTED for one in info.memo.fields.values()),
        version=_pinned_version(info.versioning_info),
        waits_for=_waits_for(pending, info.task_queue, datetime.now(UTC)),
        iteration=int(attributes.get(ITERATION, 0)),
        pause_kind=str(attributes.get(PAUSE_KIND, "")) if waits else "",
        goal=await _memo(info, converter, "goal"),
        workspace=await _memo(info, converter, "workspace"),
        executor=await _memo(info, converter, "executor"),
        request=await _memo(info, converter, REQUEST),
        started=moment(info.start_time),
        closed=moment(info.close_time) if info.HasField("close_time") else None,
        parent=info.parent_execution.workflow_id,
    )


def version_name(deployment: str, build_id: str) -> str:
    """Return a version of a Worker Deployment as Temporal's search attributes name it; empty: there is none."""
    return f"{deployment}:{build_id}" if deployment else ""


def _pinned_version(info: workflow.WorkflowExecutionVersioningInfo) -> str:
    override, at = info.versioning_override, info.deployment_version
    if override.HasField("pinned"):
        at = override.pinned.version
    elif override.auto_upgrade or info.behavior != VersioningBehavior.VERSIONING_BEHAVIOR_PINNED:
        return ""
    return version_name(at.deployment_name, at.build_id)


async def read_work(pending: Iterable[workflow.PendingActivityInfo], converter: DataConverter) -> Work | None:
    """Read what the only pending activity told with its last heartbeat, and how often it was tried.

    What cannot be read here, or is not authentic, is left out: it is only shown.
    """
    activities = list(pending)
    if len(activities) != 1:
        return None
    activity = workflow.PendingActivityInfo()
    activity.CopyFrom(activities[0])
    codec = converter.payload_codec
    try:
        if codec is not None:
            await open_all(activity, codec)
    except SettingsError:
        return None
    strict = isinstance(codec, SealingCodec) and codec.strict
    told = next((_document(one, strict=strict) for one in activity.heartbeat_details.payloads), {})
    try:
        work = Work.model_validate(told if "what" in told else {})
    except ValidationError:
        work = Work()
    waits = activity.next_attempt_schedule_time if activity.attempt > 1 else Timestamp()
    failure = _failure_text(activity.last_failure, strict=strict) if activity.HasField("last_failure") else ""
    return work.evolve(
        attempt=max(activity.attempt, 1),
        attempts=activity.maximum_attempts,
        problem=shorten(" ".join((work.problem or failure).split()), PROBLEM_CHARACTERS),
        next_attempt=moment(waits),
    )


def _document(payload: Payload, *, strict: bool) -> dict[str, Any]:
    """Return the object in an opened payload; empty where it is none, or should have been sealed."""
    if strict and OPENED_FIELD not in payload.metadata:
        return {}
    try:
        value = json.loads(payload.data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _failure_text(failure: Failure, *, strict: bool) -> str:
    if failure.HasField("encoded_attributes"):
        return str(_document(failure.encoded_attributes, strict=strict).get("message", ""))
    # Temporal's own words, such as that the worker was lost, are never sealed.
    return "" if strict and failure.HasField("application_failure_info") else failure.message


def _waits_for(pending: Iterable[workflow.PendingActivityInfo], main_queue: str, now: datetime) -> str:
    """Return where the activity that waits longest waits for a worker; empty where none waits for long."""
    waiting = sorted(
        (since, activity.activity_options.task_queue.name or main_queue)
        for activity in pending
        if activity.state == _SCHEDULED and (since := moment(activity.scheduled_time)) and now - since > _LONG_WAIT
    )
    return wait_for_worker(*waiting[0]) if waiting else ""


def memo_of(start: "EpisodeInput | PlanInput | LoopInput") -> dict[str, str]:
    """Return the memo that Temporal keeps for lists; secrets in the title are scrubbed."""
    title = scrub(start.title)[:_MEMO_CHARACTERS]
    return {"goal": title, "workspace": start.workspace, "executor": start.executor_name}


async def _memo(info: workflow.WorkflowExecutionInfo, converter: DataConverter, name: str) -> str:
    payload = info.memo.fields.get(name)
    if payload is None:
        return ""
    try:
        [value] = await converter.decode([payload], [str])
    except (RuntimeError, ValueError, KeyError, SettingsError, ApplicationError):
        return "(not readable here: encrypted or written by another program)"
    return str(value)


def _status_word(kind: Kind, number: int, attribute: str) -> str:
    """Return the status for Temporal's number and the value of `TightloopStatus`."""
    if attribute in _ENDS.get(number, ()):
        return attribute
    if number == PAUSED:
        return "paused"
    if number == COMPLETED:
        return _DONE[kind]
    return _CLOSED_AS.get(number) or (attribute if attribute in OPEN_STATUSES else "running")


def moment(stamp: Timestamp) -> datetime | None:
    """Return a time of Temporal; None where it is not set."""
    return stamp.ToDatetime(UTC) if stamp.seconds else None


def registration_command(address: str, namespace: str, wrong: Mapping[str, str] | None = None) -> str:
    """Return the command that makes our search attributes known to a namespace.

    Args:
        address: of the server.
        namespace: the one that lacks them.
        wrong: those that it lacks, each with the other type under which it has it (empty: it has none of that name);
            None: it lacks all.
    """
    lacking = dict.fromkeys(SEARCH_ATTRIBUTES, "") if wrong is None else wrong
    where = f"--address {address} --namespace {namespace}"
    attributes = " ".join(f"--name {name} --type {SEARCH_ATTRIBUTES[name]}" for name in lacking)
    create = f"{TEMPORAL} operator search-attribute create {where} {attributes}"
    # Temporal keeps the type of a name for good; values that were stored under it are lost with it.
    mistyped = " ".join(f"--name {name}" for name, kind in lacking.items() if kind)
    return f"{TEMPORAL} operator search-attribute remove {where} {mistyped} --yes && {create}" if mistyped else create


def setup_command(address: str, namespace: str) -> str:
    """Return the command of ours that sets a namespace up."""
    return f"tightloop --address {address} setup --namespace {namespace}"
