"""Project steps other than tasks, automatic revisions of a project's plan, and its stored packets."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from activities.artifacts.port import ArtifactStores, get_model, put_model, put_text, replace_file
from activities.loop.inspection import InspectionActivities, InspectRequest, run_gate
from activities.loop.tasks import TaskBriefing, TaskPlanners
from activities.plan.attempts.runner import fail_step
from activities.plan.outputs import unpack
from activities.plan.port import RunnerResult, Work
from activities.plan.records import open_file_records
from activities.plan.requests import RevisePlanRequest
from activities.workspace.git_command import user_git
from activities.workspace.user_repository import UserRepository
from tightloop.episode.check import Check
from tightloop.errors import InvalidRequestError, PlannerError, TightloopError
from tightloop.host import private_folder, state_folder
from tightloop.loop.gates import gate_name
from tightloop.loop.model import CONFLICT, HISTORY_LIMIT, PACKET_ID, Conflict, LoopTask, Packet, packet_id_of
from tightloop.loop.plan import DECOMPOSE, ProjectNote, find_task_problem, resolving, with_resolution, with_tasks
from tightloop.loop.projection import NO_GATES
from tightloop.plan.child import StepRecord
from tightloop.plan.document import Plan
from tightloop.plan.step import ProjectAction
from tightloop.run.question import Option, Question, QuestionKind
from tightloop.safety.drift import PromptPrivacy
from tightloop.value import ArtifactRef, format_count

_QUESTIONS = {"dispatch": "Start the tasks?", "verify": "Run the gates?"}


@dataclass(frozen=True)
class ProjectRunner:
    """Runs steps with the `project` capability."""

    inspection: InspectionActivities
    planners: TaskPlanners
    prompt_privacy: Callable[[str], PromptPrivacy] = lambda _workspace: PromptPrivacy.FULL
    """Returns a workspace's prompt privacy."""

    def preview(self, work: Work) -> str:
        """Return the name of the stage that `run` would run."""
        return work.action(ProjectAction).stage.replace("_", " ")

    def run(self, work: Work) -> RunnerResult:
        """Run one stage.

        Raises:
            PlannerUnavailableError: the model service is busy or down; retryable.
            WorkspaceLockedError: another attempt holds the workspace. Retryable.
        """
        action = work.action(ProjectAction)
        inputs: Mapping[str, Any] = work.resolve(action.given)
        match action.stage:
            case "inspect":
                return self._inspect(work, inputs)
            case "decompose":
                return self._decompose(work, inputs)
            case "find_gates":
                return self._find_gates(work, inputs)
            case "gate":
                return self._run_gate(work, Check.model_validate(inputs["gate"]))
        return _wait_for_person(work, action.stage)

    def _inspect(self, work: Work, inputs: Mapping[str, Any]) -> RunnerResult:
        request = InspectRequest.model_validate({**inputs, "scope": work.scope})
        packet, chosen = self.inspection.inspect(request, work.store)
        gates = chosen.checks
        ref = put_model(work.store, packet, name="packet")
        failing = sum(check.passed is False for check in packet.checks)
        return RunnerResult(
            outputs={"packet": ref.model_dump(mode="json"), "checks": [gate.model_dump(mode="json") for gate in gates]},
            summary=f"{packet.packet_id}: {failing} of {format_count(len(gates), 'check')} did not pass",
            note=_note(
                project=packet.project,
                goal=packet.goal,
                packet_id=packet.packet_id,
                packet=ref,
                chosen_checks=tuple(sentence.replace("--done", "--gate") for sentence in chosen.sentences),
                gate_names=tuple(map(gate_name, gates)) or None,
            ),
        )

    def _decompose(self, work: Work, inputs: Mapping[str, Any]) -> RunnerResult:
        packet = get_model(work.store, ArtifactRef.model_validate(inputs["packet"]), Packet)
        workspace = Path(work.scope.workspace)
        briefing = TaskBriefing(
            packet=packet,
            checks=_checks(inputs["checks"]),
            prompt_privacy=self.prompt_privacy(str(workspace.resolve())),
        )
        try:
            answer = asyncio.run(self.planners(inputs["planner"], inputs["model"]).plan(briefing))
        except PlannerError as error:
            # A retry would be rejected as well.
            return fail_step(error.message)
        transcript = put_text(work.store, answer.transcript, name="planner transcript")
        spent: dict[str, Any] = {
            "usage": answer.usage,
            "api_calls": 1 if answer.usage is not None else 0,
            "artifacts": {"transcript": transcript} if transcript is not None else {},
        }
        if problem := answer.problem or find_task_problem(answer.tasks):
            return fail_step(problem, **spent)
        return RunnerResult(
            outputs={"tasks": [task.model_dump(mode="json") for task in answer.tasks]},
            summary=f"{format_count(len(answer.tasks), 'task')} by {answer.model or 'rules'}",
            **spent,
        )

    def _find_gates(self, work: Work, inputs: Mapping[str, Any]) -> RunnerResult:
        use, scope = self.inspection, work.scope
        named = (_checks(inputs["asked"]), use.settings(scope.workspace))
        with use.workspaces.hold(scope) as tree:
            before = _checks(inputs["planned"])
            gates = use.find_gates(
                tree,
                work.request.expected_tree,
                work.store,
                *named,
                folder=inputs["folder"],
                before=before,
                base=scope.base_tree,
            )
        note = _note(gate_names=tuple(gate_name(gate) for gate in gates))
        if not gates:
            return fail_step(NO_GATES, note=note)
        return RunnerResult(
            outputs={"gates": [gate.model_dump(mode="json") for gate in gates]},
            summary=format_count(len(gates), "gate"),
            note=note,
        )

    def _run_gate(self, work: Work, gate: Check) -> RunnerResult:
        assert work.tree is not None
        checks = run_gate(
            self.inspection.runner,
            gate,
            work.tree,
            work.store,
            expected_tree=work.request.expected_tree,
            cancelled=work.cancelled,
        )
        fields: dict[str, Any] = {
            "outputs": {"checks": [check.model_dump(mode="json") for check in checks]},
            "command": gate.run,
            "note": _note(checks=checks),
        }
        if checks[0].passed:
            return RunnerResult(summary=checks[0].message, **fields)
        return fail_step(f"{checks[0].name} did not pass: {checks[0].message}", **fields)


