"""Executor for agents that have a command line."""

import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

from activities.executor.agent.host import AgentAdapter, AgentHost, Ending, EventReader, ModelAccess, resume_preface
from activities.executor.agent.program import agent_home, write_files
from activities.executor.agent.record import (
    EVENTS_FILE,
    NEEDED,
    Bounds,
    Record,
    Redaction,
    Stop,
    limit_outcome,
    run_folder,
    stopped_outcome,
    sweep_runs,
)
from activities.executor.delivery import early_outcome, fatal_outcome, write_temporary_file
from activities.executor.port import Availability, Control, Executor
from activities.model.gateway.server import GatewayServer
from activities.model.gateway.wire import GatewayCounters
from activities.process import ProcessResult, Reason, run_process
from activities.process.output import BoundedOutput, EventLines
from activities.sandbox.port import SandboxUnavailableError
from tightloop.errors import ExecutorError
from tightloop.executor.model import (
    ErrorKind,
    EventKind,
    ExecutorChoice,
    ExecutorOutcome,
    ExecutorStatus,
    Progress,
    ResumeToken,
    Usage,
    WorkOrder,
)
from tightloop.host.identity import host_identity
from tightloop.value import shorten

FINISHED_S = 5.0
"""Time in seconds for which an agent may keep running after it has reported that its work is done."""
PROGRESS_EVERY_S = 1.0
CHECK_EVERY_S = 0.2
STATUS_LINES = 50
STATUS_CHARACTERS = 1_000
_ENDING_LINES = 30
_ERRORS_BYTES = 16_000
_WENT_WELL = (ExecutorStatus.COMPLETED, ExecutorStatus.NO_CHANGE, ExecutorStatus.REFUSED)


