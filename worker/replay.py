"""Replay of histories."""

import json
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from temporalio import workflow
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHistory
from temporalio.converter import DataConverter, WorkflowSerializationContext
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig
from temporalio.worker import (
    ExecuteWorkflowInput,
    Interceptor,
    Replayer,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from tightloop.client import TightloopClient
from tightloop.client.encryption import CheckedFailures, ScrubbedFailures, has_seals, key_ids, open_all
from tightloop.client.sealing import REFUSED, ReadingCodec, SealingCodec
from tightloop.errors import EpisodeNotFoundError, InvalidRequestError, SettingsError
from tightloop.run.core import TimelineLine
from worker.build import WORKFLOW_TYPES, WORKFLOWS, workflow_runner
from worker.connect import DATA_CONVERTER

# A global, because the SDK takes a class as the interceptor and creates the instance itself.
_SEEN: list["_CapturedInstance"] = []
# Messages of Temporal's core (1.35) for a command that does not match the history.
_MESSAGE = re.compile(r'message: "((?:[^"\\\\]|\\\\.)*)"')
_OTHER_ACTIVITY = re.compile(r"scheduled event '(?P<had>[^']*)' does not match .* command '(?P<wants>[^']*)'")
_OTHER_COMMAND = re.compile(
    r"(?:(?P<wants>\w+) machine does not handle|.*for) (?:this )?event:? HistoryEvent\(id: (?P<id>\d+)"
)


@dataclass(frozen=True)
class _CapturedInstance:
    """A workflow instance that was captured during a replay."""

    instance: Any
    runtime: Any


class _InstanceCapture(WorkflowInboundInterceptor):
    """Captures the workflow instance so that its timeline can be read after the replay."""

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        with workflow.unsafe.sandbox_unrestricted():
            _SEEN.append(_CapturedInstance(workflow.instance(), workflow._Runtime.current()))
        return await super().execute_workflow(input)


class _CaptureInterceptor(Interceptor):
    def workflow_interceptor_class(
        self, input: WorkflowInterceptorClassInput
    ) -> type[WorkflowInboundInterceptor] | None:
        del input
        return _InstanceCapture


@dataclass(frozen=True)
class ReplayResult:
    """Result of a replay."""

    workflow_id: str
    events: int
    timeline: tuple[TimelineLine, ...]
    failure: str = ""
    """Reason why the current code does not match the history. Empty if it does."""


def read_history(path: Path) -> WorkflowHistory:
    """Read a history that was written by `temporal workflow show -o json`, the Web UI or `tightloop export`.

    Raises:
        InvalidRequestError: the file does not exist, is not a history, or belongs to another application's workflow.
    """
    try:
        document = json.loads((path / "history.json" if path.is_dir() else path).read_text())
        document = document.get("history", document) if isinstance(document, dict) else document
        if isinstance(document, dict) and isinstance(document.get("history"), dict):
            document = document["history"]
        history = WorkflowHistory.from_json(path.stem, document)
        if not history.events or not history.events[0].HasField("workflow_execution_started_event_attributes"):
            raise ValueError("its first event is not WorkflowExecutionStarted")
    except FileNotFoundError:
        raise InvalidRequestError(
            f"no such file: {path}. Export a history with: tightloop export ID --out {path}"
        ) from None
    except Exception as error:
        raise InvalidRequestError(
            f"{path} is not an episode history ({error}). Export one with: tightloop export ID --out {path}"
        ) from error
    started = history.events[0].workflow_execution_started_event_attributes
    if started.workflow_type.name not in WORKFLOW_TYPES:
        raise InvalidRequestError(f"cannot replay {path}: {foreign_type(started.workflow_type.name)}")
    # Ids of child workflows are derived from it; old servers omit it.
    return replace(history, workflow_id=started.workflow_id or path.stem)


def foreign_type(workflow_type: str) -> str:
    """Return the error message for a workflow whose type is not registered here."""
    return f"no worker of this installation runs workflows of type {workflow_type or '(none)'}"


async def fetch_history(client: Client, episode_id: str) -> WorkflowHistory:
    """Fetch the history of an open or closed workflow from the server.

    For an episode or a plan, this is the run that `status` shows. Later starts that were refused are
    skipped.

    Raises:
        EpisodeNotFoundError: the server has no such workflow.
        InvalidRequestError: the workflow belongs to another application.
    """
    try:
        run_id = (await TightloopClient(client).runs(episode_id))[-1].run_id
    except EpisodeNotFoundError:
        runs = [run async for run in client.list_workflows(f"WorkflowId = {json.dumps(episode_id)}", page_size=1)]
        if not runs:
            raise
        if runs[0].workflow_type not in WORKFLOW_TYPES:
            reason = foreign_type(runs[0].workflow_type)
            raise InvalidRequestError(f"cannot replay {episode_id}: {reason}") from None
        run_id = runs[0].run_id
    return await client.get_workflow_handle(episode_id, run_id=run_id).fetch_history()


async def replay(
    history: WorkflowHistory, converter: DataConverter = DATA_CONVERTER, *, namespace: str = "default"
) -> ReplayResult:
    """Replay a history against the current code.

    Args:
        history: history to replay. Histories from the server are sealed, and exported histories are
            decrypted.
        converter: data converter with the keys for an encrypted history.
        namespace: namespace whose seals are verified. Seals of other namespaces are not verified.

    Raises:
        SettingsError: a key is missing. The message names it. The code may still match the history.
    """
    await _check_readable(history, converter)
    _SEEN.clear()
    replayer = Replayer(
        workflows=WORKFLOWS,
        data_converter=await _reader(history, converter, namespace),
        namespace=namespace,
        workflow_runner=workflow_runner(),
        interceptors=[_CaptureInterceptor()],
        # The core would log the nondeterminism that `account` reports more readably.
        runtime=_quiet_runtime(),
    )
    result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
    captured = _SEEN[-1] if _SEEN else None
    instance: Any = captured.instance if captured else None
    # Not every workflow has a timeline: the retention workflow has a single activity.
    entries: list[TimelineLine] = instance.timeline() if hasattr(instance, "timeline") else []
    # On a mismatch the core cancels the run, at time zero.
    timeline = tuple(entry for entry in entries if entry.at.timestamp() > 0)
    failure = _explain_mismatch(history, str(result.replay_failure), captured) if result.replay_failure else ""
    return ReplayResult(history.workflow_id, len(history.events), timeline, failure)


@cache
def _quiet_runtime() -> Runtime:
    return Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter="ERROR")))


