"""Input and progress of a plan."""

from datetime import datetime, timedelta
from typing import ClassVar, Self

from pydantic import Field

from tightloop.executor.model import Usage
from tightloop.plan.child import Belief, StepFailure, StepResult
from tightloop.plan.document import Hypothesis, PlanBudget
from tightloop.plan.engine.state import ScheduleState, UndoEntry, initial_beliefs, update_beliefs
from tightloop.plan.request import RIGHT_PLAN_INPUT, PlanPhase, PlanRequest, PlanSpent
from tightloop.run.core import RunInput
from tightloop.run.question import Answer
from tightloop.run.routing import PLAN_WORKFLOW_TYPE
from tightloop.safety.drift import DriftAnswer
from tightloop.value import ArtifactRef, Value

FAILURES_LIMIT = 500
_UNDER_WAY = ("failures", "first_starts", "due", "answers", "earlier")


class Doubt(Value):
    """A tree with a proof that something speaks against."""

    tree: str
    title: str
    accepted_by: str = ""
    """Who accepted it, where somebody did."""


class PlanProgress(Value):
    """A plan under way, carried from one run of its workflow to the next; the graph is stored beside it."""

    plan: ArtifactRef | None = None
    revision: int = 1
    phase: PlanPhase = PlanPhase.OPENING
    base_tree: str = ""
    tree: str = ""
    schedule: ScheduleState = ScheduleState.model_construct()
    """Where the steps stood when this run began; `save` brings it up to date."""
    undo: tuple[UndoEntry, ...] = ()
    """In the order of their ends."""
    first_starts: dict[str, datetime] = Field(default_factory=dict)
    """When the first attempt of an unsettled step with a time box began."""
    due: dict[str, datetime] = Field(default_factory=dict)
    """When the next attempt of a step that backs off begins."""
    earlier: dict[str, int] = Field(default_factory=dict)
    """Attempts of a step before a person had it begin again, which do not count any more."""
    failures: dict[str, StepFailure] = Field(default_factory=dict)
    """Last failure of steps that have not completed since; at most `FAILURES_LIMIT`."""
    replans: dict[str, int] = Field(default_factory=dict)
    """How often a planner was asked because of a step."""
    wanted: tuple[str, ...] = ()
    """Steps that a person wants started next, also in a pause."""
    step_spent: dict[str, tuple[float, int]] = Field(default_factory=dict)
    """USD and tokens of unsettled steps that have a budget."""
    answers: dict[str, tuple[Answer, ...]] = Field(default_factory=dict)
    """What people said about steps that still wait, or run with the answer."""
    beliefs: tuple[Belief, ...] = ()
    spent: PlanSpent = PlanSpent.model_construct()
    budget: PlanBudget = PlanBudget.model_construct()
    """With what people added."""
    runs: int = 1
    """Runs of the workflow so far, this one included."""
    beginning: ArtifactRef | None = None
    """What the delivered tree is compared with: a stored `Beginning`; None: there was no definition of done."""
    proof_within: ArtifactRef | None = None
    """Proof of the last workflow of a step that proved its tree."""
    proof: ArtifactRef | None = None
    """The last proof of the plan."""
    doubted: Doubt | None = None
    """What speaks against the proof."""
    reason: str = ""
    """Why the plan is about to fail, where it compensates before it ends."""
    adopt: bool = False
    """Edits that a person made during a pause are still to be kept."""
    drift: DriftAnswer | None = None
    """What a person decided about a drift, which is still to be done."""
    put_back: bool = False
    """What is on disk was left by work of this plan that was stopped or discarded: it is put back unasked."""

    def begin(self, budget: PlanBudget, hypotheses: tuple[Hypothesis, ...]) -> Self:
        """Take what a plan states about itself when it is opened."""
        return self.evolve(budget=budget).add_hypotheses(hypotheses)

    def add_hypotheses(self, hypotheses: tuple[Hypothesis, ...]) -> Self:
        """Add hypotheses that are not known yet."""
        known = {belief.hypothesis for belief in self.beliefs}
        new = initial_beliefs(hypothesis for hypothesis in hypotheses if hypothesis.id not in known)
        return self.evolve(beliefs=(*self.beliefs, *new))

    def count_attempt(self, result: StepResult) -> Self:
        """Add up what an attempt spent and what it found out."""
        spent = self.spent.with_usage(result.usage, result.api_calls)
        spent = spent.evolve(attempts=spent.attempts + 1)
        return self.evolve(spent=spent, beliefs=update_beliefs(self.beliefs, result.evidence))

    def count_usage(self, usage: Usage | None, api_calls: int) -> Self:
        """Add what a model used for the plan itself."""
        return self.evolve(spent=self.spent.with_usage(usage, api_calls))

    def add_work(self, time: timedelta) -> Self:
        """Add working time."""
        return self.evolve(spent=self.spent.evolve(wall_time=self.spent.wall_time + time))

    def note_answers(self, step: str, answers: tuple[Answer, ...]) -> Self:
        """Keep what people said about a step for its next attempt."""
        return self.evolve(answers={**self.answers, step: answers})

    def note_failure(self, step: str, failure: StepFailure) -> Self:
        """Note why a step failed last."""
        failures = dict(self.failures)
        # The oldest goes: dictionaries keep the order in which keys were added.
        if len(failures) >= FAILURES_LIMIT and step not in failures:
            failures.pop(next(iter(failures)))
        # What people answered was about the attempt that has failed.
        answers = {name: given for name, given in self.answers.items() if name != step}
        return self.evolve(failures={**failures, step: failure}, answers=answers)

    def settle(self, *steps: str, spent: bool = True) -> Self:
        """Forget what only mattered while the steps were under way, and by default what they spent."""
        gone = frozenset(steps)
        known = {name: getattr(self, name) for name in (*_UNDER_WAY, *(("step_spent",) if spent else ()))}
        changed = {
            name: {step: note for step, note in notes.items() if step not in gone}
            for name, notes in known.items()
            if not notes.keys().isdisjoint(gone)
        }
        return self.evolve(**changed) if changed else self

    def charge(self, step: str, result: StepResult) -> Self:
        """Add what an attempt spent to its step's sum in `step_spent`."""
        cost, tokens = self.step_spent.get(step, (0.0, 0))
        if result.usage is not None:
            cost += result.usage.cost_usd or 0.0
            tokens += (result.usage.input_tokens or 0) + (result.usage.output_tokens or 0)
        return self.evolve(step_spent={**self.step_spent, step: (cost, tokens)})

    def remove_undo(self, entry: UndoEntry) -> Self:
        """Forget what was taken back."""
        # Compensation goes backwards, so it is almost always the last one: thousands need not be compared.
        if self.undo and self.undo[-1] == entry:
            return self.evolve(undo=self.undo[:-1])
        return self.evolve(undo=tuple(one for one in self.undo if one != entry))


class PlanInput(PlanRequest, RunInput):
    """Starts a run: a request, or a request with the progress that the previous Temporal run left."""

    progress: PlanProgress | None = None

    workflow_type: ClassVar[str] = PLAN_WORKFLOW_TYPE
    right_input: ClassVar[str] = RIGHT_PLAN_INPUT

    @property
    def title(self) -> str:
        """What a person recognises the plan by, before it is read."""
        return self.goal or self.file or "a plan"
