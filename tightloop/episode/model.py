"""Models of an episode."""

import math
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any, Self

from pydantic import model_validator

from tightloop.episode.budget import Budget, Spent
from tightloop.episode.check import Check, FailedCheck, ProofRule
from tightloop.episode.checkpoint import CheckpointRecord, MoveTarget, RestoreTarget
from tightloop.episode.failure import NO_FAILURES, FailureStreak
from tightloop.episode.progress import classification
from tightloop.episode.progress.tracking import ProbabilityClass, Thresholds, TrackerMemory
from tightloop.errors import InvalidRequestError, did_you_mean
from tightloop.executor.model import ExecutorChoice, ExecutorStatus, Grant, ResumeToken
from tightloop.executor.options import choice_problem
from tightloop.run.core import RunResult, RunStatus, Work
from tightloop.run.routing import Queues, project_of
from tightloop.safety.drift import Drift
from tightloop.safety.rubric import Finding
from tightloop.value import ArtifactRef, CallerInput, Duration, Value, json_size, shorten

RIGHT_INPUT = '{"goal": "make the tests pass", "workspace": "/home/me/project", "definition_of_done": ["pytest -q"]}'
# Every planning prompt repeats the goal, so it must be small compared with the rest.
GOAL_CHARACTERS = 8_000
# The request is an activity input: above 2 MiB it would fail the workflow task repeatedly instead of the episode.
# A character takes up to 4 bytes in UTF-8.
REQUEST_CHARACTERS = 256_000
LONGEST_LIMIT_S = 30 * 86_400
LONGEST_PAUSE = timedelta(days=366)
PLANNERS = ("auto", "openai", "heuristic")
"""`auto` is `openai` if a key is present, otherwise `heuristic`, which needs none."""


class EpisodePhase(StrEnum):
    """Phase of an iteration."""

    OPENING = "OPENING"
    PLANNING = "PLANNING"
    HANDING_OFF = "HANDING_OFF"
    EXECUTING = "EXECUTING"
    VERIFYING = "VERIFYING"
    PROVING = "PROVING"
    TRACKING = "TRACKING"
    REFLECTING = "REFLECTING"
    BACKING_OFF = "BACKING_OFF"
    RESTORING = "RESTORING"
    CLOSED = "CLOSED"


class EpisodeOutcome(StrEnum):
    """Final outcome of an episode."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class PlanVerdict(StrEnum):
    """Type of the planner's reply."""

    PLANNED = "planned"
    """A plan with steps."""
    CLAIMS_DONE = "claims_done"
    """The planner claims that nothing is left to do; the checks decide."""
    GAVE_UP = "gave_up"
    """The planner cannot continue, with a reason."""
    MALFORMED = "malformed"
    """The reply is unusable, even after the allowed corrections."""


class ReflectCause(StrEnum):
    """Cause of a reflection (EP-6)."""

    PROBABILITY_CLASS = "probability_class"
    RESTORED = "restored"
    REPEATED_FAILURE = "repeated_failure"


def planner_problem(name: str) -> str:
    """Return the fault of a planner name, or ""."""
    if name in PLANNERS:
        return ""
    return f"the planner {shorten(name, 60)!r} is unknown. {did_you_mean(name, PLANNERS)}"


def check_run(workspace: str, pause_timeout: timedelta, counts: Mapping[str, int]) -> None:
    """Reject values with which neither an episode nor a plan can run.

    Raises:
        InvalidRequestError: with a sentence about the first invalid field.
    """
    if not workspace.startswith("/"):
        raise InvalidRequestError(
            f"the workspace {workspace!r} is not an absolute path. "
            'Name the top of a git working tree: "workspace": "/home/me/project"'
        )
    if not timedelta() < pause_timeout <= LONGEST_PAUSE:
        raise InvalidRequestError(f"pause_timeout is {pause_timeout}; it must be above 0 and at most a year")
    for name, count in counts.items():
        if count < 1:
            raise InvalidRequestError(f"{name} is {count}; it must be at least 1")


