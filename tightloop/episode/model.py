"""Models of an episode."""

import math
import posixpath
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Self

from tightloop.episode.budget import Budget, Spent
from tightloop.episode.check import Check, FailedCheck, ProofRule, checks_in, start_in
from tightloop.episode.checkpoint import CheckpointRecord, MoveTarget, RestoreTarget
from tightloop.episode.failure import NO_FAILURES, FailureStreak
from tightloop.episode.progress.tracking import ProbabilityClass, TrackerMemory
from tightloop.episode.scenarios import DRAFTS_LIMIT, HiddenScenarios
from tightloop.errors import InvalidRequestError, did_you_mean
from tightloop.executor.model import ExecutorChoice, ExecutorStatus, Grant, ResumeToken
from tightloop.executor.options import choice_problem
from tightloop.run.core import Evidence, Queues, ResultMode, RunResult, RunStatus, Work, choose_result_mode, project_of
from tightloop.safety.approval import Approval, ShownChange
from tightloop.safety.drift import Drift
from tightloop.safety.rubric import Finding
from tightloop.value import ArtifactRef, CallerInput, Duration, Value, json_size, shorten

RIGHT_INPUT = '{"goal": "make the tests pass", "workspace": "/home/me/project", "definition_of_done": ["pytest -q"]}'
# Every planning prompt repeats the goal, so it must be small compared with the rest.
GOAL_CHARACTERS = 8_000
# The request is an activity input: above 2 MiB it would fail the workflow task repeatedly instead of the episode.
# A character takes up to 4 bytes in UTF-8.
REQUEST_CHARACTERS = 256_000
SETUP_CHARACTERS = 2_000
LONGEST_LIMIT_S = 30 * 86_400
LONGEST_PAUSE = timedelta(days=366)
HEURISTIC = "heuristic"
PLANNERS = ("auto", "openai", HEURISTIC)
"""Planner names. `auto` means `openai` if a key is present, and otherwise `heuristic`, which does not need a key."""


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
    """The reply is a plan with steps."""
    CLAIMS_DONE = "claims_done"
    """The planner claims that there is nothing left to do. The checks decide whether that is true."""
    GAVE_UP = "gave_up"
    """The planner cannot continue and gives a reason."""
    IMPOSSIBLE = "impossible"
    """The planner has read the executor's report and concludes that the goal cannot be reached."""
    MALFORMED = "malformed"
    """The reply is unusable, even after the allowed number of corrections."""


class ReflectCause(StrEnum):
    """Reason for reflecting on the last iteration (EP-6)."""

    PROBABILITY_CLASS = "probability_class"
    RESTORED = "restored"
    REPEATED_FAILURE = "repeated_failure"


def planner_problem(name: str) -> str:
    """Return the error in a planner name, or "" if the name is valid."""
    if name in PLANNERS:
        return ""
    return f"unknown planner {shorten(name, 60)!r}. {did_you_mean(name, PLANNERS)}"


def folder_problem(folder: str) -> str:
    """Return the error in the path of a project's folder, or "" if the path is valid.

    The folder must be below the root of the working tree. An empty path is valid.
    """
    if not folder or (posixpath.normpath(folder) == folder and not folder.startswith(("/", "..", "-", "~"))):
        return ""
    return (
        f"the folder {shorten(folder, 60)!r} is not a path below the root of the working tree. For example: "
        '"workspace": "/home/me/project", "folder": "services/api"'
    )


def check_run(workspace: str, pause_timeout: timedelta, counts: Mapping[str, int], setup: str) -> None:
    """Validate the fields that episode requests and plan requests have in common.

    Raises:
        InvalidRequestError: a field is invalid. The message describes the first error.
    """
    if not workspace.startswith("/"):
        raise InvalidRequestError(
            f"the workspace {workspace!r} is not an absolute path. "
            'Use the root of a git working tree: "workspace": "/home/me/project"'
        )
    if not timedelta() < pause_timeout <= LONGEST_PAUSE:
        raise InvalidRequestError(f"pause_timeout must be greater than 0 and at most one year, got {pause_timeout}")
    for name, count in counts.items():
        if count < 1:
            raise InvalidRequestError(f"{name} must be at least 1, got {count}")
    if "\0" in setup or len(setup) > SETUP_CHARACTERS:
        raise InvalidRequestError(
            f"setup must be a shell command of at most {SETUP_CHARACTERS} characters, got {shorten(setup, 60)!r}"
        )


