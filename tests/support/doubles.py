"""Scripted stand-ins for ports; they implement the same interface as the real adapters."""

from collections.abc import Callable
from pathlib import Path

from activities.executor.port import Availability, Control, Executor
from tightloop.episode.planning import Briefing, PlannerAnswer, PlanVerdict
from tightloop.executor.asking import permission_question
from tightloop.executor.limit import limited_outcome
from tightloop.executor.message import Alignment, PlanMessage, PlannedStep, Reflection
from tightloop.executor.model import (
    ExecutorOutcome,
    ExecutorStatus,
    LimitHit,
    ResumeToken,
    Usage,
    WorkOrder,
)


def planned(title: str = "do the next step", *, final: bool = False, usage: Usage | None = None) -> PlannerAnswer:
    """An answer with a plan of one step."""
    return PlannerAnswer(
        verdict=PlanVerdict.PLANNED,
        message=PlanMessage(
            goal="goal",
            steps=(PlannedStep(title=title),),
            final=final,
            reflection=Reflection(diagnosis="not done yet", action_items=(title,)),
            alignment=Alignment(answer="yes", rationale="harmless"),
        ),
        usage=usage,
    )


def claims_done() -> PlannerAnswer:
    """An answer that calls the goal met."""
    return PlannerAnswer(verdict=PlanVerdict.CLAIMS_DONE, reason="all is done")


def gives_up(reason: str = "I do not know how") -> PlannerAnswer:
    """An honest answer."""
    return PlannerAnswer(verdict=PlanVerdict.GAVE_UP, reason=reason)


def malformed() -> PlannerAnswer:
    """An answer that could not be used."""
    return PlannerAnswer(verdict=PlanVerdict.MALFORMED, reason="the answer was not JSON")


class ScriptedPlanner:
    """A planner that answers from a function of the briefing and remembers what it was told."""

    def __init__(self, answer: Callable[[Briefing], PlannerAnswer] | None = None) -> None:
        self._answer = answer or (lambda briefing: planned(f"step {briefing.iteration}"))
        self.briefings: list[Briefing] = []

    async def plan(self, briefing: Briefing) -> PlannerAnswer:
        """Answer and remember."""
        self.briefings.append(briefing)
        return self._answer(briefing)


class AppendingExecutor(Executor):
    """Appends the number of the iteration to `log.txt`; it needs no options, so it can stand in for another one."""

    def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
        """Append, and be done."""
        with (Path(order.root) / "log.txt").open("a") as log:
            log.write(f"{order.iteration}\n")
        return ExecutorOutcome(status=ExecutorStatus.COMPLETED, summary="appended a line")


class BreakingExecutor(AppendingExecutor):
    """Breaks off in its first delivery, as if its worker had died."""

    def __init__(self) -> None:
        self._broken = False

    def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
        """Break off, or append."""
        if not self._broken:
            self._broken = True
            raise RuntimeError("the delivery breaks off")
        return super().execute(order, control, state_folder)


class AskingExecutor(Executor):
    """Asks a person before it appends a line to `log.txt`, and remembers what it was ordered."""

    def __init__(self, *, reason: str = "") -> None:
        self._reason = reason
        self.orders: list[WorkOrder] = []

    def availability(self) -> Availability:
        """Not usable where a reason was given."""
        return Availability(usable=not self._reason, reason=self._reason)

    def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
        """Ask, unless the order has the answer."""
        self.orders.append(order)
        title = f"append line {order.iteration}"
        answers = [grant.allowed for grant in order.grants if grant.fingerprint == title]
        if not answers:
            return ExecutorOutcome(
                status=ExecutorStatus.NEEDS_PERSON,
                question=permission_question(title, "log.txt", title),
                resume=ResumeToken(adapter="asking", session_id=f"session-{order.iteration}"),
            )
        if not answers[0]:
            return ExecutorOutcome(status=ExecutorStatus.COMPLETED, summary="it may not", denied=(title,))
        with (Path(order.root) / "log.txt").open("a") as log:
            log.write(f"{order.iteration}\n")
        return ExecutorOutcome(status=ExecutorStatus.COMPLETED, summary="appended a line")


class QuotaExecutor(Executor):
    """Has no quota in its first delivery, and appends a line to `log.txt` in the next ones."""

    def __init__(self, quota: LimitHit) -> None:
        self._quota = quota
        self._deliveries = 0

    def availability(self) -> Availability:
        """Always usable."""
        return Availability()

    def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
        """Report the quota once."""
        self._deliveries += 1
        if self._deliveries == 1:
            return limited_outcome(self._quota, "the monthly quota is used up")
        with (Path(order.root) / "log.txt").open("a") as log:
            log.write(f"{order.iteration}\n")
        return ExecutorOutcome(status=ExecutorStatus.COMPLETED)
