"""An episode's state, and its views for people."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Concatenate, ParamSpec

from temporalio import workflow

from activities.workspace.scope import EpisodeScope
from tightloop.episode import state_changes
from tightloop.episode.budget import Spent
from tightloop.episode.checkpoint import MoveTarget, RestoreTarget
from tightloop.episode.control import EpisodeInput, details_markdown, status_of
from tightloop.episode.decisions import about_work
from tightloop.episode.model import EpisodeOutcome, EpisodePhase, EpisodeRequest, EpisodeState, EpisodeStatus
from tightloop.ledger.alert import Alert, AlertKind, alert_of
from tightloop.ledger.model import WorkflowSnapshot, episode_snapshot
from tightloop.run.core import Queues, Work
from tightloop.run.outcome import label
from tightloop.run.question import ABOUT_WORK, Answer, Question, QuestionKind
from workflows.run.activities import ActivityRunner
from workflows.run.kernel import COMMAND_CHARACTERS, Meter, Run
from workflows.run.reporting import View, first_row

P = ParamSpec("P")


class EpisodeRecord(Run):
    """The state of an episode run. Other classes only change the state through these methods.

    Attributes:
        request: the request with its amendments.
        state: the state that a checkpoint stores and a restore replaces.
        restore_wanted: checkpoint to restore in the next Temporal run.
        move_wanted: host to move to in the next Temporal run.
        is_amended: whether the request has changed and the change has not been stored yet.
        work: description of the running activity.
    """

    def __init__(
        self,
        run_input: EpisodeInput,
        *,
        run_id: str,
        now: Callable[[], datetime] = workflow.now,
        meter: Meter | None = None,
    ) -> None:
        # An input that cannot be parsed still needs a run, which logs and publishes the refusal.
        self.request = EpisodeRequest() if run_input.problem else EpisodeRequest.of(run_input).starting_in_folder()
        self.state = run_input.state or EpisodeState(budget=self.request.budget)
        super().__init__(run_input, run_id=run_id, now=now, meter=meter)
        self.given = run_input
        self.restore_wanted: RestoreTarget | None = None
        self.move_wanted: MoveTarget | None = None
        self.is_amended = self.state.amended
        self.work: Work | None = None
        self._answers: dict[str, Answer] = {}
        self._working_since: datetime | None = None

    # -- required by the kernel -------------------------------------------------------------------------

    @property
    def queues(self) -> Queues:
        """The task queues on which the request runs. They change when the episode moves to another host."""
        return self.request.queues

    @property
    def scope(self) -> EpisodeScope:
        """Scope for activity requests."""
        return EpisodeScope(
            episode_id=self.id,
            workspace=self.request.workspace,
            worktree=self.request.worktree,
            request=self.state.request,
            home=self.request.queues.home,
            within=self.request.within,
            epoch=self.state.epoch,
        )

    @property
    def project(self) -> str:
        """Project name, used as the fairness key on task queues."""
        return self.request.project_name

    @property
    def is_new(self) -> bool:
        """True if no iteration has begun yet."""
        return self.state.iteration == 0

    @property
    def goes_on(self) -> bool:
        """True if an earlier run used the same ID."""
        return self.given.goes_on

    def enter_closed_phase(self) -> None:
        """Enter the CLOSED phase."""
        self.state = self.state.evolve(phase=EpisodePhase.CLOSED)

    def report_missing_worker(self, what: str) -> None:
        """Log that the executor has no worker, and alert people. The episode continues when a worker starts."""
        self.log("waits", what)
        self.alerts.send(self.alert(AlertKind.NO_EXECUTOR, what))

    def leave_silent_host(self, successor: str) -> bool:
        """Request a move to another host, because the current host has been silent for too long.

        Return False if the run has closed or is already ending.
        """
        if not self.is_running or self.is_leaving:
            return False
        self.move_wanted = MoveTarget(to=successor, reason="the previous host did not respond", by="tightloop")
        return True

    def ask(self, question: Question) -> Question:
        """Open a question.

        Questions about the work also show why checks fail and what the executor reported last.
        """
        if question.kind in ABOUT_WORK:
            evidence = about_work(self.state, question.evidence, output=f"tightloop output {self.id}")
            question = question.evolve(evidence=evidence)
        return super().ask(question)

    # -- state ------------------------------------------------------------------------------------------

    def apply(
        self, change: Callable[Concatenate[EpisodeState, P], EpisodeState], *arguments: P.args, **named: P.kwargs
    ) -> None:
        """Replace the state with the result of a pure function."""
        self.state = change(self.state, *arguments, **named)

    def replace(self, state: EpisodeState) -> None:
        """Replace the episode's state."""
        self.state = state

    def amend(self, request: EpisodeRequest) -> None:
        """Replace the request with an amended request."""
        self.request = request

    def bind(self, home: str) -> None:
        """Record the task queue of the host where the workspace is located."""
        queues = self.request.queues
        self.request = self.request.evolve(queues=queues.evolve(home=home or queues.home))

    def move(self, target: MoveTarget) -> None:
        """Switch to another host and start a new epoch. The new host has not taken over yet."""
        queues = self.request.queues
        # Only the lost host served this queue, so nothing would be picked up from it.
        shared = "" if queues.workspace == queues.home else queues.workspace
        self.request = self.request.evolve(
            workspace=target.workspace or self.request.workspace,
            queues=queues.evolve(home=target.to, workspace=shared),
        )
        # The silent host may come back with running activities; their smaller epoch keeps them from recording.
        self.state = self.state.evolve(epoch=self.state.epoch + 1, move=target)

    def note(self, text: str, *, asks: bool = False) -> None:
        """Queue a message for the planner. If `asks` is True, the planner runs again before the episode ends."""
        self.state = state_changes.with_note(self.state, text, asks=asks)

    def log_saved_tree(self, tree: str | None, bring_back: str) -> None:
        """Log the tree with the files that a restore replaced, and the command that brings these files back."""
        if tree is not None:
            self.log("saved", f"the files that the restore replaced were saved as tree {tree[:12]}")
            if bring_back:
                self.log("saved", f"to restore the saved files, run: {bring_back}", characters=COMMAND_CHARACTERS)

    def alert(
        self, kind: AlertKind, reason: str, question: Question | None = None, at: datetime | None = None
    ) -> Alert:
        """Create an alert about an event and the question that it raised."""
        happened = (at or self.now(), reason)
        return alert_of(self.request, self.state, kind, episode_id=self.id, happened=happened, question=question)

    # -- requests of people -----------------------------------------------------------------------------

    @property
    def is_leaving(self) -> bool:
        """True if this Temporal run is about to end."""
        return self.core.cancel is not None or self.continues

    @property
    def continues(self) -> bool:
        """True if another Temporal run will follow this one."""
        return self.restore_wanted is not None or self.move_wanted is not None

    def keep_answer(self, answer: Answer) -> None:
        """Store an answer for the call that is waiting for it."""
        self._answers[answer.question] = answer

    def take_answer(self, question_id: str) -> Answer | None:
        """Remove and return the answer to a question. Return None if the wait ended without an answer."""
        return self._answers.pop(question_id, None)

    # -- working time: waiting for people does not count -------------------------------------------

    @property
    def worked(self) -> timedelta:
        """Working time so far, including the time that has not been counted yet."""
        now = self.now()
        return self.state.spent.wall_time + (now - (self._working_since or now))

    def start_work(self) -> None:
        """Start counting working time."""
        self._working_since = self.now()

    def count_work(self) -> None:
        """Count the working time since the last call."""
        if self._working_since is not None:
            now = self.now()
            self.state = state_changes.with_working_time(self.state, now - self._working_since)
            self._working_since = now

    def stop_work(self) -> None:
        """Count the remaining working time and stop the clock."""
        self.count_work()
        self._working_since = None

    def count_end(self, outcome: EpisodeOutcome) -> None:
        """Record the metrics of an episode that is ending."""
        spent: Spent = self.state.spent
        ending = label(outcome.value, self.qualifier)
        self.meter.count("tightloop_episodes", outcome=ending)
        values = {
            # Omit totals that are only a lower bound.
            **({} if spent.unreported_calls else {"tightloop_episode_tokens": float(spent.tokens)}),
            **({} if spent.unpriced_calls else {"tightloop_episode_cost_usd": spent.cost_usd}),
            "tightloop_episode_minutes": spent.wall_time.total_seconds() / 60,
            "tightloop_episode_iterations": float(spent.iterations),
        }
        for name, value in values.items():
            self.meter.record(name, value, outcome=ending)


