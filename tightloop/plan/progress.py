"""Input and progress of a plan workflow."""

from datetime import datetime, timedelta
from typing import ClassVar, Self

from pydantic import Field

from tightloop.executor.model import Usage
from tightloop.plan.child import Belief, StepFailure, StepResult, StepStatus
from tightloop.plan.document import Hypothesis, PlanBudget
from tightloop.plan.engine.state import ScheduleState, UndoEntry, initial_beliefs, update_beliefs
from tightloop.plan.request import RIGHT_PLAN_INPUT, PlanPhase, PlanRequest, PlanSpent
from tightloop.run.core import PLAN_WORKFLOW_TYPE, Evidence, RunInput
from tightloop.run.question import Answer
from tightloop.safety.approval import Approval
from tightloop.safety.drift import DriftAnswer
from tightloop.value import ArtifactRef, Value

FAILURES_LIMIT = 500
_UNDER_WAY = ("failures", "first_starts", "due", "answers", "earlier")


COMPENSATIONS_LIMIT = 20
DECISIONS_LIMIT = 50


class Doubt(Value):
    """Tree whose proof has findings."""

    tree: str
    title: str
    accepted_by: str = ""
    """Person who answered. It is empty if the findings have not been accepted."""
    asked_for: Approval | None = None
    """Set if that person asked for the change.

    Otherwise, the person accepts the tree even though the findings stand.
    """


