"""Executor interface, and the choice among fallbacks."""

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
    """Supervision of an executor, as seen by the executor."""

    def is_cancelled(self) -> bool:
        """Return whether the work must stop; poll it at least once a second."""
        ...

    def own_process(self, pid: int) -> None:
        """Record a child process, so that it is killed if this worker dies."""

    def progress(self, progress: Progress) -> None:
        """Report progress; cheap, may be called for every event."""


class Availability(Value):
    """Availability of an executor on this host, as far as it can be checked without using it."""

    usable: bool = True
    reason: str = ""
    """Sentence about the problem and its fix; empty when usable."""
    version: str = ""


class Executor(ABC):
    """Carries out one order. Blocking; runs in a thread."""

    def availability(self) -> Availability:
        """Check program and key, without starting anything slow or costly (at most 10 s)."""
        return Availability()

    def reconcile(self, order: WorkOrder, state_folder: Path) -> ExecutorOutcome | None:
        """Return the outcome of a dead attempt's delivery from its files, or None if they do not show it.

        Called after all processes of that attempt have ended, before anything is delivered again.
        """
        del order, state_folder
        return None

    def continues(self, order: WorkOrder, state_folder: Path) -> bool:
        """Return whether `execute` continues what a dead attempt started, without repeating anything.

        Called if `reconcile` returns None; if True, neither the order's `on_crash` nor a person decides.
        """
        del order, state_folder
        return False

    def effects_outside(self, order: WorkOrder) -> str:
        """Return the order's possible effects outside the working tree and the executor's home, or "".

        A phrase for a person. After a crash, only executors that declare no such effects are repeated without asking;
        spending model tokens twice does not count.
        """
        del order
        return "the executor does not declare what it changes there"

    @abstractmethod
    def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
        """Work until done, limited, failed or cancelled. No child process may survive the return.

        Args:
            order: work to do.
            control: reports stop requests, and records child processes.
            state_folder: the project's folder for non-code files, see `state_folder_of`.

        Raises:
            ExecutorError: the executor cannot be started with this configuration.
        """


class DelegatingExecutor(Executor):
    """Executor run by a workflow: `execute` claims the delivery; the episode starts the workflow and concludes."""

    @abstractmethod
    def conclude(self, result: CoderResult, store: ArtifactStore, state_folder: Path) -> ExecutorOutcome:
        """Return the outcome of a delivery that the workflow carried out. Idempotent."""


Executors = Callable[[str], Executor]
"""Returns the executor of a name; raises ExecutorError for an unknown one and lists the known ones."""


class DeliveryState(StrEnum):
    """Progress of a delivery."""

    QUEUED = "queued"
    CLAIMED = "claimed"
    REPORTED = "reported"


class DeliveryError(TightloopError):
    """A delivery is not in the outbox, or its state does not allow the request."""


class OutboxEntry(Value):
    """One row of the outbox."""

    key: str
    episode_id: str
    iteration: int
    order: ArtifactRef
    state: DeliveryState
    claims: int = 0
    """Number of attempts that started to deliver; more than one only if `on_crash` allows that."""
    base_tree: str = ""
    """Tree from which the first attempt started; empty before the first claim."""
    broke_off: str = ""
    """Recorded reason why the last attempt ended without a report; empty if it was killed."""
    report: ExecutorReport | None = None


class Outbox(Protocol):
    """Durable record of deliveries on the executor's host."""

    def add(self, key: str, episode_id: str, iteration: int, order: ArtifactRef) -> None:
        """Queue a delivery. Idempotent by key: the first order is kept."""

    def get(self, key: str) -> OutboxEntry | None:
        """Return a delivery; None if it was never queued."""

    def claim(self, key: str, base_tree: str) -> None:
        """Record durably, before acting, that delivery starts and from which tree.

        Raises:
            DeliveryError: the key was never queued, or is already reported.
        """

    def break_off(self, key: str, reason: str) -> None:
        """Record durably why the last claiming attempt ends without a report."""

    def report(self, key: str, report: ExecutorReport) -> None:
        """Record the report durably. Idempotent for an equal report; the first one is kept.

        Raises:
            DeliveryError: the key was never queued, or has a different report.
        """

    def deliveries(self, episode_id: str) -> tuple[OutboxEntry, ...]:
        """Return the deliveries of an episode in queueing order."""
        ...


Outboxes = Callable[[Path], Outbox]
"""Returns the outbox of the project in a workspace."""


REASON_CHARACTERS = 200


@dataclass(frozen=True)
class NoExecutor(Executor):
    """Placeholder if no executor is usable: every order fails with the reasons."""

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
class ExecutorSelection:
    """Executor chosen for an order."""

    name: str
    executor: Executor
    passed_over: tuple[str, ...] = ()
    """Reasons why preferred executors are unusable, one sentence each."""

    def adapt_order(self, order: WorkOrder) -> WorkOrder:
        """Return the order without the session, model and options of other executors."""
        choice, resume = order.executor, order.resume
        other_names = {choice.name, *choice.fallback} - {self.name}
        # To another executor, model names and options mean nothing or something else.
        named = choice if self.name == choice.name else choice.evolve(name=self.name, model="", options={})
        return order.evolve(
            executor=named,
            resume=None if resume is not None and resume.adapter in other_names else resume,
        )


def choose(executors: Executors, choice: ExecutorChoice) -> ExecutorSelection:
    """Return the first executor that is usable on this host."""
    passed_over: list[str] = []
    for name in (choice.name, *choice.fallback):
        try:
            executor = executors(name)
            availability = executor.availability()
        # One broken installation must not hide the fallbacks behind it.
        except (ExecutorError, UntrustedProgramError) as error:
            passed_over.append(shorten(error.message, REASON_CHARACTERS))
            continue
        # If the order itself names the program, only running it shows whether it is usable.
        named = name == choice.name and "argv" in choice.options
        if availability.usable or named:
            return ExecutorSelection(name, executor, tuple(passed_over))
        passed_over.append(
            shorten(f"{name}: {availability.reason or 'it cannot be used on this host'}", REASON_CHARACTERS)
        )
    # Not an exception: the delivery then has an outcome, which the episode shows with the reasons.
    return ExecutorSelection(choice.name, NoExecutor("no executor can be used. " + "; ".join(passed_over)))
