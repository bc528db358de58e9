"""Models of a project plan and its conflicts."""

import hashlib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, ClassVar, Self

from pydantic import Field

from tightloop.episode.budget import Budget
from tightloop.episode.check import Check
from tightloop.episode.model import check_run, planner_problem
from tightloop.errors import InvalidRequestError
from tightloop.executor.model import ExecutorChoice
from tightloop.run.core import RunInput, RunResult, RunStatus
from tightloop.run.question import ChildWait
from tightloop.run.routing import LOOP_WORKFLOW_TYPE, Queues
from tightloop.value import ArtifactRef, CallerInput, Duration, Value, clip, format_count, shorten
from tightloop.value.scrub import scrub

CONFLICT = "conflict"
"""Output name of a step whose result could not be merged."""
# Without the `=======` in the middle: it also underlines headings in Markdown and reStructuredText.
MARKER = "^(<{7}|>{7})( |$)"
"""Conflict marker line of git, as a `grep -E` pattern."""


class Conflict(Value):
    """Conflict between a task's changes and changes merged meanwhile."""

    base: str
    """Tree that the task started from."""
    tree: str
    """Tree of the task's result, which is kept."""
    paths: tuple[str, ...] = ()
    """Files that both sides changed in the same places."""
    beside: tuple[str, ...] = ()
    """Extra files with the task's version, for files that cannot contain both as text."""

    @property
    def check(self) -> Check:
        """Check that the conflict is resolved: neither conflict markers nor extra files remain."""
        tests = [f"test ! -e {shlex.quote(path)}" for path in self.beside]
        if self.paths:
            # Deleting a file resolves its conflict too.
            files = " ".join(shlex.quote(path) for path in self.paths)
            tests.append(f"! grep -nE {shlex.quote(MARKER)} -- {files} 2>/dev/null")
        return Check(run=" && ".join(tests) or "true", name="no conflict markers are left")


RIGHT_LOOP_INPUT = '{"workspace": "/home/me/project", "goal": "Add rate limits to the API"}'
TASKS_LIMIT = 100
"""Maximum number of tasks in a plan, not counting those that resolve conflicts."""
PARALLEL_LIMIT = 50
GOAL_CHARACTERS = 20_000
DESCRIPTION_CHARACTERS = 4_000
MESSAGE_CHARACTERS = 600
PACKET_ID = re.compile(r"pkt_[0-9a-f]{16}")
PLAN_GENERATION = "plan_generation"
"""Name of the check that reports why there is no plan."""


class LoopState(StrEnum):
    """State of a project plan."""

    DRAFT = "DRAFT"
    """Planned, not dispatched."""
    DISPATCHING = "DISPATCHING"
    RUNNING = "RUNNING"
    """Tasks run, or all of them have ended and `verify` is possible."""
    VERIFYING = "VERIFYING"
    VERIFIED = "VERIFIED"
    FAILED = "FAILED"
    """Planning failed, or a gate did not pass."""
    CANCELLED = "CANCELLED"


class TaskState(StrEnum):
    """State of a task."""

    CREATED = "CREATED"
    QUEUED = "QUEUED"
    """Dispatched; waits for its dependencies or for a free slot."""
    RUNNING = "RUNNING"
    AWAITING_RESPONSE = "AWAITING_RESPONSE"
    """Its run waits for a person."""
    COMPLETE = "COMPLETE"
    ERROR = "ERROR"
    """It failed, or could not start."""
    CANCELLED = "CANCELLED"

    @property
    def has_ended(self) -> bool:
        """True for final states."""
        return self in (TaskState.COMPLETE, TaskState.ERROR, TaskState.CANCELLED)


class CheckState(Value):
    """State of a project check at inspection time."""

    run: str
    """Command."""
    passed: bool | None = None
    """None if it was not run or timed out."""
    summary: str = ""
    """Summary from its output, such as `3 failed, 20 passed`; bounded."""
    duration_s: float = 0.0