class PlanProgress(Value):
    """The progress of a plan, which is passed from one workflow run to the next.

    The graph is stored separately.
    """

    plan: ArtifactRef | None = None
    revision: int = 1
    phase: PlanPhase = PlanPhase.OPENING
    base_tree: str = ""
    tree: str = ""
    schedule: ScheduleState = ScheduleState.model_construct()
    """Schedule at the start of this run. It is updated by `save`."""
    undo: tuple[UndoEntry, ...] = ()
    """Attempts that can be undone, in order of completion."""
    first_starts: dict[str, datetime] = Field(default_factory=dict)
    """Start time of the first attempt, for unsettled steps with a time box."""
    due: dict[str, datetime] = Field(default_factory=dict)
    """Start time of the next attempt, for steps that are backing off."""
    earlier: dict[str, int] = Field(default_factory=dict)
    """Number of attempts of a step before a person restarted it. These attempts no longer count."""
    failures: dict[str, StepFailure] = Field(default_factory=dict)
    """Last failure of each step that has not completed since then, at most `FAILURES_LIMIT`."""
    replans: dict[str, int] = Field(default_factory=dict)
    """Number of planner calls per step."""
    wanted: tuple[str, ...] = ()
    """Steps that a person asked to start next. They start even if the plan is paused."""
    step_spent: dict[str, tuple[float, int]] = Field(default_factory=dict)
    """Cost in USD and number of tokens spent so far by unsettled steps that have a budget."""
    answers: dict[str, tuple[Answer, ...]] = Field(default_factory=dict)
    """Answers for steps that are still waiting, or that are running with the answer."""
    beliefs: tuple[Belief, ...] = ()
    spent: PlanSpent = PlanSpent.model_construct()
    budget: PlanBudget = PlanBudget.model_construct()
    until: datetime | None = None
    """Time at which the plan stops, as at any other limit of the budget."""
    """Budget, including top-ups."""
    runs: int = 1
    """Number of workflow runs so far, including this run."""
    failed_before: tuple[str, ...] = ()
    """Keys of the checks in the definition of done that have failed, other than at random."""
    flaky: tuple[str, ...] = ()
    """Checks that failed at first and passed when they were repeated without a change."""
    worked: bool = False
    """True if a step changed a file. Changes made by people do not count."""
    evidence: Evidence | None = None
    """Facts from the latest proof."""
    qualifiers: dict[str, str] = Field(default_factory=dict)
    """Reasons why the success of a step's child workflow is not a plain success, by step."""
    beginning: ArtifactRef | None = None
    """Stored `InitialState`, with which the delivered tree is compared. None if there is no definition of done."""
    proof_within: ArtifactRef | None = None
    """Proof from the last child workflow that proved its tree."""
    proof: ArtifactRef | None = None
    """Latest proof of the plan's result."""
    approvals: tuple[Approval, ...] = ()
    """People's answers about changes, in this plan and its child workflows, oldest first."""
    doubted: Doubt | None = None
    """Findings against the proof."""
    reason: str = ""
    """Failure reason of a plan that compensates its steps before it ends."""
    compensations: tuple[str, ...] = ()
    """Compensations that ran, with their results, such as `build: 3 files restored`. At most `COMPENSATIONS_LIMIT`."""
    decisions: dict[str, tuple[Answer, ...]] = Field(default_factory=dict)
    """Answers to questions that do not belong to steps, by step or kind of question. The last `DECISIONS_LIMIT` are
    kept.
    """
    edits: tuple[str, ...] = ()
    """Sentences about changes by people that were adopted. The last `DECISIONS_LIMIT` are kept."""
    adopt: bool = False
    """True if changes that a person made during a pause have not been adopted yet."""
    drift: DriftAnswer | None = None
    """Decision about drifted files that has not been carried out yet."""
    put_back: bool = False
    """True if the files on disk are left over from stopped or discarded work. They are restored without asking."""

    def begin(self, budget: PlanBudget, hypotheses: tuple[Hypothesis, ...]) -> Self:
        """Set the budget and the hypotheses when the plan is opened."""
        return self.evolve(budget=budget).add_hypotheses(hypotheses)

    def add_hypotheses(self, hypotheses: tuple[Hypothesis, ...]) -> Self:
        """Add the hypotheses that the plan does not contain yet."""
        known_ids = {belief.hypothesis for belief in self.beliefs}
        # Known ones keep their evidence when a revision declares them again.
        new = initial_beliefs(hypothesis for hypothesis in hypotheses if hypothesis.id not in known_ids)
        return self.evolve(beliefs=(*self.beliefs, *new))

    def count_attempt(self, result: StepResult) -> Self:
        """Count an attempt, and add its usage and evidence.

        If an attempt is waiting for an answer, it is not counted until it ends.
        """
        spent = self.spent.with_usage(result.usage, result.api_calls)
        spent = spent.evolve(
            attempts=spent.attempts + (result.status is not StepStatus.WAITING),
            unpriced_calls=spent.unpriced_calls + result.unpriced_calls,
        )
        return self.evolve(spent=spent, beliefs=update_beliefs(self.beliefs, result.evidence))

    def count_usage(self, usage: Usage | None, api_calls: int) -> Self:
        """Add the model usage of the plan itself, excluding its steps."""
        return self.evolve(spent=self.spent.with_usage(usage, api_calls))

    def add_work(self, time: timedelta) -> Self:
        """Add a duration to the plan's working time."""
        return self.evolve(spent=self.spent.evolve(wall_time=self.spent.wall_time + time))

    def note_answers(self, step: str, answers: tuple[Answer, ...]) -> Self:
        """Store the answers for a step until its next attempt."""
        return self.evolve(answers={**self.answers, step: answers})

    def note_decision(self, subject: str, answer: Answer) -> Self:
        """Store an answer to be shown in the plan's report. Steps do not read this answer."""
        decisions = {**self.decisions, subject: (*self.decisions.get(subject, ()), answer)}
        return self.evolve(decisions=dict(list(decisions.items())[-DECISIONS_LIMIT:]))

    def note_edits(self, sentence: str) -> Self:
        """Store a sentence about adopted edits, for the plan's report."""
        return self.evolve(edits=(*self.edits, sentence)[-DECISIONS_LIMIT:])

    def note_qualifier(self, step: str, qualifier: str) -> Self:
        """Record the qualifier of a step's child workflow.

        An empty qualifier removes the qualifier of an earlier attempt.
        """
        if qualifier == self.qualifiers.get(step, ""):
            return self
        others = {name: text for name, text in self.qualifiers.items() if name != step}
        return self.evolve(qualifiers={**others, step: qualifier} if qualifier else others)

    def note_failure(self, step: str, failure: StepFailure) -> Self:
        """Record the last failure of a step."""
        failures = dict(self.failures)
        # Evict the oldest: dictionaries keep insertion order.
        if len(failures) >= FAILURES_LIMIT and step not in failures:
            failures.pop(next(iter(failures)))
        # Earlier answers referred to the failed attempt.
        answers = {name: answer for name, answer in self.answers.items() if name != step}
        return self.evolve(failures={**failures, step: failure}, answers=answers)

    def settle(self, *steps: str, spent: bool = True) -> Self:
        """Delete the temporary data of the steps and, by default, the record of their spending."""
        settled_steps = frozenset(steps)
        notes_by_field = {name: getattr(self, name) for name in (*_UNDER_WAY, *(("step_spent",) if spent else ()))}
        changed = {
            name: {step: note for step, note in notes.items() if step not in settled_steps}
            for name, notes in notes_by_field.items()
            # Most steps have no entries; copying every dictionary for each of them would make large plans quadratic.
            if not notes.keys().isdisjoint(settled_steps)
        }
        return self.evolve(**changed) if changed else self

    def charge(self, step: str, result: StepResult) -> Self:
        """Add the usage of an attempt to its step's entry in `step_spent`."""
        cost, tokens = self.step_spent.get(step, (0.0, 0))
        if result.usage is not None:
            cost += result.usage.cost_usd or 0.0
            tokens += (result.usage.input_tokens or 0) + (result.usage.output_tokens or 0)
        return self.evolve(step_spent={**self.step_spent, step: (cost, tokens)})

    def remove_undo(self, entry: UndoEntry) -> Self:
        """Remove an undo entry after its attempt has been undone."""
        # Compensation runs backwards, so it is almost always the last entry; avoids comparing thousands.
        if self.undo and self.undo[-1] == entry:
            return self.evolve(undo=self.undo[:-1])
        return self.evolve(undo=tuple(candidate for candidate in self.undo if candidate != entry))


class PlanInput(PlanRequest, RunInput):
    """Input of a run: the request, and the progress of the previous Temporal run, if any."""

    progress: PlanProgress | None = None

    workflow_type: ClassVar[str] = PLAN_WORKFLOW_TYPE
    right_input: ClassVar[str] = RIGHT_PLAN_INPUT

    @property
    def title(self) -> str:
        """Text that identifies the plan before it has been read."""
        return self.goal or self.file or "a plan"
