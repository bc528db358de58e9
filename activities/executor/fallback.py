"""Which executor takes an order: the one that was asked for, or the first fallback that can be used."""

from dataclasses import dataclass
from pathlib import Path

from activities.executor.port import Availability, Control, Executor, Executors
from tightloop.errors import ExecutorError, UntrustedProgramError
from tightloop.executor.model import ErrorKind, ExecutorChoice, ExecutorOutcome, ExecutorStatus, WorkOrder
from tightloop.value import shorten

REASON_CHARACTERS = 200


@dataclass(frozen=True)
class NoExecutor(Executor):
    """Stands where no executor can be used: every order is refused with the reasons."""

    reason: str
    """A sentence for a person."""

    def availability(self) -> Availability:
        """Say why not."""
        return Availability(usable=False, reason=self.reason)

    def effects_outside(self, order: WorkOrder) -> str:
        """Return that it does nothing."""
        del order
        return ""

    def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
        """Refuse."""
        del order, control, state_folder
        return ExecutorOutcome(status=ExecutorStatus.FATAL, error=self.reason, error_kind=ErrorKind.CONFIG)


@dataclass(frozen=True)
class Chosen:
    """Who takes an order."""

    name: str
    executor: Executor
    passed_over: tuple[str, ...] = ()
    """Why the executors before it could not be used, a sentence each."""

    def adapt_order(self, order: WorkOrder) -> WorkOrder:
        """Return the order as this executor gets it: another one's session, model and options mean nothing to it."""
        choice, resume = order.executor, order.resume
        others = {choice.name, *choice.fallback} - {self.name}
        named = choice if self.name == choice.name else choice.evolve(name=self.name, model="", options={})
        return order.evolve(
            executor=named,
            resume=None if resume is not None and resume.adapter in others else resume,
        )


def choose(executors: Executors, choice: ExecutorChoice) -> Chosen:
    """Return the first executor that can be used on this host."""
    passed_over: list[str] = []
    for name in (choice.name, *choice.fallback):
        try:
            executor = executors(name)
            seen = executor.availability()
        except (ExecutorError, UntrustedProgramError) as error:
            passed_over.append(shorten(error.message, REASON_CHARACTERS))
            continue
        # Where the order itself names the program, only trying it shows whether it can be used.
        named = name == choice.name and "argv" in choice.options
        if seen.usable or named:
            return Chosen(name, executor, tuple(passed_over))
        passed_over.append(shorten(f"{name}: {seen.reason or 'it cannot be used on this host'}", REASON_CHARACTERS))
    return Chosen(choice.name, NoExecutor("no executor can be used. " + "; ".join(passed_over)))