class Packet(Value):
    """Project context for a planner, bounded and content-addressed."""

    packet_id: str = ""
    """`pkt_` and the first 16 hex digits of the SHA-256 of the content."""
    project: str = ""
    source: str = ""
    """Id of the inspected episode; empty if the project itself was inspected."""
    goal: str = ""
    structure: tuple[str, ...] = ()
    """Top-level folders and files with their sizes, largest first; bounded."""
    checks: tuple[CheckState, ...] = ()
    history: tuple[str, ...] = ()
    """Subjects of the last commits."""
    failures: tuple[str, ...] = ()
    """Open problems: failing checks and the outcomes of earlier episodes."""
    files: int = 0
    lines: int = 0
    tree: str = ""
    """Id of the inspected working tree."""
    at: datetime | None = None


class LoopTask(Value):
    """Goal of one episode, which runs in a worktree of its own."""

    task_id: str
    """`ptask_<n>`, unique within its plan."""
    description: str
    priority: int = 1
    """1 starts first."""
    dependencies: tuple[str, ...] = ()
    """Ids of tasks that must complete first."""
    definition_of_done: tuple[Check, ...] = ()
    state: TaskState = TaskState.CREATED
    run_id: str = ""
    """Workflow id of its episode, set at dispatch."""
    conflict_of: str = ""
    """Task whose conflict this one resolves; empty for other tasks."""
    conflict: Conflict | None = None
    """Conflict to resolve; the start of the task's worktree."""
    message: str = ""
    """Explanation of the state, if it needs one."""


class GateCheck(Value):
    """Result of a gate, or of one check within it."""

    name: str
    """Name, such as `gate:pytest` or `plan_generation`."""
    passed: bool
    message: str = ""
    duration_ms: int = 0
    running: bool = False
    """True while it runs; `passed` is not meaningful then."""
    output: ArtifactRef | None = None
    within: bool = False
    """True for a check within the preceding gate."""


class GateResult(Value):
    """The result of `gate:all`."""

    passed: bool = False
    checks: tuple[GateCheck, ...] = ()


class LoopRequest(CallerInput):
    """Request to plan a project."""

    workspace: str = ""
    """Absolute path of the root of a git working tree."""
    goal: str = ""
    """Goal of the plan; empty: the open problems of the packet."""
    episode: str = ""
    """Finished episode to inspect instead of the project."""
    packet_id: str = ""
    """Existing packet to use; it must belong to this project."""
    model: str = ""
    """Planning model; empty for the one in the settings."""
    planner: str = "auto"
    executor: ExecutorChoice = ExecutorChoice.model_construct()
    gates: tuple[Check, ...] = ()
    """Gates; empty for those in the settings, or detected ones."""
    budget: Budget = Budget.model_construct()
    """Budget per task."""
    parallel: int = 4
    """Maximum number of concurrent tasks."""
    pause_timeout: Duration = timedelta(days=30)
    """Maximum wait for a person: for `dispatch`, `verify` or an answer."""
    queues: Queues = Queues.model_construct()

    def check(self) -> None:
        """Validate the request.

        Raises:
            InvalidRequestError: names the first invalid field.
        """
        check_run(self.workspace, self.pause_timeout, {"parallel": self.parallel})
        if problem := next(self._problems(), ""):
            raise InvalidRequestError(problem)

    def _problems(self) -> Iterator[str]:
        if self.parallel > PARALLEL_LIMIT:
            yield f"parallel is {self.parallel}; it must be 1 to {PARALLEL_LIMIT}"
        if len(self.goal) > GOAL_CHARACTERS:
            yield f"the goal has {len(self.goal)} characters; the maximum is {GOAL_CHARACTERS}. Put it into a file"
        if self.packet_id and not PACKET_ID.fullmatch(self.packet_id):
            yield f"{shorten(self.packet_id, 60)!r} is not a packet id such as pkt_0123456789abcdef"
        if self.packet_id and self.episode:
            yield "give either packet_id or episode, not both: a packet already has its source"
        yield from filter(None, (planner_problem(self.planner), *(gate.problem for gate in self.gates)))


