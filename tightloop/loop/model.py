"""Models of a project plan, and its conflicts."""

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
from tightloop.value import ArtifactRef, CallerInput, Duration, Value, clip, counted, shorten
from tightloop.value.scrub import scrub

CONFLICT = "conflict"
"""The output of a step that could not be merged."""
MARKER = "^(<{7}|>{7})( |$)"
"""A line that git writes around a conflict, as `grep -E` knows it."""


class Conflict(Value):
    """What a task did that conflicts with what others did before it was merged."""

    base: str
    """Tree that the task began with."""
    tree: str
    """Tree that it left; it is kept."""
    paths: tuple[str, ...] = ()
    """Files that both changed in the same places."""
    beside: tuple[str, ...] = ()
    """Files that hold the task's side where no text can show both."""

    @property
    def check(self) -> Check:
        """The check that the conflict is resolved: no markers are left, and no file that lies beside another."""
        tests = [f"test ! -e {shlex.quote(path)}" for path in self.beside]
        if self.paths:
            # A file that was removed is resolved, too.
            files = " ".join(shlex.quote(path) for path in self.paths)
            tests.append(f"! grep -nE {shlex.quote(MARKER)} -- {files} 2>/dev/null")
        return Check(run=" && ".join(tests) or "true", name="no conflict markers are left")


RIGHT_LOOP_INPUT = '{"workspace": "/home/me/project", "goal": "Add rate limits to the API"}'
TASKS_LIMIT = 100
"""Tasks of one plan; those that resolve conflicts come on top."""
PARALLEL_LIMIT = 50
GOAL_CHARACTERS = 20_000
DESCRIPTION_CHARACTERS = 4_000
MESSAGE_CHARACTERS = 600
PACKET_ID = re.compile(r"pkt_[0-9a-f]{16}")
PLAN_GENERATION = "plan_generation"
"""Name of the check that says why there is no plan."""


class LoopState(StrEnum):
    """Where a project's plan is."""

    DRAFT = "DRAFT"
    """Planned, not dispatched."""
    DISPATCHING = "DISPATCHING"
    RUNNING = "RUNNING"
    """Tasks run, or all of them have ended and `verify` may be called."""
    VERIFYING = "VERIFYING"
    VERIFIED = "VERIFIED"
    FAILED = "FAILED"
    """It could not be planned, or a gate did not pass."""
    CANCELLED = "CANCELLED"


class TaskState(StrEnum):
    """Where a task of a project's plan is."""

    CREATED = "CREATED"
    QUEUED = "QUEUED"
    """Dispatched; it waits for the tasks that it depends on, or for a free slot."""
    RUNNING = "RUNNING"
    AWAITING_RESPONSE = "AWAITING_RESPONSE"
    """Its run waits for a person."""
    COMPLETE = "COMPLETE"
    ERROR = "ERROR"
    """It could not start, or it failed."""
    CANCELLED = "CANCELLED"

    @property
    def has_ended(self) -> bool:
        """Whether nothing more happens to it."""
        return self in (TaskState.COMPLETE, TaskState.ERROR, TaskState.CANCELLED)


class CheckState(Value):
    """One check of a project as the inspection found it."""

    run: str
    """The command."""
    passed: bool | None = None
    """None: it was not run, or it did not end in time."""
    summary: str = ""
    """What it printed about itself, such as `3 failed, 20 passed`; bounded."""
    duration_s: float = 0.0


class Packet(Value):
    """What a planner needs to know of a project, bounded; its id comes from its content."""

    packet_id: str = ""
    """`pkt_` and the first 16 hex digits of the SHA-256 of the content."""
    project: str = ""
    source: str = ""
    """Id of the episode that it was made from; empty: from the project itself."""
    goal: str = ""
    structure: tuple[str, ...] = ()
    """Folders and files with their sizes, the largest first; bounded."""
    checks: tuple[CheckState, ...] = ()
    history: tuple[str, ...] = ()
    """Subjects of the last commits."""
    failures: tuple[str, ...] = ()
    """What is open: failing checks and how earlier episodes ended."""
    files: int = 0
    lines: int = 0
    tree: str = ""
    """Id of the working tree that was inspected."""
    at: datetime | None = None


