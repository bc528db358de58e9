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
# Every planning prompt repeats the goal, so it must stay small beside the rest.
GOAL_CHARACTERS = 8_000
# The request is an input of activities: one above 2 MiB would fail the workflow task again and again instead of the
# episode. A character has up to 4 bytes in UTF-8.
REQUEST_CHARACTERS = 256_000
LONGEST_LIMIT_S = 30 * 86_400
LONGEST_PAUSE = timedelta(days=366)
PLANNERS = ("auto", "openai", "heuristic")
"""`auto`: `openai` where a key is present, else `heuristic`, which needs none."""


class EpisodePhase(StrEnum):
    """Where an episode is in its iteration."""

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
    """How an episode ended."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class PlanVerdict(StrEnum):
    """Meaning of the planner's answer."""

    PLANNED = "planned"
    """There is a plan with steps."""
    CLAIMS_DONE = "claims_done"
    """Nothing is left to do, says the planner; the checks decide."""
    GAVE_UP = "gave_up"
    """The planner says that it cannot go on, and why."""
    MALFORMED = "malformed"
    """The answer could not be used, also after the bounded number of corrections."""


class ReflectCause(StrEnum):
    """Cause of a reflection (EP-6)."""

    PROBABILITY_CLASS = "probability_class"
    RESTORED = "restored"
    REPEATED_FAILURE = "repeated_failure"


def planner_problem(name: str) -> str:
    """Return the problem with a planner's name; empty if there is none."""
    if name in PLANNERS:
        return ""
    return f"the planner {shorten(name, 60)!r} is unknown. {did_you_mean(name, PLANNERS)}"


def check_run(workspace: str, pause_timeout: timedelta, counts: Mapping[str, int]) -> None:
    """Refuse what neither an episode nor a plan can run with.

    Raises:
        InvalidRequestError: with a sentence for the first wrong field.
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
    """What a service or a person asks for. Only goal, workspace and definition of done are needed."""

    goal: str = ""
    workspace: str = ""
    """Absolute path of a git working tree on the host of the workspace worker."""
    definition_of_done: tuple[Check, ...] = ()
    project: str = ""
    """Name used in messages; by default the last part of the workspace path."""
    planner: str = "auto"
    """`openai`, `heuristic`, or `auto`: `openai` where a key is present."""
    executor: ExecutorChoice = ExecutorChoice.model_construct()
    worktree: bool = False
    """Work in a git worktree of the episode's own, in the state home."""
    within: str = ""
    """Id of the plan that holds the workspace and waits for this episode, which works in its tree."""
    tells_parent: bool = False
    """Tell the plan that started it what waits for a person; one that names `within` does so in any case."""
    allow: tuple[ProofRule, ...] = ()
    """What may speak against the proof of success without a question, such as `tests_changed`."""
    budget: Budget = Budget.model_construct()
    preset: classification.Preset = classification.Preset.NORMAL
    """Values of `thresholds` and of the two limits below, where they are not given one by one."""
    thresholds: Thresholds = Thresholds.model_construct()
    repeat_error_limit: int = 3
    """Iterations in a row with the same error until people are told; as many again pause."""
    deviation_limit: int = 2
    """Iterations in a row with class LOW until people are told; as many again pause."""
    # 1 550 events, 31 an iteration (docs/reference/figures.md). Temporal suggests one at 4 096, warns at 10 240.
    iterations_per_run: int = 50
    """After this many iterations the workflow continues as new."""
    pause_timeout: Duration = timedelta(days=7)
    """How long a pause may last before the episode fails."""
    queues: Queues = Queues.model_construct()

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: Any) -> Any:
        return classification.under_request(given)

    def check(self) -> None:
        """Refuse what cannot work: values that are empty, too large, out of bounds or unknown.

        Raises:
            InvalidRequestError: with a sentence for the first wrong field.
        """
        if not self.goal.strip():
            raise InvalidRequestError('the goal is empty. Say what to reach: "goal": "make the tests pass"')
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
        limits += [self.executor.wall_limit_s, self.executor.idle_limit_s, sum(limits)]
        # `not 0 < limit` refuses NaN, too: JSON cannot carry it, so it would fail the workflow task again and again.
        wrong = next((limit for limit in limits if not 0 < limit <= LONGEST_LIMIT_S), None)
        if wrong is not None:
            raise InvalidRequestError(f"a time limit is {wrong:g} s; it must lie between 0 and {LONGEST_LIMIT_S} s")
        problem = self.thresholds.problem()
        if problem:
            raise InvalidRequestError(f"thresholds: {problem}")
        cost = self.budget.max_cost_usd
        if cost is not None and not math.isfinite(cost):
            raise InvalidRequestError(f"budget.max_cost_usd is {cost}; leave it out for no bound")
        if spent := self.budget.spent_at_once:
            raise InvalidRequestError(
                f"budget.{spent} is {getattr(self.budget, spent)}; it must be above 0, or null (None) for no bound"
            )

    @property
    def project_name(self) -> str:
        """The project's name, or the last part of the workspace path."""
        return self.project or project_of(self.workspace)