class Run:
    """One run of an agent, with its events, stop conditions and outcome. Use it from one thread."""

    def __init__(
        self,
        choice: ExecutorChoice,
        reader: EventReader,
        control: Control,
        *,
        record: Record,
        redaction: Redaction,
        gateway: GatewayServer | None,
        token: Callable[[str], ResumeToken],
        resume: ResumeToken | None,
    ) -> None:
        """Prepare a run. `token` creates a resume token from a session id."""
        self._stop: Stop | None = None
        self._bounds = Bounds(choice, gateway)
        self._transcript = BoundedOutput()
        self._status_lines: deque[str] = deque(maxlen=STATUS_LINES)
        """Output lines that are not events."""
        self._choice, self._reader, self._control, self._gateway = choice, reader, control, gateway
        self._record, self._redaction = record, redaction
        self._token, self._resume = token, resume
        self._pid: int | None = None
        self._last: EventKind | None = None
        self._lines = EventLines()
        self._reported = self._checked = time.monotonic()
        self._finished: float | None = None

    def note_start(self, pid: int) -> None:
        self._pid = pid
        self._control.own_process(pid)
        self._report()

    def take(self, chunk: bytes) -> None:
        self._bounds.note_life()
        for line in self._lines.feed(chunk):
            self._read(line)

    def close(self) -> None:
        """Read the remaining output and report the final progress."""
        self._read(self._lines.rest())
        self._report()

    def must_stop(self) -> bool:
        """Return whether the agent must be stopped. This is called several times a second."""
        # Checked at every poll; the limits less often, because they read the counters of the gateway.
        if self._stop is None and self._control.is_cancelled():
            self._stop = Stop.CANCELLED
        now = time.monotonic()
        if self._stop is None and now - self._checked >= CHECK_EVERY_S:
            self._checked = now
            if self._finished is None:
                self._stop = self._bounds.check()
            elif now - self._finished >= FINISHED_S:
                self._stop = Stop.FINISHED
        return self._stop is not None

    def _read(self, line: str) -> None:
        text = self._redaction(line)
        if not text.strip():
            return
        # Limits and crashes are printed as plain text, between the events or instead of them.
        if not text.lstrip().startswith("{"):
            self._status_lines.append(shorten(text, STATUS_CHARACTERS))
        events = self._reader.feed(text)
        kinds = [event.kind for event in events]
        if self._stop in (None, Stop.FINISHED):
            # When stopped, some agents report success: the next attempt must not believe it.
            self._record.add(text, needed=not NEEDED.isdisjoint(kinds))
        self._transcript.add(f"{text}\n".encode("utf-8", "replace"))
        self._bounds.events += len(events)
        self._last = kinds[-1] if kinds else self._last
        if self._reader.finished and self._finished is None:
            self._finished = time.monotonic()
        sessions = [event.session_id for event in events if event.session_id]
        if sessions:
            self._resume = self._token(sessions[-1])
        # A new session is reported at once: it is lost if the worker dies before the next heartbeat.
        if sessions or time.monotonic() - self._reported >= PROGRESS_EVERY_S:
            self._report()

    def _report(self) -> None:
        self._reported = time.monotonic()
        self._control.progress(
            Progress(events=self._bounds.events, last=self._last, resume=self._resume, pid=self._pid)
        )

    def ending(self, result: ProcessResult) -> Ending:
        """Return the exit code and the last output lines of the process."""
        lines = [*self._status_lines, *self._errors(result).splitlines()]
        return Ending(exit_code=result.exit_code, output_end="\n".join(lines[-_ENDING_LINES:]))

    def outcome(self, result: ProcessResult) -> ExecutorOutcome:
        """Return the run's outcome.

        Limits and usage reported by the gateway take precedence over the agent's report.
        """
        counters = None if self._gateway is None else self._gateway.read_counters()
        stopped = None if self._stop is None else stopped_outcome(self._stop, self._choice, self._bounds.limit)
        outcome = stopped or self._outcome_at_exit(result, counters)
        if errors := self._errors(result):
            self._transcript.add(f"[standard error]\n{errors}\n".encode("utf-8", "replace"))
        # A token after success would make the next plan continue a conversation about the old one.
        resume = None if outcome.status in _WENT_WELL else self._resume
        started = result.reason is not Reason.NOT_STARTED
        usage = (
            counters.usage
            if counters is not None and counters.usage.known
            else outcome.usage or (Usage() if started else None)
        )
        return outcome.evolve(usage=usage, transcript=self._transcript.value(), resume=resume, cpu_s=result.cpu_s)

    def _errors(self, result: ProcessResult) -> str:
        return self._redaction.end_of(result.errors, _ERRORS_BYTES).strip()

    def _outcome_at_exit(self, result: ProcessResult, counters: GatewayCounters | None) -> ExecutorOutcome:
        if self._stop is not Stop.FINISHED and (early := early_outcome(result, self._choice)):
            return early
        outcome = self._reader.read_outcome(self.ending(result))
        # Exit code 0 is no proof: wrappers and killed agents exit with it too.
        if outcome.status is ExecutorStatus.COMPLETED and not self._reader.finished:
            error = "the agent exited without reporting that it is done"
            return outcome.evolve(status=ExecutorStatus.FAILED, error=error, error_kind=ErrorKind.PROTOCOL)
        if counters is None or outcome.status in _WENT_WELL:
            return outcome
        # Codex's events omit the retry-after of a 429 response: only the gateway sees it.
        better = stopped_outcome(Stop.MODEL_CALLS, self._choice, None) if counters.budget_spent else None
        if better is None and counters.limit is not None:
            better = limit_outcome(counters.limit, outcome.error)
        if better is None:
            return outcome
        return outcome.evolve(
            status=better.status, error=better.error, error_kind=better.error_kind, limit=better.limit
        )