class EpisodeRequest(CallerInput):
    """Request to run an episode. Only the goal and the workspace are required."""

    goal: str = ""
    workspace: str = ""
    """Absolute path of a git working tree on the workspace worker's host."""
    folder: str = ""
    """Folder of the project, relative to the root of the working tree, such as `services/api`. The project's own checks
    are found there, and checks and the setup command start there.
    """
    definition_of_done: tuple[Check, ...] = ()
    """Checks that must pass. If empty, they are derived from the project's files."""
    project: str = ""
    """Project name to use in messages. Defaults to the last part of the workspace path."""
    planner: str = "auto"
    """Planner to use: `openai`, `heuristic`, or `auto`, which selects `openai` if a key is present."""
    executor: ExecutorChoice = ExecutorChoice.model_construct()
    worktree: bool = False
    """Work in a separate git worktree in the state home."""
    setup: str = ""
    """Shell command that installs the project's packages, such as `npm ci`. It runs in the sandbox before the work
    starts, again only after the lock files change. If empty, tightloop proposes a command based on the lock files.
    """
    result: ResultMode = "auto"
    """Form of a success: `branch` (one commit on a new branch `tightloop/ID`), `commits` (one commit for each
    task) or `tree` (the files stay in the working tree). `auto` means `branch` for a worktree, otherwise `tree`.
    """
    within: str = ""
    """Id of the plan that owns the workspace and waits for this episode, which works in the plan's tree."""
    tells_parent: bool = False
    """Report open questions to the parent plan. Always enabled if `within` is set."""
    allow: tuple[ProofRule, ...] = ()
    """Proof findings to accept without asking, such as `tests_changed`."""
    keep_green: bool = False
    """The checks only guard what works now, as in a refactoring: start the work even if all of them pass."""
    attended: bool = False
    """Set if a person starts the episode in a terminal.

    This person is then asked what to do if all checks pass before the first plan.
    """
    scenarios: HiddenScenarios | None = None
    """Hidden scenarios that must pass in the proof, as printed by `tightloop scenarios pack`."""
    drafts: int = 0
    """Maximum number of hidden scenarios that the planner's model drafts before the work starts."""
    review: bool = False
    """Have the planner's model review a proven change. If it has doubts, a person is asked."""
    budget: Budget = Budget.model_construct()
    pause_after: int = 4
    """Number of consecutive iterations without progress after which the episode pauses."""
    unattended: bool = False
    """Send an alert instead of pausing if the work is stuck. Only the budget stops such a run."""
    scenario_reports: int = 3
    """Number of times to tell the planner how many hidden scenarios fail. After that, a person decides."""
    # 1 550 events, 31 per iteration (docs/reference/figures.md). Temporal suggests a new run at 4 096, warns at 10 240.
    iterations_per_run: int = 50
    """Number of iterations after which the workflow continues as new."""
    pause_timeout: Duration = timedelta(days=7)
    """Maximum duration of a pause, after which the episode fails."""
    queues: Queues = Queues.model_construct()

    @property
    def is_nested(self) -> bool:
        """True if a plan is waiting for this episode."""
        return bool(self.within or self.tells_parent)

    @property
    def result_mode(self) -> ResultMode:
        """Form in which the result of a successful episode is delivered."""
        return choose_result_mode(self.result, worktree=self.worktree, nested=self.is_nested)

    def check(self) -> None:
        """Validate the request.

        Raises:
            InvalidRequestError: a value is empty, too large, out of range or unknown. The message describes
                the first error.
        """
        if not self.goal.strip():
            raise InvalidRequestError('the goal is empty. Describe what to achieve, for example: "make the tests pass"')
        if len(self.goal) > GOAL_CHARACTERS:
            raise InvalidRequestError(
                f"the goal is {len(self.goal)} characters long, but the limit is {GOAL_CHARACTERS}. Put long material "
                "in a workspace file and refer to that file in the goal"
            )
        counts = ("pause_after", "iterations_per_run")
        check_run(self.workspace, self.pause_timeout, {name: getattr(self, name) for name in counts}, self.setup)
        # A plan's author decides which checks a step has.
        is_of_plan = bool(self.within) or self.tells_parent
        if is_of_plan and not any(check.run.strip() for check in self.definition_of_done):
            raise InvalidRequestError(
                "the definition of done is empty, but work only counts as done if its checks pass. "
                'Add at least one command: "definition_of_done": ["pytest -q"]'
            )
        self._check_numbers()
        if self.scenario_reports < 0:
            raise InvalidRequestError(f"scenario_reports must be at least 0, got {self.scenario_reports}")
        if not 0 <= self.drafts <= DRAFTS_LIMIT:
            raise InvalidRequestError(f"drafts must be between 0 and {DRAFTS_LIMIT}, got {self.drafts}")
        if json_size(self) > REQUEST_CHARACTERS:
            raise InvalidRequestError(
                f"the request is longer than {REQUEST_CHARACTERS} characters. Put long material in workspace "
                "files and refer to those files"
            )
        checks = (check.problem for check in self.definition_of_done)
        problems = (*checks, choice_problem(self.executor), planner_problem(self.planner))
        problems = (*problems, self.scenarios.problem if self.scenarios else "", folder_problem(self.folder))
        if problem := next(filter(None, problems), ""):
            raise InvalidRequestError(problem)

    def _check_numbers(self) -> None:
        limits = [check.timeout_s for check in self.definition_of_done]
        # The sum too: all checks run in one activity, whose time limit is their sum.
        limits += [self.executor.wall_limit_s, self.executor.idle_limit_s, *([sum(limits)] if limits else [])]
        # `not 0 < limit` also rejects NaN: JSON cannot carry it, so it would fail the workflow task repeatedly.
        wrong = next((limit for limit in limits if not 0 < limit <= LONGEST_LIMIT_S), None)
        if wrong is not None:
            raise InvalidRequestError(f"a time limit must be between 0 and {LONGEST_LIMIT_S} s, got {wrong:g} s")
        cost = self.budget.max_cost_usd
        if cost is not None and not math.isfinite(cost):
            raise InvalidRequestError(
                f"budget.max_cost_usd must be a finite number, got {cost}. Omit the field for no limit"
            )
        if spent := self.budget.spent_at_once:
            raise InvalidRequestError(
                f"budget.{spent} must be above 0, or null (None) for no limit, got {getattr(self.budget, spent)}"
            )

    def starting_in_folder(self) -> Self:
        """Return a copy of the request whose commands start in the project's folder."""
        if not self.folder:
            return self
        checks, setup = checks_in(self.folder, self.definition_of_done), start_in(self.folder, self.setup)
        return self.evolve(definition_of_done=checks, setup=setup)

    def with_check(self, check: Check) -> Self:
        """Return a copy of the request with an additional check."""
        return self.evolve(definition_of_done=(*self.definition_of_done, check))

    @property
    def project_name(self) -> str:
        """Name of the project. The default is the last part of the workspace path."""
        return self.project or project_of(self.workspace)