class EpisodeState(Value):
    """State of an episode that a checkpoint stores and a restore replaces; bounded. See `RunCore` for the rest."""

    phase: EpisodePhase = EpisodePhase.OPENING
    iteration: int = 0
    """Number of the current pass, from 1; it never goes back."""
    branch: int = 1
    """Grows with every restore and reset."""
    tree: str = ""
    """Id of the tree that must be on disk."""
    request: ArtifactRef | None = None
    """The request as stored on the workspace's host, with amendments."""
    plan: ArtifactRef | None = None
    plan_title: str = ""
    plan_final: bool = False
    plan_verdict: PlanVerdict | None = None
    plan_request: ArtifactRef | None = None
    checks: ArtifactRef | None = None
    checked_tree: str = ""
    """The tree that `checks` is about; empty when the definition of done was changed since."""
    checks_green: bool = False
    checks_text: str = ""
    """Passed of all, such as `2/3`."""
    failed_checks: tuple[FailedCheck, ...] = ()
    beginning: ArtifactRef | None = None
    """What the checks said, and what was installed, before the first plan."""
    inherited: ArtifactRef | None = None
    """The beginning of the episode that this one was forked from."""
    proof: ArtifactRef | None = None
    """The last proof of success."""
    refused_tree: str = ""
    """The tree that a person did not accept although its checks are green."""
    baseline_red: bool = False
    """The checks failed before the first plan: turning them green is then the goal itself."""
    reflection: ArtifactRef | None = None
    diagnosis: str = ""
    reflect_next: ReflectCause | None = None
    reflect_detail: str = ""
    probability_class: ProbabilityClass | None = None
    low_streak: int = 0
    failures: FailureStreak = NO_FAILURES
    told: bool = False
    """People and the planner were told of doubts about the course, and no progress came since."""
    trees: tuple[str, ...] = ()
    """Trees at the end of the last iterations, oldest first."""
    memory: TrackerMemory | None = None
    """What the tracker remembers of the last iterations besides their trees."""
    findings: tuple[Finding, ...] = ()
    """What the alignment check of the last plan or change found."""
    overruled: tuple[str, ...] = ()
    """Fingerprints of findings that a person allowed, oldest first: they are not asked for again."""
    limit_strikes: int = 0
    resume: ResumeToken | None = None
    grants: tuple[Grant, ...] = ()
    """What a person allowed or denied in this iteration."""
    executor_status: ExecutorStatus | None = None
    executor_error: str = ""
    stand_in: str = ""
    """The fallback that worked in the last delivery; empty: who was asked for."""
    model: str = ""
    """The model that worked in the last delivery that named one."""
    spent: Spent = Spent.model_construct()
    budget: Budget = Budget.model_construct()
    notes: tuple[str, ...] = ()
    """For the next plan; cleared once planned."""
    asked_for: tuple[str, ...] = ()
    """Those of them with which a person asks for work: the episode does not end before a planner has read them."""
    checkpoints: tuple[CheckpointRecord, ...] = ()
    restore: RestoreTarget | None = None
    """Set by a run that continues as new in order to go back."""
    epoch: int = 0
    """Of the copies in the remote store; grows with every move to another host. 0: there are none."""
    move: MoveTarget | None = None
    """Set by a run that continues as new on another host, until that has taken over."""
    amended: bool = False
    """The request was amended and is to be stored again."""
    runs: int = 1
    """Temporal runs of this episode so far."""

    @property
    def last_checkpoint(self) -> CheckpointRecord | None:
        """The newest checkpoint that was not discarded."""
        return next((record for record in reversed(self.checkpoints) if not record.discarded), None)


class CheckpointFile(Value):
    """What a checkpoint keeps besides the tree: the scratchpad of the episode."""

    state: EpisodeState
    patch: ArtifactRef | None = None
    """Unified diff from the tree before."""
    plan_delta: ArtifactRef | None = None
    """How the plan differs from the plan before: a stored `PlanDelta`."""


class EpisodeResult(RunResult):
    """What an episode leaves behind."""

    outcome: EpisodeOutcome  # pyright: ignore[reportIncompatibleVariableOverride]  # frozen
    iterations: int = 0
    checkpoint_id: str = ""
    checks: str = ""
    spent: Spent = Spent.model_construct()


class EpisodeStatus(RunStatus):
    """A snapshot of an episode."""

    episode_id: str = ""
    run_id: str = ""
    phase: EpisodePhase = EpisodePhase.OPENING
    work: Work | None = None
    """What runs now; None: nothing does."""
    goal: str = ""
    iteration: int = 0
    branch: int = 1
    """0: not known, because no worker answers."""
    plan: str = ""
    executor: str = ""
    model: str = ""
    """Of the executor; empty: its name is not known."""
    checks: str = ""
    failed_checks: tuple[FailedCheck, ...] = ()
    proof: ArtifactRef | None = None
    """The last proof of success that was made."""
    executor_error: str = ""
    """Why the last delivery did not do what it should, in the executor's words."""
    probability_class: ProbabilityClass | None = None
    diagnosis: str = ""
    checkpoint_id: str = ""
    way_back: str = ""
    """The checkpoint to go back to, where what waits for a person asks for that."""
    pause_requested: bool = False
    """A pause was asked for and begins at the next safe point."""
    drifts: tuple[Drift, ...] = ()
    """Files that others changed while the episode worked, what became of them, and how to bring them back."""
    spent: Spent = Spent.model_construct()
    budget: Budget = Budget.model_construct()
    runs: int = 1
    outcome: EpisodeOutcome | None = None

    @property
    def id(self) -> str:
        """Workflow id."""
        return self.episode_id

    def ended(self, result: RunResult, word: str) -> Self:
        """Return this last snapshot with how the episode ended; `result` may know less than it does."""
        assert isinstance(result, EpisodeResult)
        return self.evolve(
            status=word,
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
