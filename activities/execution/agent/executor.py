"""Lets a coding agent with a command line do the work: start, watch, judge. The agents differ in their adapters."""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from importlib import resources
from pathlib import Path

from activities.execution.agent.access import Access, missing_key, open_access
from activities.execution.agent.home import agent_home, write_files
from activities.execution.agent.judgement import Run, judged
from activities.execution.agent.port import AgentAdapter, Ending, Launch
from activities.execution.agent.record import Record, Redaction, looks_secret, prompt_file, run_folder, sweep_runs
from activities.execution.agent.watch import Watch
from activities.execution.port import Availability, Control, Executor
from activities.model_gateway.port import Gateways
from activities.process import GRACE_S, ProcessRequest, run_process, search_path
from activities.sandbox.port import Fence, SandboxUnavailableError
from tightloop.errors import ExecutorError
from tightloop.executor import AgentMode, ErrorKind, ExecutorOutcome, ExecutorStatus, ResumeToken, WorkOrder
from tightloop.host import host_name
from tightloop.settings import AgentSettings

EVENTS_FILE = "events.jsonl"
BEYOND_S = 60.0
"""The watch keeps the wall limit, as it knows what the agent said before; so much later it is ended in any case."""
NO_FENCE = (
    "there is no sandbox on this worker, and {name} has none of its own. Install one (tightloop doctor names them), "
    "or use the mode full where the host itself is a throw-away"
)
_RESUMING = resources.files("activities.execution.agent") / "prompts" / "resume.md"