class EpisodeRequest(CallerInput):
    """Request of a service or a person. Only goal, workspace and definition of done are required."""

    goal: str = ""
    workspace: str = ""
    """Absolute path of a git working tree on the host of the workspace worker."""
    definition_of_done: tuple[Check, ...] = ()
    project: str = ""
    """Name used in messages; default: the last part of the workspace path."""
    planner: str = "auto"
    """`openai`, `heuristic`, or `auto`: `openai` if a key is present."""
    executor: ExecutorChoice = ExecutorChoice.model_construct()
    worktree: bool = False
    """Work in a separate git worktree in the state home."""
    within: str = ""
    """Id of the plan that holds the workspace and waits for this episode, which works in its tree."""
    tells_parent: bool = False
    """Report open questions to the parent plan; always on with `within`."""
    allow: tuple[ProofRule, ...] = ()
    """Proof findings to accept without asking, such as `tests_changed`."""
    budget: Budget = Budget.model_construct()
    preset: classification.Preset = classification.Preset.NORMAL
    """Defaults for `thresholds` and the two limits below."""
    thresholds: Thresholds = Thresholds.model_construct()
    repeat_error_limit: int = 3
    """Consecutive iterations with the same error before a report; the same number again pauses."""
    deviation_limit: int = 2
    """Consecutive iterations with class LOW before a report; the same number again pauses."""
    # 1 550 events, 31 per iteration (docs/reference/figures.md). Temporal suggests a new run at 4 096, warns at 10 240.
    iterations_per_run: int = 50
    """Continue as new after this many iterations."""
    pause_timeout: Duration = timedelta(days=7)
    """Maximum length of a pause before the episode fails."""
    queues: Queues = Queues.model_construct()

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        # Before the validation, because a preset must not override what the caller gave.
        return classification.apply_preset_to_request(data)

    def check(self) -> None:
        """Validate the request: values that are empty, too large, out of range or unknown.

        Raises:
            InvalidRequestError: with a sentence about the first invalid field.
        """
        if not self.goal.strip():
            raise InvalidRequestError('the goal is empty. Say what to achieve: "goal": "make the tests pass"')
        if len(self.goal) > GOAL_CHARACTERS:
            raise InvalidRequestError(
                f"the goal has {len(self.goal)} characters; the maximum is {GOAL_CHARACTERS}. "
                "Put long material into a file of the workspace and name it in the goal"
            )
        counts = ("repeat_error_limit", "deviation_limit", "iterations_per_run")
        check_run(self.workspace, self.pause_timeout, {name: getattr(self, name) for name in counts})
        if not any(check.run.strip() for check in self.definition_of_done):
            raise InvalidRequestError(
                "the definition of done is empty: without an executed check nothing can be called done. "
                'Give at least one command: "definition_of_done": ["pytest -q"]'
            )
        self._check_numbers()
        if json_size(self) > REQUEST_CHARACTERS:
            raise InvalidRequestError(
                f"the request is larger than {REQUEST_CHARACTERS} characters. Put long material into files of the "
                "workspace and name them"
            )
        checks = (check.problem for check in self.definition_of_done)
        problems = (*checks, choice_problem(self.executor), planner_problem(self.planner))
        if problem := next(filter(None, problems), ""):
            raise InvalidRequestError(problem)

    def _check_numbers(self) -> None:
        limits = [check.timeout_s for check in self.definition_of_done]
        # The sum too: all checks run in one activity, whose time limit is their sum.
        limits += [self.executor.wall_limit_s, self.executor.idle_limit_s, sum(limits)]
        # `not 0 < limit` also rejects NaN: JSON cannot carry it, so it would fail the workflow task repeatedly.
        wrong = next((limit for limit in limits if not 0 < limit <= LONGEST_LIMIT_S), None)
        if wrong is not None:
            raise InvalidRequestError(f"a time limit is {wrong:g} s; it must lie between 0 and {LONGEST_LIMIT_S} s")
        problem = self.thresholds.problem()
        if problem:
            raise InvalidRequestError(f"thresholds: {problem}")
        cost = self.budget.max_cost_usd
        if cost is not None and not math.isfinite(cost):
            raise InvalidRequestError(f"budget.max_cost_usd is {cost}; leave it out for no limit")
        if spent := self.budget.spent_at_once:
            raise InvalidRequestError(
                f"budget.{spent} is {getattr(self.budget, spent)}; it must be above 0, or null (None) for no limit"
            )

    @property
    def project_name(self) -> str:
        """Name of the project, or the last part of the workspace path."""
        return self.project or project_of(self.workspace)