@dataclass(frozen=True)
class AgentExecutor(AgentHost, Executor):
    """Runs an agent with its own home, model access, sandbox and limits."""

    adapter: AgentAdapter

    def availability(self) -> Availability:
        availability = self.adapter.availability()
        missing = self.missing_key(self.adapter)
        return availability.evolve(usable=False, reason=missing) if availability.usable and missing else availability

    def reconcile(self, order: WorkOrder, state_folder: Path) -> ExecutorOutcome | None:
        """Return the outcome of a dead attempt if its recorded events show how it ended."""
        reader = self.adapter.reader(order)
        resume = order.resume
        try:
            with (run_folder(state_folder, order.key) / EVENTS_FILE).open(encoding="utf-8", errors="replace") as file:
                for line in file:
                    for event in reader.feed(line.rstrip("\n")):
                        resume = self._token(event.session_id) if event.session_id else resume
        except OSError:
            return None
        if not reader.finished:
            return None
        outcome = reader.read_outcome(Ending(exit_code=None, output_end=""))
        token = None if outcome.status is ExecutorStatus.COMPLETED else resume
        return outcome.evolve(resume=token, versions=self._versions(""))

    def effects_outside(self, order: WorkOrder) -> str:
        return self.effects_of(self.adapter, order)

    def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
        """Run the agent to carry out an order.

        Raises:
            ExecutorError: the key or the login is missing, or an option is invalid.
        """
        availability = self.adapter.availability()
        if not availability.usable:
            return fatal_outcome(availability.reason, ErrorKind.MISSING_PROGRAM)
        sweep_runs(state_folder)
        home = agent_home(self.homes, order.episode_id, self.adapter.name)
        run_order, note, token = order, "", order.resume
        # Sessions are files in the agent's home on one host; another agent or host cannot read them.
        if token is not None and (token.adapter != self.adapter.name or token.host != host_identity().name):
            there = f"{token.adapter} on {token.host or 'another host'}"
            run_order, note = (
                order.evolve(resume=None),
                f"the session belongs to {there}, so the agent started a new one",
            )
        elif token is not None:
            run_order = order.evolve(prompt=f"{resume_preface()}{order.prompt}")
        # One access for both runs, so that the limit of model calls covers them together.
        with self.open_access(self.adapter, order) as way:
            outcome = self._run(run_order, control, state_folder, home, way)
            if outcome is None:
                note = "the session no longer exists, so the agent started a new one"
                new_order = run_order.evolve(resume=None, prompt=order.prompt)
                outcome = self._run(new_order, control, state_folder, home, way)
        assert outcome is not None
        outcome = outcome.evolve(model=way[0].model)
        return outcome.evolve(summary=f"[{note}] {outcome.summary}") if note else outcome

    def _run(
        self,
        order: WorkOrder,
        control: Control,
        state_folder: Path,
        home: Path,
        way: tuple[ModelAccess, GatewayServer | None],
    ) -> ExecutorOutcome | None:
        """Run the agent once. Return None if the agent cannot find the session to resume."""
        access, gateway = way
        launch = self.adapter.launch(order, home, access, order.resume)
        inside = str(self.tree_inside(order, own_sandbox=launch.own_sandbox))
        if inside != order.root:
            launch = self.adapter.launch(order.evolve(root=inside), home, access, order.resume)
        write_files(home, launch.files)
        folder, reader = run_folder(state_folder, order.key), self.adapter.reader(order)
        with ExitStack() as stack:
            stdin = stack.enter_context(write_temporary_file(folder / "prompt", launch.stdin))
            try:
                request = self.build_request(order, launch, home, stdin=stdin)
            except ExecutorError as error:
                return fatal_outcome(error.message, ErrorKind.MISSING_PROGRAM)
            redaction = Redaction(self.secrets_of(self.adapter, request, launch))
            try:
                fenced = self.open_sandbox(request, order, launch, home=home, hosts=access.hosts)
                request, fence = stack.enter_context(fenced)
            except SandboxUnavailableError as error:
                return fatal_outcome(error.message, ErrorKind.SANDBOX).evolve(resume=order.resume)
            run = Run(
                order.executor,
                reader,
                control,
                record=stack.enter_context(closing(Record(folder / EVENTS_FILE))),
                redaction=redaction,
                gateway=gateway,
                token=self._token,
                resume=order.resume,
            )
            places = (Path(order.root, name) for name in launch.placeholders)
            # Only folders that did not exist before: the user's own empty folders are kept.
            stack.callback(_remove_empty, [folder for folder in places if not folder.exists()])
            result = run_process(request, cancelled=run.must_stop, started=run.note_start, on_output=run.take)
            run.close()
        # Only if it exited by itself: a stopped agent may have been stopped before it looked for the session.
        if result.reason is Reason.EXITED and order.resume is not None and reader.unknown_session(run.ending(result)):
            return None
        outcome = run.outcome(result)
        return outcome.evolve(versions={**outcome.versions, **self._versions(fence)})

    def _token(self, session_id: str) -> ResumeToken:
        version = self.adapter.availability().version
        return ResumeToken(adapter=self.adapter.name, session_id=session_id, host=host_identity().name, version=version)

    def _versions(self, fence: str) -> dict[str, str]:
        versions = {self.adapter.name: self.adapter.availability().version, "fence": fence}
        return {name: value for name, value in versions.items() if value}


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # missing or not empty
            folder.rmdir()
