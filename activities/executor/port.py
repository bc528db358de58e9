"""Executor contract, and the choice among fallbacks."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from activities.artifacts.port import ArtifactStore
from tightloop.coder.model import CoderResult
from tightloop.errors import ExecutorError, TightloopError, UntrustedProgramError
from tightloop.executor.model import (
    ErrorKind,
    ExecutorChoice,
    ExecutorOutcome,
    ExecutorReport,
    ExecutorStatus,
    Progress,
    WorkOrder,
)
from tightloop.value import ArtifactRef, Value, shorten


class Control(Protocol):
    """The supervisor of an executor, as the executor sees it."""

    def cancelled(self) -> bool:
        """Return whether the work should stop; to be asked at least once a second."""
        ...

    def own_process(self, pid: int) -> None:
        """Note a child process, so that it is ended should this worker die."""

    def progress(self, progress: Progress) -> None:
        """Report progress; cheap, may be called for every event."""


class Availability(Value):
    """Whether an executor can be used on this host, as far as that is seen without using it."""

    usable: bool = True
    reason: str = ""
    """A sentence that says what is missing and how to get it; empty when usable."""
    version: str = ""


class Executor(ABC):
    """Does the work of one order. Blocking; runs in a thread."""

    def availability(self) -> Availability:
        """Look for the program and the key, without starting anything long or costly (at most 10 s)."""
        return Availability()

    def reconcile(self, order: WorkOrder, state_folder: Path) -> ExecutorOutcome | None:
        """Return how the delivery of an attempt that died ended, from its files; None: they do not say.

        Called with every process of that attempt gone, before anything is delivered again.
        """
        del order, state_folder
        return None

    def continues(self, order: WorkOrder, state_folder: Path) -> bool:
        """Return whether `execute` goes on with what an attempt that died has begun, and does nothing twice.

        Asked where `reconcile` cannot tell; then neither the order's `on_crash` nor a person decides.
        """
        del order, state_folder
        return False

    def effects_outside(self, order: WorkOrder) -> str:
        """Return what this order may change outside the working tree and the executor's own home; empty: nothing.

        A phrase for a person. After a crash only what declares that it changes nothing there is delivered again
        without asking; tokens of a model that are spent twice do not count.
        """
        del order
        return "the executor does not declare what it changes there"

    @abstractmethod
    def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
        """Work until done, limited, failed or cancelled. No child process may survive the return.

        Args:
            order: what to do.
            control: says whether to stop, and notes child processes.
            state_folder: the project's folder for what is not its code, see `state_folder_of`.

        Raises:
            ExecutorError: the executor cannot be started as configured.
        """


class DelegatingExecutor(Executor):
    """An executor that is a workflow: `execute` claims the delivery, the episode starts the workflow and concludes."""

    @abstractmethod
    def conclude(self, result: CoderResult, store: ArtifactStore, state_folder: Path) -> ExecutorOutcome:
        """Return how a delivery ended that the workflow has carried out. Idempotent."""


Executors = Callable[[str], Executor]
"""Returns the executor of a name; raises ExecutorError for an unknown one, with those that are known."""


class DeliveryState(StrEnum):
    """How far a delivery came."""

    QUEUED = "queued"
    CLAIMED = "claimed"
    REPORTED = "reported"


class DeliveryError(TightloopError):
    """A delivery is not in the outbox, or has come too far for what is asked."""


class Delivered(Value):
    """One row of the outbox."""

    key: str
    episode_id: str
    iteration: int
    order: ArtifactRef
    state: DeliveryState
    claims: int = 0
    """How often an attempt began to deliver; more than one only where `on_crash` allows that."""
    base_tree: str = ""
    """The tree from which the first attempt began; empty while nothing was claimed."""
    broke_off: str = ""
    """Why the last attempt ended without a report, as it said itself; empty: it did not, as one that was killed."""
    report: ExecutorReport | None = None


class Outbox(Protocol):
    """The durable record of deliveries on the executor's host."""

    def add(self, key: str, episode_id: str, iteration: int, order: ArtifactRef) -> None:
        """Queue a delivery. Idempotent by key: the first order stays."""

    def get(self, key: str) -> Delivered | None:
        """Return what was recorded of a delivery; None: it was never queued."""

    def claim(self, key: str, base_tree: str) -> None:
        """Record durably that delivering begins, and from which tree; called before acting.

        Raises:
            DeliveryError: the key was never queued, or is reported already.
        """

    def break_off(self, key: str, reason: str) -> None:
        """Record durably why the attempt that claimed last ends without a report."""

    def report(self, key: str, report: ExecutorReport) -> None:
        """Record durably how the delivery ended. Idempotent for an equal report; the first one stays.

        Raises:
            DeliveryError: the key was never queued, or another report is there already.
        """

    def deliveries(self, episode_id: str) -> tuple[Delivered, ...]:
        """Return the deliveries of an episode in the order of queueing."""
        ...


Outboxes = Callable[[Path], Outbox]
"""Returns the outbox of the project in a workspace."""


REASON_CHARACTERS = 200


@dataclass(frozen=True)
class NoExecutor(Executor):
    """Stands where no executor can be used: every order is refused with the reasons."""

    reason: str
    """A sentence for a person."""

    def availability(self) -> Availability:
        return Availability(usable=False, reason=self.reason)

    def effects_outside(self, order: WorkOrder) -> str:
        del order
        return ""

    def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
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
