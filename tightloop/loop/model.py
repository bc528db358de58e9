"""Models for a project plan and its conflicts."""

import hashlib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, ClassVar, Self

from pydantic import Field

from tightloop.episode.budget import Budget
from tightloop.episode.check import Check, checks_in, start_in
from tightloop.episode.model import check_run, folder_problem, planner_problem
from tightloop.episode.scenarios import HiddenScenarios
from tightloop.errors import InvalidRequestError
from tightloop.executor.model import ExecutorChoice
from tightloop.executor.options import choice_problem
from tightloop.run.core import LOOP_WORKFLOW_TYPE, Queues, ResultMode, RunInput, RunResult, RunStatus
from tightloop.run.question import ChildWait, Option, Question, QuestionKind
from tightloop.value import ArtifactRef, CallerInput, Duration, Value, clip, format_count, shorten
from tightloop.value.scrub import scrub

CONFLICT = "conflict"
"""Name of the output of a step whose result could not be merged."""
# Without the `=======` in the middle: it also underlines headings in Markdown and reStructuredText.
MARKER = "^(<{7}|>{7})( |$)"
"""Git's conflict marker lines, as a `grep -E` pattern."""


class Conflict(Value):
    """A conflict between a task's changes and changes that were merged in the meantime."""

    base: str
    """Tree that the task started with."""
    tree: str
    """Tree with the task's result, which is kept."""
    paths: tuple[str, ...] = ()
    """Files that both sides changed in the same places."""
    beside: tuple[str, ...] = ()
    """Additional files that contain the task's version of files that cannot contain both versions as text."""

    @property
    def check(self) -> Check:
        """The check that determines whether the conflict is resolved.

        The check passes if no conflict markers and none of the additional files are left.
        """
        tests = [f"test ! -e {shlex.quote(path)}" for path in self.beside]
        if self.paths:
            # Deleting a file resolves its conflict too.
            files = " ".join(shlex.quote(path) for path in self.paths)
            tests.append(f"! grep -nE {shlex.quote(MARKER)} -- {files} 2>/dev/null")
        return Check(run=" && ".join(tests) or "true", name="no conflict markers are left")


RIGHT_LOOP_INPUT = '{"workspace": "/home/me/project", "goal": "Add rate limits to the API"}'
TASKS_LIMIT = 100
"""Maximum number of tasks in a plan, excluding tasks that resolve conflicts."""
PARALLEL_LIMIT = 50
GOAL_CHARACTERS = 20_000
DESCRIPTION_CHARACTERS = 4_000
MESSAGE_CHARACTERS = 600
PACKET_ID = re.compile(r"pkt_[0-9a-f]{16}")
PLAN_GENERATION = "plan_generation"
"""Name of the check that reports why a plan could not be created."""


class LoopState(StrEnum):
    """State of a project plan."""

    DRAFT = "DRAFT"
    """The plan has been created but not dispatched."""
    DISPATCHING = "DISPATCHING"
    RUNNING = "RUNNING"
    """Tasks are running, or all tasks have ended and `verify` can be called."""
    VERIFYING = "VERIFYING"
    VERIFIED = "VERIFIED"
    FAILED = "FAILED"
    """Planning failed or a gate did not pass."""
    CANCELLED = "CANCELLED"


class TaskState(StrEnum):
    """State of a task."""

    CREATED = "CREATED"
    QUEUED = "QUEUED"
    """The task has been dispatched and is waiting for its dependencies or a free slot."""
    RUNNING = "RUNNING"
    AWAITING_RESPONSE = "AWAITING_RESPONSE"
    """The task's run is waiting for a person."""
    COMPLETE = "COMPLETE"
    ERROR = "ERROR"
    """The task failed or could not be started."""
    CANCELLED = "CANCELLED"

    @property
    def has_ended(self) -> bool:
        """True for final states."""
        return self in (TaskState.COMPLETE, TaskState.ERROR, TaskState.CANCELLED)


class CheckState(Value):
    """State of a project check at the time of the inspection."""

    run: str
    """Command of the check."""
    passed: bool | None = None
    """True if the check passed. None if it was not run or timed out."""
    summary: str = ""
    """Summary of its output, such as `3 failed, 20 passed`. The length is limited."""
    duration_s: float = 0.0


class Packet(Value):
    """Information about a project for a planner.

    The size is limited, and the ID depends on the content.
    """

    packet_id: str = ""
    """ID, which consists of `pkt_` and the first 16 hex digits of the SHA-256 of the content."""
    project: str = ""
    source: str = ""
    """ID of the inspected episode. It is empty if the project itself was inspected."""
    goal: str = ""
    structure: tuple[str, ...] = ()
    """Top-level folders and files with their sizes, largest first. The number of entries is limited."""
    checks: tuple[CheckState, ...] = ()
    history: tuple[str, ...] = ()
    """Subjects of the most recent commits."""
    failures: tuple[str, ...] = ()
    """Open problems: failed checks and the outcomes of earlier episodes."""
    files: int = 0
    lines: int = 0
    tree: str = ""
    """ID of the inspected working tree."""
    at: datetime | None = None


