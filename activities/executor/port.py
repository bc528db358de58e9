"""Executor interface, and the choice among fallbacks."""

import contextvars
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from temporalio import activity

from activities.artifacts.port import ArtifactStore
from activities.attempt import should_stop
from tightloop.coder.model import CoderResult
from tightloop.errors import ExecutorError, TightloopError, UntrustedProgramError
from tightloop.executor.model import (
    ErrorKind,
    ExecutorChoice,
    ExecutorOutcome,
    ExecutorReport,
    ExecutorStatus,
    Progress,
    ResumeToken,
    WorkOrder,
)
from tightloop.value import ArtifactRef, Value, shorten

if TYPE_CHECKING:
    from activities.executor.outbox import Outbox
    from activities.workspace.working_tree import WorkingTree


PROGRESS_S = 1.0
"""Minimum interval between heartbeats for an agent that reports every event."""


class Control:
    """Connects an executor to its activity and its working tree, for example to poll for cancellation."""

    def __init__(self, tree: "WorkingTree") -> None:
        self._tree = tree
        # Executors may poll from their own threads, where the activity's context is not set.
        self._context = contextvars.copy_context()
        self._last_heartbeat = -math.inf
        self._resume: ResumeToken | None = None

    def is_cancelled(self) -> bool:
        """Return whether the work must stop. The executor polls this at least once a second."""
        return self._context.copy().run(should_stop)

    def own_process(self, pid: int) -> None:
        """Record a child process so that it is killed if this worker dies."""
        self._tree.own_process(pid)

    def progress(self, progress: Progress) -> None:
        """Send the agent's progress as a heartbeat, at most once a second. Call this for every event."""
        now = time.monotonic()
        # Send a new session immediately: an attempt after a crash resumes it.
        if progress.resume == self._resume and now - self._last_heartbeat < PROGRESS_S:
            return
        self._last_heartbeat, self._resume = now, progress.resume
        self._context.copy().run(activity.heartbeat, progress)


class Availability(Value):
    """The result of checking whether an executor can be used on this host, without running it."""

    usable: bool = True
    reason: str = ""
    """A sentence about the problem and how to fix it. Empty if the executor is usable."""
    version: str = ""


class Executor(ABC):
    """Carries out one order. The methods block and are called in a thread."""

    def availability(self) -> Availability:
        """Check the program and the key. This takes at most 10 s and starts nothing that is slow or costs money."""
        return Availability()

    def reconcile(self, order: WorkOrder, state_folder: Path) -> ExecutorOutcome | None:
        """Return the outcome of a delivery if the files of a dead attempt show it, or None otherwise.

        This is called after all processes of that attempt have ended and before anything is delivered again.
        """
        del order, state_folder
        return None

    def continues(self, order: WorkOrder, state_folder: Path) -> bool:
        """Return whether `execute` continues the work of a dead attempt without repeating anything.

        This is called if `reconcile` returns None. If the result is True, the delivery continues without
        asking a person, regardless of the order's `on_crash`.
        """
        del order, state_folder
        return False

    def effects_outside(self, order: WorkOrder) -> str:
        """Describe possible effects outside the working tree and the executor's home, or return "".

        The text is a phrase for a person to read. After a crash, an order is repeated without asking only if
        it has no such effects. Spending model tokens twice does not count as an effect.
        """
        del order
        return "unknown, because the executor does not declare its effects"

    @abstractmethod
    def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
        """Carry out the order and return its outcome. No child process may outlive the call.

        Args:
            order: the work to do.
            control: reports stop requests and records child processes.
            state_folder: the project's folder for files that are not code; see `state_folder_of`.

        Raises:
            ExecutorError: the executor cannot be started with this configuration.
        """


class DelegatingExecutor(Executor):
    """An executor whose orders are carried out by a workflow.

    `execute` only claims the delivery. The episode then starts the workflow and calls `conclude`.
    """

    @abstractmethod
    def conclude(self, result: CoderResult, store: ArtifactStore, state_folder: Path) -> ExecutorOutcome:
        """Return the outcome of a delivery that a workflow carried out. Idempotent."""


Executors = Callable[[str], Executor]
"""Returns the executor with the given name. Raises ExecutorError for an unknown name and lists the known ones."""


class DeliveryState(StrEnum):
    """Progress of a delivery."""

    QUEUED = "queued"
    CLAIMED = "claimed"
    REPORTED = "reported"


class DeliveryError(TightloopError):
    """Raised if a delivery is not in the outbox, or its state does not allow the request."""


class OutboxEntry(Value):
    """One row of the outbox."""

    key: str
    episode_id: str
    iteration: int
    order: ArtifactRef
    state: DeliveryState
    claims: int = 0
    """Number of attempts that started to deliver. It can exceed one only if `on_crash` allows that."""
    base_tree: str = ""
    """The tree from which the first attempt started. Empty before the first claim."""
    broke_off: str = ""
    """Recorded reason why the last attempt ended without a report. Empty if the attempt was killed."""
    report: ExecutorReport | None = None


Outboxes = Callable[[Path], "Outbox"]
"""Returns the outbox of a workspace's project."""


REASON_CHARACTERS = 200


@dataclass(frozen=True)
class NoExecutor(Executor):
    """The executor that is used if no other one is available. Every order fails and gives the reasons."""

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
    """The executor chosen for an order."""

    name: str
    executor: Executor
    passed_over: tuple[str, ...] = ()
    """The reasons why preferred executors are unusable, one sentence each."""

    def adapt_order(self, order: WorkOrder) -> WorkOrder:
        """Return the order without the session, model and options meant for other executors."""
        choice, resume = order.executor, order.resume
        other_names = {choice.name, *choice.fallback} - {self.name}
        # To another executor, model names and options mean nothing or something else.
        named = choice if self.name == choice.name else choice.evolve(name=self.name, model="", options={})
        return order.evolve(
            executor=named,
            resume=None if resume is not None and resume.adapter in other_names else resume,
        )


def choose(executors: Executors, choice: ExecutorChoice) -> ExecutorSelection:
    """Return the first executor, in order of preference, that is usable on this host."""
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
        passed_over.append(shorten(f"{name}: {availability.reason or 'not usable on this host'}", REASON_CHARACTERS))
    # Not an exception: the delivery then has an outcome, which the episode shows with the reasons.
    return ExecutorSelection(choice.name, NoExecutor("no executor is usable. " + "; ".join(passed_over)))