class EpisodeState(Value):
    """The state that checkpoints save and a restore replaces. Its size is bounded.

    The rest of the state is in `RunCore`.
    """

    phase: EpisodePhase = EpisodePhase.OPENING
    iteration: int = 0
    """Number of the current iteration, starting at 1. It never decreases."""
    branch: int = 1
    """Branch number, which increases with every restore and reset."""
    tree: str = ""
    """Id of the tree that is expected on disk."""
    request: ArtifactRef | None = None
    """The request as stored on the workspace's host, including amendments."""
    plan: ArtifactRef | None = None
    plan_title: str = ""
    plan_final: bool = False
    plan_verdict: PlanVerdict | None = None
    plan_request: ArtifactRef | None = None
    chosen_checks: tuple[str, ...] = ()
    """Explanation of checks that were derived from the project's files, one sentence each."""
    first_runs: ArtifactRef | None = None
    """Results of the trial runs of these checks, for the baseline."""
    checks: ArtifactRef | None = None
    checked_tree: str = ""
    """Tree that `checks` refers to. Empty if the definition of done has changed since."""
    checks_green: bool = False
    checks_text: str = ""
    """Number of passed checks out of the total, such as `2/3`."""
    failed_checks: tuple[FailedCheck, ...] = ()
    beginning: ArtifactRef | None = None
    """Check results and installed software from before the first plan."""
    added_tree: str = ""
    """Tree of checkpoint 0 together with the test of the check that the planner added. It replaces that checkpoint's
    tree in a restore, because the check stays in the definition of done.
    """
    inherited: ArtifactRef | None = None
    """The `beginning` of the episode that this one was forked from."""
    proof: ArtifactRef | None = None
    """Latest proof of success."""
    refused_tree: str = ""
    """Tree that was not accepted even though its checks pass: a person refused it, or hidden scenarios fail."""
    scenario_reports: int = 0
    """Number of times that the planner was told how many hidden scenarios fail. It never decreases."""
    drafts: HiddenScenarios | None = None
    """Drafted scenarios that count. None before the drafting."""
    reviewed: ArtifactRef | None = None
    """Latest proof with a review by a model, which is not repeated for the same work."""
    failed_before: tuple[str, ...] = ()
    """Keys of the checks that have failed in this episode, and not only at random. A restore does not reset them."""
    worked: bool = False
    """True if an executor has changed a file, here or in the episode that this one was forked from. A restore takes it
    from the checkpoint, because later work is gone then.
    """
    flaky: tuple[str, ...] = ()
    """Checks that failed at first and passed when they were repeated without a change."""
    evidence: Evidence | None = None
    """Facts from the latest proof."""
    baseline_red: bool = False
    """True if the checks failed before the first plan. In that case, making them pass is the goal itself."""
    green_settled: bool = False
    """True once it is decided how to continue although every check passed before the first plan."""
    reflection: ArtifactRef | None = None
    diagnosis: str = ""
    reflect_next: ReflectCause | None = None
    reflect_detail: str = ""
    probability_class: ProbabilityClass | None = None
    circles: bool = False
    """True if the last iterations go back and forth between the same files or failures."""
    failures: FailureStreak = NO_FAILURES
    trees: tuple[str, ...] = ()
    """Trees at the end of the last iterations, oldest first."""
    memory: TrackerMemory | None = None
    """The tracker's memory of the last iterations, in addition to their trees."""
    findings: tuple[Finding, ...] = ()
    """Alignment findings in the last plan or change."""
    overruled: tuple[str, ...] = ()
    """Fingerprints of the findings that a person allowed, oldest first. They do not lead to another question."""
    change: ShownChange | None = None
    """Last change with findings, for the question about it."""
    approvals: tuple[Approval, ...] = ()
    """People's answers about changes, oldest first, at most `APPROVALS_LIMIT`. A restore does not reset them."""
    failed_deliveries: int = 0
    """Number of consecutive deliveries in this iteration that failed at once or hit a limit."""
    repeated_work: timedelta = timedelta()
    """Working time of the deliveries in this iteration that failed at once or hit a limit."""
    resume: ResumeToken | None = None
    grants: tuple[Grant, ...] = ()
    """Permissions that a person granted or denied in this iteration."""
    executor_status: ExecutorStatus | None = None
    executor_error: str = ""
    last_words: str = ""
    """End of the executor's last report, shown with later questions."""
    stand_in: str = ""
    """Fallback executor used for the last delivery. Empty if the requested executor was used."""
    model: str = ""
    """Model used by the last delivery that reported one."""
    spent: Spent = Spent.model_construct()
    budget: Budget = Budget.model_construct()
    notes: tuple[str, ...] = ()
    """Notes for the next plan. They are cleared once it has been planned."""
    asked_for: tuple[str, ...] = ()
    """Those notes that request work. The episode does not end until a planner has read them."""
    checkpoints: tuple[CheckpointRecord, ...] = ()
    restore: RestoreTarget | None = None
    """Checkpoint to restore. It is set by a run that continues as new in order to restore it."""
    epoch: int = 0
    """Epoch of the remote copies, which increases with every move to another host. 0 means that there are no copies."""
    move: MoveTarget | None = None
    """Pending move, set until the new host has taken over."""
    amended: bool = False
    """True if the amended request still has to be stored."""
    runs: int = 1
    """Number of Temporal runs of this episode so far."""

    @property
    def last_checkpoint(self) -> CheckpointRecord | None:
        """The newest checkpoint that has not been discarded."""
        return next((record for record in reversed(self.checkpoints) if not record.discarded), None)