class AgentExecutor(Executor):
    """Runs one agent: its own home, its way to the model, a fence, bounds; and tells what came of it."""

    def __init__(
        self,
        adapter: AgentAdapter,
        *,
        settings: AgentSettings,
        homes: Path,
        gateways: Gateways | None = None,
        fence: Fence | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        """Take the agent and what it works with.

        Args:
            adapter: knows the agent.
            settings: of the agent on this host.
            homes: folder of the agents' homes, outside of the temporary folder.
            gateways: opens the way to the model; None: agents get the key itself.
            fence: for agents that have no sandbox of their own; None: those are refused.
            grace_s: how long the agent may take to follow a polite signal.
        """
        self._adapter = adapter
        self._settings = settings
        self._homes = homes
        self._gateways = gateways
        self._fence = fence
        self._grace_s = grace_s

    def availability(self) -> Availability:
        """Look for the program and its key; see the port."""
        found = self._adapter.availability()
        key_variable = self._adapter.default_key_env
        missing = missing_key(self._settings, name=self._adapter.name, default_key_env=key_variable)
        if found.usable and missing:
            return Availability(usable=False, reason=missing, version=found.version)
        return found

    def reconcile(self, order: WorkOrder, state_folder: Path) -> ExecutorOutcome | None:
        """Read the events of an attempt that died: they may end with the agent's own verdict."""
        reader = self._adapter.reader(order)
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
        outcome = reader.verdict(Ending(exit_code=None, output_end=""))
        kept = None if outcome.status is ExecutorStatus.COMPLETED else resume
        return outcome.model_copy(update={"resume": kept, "versions": self._versions("")})

    def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
        """Work on the order; see the port.

        Raises:
            ExecutorError: there is no key or no login, or an option is wrong.
        """
        availability = self._adapter.availability()
        if not availability.usable:
            return ExecutorOutcome(
                status=ExecutorStatus.FATAL, error=availability.reason, error_kind=ErrorKind.MISSING_PROGRAM
            )
        sweep_runs(state_folder)
        home = agent_home(self._homes, order.episode_id, self._adapter.name)
        asked, note = self._resumable(order)
        with open_access(
            self._settings,
            order,
            wire=self._adapter.wire,
            default_base_url=self._adapter.default_base_url,
            default_key_env=self._adapter.default_key_env,
            gateways=self._gateways,
            name=self._adapter.name,
            own_bound=True,
        ) as access:
            outcome = self._run(asked, control, state_folder, home=home, access=access)
            if outcome is None:
                note = "its session is no longer there, so it began anew"
                fresh = asked.model_copy(update={"resume": None, "prompt": order.prompt})
                outcome = self._run(fresh, control, state_folder, home=home, access=access)
        assert outcome is not None
        return outcome.model_copy(update={"summary": f"[{note}] {outcome.summary}"}) if note else outcome

    def _resumable(self, order: WorkOrder) -> tuple[WorkOrder, str]:
        """Return the order as it is given to the agent, and what has to be said about its session."""
        token = order.resume
        if token is None:
            return order, ""
        if token.adapter != self._adapter.name or token.host != host_name():
            there = f"{token.adapter} on {token.host or 'another host'}"
            return order.model_copy(update={"resume": None}), f"its session is with {there}, so it began anew"
        preface = _RESUMING.read_text(encoding="utf-8")
        return order.model_copy(update={"prompt": f"{preface}{order.prompt}"}), ""

    def _run(
        self, order: WorkOrder, control: Control, state_folder: Path, *, home: Path, access: Access
    ) -> ExecutorOutcome | None:
        """Run the agent once; None where it does not know the session that it was to resume."""
        launch = self._launch(order, home, access)
        extra = {name: os.environ[name] for name in self._settings.environment if name in os.environ}
        redaction = Redaction(self._secrets(launch, extra))
        reader = self._adapter.reader(order)
        folder = run_folder(state_folder, order.key)
        with ExitStack() as stack:
            watch = Watch(
                order.executor,
                reader,
                control,
                record=stack.enter_context(closing(Record(folder / EVENTS_FILE))),
                redaction=redaction,
                gateway=access.gateway,
                token=self._token,
                resume=order.resume,
            )
            stdin = stack.enter_context(prompt_file(folder, launch.stdin))
            stack.enter_context(_tidy(Path(order.root), launch.placeholders))
            try:
                request, fence = self._request(order, launch, home, stdin=stdin, extra=extra)
            except SandboxUnavailableError as error:
                return ExecutorOutcome(
                    status=ExecutorStatus.FATAL, error=error.message, error_kind=ErrorKind.SANDBOX, resume=order.resume
                )
            result = run_process(request, cancelled=watch.ended, started=watch.started, on_output=watch.take)
            watch.close()
        run = Run(choice=order.executor, result=result, watch=watch, reader=reader, redaction=redaction)
        if run.exited and order.resume is not None and reader.unknown_session(run.ending):
            return None
        outcome = judged(run, access.gateway)
        return outcome.model_copy(update={"versions": {**outcome.versions, **self._versions(fence)}})

    def _launch(self, order: WorkOrder, home: Path, access: Access) -> Launch:
        """Prepare the home and return how to start.

        Raises:
            ExecutorError: there is nothing that keeps the bound of model calls, or the adapter refuses.
        """
        launch = self._adapter.launch(order, home, access.model_access, order.resume)
        calls, name = order.executor.max_model_calls, self._adapter.name
        if calls is not None and access.gateway is None and not launch.bounds_calls:
            raise ExecutorError(
                f"max_model_calls is {calls}, but only the model gateway can keep it and {name} does not go through it "
                f"here. Leave it out, or give a key and set executor.agents.{name}.gateway to true"
            )
        write_files(home, launch.files)
        return launch

    def _secrets(self, launch: Launch, extra: Mapping[str, str]) -> Iterator[str]:
        """Yield what must not be kept: an agent without a fence could find the worker's own key, too."""
        yield from launch.secrets.values()
        yield from (value for name, value in extra.items() if looks_secret(name))
        yield os.environ.get(self._settings.api_key_env or self._adapter.default_key_env, "")

    def _request(
        self, order: WorkOrder, launch: Launch, home: Path, *, stdin: Path, extra: Mapping[str, str]
    ) -> tuple[ProcessRequest, str]:
        """Return the process to run, and the name of what fences it."""
        root = Path(order.root)
        request = ProcessRequest(
            argv=launch.argv,
            cwd=root,
            environment={**search_path(root), "HOME": str(home), **launch.environment},
            secrets={**extra, **launch.secrets},
            inherit=False,
            stdin=stdin,
            wall_limit_s=order.executor.wall_limit_s + BEYOND_S,
            grace_s=self._grace_s,
            separate_errors=True,
        )
        if order.executor.mode is AgentMode.FULL:
            return request, "none"
        if launch.own_sandbox:
            return request, "own"
        if self._fence is None:
            raise SandboxUnavailableError(NO_FENCE.format(name=self._adapter.name))
        reads_only = order.executor.mode is AgentMode.READ_ONLY
        writable, seen = ((home,), (root,)) if reads_only else ((root, home), ())
        readable = (*_program_folders(launch.argv[0]), *seen)
        fenced = self._fence.around(request, writable=writable, readable=readable)
        return fenced, self._fence.name

    def _token(self, session_id: str) -> ResumeToken:
        version = self._adapter.availability().version
        return ResumeToken(adapter=self._adapter.name, session_id=session_id, host=host_name(), version=version)

    def _versions(self, fence: str) -> dict[str, str]:
        known = {self._adapter.name: self._adapter.availability().version, "fence": fence}
        return {name: value for name, value in known.items() if value}


@contextmanager
def _tidy(root: Path, placeholders: tuple[str, ...]) -> Iterator[None]:
    new = [folder for name in placeholders if not (folder := root / name).exists()]
    try:
        yield
    finally:
        for folder in new:
            with suppress(OSError):  # it is not there, or no longer empty
                folder.rmdir()


def _program_folders(program: str) -> tuple[Path, ...]:
    """Return where a program and what it loads lie, for a fence that hides the user's home."""
    found = Path(program).resolve()
    modules = [folder for folder in found.parents if folder.name == "node_modules"]
    return tuple(dict.fromkeys([Path(program).parent, modules[-1] if modules else found.parent]))
