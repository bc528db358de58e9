"""Input and progress of a plan."""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from tightloop.executor.model import Usage
from tightloop.plan.child import Belief, EvidenceNote, StepFailure, StepResult
from tightloop.plan.document.plan import Hypothesis, PlanBudget
from tightloop.plan.engine.state import ScheduleState, UndoEntry, initial_beliefs, update_beliefs
from tightloop.plan.request import RIGHT_PLAN_INPUT, PlanPhase, PlanRequest, PlanSpent
from tightloop.run.core import RunInput
from tightloop.run.question import Answer
from tightloop.safety.drift import DriftAnswer
from tightloop.value import Value
from tightloop.value.artifact import ArtifactRef

FAILURES_LIMIT = 500


class Doubt(Value):
    """A tree with a proof that something speaks against."""

    tree: str
    title: str
    accepted_by: str = ""
    """Who accepted it, where somebody did."""


class PlanProgress(BaseModel):
    """A plan under way, carried from one run of its workflow to the next; the graph is stored beside it.

    Mutable, so that an event costs only what it changes.
    """

    model_config = ConfigDict(extra="ignore")

    plan: ArtifactRef | None = None
    revision: int = 1
    phase: PlanPhase = PlanPhase.OPENING
    base_tree: str = ""
    tree: str = ""
    schedule: ScheduleState = ScheduleState.model_construct()
    """Where the steps stood when this run began; `save` brings it up to date."""
    undo: list[UndoEntry] = Field(default_factory=list)
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
    wanted: list[str] = Field(default_factory=list)
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

    def forget(self, steps: Collection[str]) -> None:
        """Forget what is noted of steps that begin again or are gone."""
        for name in steps:
            self.settle(name, spent=False)

    def begin(self, budget: PlanBudget, hypotheses: tuple[Hypothesis, ...]) -> None:
        """Take what a plan states about itself when it is opened."""
        self.budget = budget
        self.add_hypotheses(hypotheses)

    def add_hypotheses(self, hypotheses: tuple[Hypothesis, ...]) -> None:
        """Add hypotheses that are not known yet."""
        known = {belief.hypothesis for belief in self.beliefs}
        self.beliefs += initial_beliefs(one for one in hypotheses if one.id not in known)

    def count_attempt(self, result: StepResult) -> None:
        """Add up what an attempt spent and what it found out."""
        self.count_usage(result.usage, result.api_calls)
        self.spent = self.spent.evolve(attempts=self.spent.attempts + 1)
        if result.evidence:
            self.weigh(result.evidence)

    def weigh(self, notes: tuple[EvidenceNote, ...]) -> None:
        """Weigh evidence."""
        self.beliefs = update_beliefs(self.beliefs, notes)

    def count_usage(self, usage: Usage | None, api_calls: int) -> None:
        """Add what a model used for an attempt, or for the plan itself."""
        self.spent = self.spent.with_usage(usage, api_calls)

    def add_work(self, time: timedelta) -> None:
        """Add working time."""
        self.spent = self.spent.evolve(wall_time=self.spent.wall_time + time)

    def want(self, step: str) -> None:
        """Have a step started next."""
        self.wanted.append(step)

    def unwant(self, step: str) -> None:
        """Note that a wanted step was started, or cannot be."""
        self.wanted.remove(step)

    def note_answers(self, step: str, answers: tuple[Answer, ...]) -> None:
        """Keep what people said about a step for its next attempt."""
        self.answers[step] = answers

    def note_failure(self, step: str, failure: StepFailure) -> None:
        """Note why a step failed last."""
        # The oldest goes: dictionaries keep the order in which keys were added.
        if len(self.failures) >= FAILURES_LIMIT and step not in self.failures:
            self.failures.pop(next(iter(self.failures)))
        self.failures[step] = failure
        # What people answered was about the attempt that has failed.
        self.answers.pop(step, None)

    def settle(self, step: str, *, spent: bool = True) -> None:
        """Forget what only mattered while the step was under way, and by default what it spent."""
        for notes in (self.failures, self.first_starts, self.due, self.answers, self.earlier):
            notes.pop(step, None)
        if spent:
            self.step_spent.pop(step, None)

    def charge(self, step: str, result: StepResult) -> tuple[float, int]:
        """Add what an attempt spent to its step's sum, and return that: USD and tokens."""
        cost, tokens = self.step_spent.get(step, (0.0, 0))
        if result.usage is not None:
            cost += result.usage.cost_usd or 0.0
            tokens += (result.usage.input_tokens or 0) + (result.usage.output_tokens or 0)
        self.step_spent[step] = (cost, tokens)
        return cost, tokens

    def remove_undo(self, entry: UndoEntry) -> None:
        """Forget what was taken back; the latest one is found at once."""
        # Compensation goes backwards, so it is almost always the last one.
        if self.undo and self.undo[-1] == entry:
            self.undo.pop()
        elif entry in self.undo:
            self.undo.remove(entry)


class PlanInput(PlanRequest, RunInput):
    """Starts a run: a request, or a request with the progress that the previous Temporal run left."""

    progress: PlanProgress | None = None

    right_input: ClassVar[str] = RIGHT_PLAN_INPUT

    @property
    def title(self) -> str:
        """What a person recognises the plan by, before it is read."""
        return self.goal or self.file or "a plan"
