"""Kernel of a run: messages, questions, timeline, alerts and people's requests."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any, ClassVar

from temporalio import workflow
from temporalio.common import Priority, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError

from activities.alerts.activity import AlertActivities, AlertsSent, SendAlertsRequest
from activities.workspace.scope import EpisodeScope
from tightloop.errors import InvalidRequestError
from tightloop.ledger.alert import Alert, delivery_line
from tightloop.run.core import Queues, RunCore, RunInput, RunTimeline, TimelineLine, note_drift, urgency, with_line
from tightloop.run.question import (
    TELL_THE_PLANNER,
    AnswerCommand,
    Answers,
    Question,
    QuestionKind,
    match_answers,
    parse_answer,
)
from tightloop.safety.drift import Drift
from tightloop.safety.seal import SKEW_SECONDS, MessageLog, RefusedPayload, Seal, SealedMessage, check_id, check_start
from tightloop.telemetry import METRICS
from tightloop.value import shorten
from workflows.run.activities import Routing, found_no_worker, new_activity_id, priority_of

MESSAGE_CHARACTERS = 2_000
COMMAND_CHARACTERS = 2_000
"""Maximum length of an entry that shows a command with paths, which would be useless if truncated."""
ALERT_TIMEOUT = timedelta(minutes=1)
"""Timeout of one attempt on all channels."""
ALERT_PATIENCE = timedelta(minutes=15)
"""Timeout of all attempts together. After that, the alert is out of date."""
ALERT_PICK_UP_TIMEOUT = timedelta(seconds=20)
"""Maximum time to wait for a worker on the workspace's queue before using the workflow's own queue."""
LAST_ALERT_TIMEOUT = timedelta(seconds=10)
"""Maximum time that a failing workflow waits for its alert, which is lost when the workflow closes."""
ALERT_RETRIES = RetryPolicy(
    initial_interval=timedelta(seconds=1),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(minutes=1),
    maximum_attempts=8,
)


class ContinueAsNew(Exception):  # noqa: N818 - it ends the Temporal run, it is not an error
    """Raised to continue the workflow in a new Temporal run."""


class NotOpenedError(Exception):
    """Raised if the workspace could not be opened. No work was started."""

    def __init__(self, reason: str, kind: str) -> None:
        """Store the reason and `kind`, the error type that the workflow's caller sees."""
        super().__init__(reason)
        self.reason, self.kind = reason, kind


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Convert an `InvalidRequestError` to a non-retryable `ApplicationError`.

    Any other exception would fail the workflow task, and Temporal would retry the task until the worker's
    code changes.
    """
    try:
        yield
    except InvalidRequestError as error:
        # The message may quote the input, and the reply to an update is stored in the history.
        message = shorten(error.message, MESSAGE_CHARACTERS)
        raise ApplicationError(message, type="InvalidRequestError", non_retryable=True) from None


def check_seal(seal: Seal | None) -> None:
    """Check that the input was sealed for this workflow.

    Raises:
        InvalidRequestError: the input was sealed for another workflow. This workflow must not start.
    """
    if seal is not None:
        info = workflow.info()
        check_start(
            seal,
            started=_milliseconds(info.workflow_start_time),
            is_child=info.parent is not None,
            is_continued=info.continued_run_id is not None,
        )


class Inbox:
    """Verifies message seals and refuses replays. Without authentication, all messages are accepted.

    Attributes:
        heard: accepted messages, which are passed to the next run.
        last_heard: time of the last message that was accepted in this run.
    """

    def __init__(self, seal: Seal | None, messages: MessageLog) -> None:
        """Start with the seal of the input and the messages that previous runs accepted."""
        self._seal = seal
        # Messages issued before this workflow started were meant for an earlier workflow with the same id.
        since = 0 if seal is None else seal.issued - SKEW_SECONDS * 1000
        self.heard = messages if messages != MessageLog() else MessageLog(since=since)
        self.last_heard: datetime | None = None

    def read(self, message: Any) -> Any:
        """Return the content of an update's argument. The message is not recorded.

        Raises:
            ApplicationError: the message is a replay or was sealed for another workflow.
        """
        with refusals():
            if isinstance(message, SealedMessage):
                refusal = self.heard.refusal(message.seal, _milliseconds(workflow.now()))
                if refusal:
                    raise InvalidRequestError(f"the message was rejected: {refusal}")
                return message.content
            if self._seal is not None and message is not None:
                raise InvalidRequestError("the message was rejected: it was sealed by a workflow, not by a client")
        return message

    def take(self, message: Any) -> Any:
        """Return the content of an argument. Record the message so that it is not accepted again.

        Raises:
            ApplicationError: see `read`.
        """
        content = self.read(message)
        self.last_heard = workflow.now()
        if isinstance(message, SealedMessage):
            self.heard = self.heard.with_message(message.seal)
        return content

    def take_signal(self, message: Any) -> tuple[Any, ...]:
        """Return the content of a signal's argument.

        The result is empty if the signal is refused, because a signal has no reply.
        """
        try:
            return (self.take(message),)
        except ApplicationError as error:
            workflow.logger.warning("a signal was dropped: %s", error.message)
            return ()


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


class Meter:
    """The metrics that a workflow records. The SDK records nothing during replay."""

    def count(self, name: str, **labels: str) -> None:
        """Add 1 to a counter."""
        workflow.metric_meter().create_counter(name, METRICS[name]).add(1, labels)

    def record(self, name: str, value: float, **labels: str) -> None:
        """Record a value in a histogram."""
        workflow.metric_meter().create_histogram_float(name, METRICS[name]).record(value, labels)


class Run(Routing, ABC):
    """The state that all kinds of runs share. Other classes only change the state through these methods.

    Attributes:
        id: workflow ID.
        core: state that is passed to the next Temporal run.
        timeline: entries that this Temporal run logged.
        status: `running`, or the final status.
        qualifier: reason why a success is not a plain success.
        reason: reason why the run ended.
        inbox: authenticates messages.
        alerts: sends alerts.
        is_reset: whether the run was reset in Temporal and the reset has not been handled yet.
        is_woken: whether the main loop has work to do.
    """

    whole: ClassVar[str] = "the episode"
    """Value of `Question.blocks` for questions that stop the whole run."""
    line_characters: ClassVar[int] = 240
    lines_kept: ClassVar[int] = 80
    """Number of timeline entries that are passed to the next Temporal run."""

    def __init__(
        self,
        run_input: RunInput,
        *,
        run_id: str,
        now: Callable[[], datetime] = workflow.now,
        meter: Meter | None = None,
    ) -> None:
        self.id, self.now, self.meter = run_id, now, meter or Meter()
        self.core = run_input.core or RunCore()
        self.timeline = RunTimeline()
        self.status, self.qualifier, self.reason = "running", "", ""
        self.inbox = Inbox(run_input.sealed_as, run_input.heard)
        self.alerts = Alerts(self)
        self.is_reset = self.is_woken = False
        self._given = run_input

    # -- provided by each kind of run -----------------------------------------------------------------

    @property
    @abstractmethod
    def scope(self) -> EpisodeScope:
        """Scope for activity requests."""

    @property
    @abstractmethod
    def queues(self) -> Queues:
        """The request's task queues."""

    @property
    @abstractmethod
    def project(self) -> str:
        """Project name, used as the fairness key on task queues."""

    @property
    def is_new(self) -> bool:
        """True if no work has been done yet."""
        return False

    @property
    def answer_hint(self) -> str:
        """A hint to show if the run itself has no open question. It says where else to answer."""
        return TELL_THE_PLANNER

    @property
    def goes_on(self) -> bool:
        """True if an earlier run used the same ID."""
        return self._given.replace

    @abstractmethod
    def enter_closed_phase(self) -> None:
        """Enter the closed phase of this kind of run."""

    # -- life cycle -----------------------------------------------------------------------------------

    def check_start(self) -> None:
        """Check the requirements that apply to all inputs.

        Raises:
            InvalidRequestError: the input cannot be parsed, is not authentic, or has an unknown field.
        """
        if self._given.problem:
            raise InvalidRequestError(self._given.problem)
        # Anyone with access to Temporal may choose an id, and it becomes part of paths and git refs.
        check_id(workflow.info().workflow_id)
        check_seal(self._given.sealed_as)
        # Before the checks of the request: a misspelt field would be reported as a missing value.
        if self._given.unknown:
            raise InvalidRequestError(self._given.unknown)

    @property
    def is_first(self) -> bool:
        """True if the run has no parent and no previous run, and its ID is new."""
        info = workflow.info()
        return info.parent is None and info.continued_run_id is None and not self.goes_on

    @property
    def is_running(self) -> bool:
        """True if the run accepts messages."""
        return self.status == "running"

    def close(self, status: str, reason: str, qualifier: str = "") -> None:
        """Record how the run ended."""
        self.status, self.qualifier, self.reason = status, qualifier, reason

    def wake(self) -> None:
        """Wake the main loop."""
        self.is_woken = True

    def sleep(self) -> None:
        """Put the main loop to sleep until the next event."""
        self.is_woken = False

    def watch_resets(self) -> None:
        """Detect a reset in Temporal. A new random seed is the only sign of a reset."""
        workflow.register_random_seed_callback(self._mark_reset)

    def _mark_reset(self, _seed: int) -> None:
        # The SDK calls this outside the workflow's event loop, so it only sets a flag.
        self.is_reset = True
        self.timeline.begin_own()

    @property
    def priority(self) -> Priority:
        """Priority of the next activity. Not compared during replay."""
        urgent = urgency(last_message_at=self.inbox.last_heard, now=workflow.now(), is_new=self.is_new)
        return priority_of(self.project, self.queues.weight, urgent)

    # -- timeline -----------------------------------------------------------------------------------

    def cut(self, text: str, limit: int) -> str:
        """Shorten text to `limit` characters."""
        return shorten(text, limit)

    def log(self, kind: str, text: str = "", step: str = "", *, characters: int = 0) -> None:
        """Append an entry to the timeline. `characters` overrides the usual limit."""
        entry_text = self.cut(f"{step}: {text}" if step and text else step or text, characters or self.line_characters)
        line = TimelineLine(at=self.now(), kind=kind, step=step, text=entry_text)
        self.core = with_line(self.core, line, lines=self.lines_kept)
        self.timeline.add(self.core.timeline[-1])

    def log_drift(self, drift: Drift | None, step: str = "") -> None:
        """Record file changes that the run did not make."""
        self.core, report = note_drift(self.core, drift)
        for line in report:
            self.log("drift", line.strip(), step, characters=COMMAND_CHARACTERS)

    def log_delivery(self, delivered: str) -> None:
        """Recorded location where the result was delivered. Empty if the result is in the working tree."""
        if delivered:
            self.core = self.core.evolve(delivered=delivered)
            self.log("result", delivered, characters=COMMAND_CHARACTERS)

    # -- questions ------------------------------------------------------------------------------------

    @property
    def waiting(self) -> tuple[Question, ...]:
        """Open questions, oldest first."""
        return self.core.questions.waiting

    @property
    def is_paused(self) -> bool:
        """True if the whole run is waiting for an answer."""
        return any(question.blocks == self.whole for question in self.waiting)

    def find(self, *kinds: QuestionKind) -> tuple[Question, ...]:
        """Return the open questions of the given kinds."""
        return self.core.questions.find(*kinds)

    def ask(self, question: Question) -> Question:
        """Open a question and return it with its ID."""
        questions, opened = self.core.questions.open(question, self.now())
        self.core = self.core.evolve(questions=questions)
        if opened.blocks:
            self.meter.count("tightloop_pauses", kind=opened.kind.value)
        return opened

    def read_answer(self, value: Any) -> AnswerCommand:
        """Parse the argument of the update `answer`.

        Raises:
            InvalidRequestError: the argument is not an answer. The message shows an example.
        """
        return parse_answer(value, self.waiting[0].example) if self.waiting else parse_answer(value)

    def match(self, command: AnswerCommand) -> Answers:
        """Return the questions that a command answers. No answer is recorded. See `match_answers`."""
        return match_answers(
            command,
            # A question with a command of its own, such as `dispatch`, is answered by that command only.
            tuple(question for question in self.waiting if not question.command),
            self.answer_hint,
        )

    def answer(self, answers: Answers) -> Answers:
        """Record answers and return the updated questions. Questions with a `chosen` option are closed."""
        questions, updated_answers = self.core.questions.answer(answers, self.now())
        self.core = self.core.evolve(questions=questions)
        for question, _ in updated_answers:
            if question.chosen:
                self._measure(question)
        return updated_answers

    def close_questions(self, *ids: str) -> None:
        """Remove questions that no longer need an answer."""
        self.core = self.core.evolve(questions=self.core.questions.close(*ids))

    def settle_question(self, question: Question) -> None:
        """Remove a question that another action by a person has made unnecessary."""
        self.close_questions(question.id)
        self._measure(question)

    def _measure(self, question: Question) -> None:
        # An operator's own pause is not a wait for an answer.
        if question.since is not None and question.needs_person and question.kind is not QuestionKind.OPERATOR:
            waited = self.now() - question.since
            self.meter.record("tightloop_answer_seconds", waited.total_seconds(), kind=question.kind.value)

    # -- requests of people -----------------------------------------------------------------------------

    def want_pause(self, pause: Question | None) -> None:
        """Set the pause for the next safe point. None withdraws a requested pause."""
        self.core = self.core.evolve(pause=pause)

    def take_pause(self) -> Question | None:
        """Return and clear the requested pause. Called when the pause begins."""
        pause = self.core.pause
        self.want_pause(None)
        return pause

    def cancel(self, reason: str) -> None:
        """Request cancellation. The first reason is kept, even across Temporal runs."""
        if self.core.cancel is None:
            self.core = self.core.evolve(cancel=reason)
        self.wake()