def _explain_mismatch(history: WorkflowHistory, failure: str, captured: _CapturedInstance | None) -> str:
    """Explain where a replay diverges from the history, with the event and the command at that position."""
    mismatch = _MESSAGE.search(failure)
    message = (
        mismatch[1].replace("\\\\'", "'").removeprefix("[TMPRL1100] Nondeterminism error: ") if mismatch else failure
    )
    reached = captured.runtime.workflow_get_current_history_length() if captured else 0
    activity, command = _OTHER_ACTIVITY.search(message), _OTHER_COMMAND.search(message)
    event, wants = None, ""
    if activity:
        later = (candidate for candidate in history.events if candidate.event_id > reached)
        event = next((candidate for candidate in later if _activity_of(candidate) == activity["had"]), None)
        wants = f"activity {activity['wants']}"
    elif command:
        event = next((candidate for candidate in history.events if candidate.event_id == int(command["id"])), None)
        wants = f"a different kind of command: {command['wants']}" if command["wants"] else "no command here"
    position, number = getattr(captured.instance, "place", "") if captured else "", event.event_id if event else reached
    rows = [("where", f"{position}, event {number}" if position else f"event {number}")]
    rows += [("history has", _event_text(event))] if event else []
    rows += [("code wants", wants)] if wants else [("the core says", message)]
    rows += [("look at", text)] if (text := _checkpoint_text(captured)) else []
    return "\n".join(f"  {name:<12} {text}" for name, text in rows)