class EpisodeState(Value):
    """State that a checkpoint stores and a restore replaces; bounded. `RunCore` holds the rest."""

    phase: EpisodePhase = EpisodePhase.OPENING
    iteration: int = 0
    """Number of the current iteration, from 1; never decreases."""
    branch: int = 1
    """Increases with every restore and reset."""
    tree: str = ""
    """Id of the tree that must be on disk."""
    request: ArtifactRef | None = None
    """Request stored on the workspace's host, including amendments."""
    plan: ArtifactRef | None = None
    plan_title: str = ""
    plan_final: bool = False
    plan_verdict: PlanVerdict | None = None
    plan_request: ArtifactRef | None = None
    checks: ArtifactRef | None = None
    checked_tree: str = ""
    """Tree that `checks` refers to; empty if the definition of done changed since."""
    checks_green: bool = False
    checks_text: str = ""
    """Passed of total, such as `2/3`."""
    failed_checks: tuple[FailedCheck, ...] = ()
    beginning: ArtifactRef | None = None
    """Check results and installed software before the first plan."""
    inherited: ArtifactRef | None = None
    """`beginning` of the episode that this one was forked from."""
    proof: ArtifactRef | None = None
    """Latest proof of success."""
    refused_tree: str = ""
    """Tree that a person refused although its checks pass."""
    baseline_red: bool = False
    """True if the checks failed before the first plan; making them pass is then the goal itself."""
    reflection: ArtifactRef | None = None
    diagnosis: str = ""
    reflect_next: ReflectCause | None = None
    reflect_detail: str = ""
    probability_class: ProbabilityClass | None = None
    low_streak: int = 0
    failures: FailureStreak = NO_FAILURES
    told: bool = False
    """True if doubts about the course were reported and there was no progress since."""
    trees: tuple[str, ...] = ()
    """Trees at the end of the last iterations, oldest first."""
    memory: TrackerMemory | None = None
    """Tracker memory of the last iterations, in addition to their trees."""
    findings: tuple[Finding, ...] = ()
    """Alignment findings in the last plan or change."""
    overruled: tuple[str, ...] = ()
    """Fingerprints of findings that a person allowed, oldest first; they are not asked again."""
    limit_strikes: int = 0
    resume: ResumeToken | None = None
    grants: tuple[Grant, ...] = ()
    """Permissions that a person granted or denied in this iteration."""
    executor_status: ExecutorStatus | None = None
    executor_error: str = ""
    stand_in: str = ""
    """Fallback executor of the last delivery; empty: the requested one."""
    model: str = ""
    """Model of the last delivery that reported one."""
    spent: Spent = Spent.model_construct()
    budget: Budget = Budget.model_construct()
    notes: tuple[str, ...] = ()
    """Notes for the next plan; cleared once planned."""
    asked_for: tuple[str, ...] = ()
    """The notes that request work: the episode does not end before a planner has read them."""
    checkpoints: tuple[CheckpointRecord, ...] = ()
    restore: RestoreTarget | None = None
    """Checkpoint to restore; set by a run that continues as new for that purpose."""
    epoch: int = 0
    """Epoch of the remote copies; increases with every move to another host. 0: no copies."""
    move: MoveTarget | None = None
    """Pending move; set until the new host has taken over."""
    amended: bool = False
    """True if the amended request still has to be stored."""
    runs: int = 1
    """Number of Temporal runs of this episode so far."""

    @property
    def last_checkpoint(self) -> CheckpointRecord | None:
        """Newest checkpoint that was not discarded."""
        return next((record for record in reversed(self.checkpoints) if not record.discarded), None)


class CheckpointFile(Value):
    """Contents of a checkpoint besides the tree."""

    state: EpisodeState
    patch: ArtifactRef | None = None
    """Unified diff from the previous tree."""
    plan_delta: ArtifactRef | None = None
    """Stored `PlanDelta` from the previous plan."""


class EpisodeResult(RunResult):
    """Result of an episode."""

    outcome: EpisodeOutcome  # pyright: ignore[reportIncompatibleVariableOverride]  # frozen
    iterations: int = 0
    checkpoint_id: str = ""
    checks: str = ""
    spent: Spent = Spent.model_construct()


class EpisodeStatus(RunStatus):
    """Snapshot of an episode."""

    episode_id: str = ""
    run_id: str = ""
    phase: EpisodePhase = EpisodePhase.OPENING
    work: Work | None = None
    """Current work; None: idle."""
    goal: str = ""
    iteration: int = 0
    branch: int = 1
    """0: unknown, because no worker answers."""
    plan: str = ""
    executor: str = ""
    model: str = ""
    """Model of the executor; empty: unknown."""
    checks: str = ""
    failed_checks: tuple[FailedCheck, ...] = ()
    proof: ArtifactRef | None = None
    """Latest proof of success."""
    executor_error: str = ""
    """Reason that the last delivery failed, in the executor's words."""
    probability_class: ProbabilityClass | None = None
    diagnosis: str = ""
    checkpoint_id: str = ""
    way_back: str = ""
    """Checkpoint to restore, if the open question suggests that."""
    pause_requested: bool = False
    """True if a pause was requested and starts at the next safe point."""
    drifts: tuple[Drift, ...] = ()
    """Files that changed outside the episode while it ran, the reaction, and the way to restore them."""
    spent: Spent = Spent.model_construct()
    budget: Budget = Budget.model_construct()
    runs: int = 1
    outcome: EpisodeOutcome | None = None

    @property
    def id(self) -> str:
        """Workflow id."""
        return self.episode_id

    def with_outcome(self, result: RunResult, status: str) -> Self:
        """Return the final snapshot; `result` may contain less than this snapshot."""
        assert isinstance(result, EpisodeResult)
        return self.evolve(
            status=status,
            phase=EpisodePhase.CLOSED,
            outcome=result.outcome,
            reason=result.reason,
            questions=(),
            iteration=max(self.iteration, result.iterations),
            checkpoint_id=result.checkpoint_id or self.checkpoint_id,
            tree=result.tree or self.tree,
            checks=result.checks or self.checks,
            spent=result.spent if result.spent.iterations else self.spent,
        )