class LoopTask(Value):
    """Task of a project plan. The task runs as an episode in its own worktree."""

    task_id: str
    """ID `ptask_<n>`, which is unique within the plan."""
    description: str
    priority: int = 1
    """Priority. Tasks with priority 1 start first."""
    dependencies: tuple[str, ...] = ()
    """IDs of the tasks that must complete first."""
    definition_of_done: tuple[Check, ...] = ()
    state: TaskState = TaskState.CREATED
    run_id: str = ""
    """Workflow ID of the task's episode. It is set when the task is dispatched."""
    conflict_of: str = ""
    """ID of the task whose conflict this task resolves. It is empty for other tasks."""
    conflict: Conflict | None = None
    """Conflict to resolve. The task's worktree starts with it."""
    message: str = ""
    """Explanation of the state, if one is needed."""


class GateCheck(Value):
    """Result of a gate, or of a check within a gate."""

    name: str
    """Name, such as `gate:pytest` or `plan_generation`."""
    passed: bool
    message: str = ""
    duration_ms: int = 0
    running: bool = False
    """True while the check is running. Until it has ended, `passed` has no meaning."""
    output: ArtifactRef | None = None
    within: bool = False
    """True if this check belongs to the preceding gate."""


class GateResult(Value):
    """The result of `gate:all`."""

    passed: bool = False
    checks: tuple[GateCheck, ...] = ()


class LoopRequest(CallerInput):
    """Request to plan a project."""

    workspace: str = ""
    """Absolute path of the root of a git working tree."""
    folder: str = ""
    """Folder of the project, relative to the root of the working tree, such as `services/api`. The project's own gates
    are found there, and gates and the setup command start there.
    """
    goal: str = ""
    """Goal of the plan. If empty, the plan addresses the open problems in the packet."""
    episode: str = ""
    """Finished episode to inspect instead of the project."""
    packet_id: str = ""
    """ID of an existing packet to use. It must belong to this project."""
    model: str = ""
    """Model to use for planning. If empty, the model from the settings is used."""
    planner: str = "auto"
    executor: ExecutorChoice = ExecutorChoice.model_construct()
    gates: tuple[Check, ...] = ()
    """Gates of the project. If empty, the gates are taken from the settings or found in the project's files."""
    scenarios: HiddenScenarios | None = None
    """Hidden scenarios that must pass at the end, together with the gates, in the proof of the whole plan."""
    setup: str = ""
    """Shell command that installs the project's packages, such as `npm ci`. It runs in the sandbox before the work
    starts, again only after the lock files change. If empty, tightloop proposes a command based on the lock files.
    """
    budget: Budget = Budget.model_construct()
    """Budget for each task. Its `until` also applies to the plan itself."""
    unattended: bool = False
    """Send an alert instead of pausing when the work of a task is stuck."""
    parallel: int = 4
    """Maximum number of concurrent tasks."""
    result: ResultMode = "auto"
    """Form of a success: `branch` (one commit on a new branch `tightloop/ID`), `commits` (one commit for each
    task) or `tree` (the files stay in the working tree). `auto` means `branch` for a worktree, otherwise `tree`.
    """
    pause_timeout: Duration = timedelta(days=30)
    """Maximum time to wait for a person, who has to call `dispatch` or `verify` or answer a question."""
    queues: Queues = Queues.model_construct()

    def check(self) -> None:
        """Check that the request is valid.

        Raises:
            InvalidRequestError: a field is invalid. The message names the first one.
        """
        check_run(self.workspace, self.pause_timeout, {"parallel": self.parallel}, self.setup)
        if problem := next(self._problems(), ""):
            raise InvalidRequestError(problem)

    def starting_in_folder(self) -> Self:
        """Return a copy of the request whose commands start in the project's folder."""
        if not self.folder:
            return self
        return self.evolve(gates=checks_in(self.folder, self.gates), setup=start_in(self.folder, self.setup))

    def _problems(self) -> Iterator[str]:
        if self.parallel > PARALLEL_LIMIT:
            yield f"parallel must be between 1 and {PARALLEL_LIMIT}, got {self.parallel}"
        if len(self.goal) > GOAL_CHARACTERS:
            yield (
                f"the goal is {len(self.goal)} characters long, but the limit is {GOAL_CHARACTERS}. Put long text in a "
                "file"
            )
        if self.packet_id and not PACKET_ID.fullmatch(self.packet_id):
            yield f"{shorten(self.packet_id, 60)!r} is not a valid packet id: expected an id like pkt_0123456789abcdef"
        if self.packet_id and self.episode:
            yield "set either packet_id or episode, but not both, because a packet already has its source"
        if self.model and self.planner == "heuristic":
            yield (
                f"the planner heuristic does not use a model and would ignore {self.model!r}. Omit the model or the "
                "planner"
            )
        problems = (planner_problem(self.planner), choice_problem(self.executor), folder_problem(self.folder))
        yield from filter(None, (*problems, *(gate.problem for gate in self.gates)))
        if self.scenarios is not None:
            yield from filter(None, (self.scenarios.problem,))
            if self.scenarios.count and not self.gates:
                yield "hidden scenarios require a gate. Specify at least one, such as `pytest -q`"


