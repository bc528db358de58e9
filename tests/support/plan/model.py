"""What becomes of every step of a plan, told by rules that are applied until nothing changes: slow, and independent of
the scheduler. A script says how each attempt of each step ends."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tightloop.plan.action import DecisionAction, Rule
from tightloop.plan.child import StepStatus
from tightloop.plan.document import OnPlanFailure, Plan
from tightloop.plan.failing import FailureClass, OnFailure, Retry
from tightloop.plan.step import Access, Join, Step

DONE = (StepStatus.COMPLETED, StepStatus.RECOVERED)


@dataclass(frozen=True)
class Scripted:
    """How one attempt ends: COMPLETED or SKIPPED, or with a failure."""

    status: StepStatus = StepStatus.COMPLETED
    failure: FailureClass | None = None
    chosen: tuple[str, ...] | None = None
    counts: dict[str, int] = field(default_factory=dict)


Script = Callable[[str, int], Scripted]
"""(step or `template-1` ..., attempt from 1) -> how it ends."""


def predicted(plan: Plan, script: Script) -> dict[str, StepStatus]:
    """Return the status of each step, template and step made from one when the plan is over.

    The plan does not replan and asks nobody (`on_failure: fail`).
    """
    return _Prediction(plan, script).statuses()


def at_cancellation(status: StepStatus) -> frozenset[StepStatus]:
    """Return where a step may stand in a plan that is cancelled, from its status in the same plan run to its end.

    Nothing is decided otherwise than it would have been: it is decided already, or not at all.
    """
    before = {status, StepStatus.ABANDONED}
    return frozenset(before | {StepStatus.FAILED} if status is StepStatus.RECOVERED else before)


def last_attempt(step: Step, name: str, script: Script) -> Scripted:
    """Return the attempt of a step that decides: the first that is no transient failure, or the last one allowed."""
    for attempt in range(1, step.retry.attempts):
        if script(name, attempt).failure is not FailureClass.TRANSIENT:
            return script(name, attempt)
    return script(name, step.retry.attempts)


class _Prediction:
    def __init__(self, plan: Plan, script: Script) -> None:
        self.steps = {step.id: step for step in plan.steps}
        self.script = script
        self.known: dict[str, StepStatus] = {}
        self.made: dict[str, list[str]] = {}
        self.chosen: dict[str, tuple[str, ...]] = {}
        self.blocked: set[str] = set()
        self.into: dict[str, list[str]] = {}
        for step in plan.steps:
            targets = [*step.on_success, *_choices(step), *([step.on_failure.to] if step.on_failure else [])]
            for target in targets:
                self.into.setdefault(target, []).append(step.id)

    def statuses(self) -> dict[str, StepStatus]:
        while self._one_round():
            pass
        names = [*self.steps, *(name for names in self.made.values() for name in names)]
        return {name: self.known.get(name, StepStatus.ABANDONED) for name in names}

    def _one_round(self) -> bool:
        before = dict(self.known), {name: list(names) for name, names in self.made.items()}, set(self.blocked)
        for name, step in self.steps.items():
            if name not in self.known and name not in self.made:
                self._begin(step)
            if name in self.made:
                self._end_template(step)
            for each in (name, *self.made.get(name, ())):
                if self.known.get(each) is StepStatus.FAILED and self._is_done_by_another(step):
                    self.known[each] = StepStatus.RECOVERED
        return before != (self.known, self.made, self.blocked)

    def _begin(self, step: Step) -> None:
        needs = [self.known.get(name) for name in step.needs]
        edges = [self._edge(source, step.id) for source in self.into.get(step.id, ())]
        any_of = step.join is Join.ANY
        skipped = [status is StepStatus.SKIPPED for status in needs]
        is_lenient = step.join is Join.ENDED
        misses = bool(skipped) and not is_lenient and (all if any_of else any)(skipped)
        if (edges and all(edge == "dead" for edge in edges)) or misses:
            self.known[step.id] = StepStatus.SKIPPED
            return
        if step.join is Join.ENDED:
            held = all(self._is_over(name) for name in step.needs)
        elif self._is_blocked(step, edges):
            self.blocked.add(step.id)
            return
        else:
            held = all(status in DONE or (any_of and status is StepStatus.SKIPPED) for status in needs)
        if held and (not edges or "fired" in edges):
            self._run(step)

    def _is_blocked(self, step: Step, edges: list[str]) -> bool:
        """Return whether it can neither start nor be skipped any more."""
        if not all(self._is_over(name) for name in step.needs) or (edges and "fired" not in edges):
            return False
        return any(self.known.get(name) in (None, StepStatus.FAILED) for name in step.needs)

    def _is_over(self, name: str) -> bool:
        """Return whether a step has ended for good, or cannot start because of one that failed."""
        status = self.known.get(name)
        if status is None:
            return name in self.blocked
        return status is not StepStatus.FAILED or self._is_final(self.steps[name])

    def _run(self, step: Step) -> None:
        if not step.id.endswith("*"):
            self._run_one(step, step.id)
            return
        count = self._items(step)
        if count is None:
            self.known[step.id] = StepStatus.FAILED
        elif count == 0:
            self.known[step.id] = StepStatus.SKIPPED
        else:
            self.made[step.id] = [f"{step.id[:-1]}{number}" for number in range(1, count + 1)]
            for name in self.made[step.id]:
                self._run_one(step, name)

    def _run_one(self, step: Step, name: str) -> None:
        last = last_attempt(step, name, self.script)
        self.known[name] = last.status if last.failure is None else StepStatus.FAILED
        self.chosen[name] = last.chosen or ()

    def _items(self, step: Step) -> int | None:
        if not isinstance(step.for_each, str):
            return len(step.for_each or ())
        source, _, output = step.for_each[2:-1].partition(".")
        if self.known.get(source) not in DONE:
            return 0
        while self.known.get(source) is not StepStatus.COMPLETED or source.endswith("*"):
            failure = self.steps[source].on_failure
            if failure is None:
                return None
            source = failure.to
        return last_attempt(self.steps[source], source, self.script).counts.get(output)

    def _end_template(self, step: Step) -> None:
        found = [self.known.get(name) for name in self.made[step.id]]
        if StepStatus.FAILED in found and not self._is_final(step):
            return
        if StepStatus.FAILED in found:
            self.known[step.id] = StepStatus.FAILED
        else:
            done = any(status in DONE for status in found)
            self.known[step.id] = StepStatus.COMPLETED if done else StepStatus.SKIPPED

    def _edge(self, source: str, target: str) -> str:
        """Return what a source says: `fired`, `dead` (it never will) or `open`."""
        step, status = self.steps[source], self.known.get(source)
        names = self.made.get(source, [source])
        failed = any(self.known.get(name) in (StepStatus.FAILED, StepStatus.RECOVERED) for name in names)
        if failed and step.on_failure is not None and step.on_failure.to == target:
            return "fired"
        if status is None:
            return "open"
        chosen = any(target in self.chosen.get(name, ()) for name in names if self.known.get(name) is status.COMPLETED)
        if status is StepStatus.COMPLETED and (target in step.on_success or (chosen and target in _choices(step))):
            return "fired"
        return "dead"

    def _is_final(self, step: Step) -> bool:
        """Return whether a failure of this step cannot be made good any more."""
        if step.on_failure is None or not step.on_failure.recovers:
            return True
        other = self.steps[step.on_failure.to]
        status = self.known.get(other.id)
        if other.id in self.made and status is StepStatus.FAILED:
            return True
        return status is StepStatus.SKIPPED or (status is StepStatus.FAILED and self._is_final(other))

    def _is_done_by_another(self, step: Step) -> bool:
        failure = step.on_failure
        return failure is not None and failure.recovers and self.known.get(failure.to) in DONE


def _choices(step: Step) -> tuple[str, ...]:
    return () if step.decision is None else tuple(name for rule in step.decision.rules for name in rule.to)


def random_plan(chance: random.Random, size: int) -> Plan:
    """Return a plan of `size` steps with everything that decides whether a step runs."""
    names = [f"s{number}" + ("-*" if chance.random() < 0.08 else "") for number in range(size)]
    return Plan(
        id="random", on_failure=OnPlanFailure.FAIL, steps=tuple(_step(chance, names, number) for number in range(size))
    )


def random_script(chance: random.Random, plan: Plan) -> Script:
    """Return a script that lets about a fifth of all attempts fail; equal questions have equal answers."""
    steps = {step.id: step for step in plan.steps}
    seed = chance.getrandbits(32)

    def ends(name: str, attempt: int) -> Scripted:
        luck = random.Random(f"{seed} {name} {attempt}")
        draw = luck.random()
        step = steps.get(name) or steps[f"{name.rpartition('-')[0]}-*"]
        if draw < 0.22:
            return Scripted(failure=luck.choice(list(FailureClass)))
        if draw < 0.24:
            return Scripted(status=StepStatus.SKIPPED)
        chosen = tuple(target for target in _choices(step) if luck.random() < 0.8)
        return Scripted(chosen=chosen if step.decision else None, counts={"items": luck.randrange(4)})

    return ends


def _step(chance: random.Random, names: list[str], number: int) -> Step:
    before, after = names[max(0, number - 12) : number], names[number + 1 : number + 12]

    def some(among: list[str], most: int) -> tuple[str, ...]:
        return tuple(chance.sample(among, min(len(among), chance.randrange(most + 1))))

    name, needs = names[number], some(before, 2)
    sources = [need for need in needs if not need.endswith("*")]
    each: str | tuple[int, ...] | None = None
    if name.endswith("*"):
        reference = bool(sources) and chance.random() < 0.6
        each = f"${{{sources[0]}.items}}" if reference else tuple(range(chance.randrange(4)))
    return Step(
        id=name,
        needs=needs,
        join=chance.choice(list(Join)),
        for_each=each,
        access=chance.choice(list(Access)),
        priority=chance.choice((0, 0, 0, 1, 5)),
        estimate_s=chance.choice((0.5, 1, 3)),
        on_success=some(after, 1) if chance.random() < 0.08 else (),
        decision=DecisionAction(rules=_rules(some(after, 3))) if chance.random() < 0.07 else None,
        on_failure=_on_failure(chance, after),
        retry=Retry(attempts=chance.randrange(1, 4), initial_s=0),
    )


def _rules(targets: tuple[str, ...]) -> tuple[Rule, ...]:
    return tuple(Rule(when="true", to=(target,)) for target in targets)


def _on_failure(chance: random.Random, after: list[str]) -> OnFailure | None:
    if not after or chance.random() > 0.25:
        return None
    return OnFailure(to=chance.choice(after[-4:]), recovers=chance.random() < 0.8)
