"""Information about episodes and plans that Temporal provides without querying a worker."""

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
from tightloop.run.core import (
    EPISODE_WORKFLOW_TYPE,
    LOOP_WORKFLOW_TYPE,
    PLAN_WORKFLOW_TYPE,
    PROBLEM_CHARACTERS,
    REFUSED,
    Work,
    wait_for_worker,
)
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
"""Memo key: digest of the request that started a workflow."""
SEARCH_ATTRIBUTES = {STATUS: "Keyword", ITERATION: "Int", PAUSE_KIND: "Keyword"}
TEMPORAL = 'eval "$(tightloop env)"; temporal'
"""Shell command that runs Temporal's command line with the environment from the tightloop settings."""
SEALS = "+sealed"
"""Marker in the identity of a worker that encrypts payloads, followed by `:` and the id of its current key."""
# Raw numbers, because the SDK's enum (1.35) raises ValueError on 8, a workflow paused by Temporal itself.
RUNNING, COMPLETED, FAILED, PAUSED = 1, 2, 3, 8
CONTINUED = "continued"
_CLOSED_AS = {FAILED: "failed", 4: "cancelled", 5: "terminated", 6: CONTINUED, 7: "timed_out"}
_DONE = {"episode": "succeeded", "plan": "completed", "loop": "verified"}
# More precise outcomes that our search attribute can add to Temporal's status.
_ENDS = {COMPLETED: ("cancelled",), FAILED: ("compensated",)}
_SCHEDULED = 1
_LONG_WAIT = timedelta(seconds=3)
# Temporal warns about memos over 2 KiB.
_MEMO_CHARACTERS = 200


class Kind(StrEnum):
    """The kind of a workflow: an episode, a plan or a project plan."""

    EPISODE = "episode"
    PLAN = "plan"
    LOOP = "loop"
    """Project plan."""

    @property
    def noun(self) -> str:
        """Noun with its article, for messages."""
        return {"episode": "an episode", "plan": "a plan", "loop": "a project plan"}[self.value]


KINDS = {EPISODE_WORKFLOW_TYPE: Kind.EPISODE, PLAN_WORKFLOW_TYPE: Kind.PLAN, LOOP_WORKFLOW_TYPE: Kind.LOOP}


class Summary(Value):
    """A row in the list of episodes and plans."""

    id: str
    kind: Kind
    status: str
    """One of `OPEN_STATUSES` or `CLOSED_STATUSES`."""
    qualifier: str = ""
    """Short reason why a success is not a plain success, such as `not proven`. The status contains the full text."""
    iteration: int = 0
    """Number of iterations of an episode."""
    pause_kind: str = ""
    """Kind of the pause. A running plan can also wait for an approval."""
    goal: str = ""
    """Beginning of the goal, or title of a plan."""
    workspace: str = ""
    executor: str = ""
    started: datetime | None = None
    """Start time of the newest run."""
    closed: datetime | None = None
    parent: str = ""
    """Id of the plan whose step started this run."""


class Run(Value):
    """A run of an episode or a plan. A restore, a reset, a restart or long work starts a new run."""

    run_id: str
    status: str
    """Status as in `Summary`; `continued` if the next run continues the same work."""
    started: datetime | None = None
    closed: datetime | None = None


class Execution(Summary):
    """The newest run of an episode or a plan."""

    run_id: str
    is_open: bool
    refused: bool = False
    """True if the run was rejected when it started. Such a run must not hide an earlier run with the same id."""
    frozen: str = ""
    """Description of Temporal's own pause, or "" if there is none.

    A paused workflow does not answer queries or updates.
    """
    waits_for: str = ""
    """Task queue on which a step is waiting for a worker or a free slot, and the time when the wait began."""
    task_queue: str
    sealed: bool = False
    """True if Temporal stores the run encrypted."""
    request: str = ""
    """Digest of the request that started the run, or "" if the request had no id."""
    version: str = ""
    """The only worker version that can continue the run, or "" if the current routing applies."""
    work: Work | None = None
    """Work and attempts reported by the pending activity, or None if there is not exactly one."""
    coder: str = ""
    """Id of the episode's running coder workflow, or "" if there is none."""

    @property
    def query_run_id(self) -> str:
        """Run id for queries. Left empty to address the newest run, because a new run may start at any time."""
        return "" if self.is_open else self.run_id

    @property
    def summary(self) -> Summary:
        """List row for this run."""
        return Summary.of(self)

    @property
    def unfreeze(self) -> str:
        """Advice on how to end a pause that was set in Temporal."""
        return f"Resume it: {TEMPORAL} workflow unpause -w {self.id}"