class LoopTask(Value):
    """One task: a goal for an episode of its own, in a worktree of its own."""

    task_id: str
    """`ptask_<n>`, unique within its plan."""
    description: str
    priority: int = 1
    """1 starts first."""
    dependencies: tuple[str, ...] = ()
    """Ids of tasks that must be complete before."""
    definition_of_done: tuple[Check, ...] = ()
    state: TaskState = TaskState.CREATED
    run_id: str = ""
    """Workflow id of its episode, once dispatched."""
    conflict_of: str = ""
    """Of a task that resolves a conflict: the task whose result could not be merged."""
    conflict: Conflict | None = None
    """Of such a task: what it begins with."""
    message: str = ""
    """Why it is in its state, where that needs a word."""


class GateCheck(Value):
    """The result of one gate, or of one check within it."""

    name: str
    """Such as `gate:pytest`, or `plan_generation`."""
    passed: bool
    message: str = ""
    duration_ms: int = 0
    running: bool = False
    """It has not ended; `passed` says nothing yet."""
    output: ArtifactRef | None = None
    within: bool = False
    """It is a check within the gate before it."""


class GateResult(Value):
    """The result of `gate:all`."""

    passed: bool = False
    checks: tuple[GateCheck, ...] = ()


class LoopRequest(CallerInput):
    """Asks for a project's plan."""

    workspace: str = ""
    """Absolute path of the top of a git working tree."""
    goal: str = ""
    """What the project is to reach; empty: what the packet shows as open."""
    episode: str = ""
    """Inspect this finished episode in place of the project."""
    packet_id: str = ""
    """A packet that was made before; it must be of this project."""
    model: str = ""
    """Empty: as the settings say."""
    planner: str = "auto"
    executor: ExecutorChoice = ExecutorChoice.model_construct()
    gates: tuple[Check, ...] = ()
    """Empty: those of the settings, or detected."""
    budget: Budget = Budget.model_construct()
    """Of each task."""
    parallel: int = 4
    """Tasks that run at the same time."""
    pause_timeout: Duration = timedelta(days=30)
    """How long it waits for a person: for `dispatch`, `verify`, or an answer."""
    queues: Queues = Queues.model_construct()

    def check(self) -> None:
        """Refuse what cannot work.

        Raises:
            InvalidRequestError: with a sentence for the first wrong field.
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
            yield f"{shorten(self.packet_id, 60)!r} is not the id of a packet, such as pkt_0123456789abcdef"
        if self.packet_id and self.episode:
            yield "give a packet or an episode, not both: a packet was made of one already"
        yield from filter(None, (planner_problem(self.planner), *(gate.problem for gate in self.gates)))


class LoopStatus(RunStatus):
    """A snapshot of a project's plan."""

    plan_id: str = ""
    """`plan_<uuid>`: the workflow's id."""
    project: str = ""
    goal: str = ""
    run_id: str = ""
    """The episode that was inspected, if any."""
    packet_id: str = ""
    packet: ArtifactRef | None = None
    status: LoopState = LoopState.DRAFT  # pyright: ignore[reportIncompatibleVariableOverride]  # frozen
    tasks: tuple[LoopTask, ...] = ()
    parallel: int = 0
    """Tasks that run at the same time; 0: the plan was made before this was recorded."""
    executor: str = ""
    """Who does the tasks."""
    budget: Budget | None = None
    """Of each task."""
    verify_run_id: str = ""
    gate_result: GateResult | None = None
    children: tuple[ChildWait, ...] = ()
    """What waits for a person in its runs; `workflow_id` is where the answer is sent to."""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    executed_at: datetime | None = None
    """When dispatch was called."""
    completed_at: datetime | None = None
    """When all tasks had ended."""
    verified_at: datetime | None = None

    @property
    def possible(self) -> tuple[str, ...]:
        """Names of the updates that are accepted now."""
        if self.status is LoopState.DRAFT:
            # Without tasks it is still being planned.
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
    def word(self) -> str:
        """The status as lists show it."""
        if self.status in CLOSED or not self.questions:
            return self.status.value.lower()
        return "paused"

    @property
    def needs_person(self) -> bool:
        """Whether the run cannot continue until a person acts."""
        running = any(task.state is TaskState.RUNNING for task in self.tasks)
        may_start = {"dispatch", "verify"}.intersection(self.possible)
        return self.word == "paused" or bool(may_start) or bool(self.children and not running)

    def ended(self, result: RunResult, word: str) -> Self:
        """Return this last snapshot with how the plan ended; `result` may know less than it does."""
        del word  # the seed names the states
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
    """What a project's plan leaves behind."""

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
    """Return the id of a packet: the same content has the same id, whenever it was found."""
    content = packet.evolve(packet_id="", at=None, checks=tuple(one.evolve(duration_s=0.0) for one in packet.checks))
    return f"pkt_{hashlib.sha256(content.model_dump_json().encode()).hexdigest()[:16]}"


