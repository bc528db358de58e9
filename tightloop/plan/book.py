"""What a running plan knows besides where each step stands. Mutable: an event costs only what it changes."""

from collections import deque
from datetime import datetime, timedelta

from tightloop.episode import PauseKind
from tightloop.plan.child_wait import REASON_CHARACTERS, ChildWait
from tightloop.plan.engine.schedule import Schedule
from tightloop.plan.hypothesis import initial, updated
from tightloop.plan.model import Hypothesis, PlanBudget
from tightloop.plan.request import WaitingGate
from tightloop.plan.result import EvidenceNote, PersonDecision, StepFailure, StepResult
from tightloop.plan.state import TIMELINE_LIMIT, PlanEvent, PlanState, UndoEntry
from tightloop.value import shorten

FAILURES_LIMIT = 500
DETAIL_CHARACTERS = 200
WANTS_YES = "approval"
"""The kind of wait of steps that want a yes, beside those of `PauseKind`."""


class Book:
    """The notes of one run of the workflow, taken over from the run before and given to the next one."""

    def __init__(self, state: PlanState) -> None:
        """Take up what the run before left."""
        self.plan = state.plan
        self.revision = state.revision
        self.phase = state.phase
        self.base_tree = state.base_tree
        self.tree = state.tree
        self.undo = list(state.undo)
        self.first_starts = dict(state.first_starts)
        self.due = dict(state.due)
        self.failures = dict(state.failures)
        self.waiting = {gate.step: gate for gate in state.waiting}
        self.asked = list(state.asked)
        self.replans = dict(state.replans)
        self.wanted = list(state.wanted)
        self.step_spent = dict(state.step_spent)
        self.decisions = dict(state.decisions)
        self.beliefs = state.beliefs
        self.spent = state.spent
        self.budget = state.budget or PlanBudget()
        self.pause = state.pause
        self.timeline = deque(state.timeline, maxlen=TIMELINE_LIMIT)
        self.runs = state.runs
        self.reason = state.reason
        self.adopt = state.adopt
        self.cancel = state.cancel

    def save(self, schedule: Schedule | None) -> PlanState:
        """Return all of it for the next run. Linear in the number of steps."""
        state = PlanState(
            plan=self.plan,
            revision=self.revision,
            phase=self.phase,
            base_tree=self.base_tree,
            tree=self.tree,
            undo=tuple(self.undo),
            first_starts=self.first_starts,
            due=self.due,
            failures=self.failures,
            waiting=tuple(self.waiting.values()),
            asked=tuple(self.asked),
            replans=self.replans,
            wanted=tuple(self.wanted),
            step_spent=self.step_spent,
            decisions=self.decisions,
            beliefs=self.beliefs,
            spent=self.spent,
            budget=self.budget,
            pause=self.pause,
            timeline=tuple(self.timeline),
            runs=self.runs,
            reason=self.reason,
            adopt=self.adopt,
            cancel=self.cancel,
        )
        return state if schedule is None else schedule.save(state)

    def log(self, at: datetime, event: str, step: str = "", detail: str = "") -> None:
        """Add a line to the timeline."""
        text = shorten(detail, DETAIL_CHARACTERS)
        self.timeline.append(PlanEvent(at=at, event=event, step=step, detail=text))

    def begin(self, budget: PlanBudget, hypotheses: tuple[Hypothesis, ...]) -> None:
        """Take what a plan says of itself when it is opened."""
        self.budget = budget
        self.suppose(hypotheses)

    def suppose(self, hypotheses: tuple[Hypothesis, ...]) -> None:
        """Take up hypotheses that are not known yet."""
        known = {belief.hypothesis for belief in self.beliefs}
        self.beliefs += initial(one for one in hypotheses if one.id not in known)

    def count(self, result: StepResult) -> None:
        """Add up what an attempt spent and what it found out."""
        self.spent = self.spent.with_usage(result.usage, result.api_calls).model_copy(
            update={"attempts": self.spent.attempts + 1}
        )
        if result.evidence:
            self.learn(result.evidence)

    def learn(self, notes: tuple[EvidenceNote, ...]) -> None:
        """Weigh evidence."""
        self.beliefs = updated(self.beliefs, notes)

    def worked(self, time: timedelta) -> None:
        """Add working time."""
        self.spent = self.spent.model_copy(update={"wall_time": self.spent.wall_time + time})

    def failed(self, step: str, failure: StepFailure) -> None:
        """Note why a step failed last."""
        if len(self.failures) >= FAILURES_LIMIT and step not in self.failures:
            self.failures.pop(next(iter(self.failures)))
        self.failures[step] = failure

    def settled(self, step: str) -> None:
        """Forget what only mattered while the step was under way."""
        for notes in (self.failures, self.first_starts, self.due, self.decisions, self.waiting, self.step_spent):
            notes.pop(step, None)
        if step in self.asked:
            self.asked.remove(step)

    def charge(self, step: str, result: StepResult) -> tuple[float, int]:
        """Add what an attempt spent to its step's sum, and return that: USD and tokens."""
        cost, tokens = self.step_spent.get(step, (0.0, 0))
        if result.usage is not None:
            cost += result.usage.cost_usd or 0.0
            tokens += (result.usage.input_tokens or 0) + (result.usage.output_tokens or 0)
        self.step_spent[step] = (cost, tokens)
        return cost, tokens

    def waits(self, plan_id: str) -> tuple[ChildWait, ...]:
        """Return what waits for a person here, as the plan around this one shows it."""
        why = {name: failure.reason for name, failure in self.failures.items() if name in self.asked}
        found = [(PauseKind.RESPONSE.value, why.get(name, ""), name) for name in self.asked]
        found += [(WANTS_YES, gate.question.text, gate.step) for gate in self.waiting.values()]
        # What was asked about stands there already.
        pauses = [self.pause, self.pause.also] if self.pause is not None else []
        found += [(one.kind, one.reason, one.step) for one in pauses if one is not None and one.step not in self.asked]
        return tuple(
            ChildWait(
                workflow_id=plan_id, kind=kind, reason=shorten(reason, REASON_CHARACTERS), gate=gate, is_plan=True
            )
            for kind, reason, gate in found
        )

    def undone(self, entry: UndoEntry) -> None:
        """Forget what was taken back; the latest one is found at once."""
        if self.undo and self.undo[-1] == entry:
            self.undo.pop()
        elif entry in self.undo:
            self.undo.remove(entry)

    def decide(self, gate: WaitingGate, decision: PersonDecision) -> WaitingGate:
        """Note what a person said, and return the gate with it."""
        gate = gate.model_copy(update={"decisions": (*gate.decisions, decision)})
        self.waiting[gate.step] = gate
        return gate


def is_decided(gate: WaitingGate) -> bool:
    """Return whether enough different people approved, or one refused."""
    if any(not decision.approved for decision in gate.decisions):
        return True
    return len({decision.by for decision in gate.decisions}) >= gate.question.count