async def read_execution(
    info: workflow.WorkflowExecutionInfo,
    converter: DataConverter,
    pause_reason: str = "",
    pending: Iterable[workflow.PendingActivityInfo] = (),
) -> Execution:
    """Convert Temporal's description of a run to an `Execution`.

    Args:
        info: description of a workflow whose type is in `KINDS`.
        converter: converter that decodes the memo. Values that cannot be decoded are shown as unreadable.
        pause_reason: reason for a pause that was set in Temporal, if known.
        pending: activities that have not finished.
    """
    attributes = {pair.key.name: pair.value for pair in decode_typed_search_attributes(info.search_attributes)}
    frozen = f"paused in Temporal{f': {pause_reason}' if pause_reason else ''}"
    kind, is_open = KINDS[info.type.name], info.status in (RUNNING, PAUSED)
    status = _status_word(kind, info.status, str(attributes.get(STATUS, "")))
    # A closed run keeps its last search attributes, so its kind of pause means nothing any more.
    waits = status == "paused" if kind is Kind.EPISODE else is_open
    return Execution(
        id=info.execution.workflow_id,
        kind=kind,
        run_id=info.execution.run_id,
        status=status,
        qualifier=_qualifier(status, str(attributes.get(STATUS, ""))),
        is_open=is_open,
        refused=info.status == FAILED and attributes.get(STATUS) == REFUSED,
        frozen=frozen if info.status == PAUSED else "",
        task_queue=info.task_queue,
        # Temporal shows the memo without a worker, and every client writes one at the start.
        sealed=any(payload.metadata.get("encoding") == ENCRYPTED for payload in info.memo.fields.values()),
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
    """Return a Worker Deployment version in the format of Temporal's search attributes, or ""."""
    return f"{deployment}:{build_id}" if deployment else ""


def _pinned_version(info: workflow.WorkflowExecutionVersioningInfo) -> str:
    override, at = info.versioning_override, info.deployment_version
    # An operator's override wins over the behaviour that the workflow declares.
    if override.HasField("pinned"):
        at = override.pinned.version
    elif override.auto_upgrade or info.behavior != VersioningBehavior.VERSIONING_BEHAVIOR_PINNED:
        return ""
    return version_name(at.deployment_name, at.build_id)


async def read_work(pending: Iterable[workflow.PendingActivityInfo], converter: DataConverter) -> Work | None:
    """Return the last heartbeat and the attempts of the only pending activity.

    Return None unless exactly one activity is pending. Unreadable or unauthentic content is omitted.
    """
    activities = list(pending)
    if len(activities) != 1:
        return None
    # A copy, because payloads are opened in place.
    activity = workflow.PendingActivityInfo()
    activity.CopyFrom(activities[0])
    codec = converter.payload_codec
    try:
        if codec is not None:
            await open_all(activity, codec)
    except SettingsError:
        return None
    strict = isinstance(codec, SealingCodec) and codec.strict
    heartbeat = next((_document(payload, strict=strict) for payload in activity.heartbeat_details.payloads), {})
    try:
        work = Work.model_validate(heartbeat if "what" in heartbeat else {})
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
    """Return the JSON object in an opened payload.

    The result is empty for other values. With `strict`, it is also empty for unsealed payloads.
    """
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
    # Temporal's own messages, such as a lost worker, are never sealed.
    return "" if strict and failure.HasField("application_failure_info") else failure.message


def _waits_for(pending: Iterable[workflow.PendingActivityInfo], main_queue: str, now: datetime) -> str:
    """Describe the activity that has been waiting longest for a worker.

    Return "" if no activity has been waiting longer than `_LONG_WAIT`.
    """
    waiting = sorted(
        (since, activity.activity_options.task_queue.name or main_queue)
        for activity in pending
        if activity.state == _SCHEDULED and (since := moment(activity.scheduled_time)) and now - since > _LONG_WAIT
    )
    return wait_for_worker(*waiting[0]) if waiting else ""


def memo_of(start: "EpisodeInput | PlanInput | LoopInput") -> dict[str, str]:
    """Return the memo that Temporal stores for lists. Its title is scrubbed."""
    # Scrub before truncating: half of a secret would not be recognized.
    title = scrub(start.title)[:_MEMO_CHARACTERS]
    return {"goal": title, "workspace": start.workspace, "executor": start.executor_name}


async def _memo(info: workflow.WorkflowExecutionInfo, converter: DataConverter, name: str) -> str:
    payload = info.memo.fields.get(name)
    if payload is None:
        return ""
    try:
        [value] = await converter.decode([payload], [str])
    # One unreadable row must not hide the whole list.
    except (RuntimeError, ValueError, KeyError, SettingsError, ApplicationError):
        return "(cannot be read here: encrypted or written by another program)"
    return str(value)


def _status_word(kind: Kind, number: int, attribute: str) -> str:
    """Return the status for Temporal's status number and the attribute `TightloopStatus`."""
    if attribute in _ENDS.get(number, ()):
        return attribute
    if number == PAUSED:
        return "paused"
    if number == COMPLETED:
        return _DONE[kind]
    # A run started with Temporal's own tools has no attribute until its first workflow task.
    return _CLOSED_AS.get(number) or (attribute if attribute in OPEN_STATUSES else "running")


def _qualifier(status: str, attribute: str) -> str:
    """Return the part of a `TightloopStatus` value after the status, such as `not proven`."""
    return attribute.removeprefix(f"{status}, ") if attribute.startswith(f"{status}, ") else ""


def moment(stamp: Timestamp) -> datetime | None:
    """Convert a Temporal timestamp, or return None if it is not set."""
    return stamp.ToDatetime(UTC) if stamp.seconds else None


def registration_command(address: str, namespace: str, wrong: Mapping[str, str] | None = None) -> str:
    """Return the shell command that registers tightloop's search attributes in a namespace.

    Args:
        address: address of the server.
        namespace: namespace in which to register them.
        wrong: missing attributes, each with its current type, or "" if the name does not exist. None
            means that all are missing.
    """
    lacking = dict.fromkeys(SEARCH_ATTRIBUTES, "") if wrong is None else wrong
    where = f"--address {address} --namespace {namespace}"
    attributes = " ".join(f"--name {name} --type {SEARCH_ATTRIBUTES[name]}" for name in lacking)
    create = f"{TEMPORAL} operator search-attribute create {where} {attributes}"
    # Temporal never changes the type of a name; removing it loses the stored values.
    mistyped = " ".join(f"--name {name}" for name, kind in lacking.items() if kind)
    return f"{TEMPORAL} operator search-attribute remove {where} {mistyped} --yes && {create}" if mistyped else create


def setup_command(address: str, namespace: str) -> str:
    """Return the shell command that sets up a namespace for tightloop."""
    return f"tightloop --address {address} setup --namespace {namespace}"