class Alerts:
    """Sends a run's alerts and logs their delivery."""

    def __init__(self, run: Run) -> None:
        self._run = run
        # A dictionary: the order of a set could differ in replay.
        self._sending: dict[asyncio.Task[None], None] = {}

    @property
    def is_sending(self) -> bool:
        """True if an alert is being sent."""
        return bool(self._sending)

    def send(self, alert: Alert) -> asyncio.Task[None]:
        """Send an alert in the background."""
        task = asyncio.create_task(self._send(SendAlertsRequest(scope=self._run.scope, alert=alert)))
        self._sending[task] = None
        task.add_done_callback(self._forget)
        return task

    async def send_last(self, alert: Alert) -> None:
        """Send an alert and wait for up to `LAST_ALERT_TIMEOUT`.

        If the workflow closed earlier, the alert would be lost.
        """
        task = self.send(alert)
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                task.done,
                timeout=LAST_ALERT_TIMEOUT,
                timeout_summary="stop waiting for the alert to be sent",
            )

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._sending.pop(task, None)
        # A plan continues as new only when no alert is being sent, so its loop has to look again.
        self._run.wake()

    async def _send(self, request: SendAlertsRequest) -> None:
        kind = request.alert.kind.value
        try:
            reply = await self._deliver(request)
        except ActivityError as error:
            self._run.log("alert", f"{kind} could not be sent: {error.cause or error}")
            return
        if isinstance(reply, RefusedPayload):
            self._run.log("alert", f"the outcome of sending {kind} is unknown: {reply.reason}")
            return
        for delivery in reply.deliveries:
            self._run.log("alert", delivery_line(request.alert, delivery))

    async def _deliver(self, request: SendAlertsRequest) -> AlertsSent | RefusedPayload:
        """Send an alert from the workspace's queue. If the queue has no worker, use the workflow's own queue."""
        try:
            return await _execute(request, self._run.queues.workspace)
        except ActivityError as error:
            if not found_no_worker(error):
                raise
        return await _execute(request, "")


async def _execute(request: SendAlertsRequest, queue: str) -> AlertsSent | RefusedPayload:
    return await workflow.execute_activity_method(
        AlertActivities.send_alerts,
        request,
        activity_id=new_activity_id(),
        task_queue=queue or None,
        start_to_close_timeout=ALERT_TIMEOUT,
        # The workflow's own queue certainly has a worker: the one that runs this code.
        schedule_to_start_timeout=ALERT_PICK_UP_TIMEOUT if queue else None,
        schedule_to_close_timeout=ALERT_PATIENCE,
        retry_policy=ALERT_RETRIES,
        summary=f"alert: {request.alert.kind.value}",
    )
