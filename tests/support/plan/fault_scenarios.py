"""What a plan goes through on a server, for hypothesis: its graph, how each attempt ends, who disturbs it and when.

Steps are drawn one by one and name others by distance, so that a failing example shrinks to the few that matter.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from hypothesis.vendor.pretty import RepresentationPrinter

from tests.support.plan.model import Scripted
from tightloop.plan.action import DecisionAction, Rule, ShellAction
from tightloop.plan.child import StepStatus
from tightloop.plan.document import OnPlanFailure, Plan
from tightloop.plan.failing import FailureClass, OnFailure, Retry
from tightloop.plan.step import Access, Join, Step

LARGEST = 200
SMALL = 40
"""Plans up to this size also run on workers that keep no workflow in memory: each task replays all of the run."""
REACH = 11
"""How far away the steps are that a step names."""
ATTEMPTS = 3
ROUND = 4
"""Examples that are drawn in a row: the simplest one, then independent ones. In a long row most are variations."""


class Way(StrEnum):
    """What a person or the machine does to a running plan."""

    PAUSE = "pause"
    RESTART = "restart"
    """The worker is stopped in the middle of what it does, and another one starts."""
    CANCEL = "cancel"
    CANCEL_IN_TEMPORAL = "cancel in Temporal"


@dataclass(frozen=True)
class Disturbance:
    """Something that happens to the plan once so many attempts have begun."""

    way: Way
    after: int
    lasts_s: float = 0.0
    """How long a pause is, or how long no worker is there."""
    forgetful: bool = False
    """The next worker keeps no workflow in memory."""


@dataclass(frozen=True)
class Behaviour:
    """How the attempts of a step end; the steps of a template begin one after the other in this list."""

    ends: tuple[Scripted, ...]
    asks: bool = False
    """Each attempt asks a person first, who refuses where it is to fail by policy."""
    takes_s: float = 0.0

    def end(self, item: int, attempt: int) -> Scripted:
        """Return how an attempt (from 1) ends, of the step itself (item 0) or one made from it."""
        return self.ends[(max(item - 1, 0) + attempt - 1) % len(self.ends)]


@dataclass(frozen=True)
class FaultScenario:
    """A plan, how its steps behave, and what happens to it."""

    plan: Plan
    behaviours: dict[str, Behaviour]
    disturbances: tuple[Disturbance, ...] = ()
    max_parallel: int = 1
    attempts_per_run: int = 1_000

    def behaviour(self, name: str) -> Behaviour:
        """Return the behaviour of a step, or of the template that it was made from."""
        return self.behaviours.get(name) or self.behaviours[f"{name.rpartition('-')[0]}-*"]

    def script(self, name: str, attempt: int) -> Scripted:
        """Say how an attempt ends; this is what the specification is asked with."""
        item = 0 if name in self.behaviours else int(name.rpartition("-")[2])
        return self.behaviour(name).end(item, attempt)

    def __repr__(self) -> str:
        steps = "\n".join(
            f"  {step.model_dump(exclude_defaults=True, mode='json')} {self.behaviours[step.id]}"
            for step in self.plan.steps
        )
        rest = f"{list(self.disturbances)}, {self.max_parallel} at once, {self.attempts_per_run} attempts a run"
        return f"{len(self.plan.steps)} steps, {rest}\n{steps}\n"

    def _repr_pretty_(self, printer: RepresentationPrinter, cycle: bool) -> None:
        del cycle
        printer.text(repr(self))


@dataclass(frozen=True)
class _Bone:
    """A step that names others by their distance from it."""

    template: bool
    items: int
    """Of a template: so many; -1 as many as the first step that it needs says."""
    needs: tuple[int, ...]
    join: Join
    access: Access
    priority: int
    estimate_s: float
    shell: bool
    on_success: tuple[int, ...]
    chooses: tuple[tuple[int, bool], ...]
    """Of a decision: distance, and whether it is chosen."""
    on_failure: int
    """0: there is none."""
    recovers: bool
    attempts: int
    ends: tuple[tuple[StepStatus, FailureClass | None], ...]
    counts: int
    asks: bool
    takes_s: float = field(default=0.0)


def _seldom(one_in: int) -> st.SearchStrategy[bool]:
    return st.integers(0, one_in - 1).map(lambda number: number == one_in - 1)


_DISTANCE = st.integers(1, REACH)
_DONE = (StepStatus.COMPLETED, None)
_FAILURES = tuple((StepStatus.FAILED, each) for each in FailureClass)
_ENDS = st.sampled_from((*[_DONE] * 16, (StepStatus.SKIPPED, None), *_FAILURES))
_HARSH_ENDS = st.sampled_from((*[_DONE] * 9, (StepStatus.SKIPPED, None), *_FAILURES))


def _distances(most: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(_DISTANCE, max_size=most, unique=True).map(tuple)


@st.composite
def _bones(draw: st.DrawFn, ends: st.SearchStrategy[tuple[StepStatus, FailureClass | None]]) -> _Bone:
    template, edge = draw(_seldom(12)), draw(st.integers(0, 39))
    attempts = draw(st.integers(1, ATTEMPTS))
    chooses = st.lists(st.tuples(_DISTANCE, st.booleans()), min_size=1, max_size=3, unique_by=lambda pair: pair[0])
    return _Bone(
        template=template,
        items=draw(st.integers(-1, 3)) if template else 0,
        needs=draw(_distances(2)),
        join=draw(st.sampled_from(Join)),
        access=draw(st.sampled_from((Access.NONE, Access.READS, Access.WRITES))),
        priority=draw(st.sampled_from((0, 0, 0, 1, 5))),
        estimate_s=draw(st.sampled_from((1.0, 0.5, 3.0))),
        shell=draw(st.booleans()),
        on_success=draw(_distances(1)) if edge == 39 else (),
        chooses=tuple(draw(chooses)) if edge in (37, 38) else (),
        on_failure=draw(_DISTANCE) if edge in range(32, 37) else 0,
        recovers=edge != 32,
        attempts=attempts,
        ends=tuple(draw(ends) for _ in range(4 if template else attempts)),
        counts=draw(st.integers(0, 3)),
        asks=draw(_seldom(24)),
        takes_s=draw(st.sampled_from((0.0, 0.005, 0.02))),
    )


def _built(bones: list[_Bone]) -> tuple[tuple[Step, ...], dict[str, Behaviour]]:
    names = [f"s{number}" + ("-*" if bone.template else "") for number, bone in enumerate(bones)]
    steps = tuple(_step(bone, names, number) for number, bone in enumerate(bones))
    return steps, {names[number]: _behaviour(bone, names, number) for number, bone in enumerate(bones)}


def _step(bone: _Bone, names: list[str], number: int) -> Step:
    needs = tuple(names[number - distance] for distance in bone.needs if number >= distance)
    sources = [need for need in needs if not need.endswith("*")]
    each: str | tuple[int, ...] | None = None
    if bone.template:
        each = f"${{{sources[0]}.items}}" if bone.items < 0 and sources else tuple(range(max(bone.items, 0)))
    alternate = _ahead(names, number, (bone.on_failure,)) if bone.on_failure else ()
    targets = _ahead(names, number, tuple(distance for distance, _ in bone.chooses))
    return Step(
        id=names[number],
        needs=needs,
        join=bone.join,
        for_each=each,
        access=bone.access,
        priority=bone.priority,
        estimate_s=bone.estimate_s,
        shell=ShellAction(run="the script") if bone.shell and not bone.chooses else None,
        on_success=_ahead(names, number, bone.on_success),
        decision=DecisionAction(rules=tuple(Rule(when="true", to=(to,)) for to in targets)) if bone.chooses else None,
        on_failure=OnFailure(to=alternate[0], recovers=bone.recovers) if alternate else None,
        retry=Retry(attempts=bone.attempts, initial_s=0),
    )


def _behaviour(bone: _Bone, names: list[str], number: int) -> Behaviour:
    chosen = _ahead(names, number, tuple(distance for distance, taken in bone.chooses if taken))
    ends = tuple(
        Scripted(failure=failure)
        if failure is not None
        else Scripted(status, chosen=chosen if bone.chooses else None, counts={"items": bone.counts})
        for status, failure in bone.ends
    )
    return Behaviour(ends, bone.asks, bone.takes_s)


def _ahead(names: list[str], number: int, distances: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(names[number + distance] for distance in distances if number + distance < len(names))


@st.composite
def _disturbances(draw: st.DrawFn, steps: int) -> tuple[Disturbance, ...]:
    ways = st.sampled_from((Way.PAUSE, Way.PAUSE, Way.RESTART, Way.RESTART, Way.RESTART))
    one = st.builds(
        Disturbance,
        ways,
        after=st.integers(0, max(steps // 2, 1)),
        lasts_s=st.sampled_from((0.0, 0.05, 0.2)),
        forgetful=_seldom(3) if steps <= SMALL else st.just(False),
    )
    found = [draw(one) for _ in range(draw(st.integers(0, 5)))]
    if draw(_seldom(4)):
        way = draw(st.sampled_from((Way.CANCEL, Way.CANCEL_IN_TEMPORAL)))
        found.append(Disturbance(way, after=draw(st.integers(0, max(steps // 2, 1)))))
    return tuple(sorted(found, key=lambda each: each.after))


@st.composite
def fault_scenarios(draw: st.DrawFn, *, largest: int = LARGEST) -> FaultScenario:
    """A plan of 1 to `largest` steps with everything that decides whether a step runs, and what happens to it."""
    size = draw(st.integers(1, min(SMALL, largest)) | st.integers(1, largest))
    disturbances, at_once = draw(_disturbances(size)), draw(st.integers(1, 12))
    attempts_per_run, ends = draw(st.sampled_from((1_000, 60, 15))), draw(st.sampled_from((_ENDS, _HARSH_ENDS)))
    # The steps come last: a smaller size then cuts the plan off and leaves all else as it is.
    steps, behaviours = _built([draw(_bones(ends)) for _ in range(size)])
    plan = Plan(id="random", on_failure=OnPlanFailure.FAIL, steps=steps)
    return FaultScenario(plan, behaviours, disturbances, at_once, attempts_per_run)


def check_round(check: Callable[[FaultScenario], None], seed: str) -> None:
    """Check `ROUND` scenarios, the same ones for the same seed; one that fails is shrunk and shown."""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=ROUND,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        suppress_health_check=(HealthCheck.too_slow,),
    )
    @hypothesis.given(fault_scenarios())
    def run(scenario: FaultScenario) -> None:
        check(scenario)

    run()