class LoopStatus(RunStatus):
    """Snapshot of a project plan."""

    plan_id: str = ""
    """Workflow id, `plan_<uuid>`."""
    project: str = ""
    goal: str = ""
    run_id: str = ""
    """Inspected episode, if any."""
    packet_id: str = ""
    packet: ArtifactRef | None = None
    status: LoopState = LoopState.DRAFT  # pyright: ignore[reportIncompatibleVariableOverride]  # frozen
    tasks: tuple[LoopTask, ...] = ()
    parallel: int = 0
    """Maximum number of concurrent tasks; 0 for plans made before it was recorded."""
    executor: str = ""
    """Executor of the tasks."""
    budget: Budget | None = None
    """Budget per task."""
    verify_run_id: str = ""
    gate_result: GateResult | None = None
    children: tuple[ChildWait, ...] = ()
    """Open questions of its runs; the answer goes to `workflow_id`."""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    executed_at: datetime | None = None
    """Time of the `dispatch` update."""
    completed_at: datetime | None = None
    """Time when the last task ended."""
    verified_at: datetime | None = None

    @property
    def possible(self) -> tuple[str, ...]:
        """Updates that the current state accepts."""
        if self.status is LoopState.DRAFT:
            # Planning is still in progress if there are no tasks.
            return ("dispatch", "cancel") if self.tasks else ("cancel",)
        if self.status is LoopState.RUNNING and self.completed_at is not None:
            return ("verify", "cancel")
        if self.status in (LoopState.DISPATCHING, LoopState.RUNNING, LoopState.VERIFYING):
            return ("cancel",)
        return ()

    @property
    def id(self) -> str:
        """Workflow id."""
        return self.plan_id

    @property
    def list_status(self) -> str:
        """Status for lists."""
        # A closed plan is never paused, even if its last snapshot still holds unanswered questions.
        if self.status in CLOSED or not self.questions:
            return self.status.value.lower()
        return "paused"

    @property
    def needs_person(self) -> bool:
        """True if the run cannot continue until a person acts."""
        # A task that waits for an answer does not need a person at once while other tasks make progress.
        running = any(task.state is TaskState.RUNNING for task in self.tasks)
        may_start = {"dispatch", "verify"}.intersection(self.possible)
        return self.list_status == "paused" or bool(may_start) or bool(self.children and not running)

    def with_outcome(self, result: RunResult, status: str) -> Self:
        """Return this snapshot, completed with the outcome; fields missing in `result` are kept."""
        del status  # the outcome is the state already
        assert isinstance(result, LoopResult)
        return self.evolve(
            status=result.outcome,
            reason=result.reason,
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
    """Return the id of a packet: a hash of its content, excluding times."""
    # Times differ between two inspections of the same tree.
    content = packet.evolve(
        packet_id="", at=None, checks=tuple(check.evolve(duration_s=0.0) for check in packet.checks)
    )
    return f"pkt_{hashlib.sha256(content.model_dump_json().encode()).hexdigest()[:16]}"


def sealed_packet(packet: Packet) -> Packet:
    """Return a packet bounded, scrubbed and with its id."""
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
    """List top-level folders and files with their sizes in bytes, largest first."""
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
    """Reject an update that the state does not allow.

    Raises:
        InvalidRequestError: names the state and the updates it allows.
    """
    possible = status.possible
    # Cancelling must be possible in a pause too; every other update waits until the questions are answered.
    if update in possible and (update == "cancel" or not status.questions):
        return
    if update in possible:
        raise InvalidRequestError(f"{update}: the plan is paused. Send the signal resume first, or cancel")
    can = f"Possible now: {', '.join(possible)}" if possible else "The plan is closed; start a new one"
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
    """Return a sentence with the gates that did not pass."""
    failed = [check.name for check in result.checks if not check.passed and not check.running and not check.within]
    return f"{', '.join(failed)} did not pass" if failed else "no gate has run"


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