class LoopStatus(RunStatus):
    """Snapshot of the state of a project plan."""

    plan_id: str = ""
    """Workflow ID, in the form `plan_<uuid>`."""
    project: str = ""
    goal: str = ""
    run_id: str = ""
    """ID of the inspected episode, if there is one."""
    packet_id: str = ""
    packet: ArtifactRef | None = None
    status: LoopState = LoopState.DRAFT  # pyright: ignore[reportIncompatibleVariableOverride]  # frozen
    tasks: tuple[LoopTask, ...] = ()
    parallel: int = 0
    """Maximum number of concurrent tasks. It is 0 for plans created before it was recorded."""
    executor: str = ""
    """Executor for the tasks."""
    budget: Budget | None = None
    """Budget for each task."""
    verify_run_id: str = ""
    until: datetime | None = None
    """Time at which the plan stops."""
    gates: tuple[str, ...] = ()
    """Names of the gates, once they are known."""
    gate_result: GateResult | None = None
    chosen_checks: tuple[str, ...] = ()
    """Explanation of gates that were found in the project's files, one sentence each."""
    children: tuple[ChildWait, ...] = ()
    """Open questions of the plan's runs. Send answers to `workflow_id`."""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    executed_at: datetime | None = None
    """Time of the `dispatch` update."""
    completed_at: datetime | None = None
    """Time at which the last task ended."""
    verified_at: datetime | None = None

    @property
    def possible(self) -> tuple[str, ...]:
        """The updates that are possible in the current state."""
        if self.status is LoopState.DRAFT:
            # Planning is still in progress if there are no tasks.
            return ("dispatch", "cancel") if self.tasks else ("cancel",)
        if self.status is LoopState.RUNNING and self.completed_at is not None:
            return ("verify", "cancel")
        if self.status in (LoopState.DISPATCHING, LoopState.RUNNING, LoopState.VERIFYING):
            return ("cancel",)
        return ()

    @property
    def next_command(self) -> Question | None:
        """Question that asks for `dispatch` or `verify`.

        None if the plan is not waiting for one of these commands.
        """
        command = next((name for name in ("dispatch", "verify") if name in self.possible), "")
        if not command:
            return None
        count = format_count(len(self.tasks), "task")
        title, effect = {
            "dispatch": (f"The plan has {count}. Review and start the work", "start the tasks"),
            "verify": (f"{count} of the plan ended. Run the gates", "run the gates"),
        }[command]
        option = Option(name=command, effect=effect)
        return Question(id="", kind=QuestionKind.GATE, title=title, options=(option,), command=command)

    @property
    def id(self) -> str:
        """Workflow ID."""
        return self.plan_id

    @property
    def list_status(self) -> str:
        """Status to show in lists."""
        # A closed plan is never paused, even if its last snapshot still holds unanswered questions.
        if self.status in CLOSED or not self.questions:
            return self.status.value.lower()
        return "paused"

    @property
    def needs_person(self) -> bool:
        """True if the run cannot continue until a person acts."""
        # A task that waits for an answer does not need a person at once while other tasks make progress.
        running = any(task.state is TaskState.RUNNING for task in self.tasks)
        may_start = self.next_command is not None
        return self.list_status == "paused" or may_start or bool(self.children and not running)

    def with_outcome(self, result: RunResult, status: str) -> Self:
        """Return the final snapshot, updated with the result.

        Fields that are missing in `result` keep their values.
        """
        del status  # the outcome is the state already
        assert isinstance(result, LoopResult)
        return self.evolve(
            status=result.outcome,
            qualifier=result.qualifier,
            reason=result.reason,
            files_changed=result.files_changed,
            questions=(),
            children=(),
            tasks=result.tasks or self.tasks,
            gate_result=result.gate_result or self.gate_result,
            tree=result.tree or self.tree,
        )