class EpisodeView(View):
    """The views of an episode: status, details and ledger row."""

    def __init__(self, record: EpisodeRecord, runner: ActivityRunner) -> None:
        self._record, self._runner = record, runner

    @property
    def is_opened(self) -> bool:
        """True if the workspace is open."""
        return self._record.state.request is not None

    @property
    def tells_parent(self) -> bool:
        """True if the open questions are reported to a parent plan."""
        return self._record.request.is_nested

    @property
    def needs(self) -> tuple[Question | None, bool]:
        """The question that needs an answer, and whether the episode is blocked until it is answered.

        A blocking question takes precedence over an operator's question. An agent's question about its own
        report is not shown, because the agent itself answers it.
        """
        waiting = self._record.waiting
        if blocking := next((question for question in waiting if question.blocks), None):
            return blocking, True
        return next((question for question in waiting if question.kind is QuestionKind.OPERATOR), None), False

    def status(self) -> EpisodeStatus:
        """Return a snapshot of the episode."""
        record = self._record
        # Closing does not remove open questions, so these alone do not mean a pause.
        is_paused = record.is_running and record.is_paused
        status = status_of(
            record.request,
            record.state,
            record.core,
            episode_id=record.id,
            run_id=workflow.info().run_id,
            status="paused" if is_paused else record.status,
            work=record.work,
        )
        if not record.is_running:
            outcome = EpisodeOutcome(record.status.upper())
            # A diagnosis of an earlier iteration does not apply to a success.
            diagnosis = "" if outcome is EpisodeOutcome.SUCCEEDED else status.diagnosis
            status = status.evolve(
                phase=EpisodePhase.CLOSED, outcome=outcome, work=None, questions=(), diagnosis=diagnosis
            )
        is_pause_requested = record.core.pause is not None and record.is_running
        return status.evolve(
            pause_requested=is_pause_requested,
            waits_for=self._runner.waits_for,
            qualifier=record.qualifier,
            reason=record.reason,
            files_changed=record.state.evidence.files_changed if record.state.evidence else None,
        )

    def details(self) -> str:
        """Return the current details as Markdown."""
        record = self._record
        closed = f"{record.status}, {record.qualifier}" if record.qualifier else record.status
        status = "paused" if record.is_running and record.is_paused else closed
        return details_markdown(
            record.request, record.state, record.waiting, episode_id=record.id, status=status, work=record.work
        )

    def row(self) -> WorkflowSnapshot:
        """Return the ledger row of this run."""
        parent = workflow.info().parent
        return episode_snapshot(self.status(), parent=parent.workflow_id if parent else "", at=workflow.now())

    @property
    def first(self) -> WorkflowSnapshot:
        """Initial ledger row."""
        return first_row("episode", self._record.request.goal, self._record.request.executor.name)