class CheckpointFile(Value):
    """Content of a checkpoint, excluding its tree."""

    state: EpisodeState
    patch: ArtifactRef | None = None
    """Unified diff against the previous tree."""
    plan_delta: ArtifactRef | None = None
    """Stored `PlanDelta` against the previous plan."""


class EpisodeResult(RunResult):
    """Result of an episode."""

    outcome: EpisodeOutcome  # pyright: ignore[reportIncompatibleVariableOverride]  # frozen
    iterations: int = 0
    checkpoint_id: str = ""
    checks: str = ""
    spent: Spent = Spent.model_construct()


class EpisodeStatus(RunStatus):
    """Snapshot of the state of an episode."""

    episode_id: str = ""
    run_id: str = ""
    phase: EpisodePhase = EpisodePhase.OPENING
    work: Work | None = None
    """Current work, or None if the episode is idle."""
    goal: str = ""
    iteration: int = 0
    branch: int = 1
    """Branch number, or 0 if it is unknown because no worker is responding."""
    plan: str = ""
    executor: str = ""
    model: str = ""
    """The executor's model. Empty if it is unknown."""
    checks: str = ""
    chosen_checks: tuple[str, ...] = ()
    """Explanation of checks that were derived from the project's files, one sentence each."""
    failed_checks: tuple[FailedCheck, ...] = ()
    check_report: ArtifactRef | None = None
    """Stored `CheckReport` of the last checks, with references to their outputs."""
    proof: ArtifactRef | None = None
    """Latest proof of success."""
    drafts: HiddenScenarios | None = None
    """Commitment to the drafted scenarios that count."""
    executor_error: str = ""
    """Reason why the last delivery failed, in the executor's own words."""
    probability_class: ProbabilityClass | None = None
    diagnosis: str = ""
    checkpoint_id: str = ""
    way_back: str = ""
    """Checkpoint to restore, if the open question suggests a restore."""
    pause_requested: bool = False
    """True if a pause has been requested. It starts at the next safe point."""
    drifts: tuple[Drift, ...] = ()
    """Files that were changed from outside while the episode ran, what was done about them, and how to restore them."""
    spent: Spent = Spent.model_construct()
    budget: Budget = Budget.model_construct()
    runs: int = 1
    outcome: EpisodeOutcome | None = None

    @property
    def id(self) -> str:
        """Workflow id."""
        return self.episode_id

    def with_outcome(self, result: RunResult, status: str) -> Self:
        """Return the final snapshot, updated with the result.

        Fields that are missing in `result` keep their values.
        """
        assert isinstance(result, EpisodeResult)
        return self.evolve(
            status=status,
            phase=EpisodePhase.CLOSED,
            outcome=result.outcome,
            qualifier=result.qualifier,
            reason=result.reason,
            files_changed=result.files_changed,
            questions=(),
            iteration=max(self.iteration, result.iterations),
            checkpoint_id=result.checkpoint_id or self.checkpoint_id,
            tree=result.tree or self.tree,
            checks=result.checks or self.checks,
            spent=result.spent if result.spent.iterations else self.spent,
        )