def _wait_for_person(work: Work, command: str) -> RunnerResult:
    if work.request.answers:
        return RunnerResult()
    go_on = Option(name=command, effect="the plan continues")
    question = Question(
        id="", kind=QuestionKind.GATE, title=_QUESTIONS[command], options=(go_on,), step=work.step.id, command=command
    )
    return RunnerResult(question=question, summary=f"waits for {command}")


def _note(**found: Any) -> dict[str, Any]:
    return ProjectNote(**found).model_dump(mode="json", exclude_defaults=True)


def _checks(values: Any) -> tuple[Check, ...]:
    return tuple(Check.model_validate(value) for value in values)


def grown_plan(stores: ArtifactStores, request: RevisePlanRequest, plan: Plan) -> tuple[Plan, tuple[LoopTask, ...]]:
    """Add new tasks to a project's plan.

    These are the tasks that a step found, or a task that resolves the step's conflict.

    Raises:
        InvalidRequestError: resolving the conflict caused new conflicts too many times.
    """
    workspace = Path(request.scope.workspace)
    store = stores(workspace)
    outputs = _record_of(workspace, request).outputs
    if request.after == DECOMPOSE:
        tasks = tuple(LoopTask.model_validate(task) for task in unpack(outputs["tasks"], store))
        return with_tasks(plan, tasks), tasks
    conflict = Conflict.model_validate(unpack(outputs[CONFLICT], store))
    task = resolving(request.tasks, request.after, conflict)
    return with_resolution(plan, task), (task,)


def _record_of(workspace: Path, request: RevisePlanRequest) -> StepRecord:
    records = [
        record for record in open_file_records(workspace).all(request.scope.episode_id) if record.step == request.after
    ]
    if not records:
        raise InvalidRequestError(f"there is no record of step {request.after!r}")
    return records[-1]


def last_commits(root: Path) -> tuple[str, ...]:
    """Return the latest commits of a repository, newest first. Return an empty tuple if git fails."""
    try:
        with user_git(UserRepository(root)) as git:
            result = git.attempt("log", f"--max-count={HISTORY_LIMIT}", "--no-decorate", "--format=%h %s")
    except (TightloopError, OSError):
        return ()
    return tuple(result.out.decode("utf-8", "replace").splitlines()) if result.code == 0 else ()


KEPT = 100
"""Number of packets kept per project. The oldest one is deleted when there are more."""


class Packets:
    """Stores a project's packets as files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, packet: Packet) -> None:
        """Store a packet under its id. Idempotent."""
        private_folder(self._folder)
        # Not durable: a packet that is lost in a crash is simply made again.
        replace_file(self._folder / f"{packet.packet_id}.json", packet.model_dump_json().encode())
        files = sorted(self._folder.glob("pkt_*.json"), key=lambda path: path.stat().st_mtime)
        for old in files[:-KEPT]:
            old.unlink(missing_ok=True)

    def find(self, packet_id: str) -> Packet | None:
        """Return a packet, or None if its id is unknown or its file was modified."""
        if not PACKET_ID.fullmatch(packet_id):
            return None
        try:
            packet = Packet.model_validate_json((self._folder / f"{packet_id}.json").read_bytes())
        except (OSError, ValidationError):
            return None
        return packet if packet_id_of(packet) == packet_id else None


def open_packets(workspace: Path) -> Packets:
    """Open the packet store of a workspace's project."""
    return Packets(state_folder(workspace) / "packets")
