"""Runs a coding agent by its command line: start, watch, read the outcome. What differs is in the adapters."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from activities.executor.agent.cli.outcome import Run, judge
from activities.executor.agent.cli.watch import Watch
from activities.executor.agent.home import agent_home, write_files
from activities.executor.agent.host import AgentHost, resume_preface
from activities.executor.agent.port import AgentAdapter, Ending, ModelAccess
from activities.executor.agent.record import EVENTS_FILE, Record, Redaction, run_folder, sweep_runs
from activities.executor.ending import fatal_outcome
from activities.executor.files import held_file
from activities.executor.port import Availability, Control, Executor
from activities.model.gateway.port import Gateway
from activities.process import Reason, run_process
from activities.sandbox.port import SandboxUnavailableError
from tightloop.errors import ExecutorError
from tightloop.executor.model import ErrorKind, ExecutorOutcome, ExecutorStatus, ResumeToken, WorkOrder
from tightloop.host.identity import host_identity


@dataclass(frozen=True)
class AgentExecutor(AgentHost, Executor):
    """Runs one agent: its own home, its way to the model, a fence and bounds; and returns its outcome."""

    adapter: AgentAdapter

    def availability(self) -> Availability:
        """Look for the program and its key; see the port."""
        found = self.adapter.availability()
        missing = self.missing_key(self.adapter)
        return found.evolve(usable=False, reason=missing) if found.usable and missing else found

    def reconcile(self, order: WorkOrder, state_folder: Path) -> ExecutorOutcome | None:
        """Read the events of an attempt that died: they may end with the agent's own outcome."""
        reader = self.adapter.reader(order)
        resume = order.resume
        try:
            with (run_folder(state_folder, order.key) / EVENTS_FILE).open(encoding="utf-8", errors="replace") as file:
                for line in file:
                    for found in reader.feed(line.rstrip("\n")):
                        resume = self._token(found.session_id) if found.session_id else resume
        except OSError:
            return None
        if not reader.finished:
            return None
        outcome = reader.read_outcome(Ending(exit_code=None, output_end=""))
        kept = None if outcome.status is ExecutorStatus.COMPLETED else resume
        return outcome.evolve(resume=kept, versions=self._versions(""))

    def effects_outside(self, order: WorkOrder) -> str:
        """Return what its walls leave open; see the port."""
        return self.effects_of(self.adapter, order)

    def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
        """Work on the order; see the port.

        Raises:
            ExecutorError: the key or the login is missing, or an option is wrong.
        """
        availability = self.adapter.availability()
        if not availability.usable:
            return fatal_outcome(availability.reason, ErrorKind.MISSING_PROGRAM)
        sweep_runs(state_folder)
        home = agent_home(self.homes, order.episode_id, self.adapter.name)
        asked, note = self._resumable(order)
        with self.open_access(self.adapter, order) as way:
            outcome = self._run(asked, control, state_folder, home, way)
            if outcome is None:
                note = "its session was gone, so it started a new one"
                fresh = asked.evolve(resume=None, prompt=order.prompt)
                outcome = self._run(fresh, control, state_folder, home, way)
        assert outcome is not None
        outcome = outcome.evolve(model=way[0].model)
        return outcome.evolve(summary=f"[{note}] {outcome.summary}") if note else outcome

    def _resumable(self, order: WorkOrder) -> tuple[WorkOrder, str]:
        """Return the order as it is given to the agent, and what has to be said about its session."""
        token = order.resume
        if token is None:
            return order, ""
        if token.adapter != self.adapter.name or token.host != host_identity().name:
            there = f"{token.adapter} on {token.host or 'another host'}"
            return order.evolve(resume=None), f"its session is with {there}, so it started a new one"
        return order.evolve(prompt=f"{resume_preface()}{order.prompt}"), ""

    def _run(
        self,
        order: WorkOrder,
        control: Control,
        state_folder: Path,
        home: Path,
        way: tuple[ModelAccess, Gateway | None],
    ) -> ExecutorOutcome | None:
        """Run the agent once; None where it does not know the session that it was to resume."""
        access, gateway = way
        launch = self.adapter.launch(order, home, access, order.resume)
        write_files(home, launch.files)
        folder, reader = run_folder(state_folder, order.key), self.adapter.reader(order)
        with ExitStack() as stack:
            stdin = stack.enter_context(held_file(folder / "prompt", launch.stdin))
            try:
                request = self.build_request(order, launch, home, stdin=stdin)
            except ExecutorError as error:
                return fatal_outcome(error.message, ErrorKind.MISSING_PROGRAM)
            redaction = Redaction(self.secrets_of(self.adapter, request, launch))
            try:
                fenced = self.behind_fence(request, order, launch, home=home, hosts=access.hosts)
                request, fence = stack.enter_context(fenced)
            except SandboxUnavailableError as error:
                return fatal_outcome(error.message, ErrorKind.SANDBOX).evolve(resume=order.resume)
            watch = Watch(
                order.executor,
                reader,
                control,
                record=stack.enter_context(closing(Record(folder / EVENTS_FILE))),
                redaction=redaction,
                gateway=gateway,
                token=self._token,
                resume=order.resume,
            )
            stack.enter_context(_tidy(Path(order.root), launch.placeholders))
            result = run_process(request, cancelled=watch.ended, started=watch.started, on_output=watch.take)
            watch.close()
        run = Run(choice=order.executor, result=result, watch=watch, reader=reader, redaction=redaction)
        if result.reason is Reason.EXITED and order.resume is not None and reader.unknown_session(run.ending):
            return None
        outcome = judge(run, gateway)
        return outcome.evolve(versions={**outcome.versions, **self._versions(fence)})

    def _token(self, session_id: str) -> ResumeToken:
        version = self.adapter.availability().version
        return ResumeToken(adapter=self.adapter.name, session_id=session_id, host=host_identity().name, version=version)

    def _versions(self, fence: str) -> dict[str, str]:
        known = {self.adapter.name: self.adapter.availability().version, "fence": fence}
        return {name: value for name, value in known.items() if value}


@contextmanager
def _tidy(root: Path, placeholders: tuple[str, ...]) -> Iterator[None]:
    new = [folder for name in placeholders if not (folder := root / name).exists()]
    try:
        yield
    finally:
        for folder in new:
            with suppress(OSError):  # it is missing, or has something in it
                folder.rmdir()