def sealed_packet(packet: Packet) -> Packet:
    """Return a packet within its bounds, without secrets, with its id."""
    bounded = packet.evolve(
        structure=_lines(packet.structure, STRUCTURE_LIMIT),
        history=_lines(packet.history, HISTORY_LIMIT),
        failures=tuple(clip(scrub(line), FAILURE_CHARACTERS) for line in packet.failures[:FAILURES_LIMIT]),
        checks=tuple(_bounded(check) for check in packet.checks),
    )
    return bounded.evolve(packet_id=packet_id_of(bounded))


def _lines(lines: Iterable[str], limit: int) -> tuple[str, ...]:
    return tuple(shorten(scrub(line), LINE_CHARACTERS) for line in tuple(lines)[:limit])


def _bounded(check: CheckState) -> CheckState:
    return check.evolve(summary=shorten(scrub(check.summary), LINE_CHARACTERS))


def structure_of(sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the folders at the top and the files beside them with their sizes in bytes, the largest first."""
    folders: dict[str, tuple[int, int]] = {}
    for path, size in sizes.items():
        top, _, rest = path.partition("/")
        name = f"{top}/" if rest else top
        count, total = folders.get(name, (0, 0))
        folders[name] = (count + 1, total + size)
    ordered = sorted(folders.items(), key=lambda one: (-one[1][1], one[0]))
    return tuple(
        f"{name} {size} bytes" + (f" in {counted(count, 'file')}" if name.endswith("/") else "")
        for name, (count, size) in ordered[:STRUCTURE_LIMIT]
    )


CLOSED = frozenset({LoopState.VERIFIED, LoopState.FAILED, LoopState.CANCELLED})


def check_possible(status: LoopStatus, wanted: str) -> None:
    """Refuse an update that the state does not allow.

    Raises:
        InvalidRequestError: it names the state, and what is possible.
    """
    possible = status.possible
    if wanted in possible and (wanted == "cancel" or not status.questions):
        return
    if wanted in possible:
        raise InvalidRequestError(f"{wanted}: the plan is paused. Send the signal resume first, or cancel")
    can = f"Possible now: {', '.join(possible)}" if possible else "Nothing is possible any more; make another plan"
    raise InvalidRequestError(f"{wanted}: the plan is {status.status.value}{_why(status)}. {can}")


def _why(status: LoopStatus) -> str:
    match status.status:
        case LoopState.DRAFT if not status.tasks:
            return ", and its tasks are not known yet"
        case LoopState.RUNNING if status.completed_at is None:
            left = sum(not task.state.has_ended for task in status.tasks)
            return f", and {counted(left, 'task')} have not ended" if left != 1 else ", and 1 task has not ended"
        case LoopState.RUNNING:
            return ", and all tasks have ended"
        case LoopState.FAILED:
            return f" ({status.reason})" if status.reason else ""
        case _:
            return ""


def failing_gates(result: GateResult) -> str:
    """Return which gates did not pass, in a sentence."""
    failed = [check.name for check in result.checks if not check.passed and not check.running and not check.within]
    return f"{', '.join(failed)} did not pass" if failed else "no gate has run"


class LoopInput(LoopRequest, RunInput):
    """Starts a project plan."""

    workflow_type: ClassVar[str] = LOOP_WORKFLOW_TYPE
    right_input: ClassVar[str] = RIGHT_LOOP_INPUT

    @property
    def title(self) -> str:
        return self.goal

    @property
    def executor_name(self) -> str:
        return self.executor.name