def _activity_of(event: HistoryEvent) -> str:
    return event.activity_task_scheduled_event_attributes.activity_type.name


def _event_text(event: HistoryEvent) -> str:
    kind = EventType.Name(event.event_type).removeprefix("EVENT_TYPE_").replace("_", " ").lower()
    payload = event.user_metadata.summary
    summary = (
        payload.data.decode("utf-8", "replace").strip('"') if payload.metadata.get("encoding") == b"json/plain" else ""
    )
    name = f"activity {_activity_of(event)}" if _activity_of(event) else kind
    return f"{name} ({summary})" if summary else name


def _checkpoint_text(captured: _CapturedInstance | None) -> str:
    checkpoints = captured.instance.checkpoints() if captured and hasattr(captured.instance, "checkpoints") else []
    last = next((checkpoint for checkpoint in reversed(checkpoints) if not checkpoint.discarded), None)
    if last is None:
        return ""
    reset = f", event {last.event_id} of run {last.run_id}" if last.event_id else ""
    return f"{last.id}, the last checkpoint before this event (iteration {last.iteration}{reset})"


async def _reader(history: WorkflowHistory, converter: DataConverter, namespace: str) -> DataConverter:
    """Return a data converter that reads the history like its original worker. The keys must be available."""
    # Nothing is stored here, so failures may keep their messages.
    failures = CheckedFailures if any(map(has_seals, history.events)) else ScrubbedFailures
    codec = converter.payload_codec
    if isinstance(codec, SealingCodec) and codec.strict:
        payloads = history.events[0].workflow_execution_started_event_attributes.input.payloads
        context = WorkflowSerializationContext(namespace=namespace, workflow_id=history.workflow_id)
        opened = await codec.with_context(context).decode(payloads)
        if all(payload.metadata.get("encoding") != REFUSED for payload in opened):
            return replace(converter, failure_converter_class=failures)
    reading = ReadingCodec(codec if isinstance(codec, SealingCodec) else None)
    return replace(DATA_CONVERTER, payload_codec=reading, failure_converter_class=failures)


async def _check_readable(history: WorkflowHistory, converter: DataConverter) -> None:
    """Check that the required keys are available.

    Without this check, the SDK logs a stack trace for each payload that it cannot decrypt.
    """
    ids = sorted(set().union(*map(key_ids, history.events)))
    if not ids:
        return
    where = f"cannot decrypt the history of {history.workflow_id}"
    if converter.payload_codec is None:
        raise SettingsError(
            f"{where}: it was encrypted with key {', '.join(ids)}, but temporal.authenticate and privacy.encrypt "
            "are off. Turn on either one, using the key file from the host that recorded the history, or export "
            "the history on that host and replay the file: tightloop export ID --out FILE"
        )
    try:
        for event in history.events:
            # A copy, because `open_all` decrypts in place and the replayer has to see the original payloads.
            copy = type(event)()
            copy.CopyFrom(event)
            await open_all(copy, converter.payload_codec)
    except SettingsError as error:
        raise SettingsError(f"{where}: {error.message}") from None


def format_replay(replayed: ReplayResult) -> str:
    lines = [f"{entry.at:%Y-%m-%d %H:%M:%S}  {entry.kind:<10} {entry.text}" for entry in replayed.timeline]
    if replayed.failure:
        lines += [
            "",
            f"DIVERGED: the current code is not compatible with the history of {replayed.workflow_id}.",
            replayed.failure,
            "Let the workflow finish on the build that recorded it, or undo the change.",
        ]
    else:
        lines.append(
            f"replayed {replayed.events} events of {replayed.workflow_id}: "
            "the current code is compatible with the history"
        )
    return "\n".join(lines)