class LoopResult(RunResult):
    """Result of a project plan."""

    outcome: LoopState  # pyright: ignore[reportIncompatibleVariableOverride]  # frozen
    tasks: tuple[LoopTask, ...] = ()
    gate_result: GateResult | None = None
    details: dict[str, Any] = Field(default_factory=dict)


HISTORY_LIMIT = 30
STRUCTURE_LIMIT = 60
FAILURES_LIMIT = 20
LINE_CHARACTERS = 200
FAILURE_CHARACTERS = 1_500


def packet_id_of(packet: Packet) -> str:
    """Return the ID of a packet. The ID is a hash of the content, excluding times."""
    # Times differ between two inspections of the same tree.
    content = packet.evolve(
        packet_id="", at=None, checks=tuple(check.evolve(duration_s=0.0) for check in packet.checks)
    )
    return f"pkt_{hashlib.sha256(content.model_dump_json().encode()).hexdigest()[:16]}"


def sealed_packet(packet: Packet) -> Packet:
    """Remove secrets and personal data from a packet, limit its size and set its ID."""
    # Scrubbed and cut first: the id is the hash of what is stored, and must not depend on a secret.
    bounded = packet.evolve(
        structure=_lines(packet.structure, STRUCTURE_LIMIT),
        history=_lines(packet.history, HISTORY_LIMIT),
        # `clip` keeps the end of a failure, where tools print the cause.
        failures=tuple(clip(scrub(line), FAILURE_CHARACTERS) for line in packet.failures[:FAILURES_LIMIT]),
        checks=tuple(_shorten_summary(check) for check in packet.checks),
    )
    return bounded.evolve(packet_id=packet_id_of(bounded))


def _lines(lines: Iterable[str], limit: int) -> tuple[str, ...]:
    return tuple(shorten(scrub(line), LINE_CHARACTERS) for line in tuple(lines)[:limit])


def _shorten_summary(check: CheckState) -> CheckState:
    return check.evolve(summary=shorten(scrub(check.summary), LINE_CHARACTERS))


def structure_of(sizes: Mapping[str, int]) -> tuple[str, ...]:
    """List the top-level folders and files with their sizes in bytes, largest first."""
    folders: dict[str, tuple[int, int]] = {}
    for path, size in sizes.items():
        top, _, rest = path.partition("/")
        name = f"{top}/" if rest else top
        count, total = folders.get(name, (0, 0))
        folders[name] = (count + 1, total + size)
    # By name too: the order of equal sizes would otherwise be that of the walk, and change the packet's id.
    ordered = sorted(folders.items(), key=lambda one: (-one[1][1], one[0]))
    return tuple(
        f"{name} {size} bytes" + (f" in {format_count(count, 'file')}" if name.endswith("/") else "")
        for name, (count, size) in ordered[:STRUCTURE_LIMIT]
    )


CLOSED = frozenset({LoopState.VERIFIED, LoopState.FAILED, LoopState.CANCELLED})


def check_possible(status: LoopStatus, update: str) -> None:
    """Reject an update that is not possible in the current state.

    Raises:
        InvalidRequestError: the update is not possible. The message names the state and the possible updates.
    """
    possible = status.possible
    # Cancelling must be possible in a pause too; every other update waits until the questions are answered.
    if update in possible and (update == "cancel" or not status.questions):
        return
    if update in possible:
        raise InvalidRequestError(f"{update}: the plan is paused. Send the resume signal first, or cancel the plan")
    can = f"Available operations: {', '.join(possible)}" if possible else "The plan is closed. Start a new plan"
    raise InvalidRequestError(f"{update}: the plan is {status.status.value}{_why(status)}. {can}")


def _why(status: LoopStatus) -> str:
    match status.status:
        case LoopState.DRAFT if not status.tasks:
            return ", and its tasks are not known yet"
        case LoopState.RUNNING if status.completed_at is None:
            left = sum(not task.state.has_ended for task in status.tasks)
            return f", and {format_count(left, 'task')} have not ended" if left != 1 else ", and 1 task has not ended"
        case LoopState.RUNNING:
            return ", and all tasks have ended"
        case LoopState.FAILED:
            return f" ({status.reason})" if status.reason else ""
        case _:
            return ""


def failing_gates(result: GateResult) -> str:
    """Return a sentence that lists the gates that did not pass."""
    failed = [check.name for check in result.checks if not check.passed and not check.running and not check.within]
    return f"{', '.join(failed)} did not pass" if failed else "no gate ran"


class LoopInput(LoopRequest, RunInput):
    """Input of a project plan."""

    workflow_type: ClassVar[str] = LOOP_WORKFLOW_TYPE
    right_input: ClassVar[str] = RIGHT_LOOP_INPUT

    @property
    def title(self) -> str:
        return self.goal

    @property
    def executor_name(self) -> str:
        return self.executor.name
