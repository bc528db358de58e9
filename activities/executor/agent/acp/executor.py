"""Executor for agents that speak the Agent Client Protocol."""

import asyncio
import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from acp.exceptions import RequestError

from activities.executor.agent.acp.agents import AcpAgent, Start
from activities.executor.agent.acp.client import AgentProcess, Delivery, SignInError, TurnResult
from activities.executor.agent.acp.events import crash_outcome, error_outcome, turn_outcome, usage_of
from activities.executor.agent.host import AgentHost, Launch
from activities.executor.agent.program import (
    agent_home,
    command_path,
    copy_login,
    denied_lines,
    find_program,
    local_now,
    version_of,
    write_files,
)
from activities.executor.agent.record import (
    RunRecord,
    Stop,
    limit_outcome,
    read_stored_outcome,
    read_stored_session,
    stopped_outcome,
    sweep_runs,
)
from activities.executor.delivery import (
    cancelled_outcome,
    early_outcome,
    failed_outcome,
    fatal_outcome,
    read_options,
    refuse_questions,
)
from activities.executor.port import Availability, Control, Executor
from activities.process import ProcessRequest, ProcessResult, Reason
from activities.process.child import open_process
from activities.sandbox.port import SandboxUnavailableError
from tightloop.errors import ExecutorError
from tightloop.executor.asking import permission_question
from tightloop.executor.model import (
    SUMMARY_CHARACTERS,
    ErrorKind,
    EventKind,
    ExecutorEvent,
    ExecutorOutcome,
    ExecutorStatus,
    ResumeToken,
    Usage,
    WorkOrder,
)
from tightloop.executor.options import AcpOptions
from tightloop.host.identity import host_identity
from tightloop.value import clip, shorten

_REASONS = {
    Stop.WALL_LIMIT: Reason.WALL_LIMIT,
    Stop.IDLE_LIMIT: Reason.IDLE_LIMIT,
    Stop.QUESTION: Reason.EXITED,
    Stop.GONE: Reason.EXITED,
}
"""The reason for ending the process, by stop reason. Any other stop counts as cancelled."""
_OUT_OF_BOUNDS = frozenset(
    {Reason.NOT_STARTED, Reason.MEMORY_LIMIT, Reason.PROCESS_LIMIT, Reason.OUTPUT_LIMIT, Reason.DISK_LIMIT}
)
_RESUMABLE = frozenset(
    {
        ExecutorStatus.LIMIT_HIT,
        ExecutorStatus.TIMED_OUT,
        ExecutorStatus.FAILED,
        ExecutorStatus.CANCELLED,
        ExecutorStatus.NEEDS_PERSON,
    }
)
_QUESTION_CHARACTERS = 1_000


@dataclass(frozen=True)
class AcpRun:
    """Runs the agent's process. Each instance can only be used once."""

    agent: AcpAgent
    order: WorkOrder
    delivery: Delivery
    record: RunRecord

    def deliver(self, request: ProcessRequest, control: Control, fence: str) -> ExecutorOutcome:
        """Start the agent, run one turn and return its outcome.

        The agent's process tree is killed after the turn.
        """
        # Stays if something below raises: such an outcome is not kept for a later attempt.
        outcome, errors = ExecutorOutcome(status=ExecutorStatus.OUTCOME_UNKNOWN), ""
        try:
            talk, result = self._process(request, control)
            errors = result.errors.decode("utf-8", "replace")
            outcome = self._outcome(talk, result, cancelled=control.is_cancelled())
            client, counters = self.delivery.client, self.delivery.gateway_counters
            summary = "; ".join([*self.delivery.warnings[:2], clip(client.turn.message, SUMMARY_CHARACTERS - 200)])
            failures = client.turn.failures
            noted = f" [{failures} of its tool calls failed]" if failures and not self.delivery.denied else ""
            # The gateway counts what the provider charged; an agent's own numbers may leave out calls.
            usage = counters.usage
            if not counters.calls:
                reported = usage_of(talk.answer) if talk is not None and talk.answer is not None else Usage()
                # The cost of a resumed session includes earlier deliveries.
                usage = reported.evolve(cost_usd=None if client.resumed else client.turn.cost_usd)
            outcome = outcome.evolve(
                summary=clip(summary.strip("; "), SUMMARY_CHARACTERS - len(noted)) + noted,
                denied=denied_lines(self.delivery.denied),
                usage=usage,
                resume=self._token() if outcome.status in _RESUMABLE else None,
                versions={self.agent.name: client.version, "fence": fence},
                cpu_s=result.cpu_s,
            )
        finally:
            # A stopping worker cancels, and the work continues elsewhere, so that outcome must not be kept.
            keep = outcome.status not in (ExecutorStatus.CANCELLED, ExecutorStatus.OUTCOME_UNKNOWN)
            outcome = self.record.close(outcome, errors, keep=keep)
        return outcome

    def _process(self, request: ProcessRequest, control: Control) -> tuple[TurnResult | None, ProcessResult]:
        pids: list[int] = []

        def record_pid(pid: int) -> None:
            pids.append(pid)
            control.own_process(pid)

        with open_process(request, started=record_pid) as session:
            if not pids:
                return None, session.end(Reason.EXITED)
            self.record.event(ExecutorEvent(kind=EventKind.STARTED))
            token = self._resume()
            talk = asyncio.run(
                self.delivery.run(
                    (session.stdin.fileno(), session.stdout.fileno()),
                    AgentProcess(pids[0], poll=session.poll, token=self._token),
                    resume=token.session_id if token else "",
                    mode=self.agent.modes.get(self.order.executor.mode, ""),
                )
            )
            # An agent that ignores the end of its input gets a signal at once instead of the grace period.
            polite = Reason.EXITED if self.agent.ends_at_eof else Reason.CANCELLED
            return talk, session.end(polite if talk.stop is None else _REASONS.get(talk.stop, Reason.CANCELLED))

    def _resume(self) -> ResumeToken | None:
        """Return the order's resume token, or None if it does not belong to this agent on this host."""
        token = self.order.resume
        ours = token is not None and token.adapter == self.agent.name and token.host in ("", host_identity().name)
        return token if ours else None

    def _token(self) -> ResumeToken | None:
        client = self.delivery.client
        if not client.session_id:
            return self._resume()
        return ResumeToken(
            adapter=self.agent.name, session_id=client.session_id, host=host_identity().name, version=client.version
        )

    def _outcome(self, talk: TurnResult | None, result: ProcessResult, *, cancelled: bool) -> ExecutorOutcome:
        # A request to stop wins over any answer: the agent may have given up halfway.
        if cancelled or (talk is not None and talk.stop is Stop.CANCELLED):
            return cancelled_outcome()
        ended = early_outcome(result, self.order.executor) if result.reason in _OUT_OF_BOUNDS else None
        if talk is None or ended is not None:
            return ended or _crash(result)
        if talk.stop is not None:
            return self._outcome_of_stop(talk.stop, result)
        outcome = self._outcome_of_turn(talk, result)
        counters = self.delivery.gateway_counters
        turn = self.delivery.client.turn
        # A limit that the agent overcame by its own retries is no reason to repeat its work.
        if outcome.status is ExecutorStatus.COMPLETED and turn.successes and not self.agent.reads_text:
            return outcome
        if counters.budget_spent:
            return self._outcome_of_stop(Stop.MODEL_CALLS, result)
        return outcome if counters.limit is None else limit_outcome(counters.limit, outcome.error or turn.message)

    def _outcome_of_turn(self, talk: TurnResult, result: ProcessResult) -> ExecutorOutcome:
        delivery = self.delivery
        match talk.error:
            case None:
                reason = str((talk.answer or {}).get("stopReason", ""))
                denied = denied_lines(delivery.denied)
                reads_text = self.agent.reads_text
                return turn_outcome(reason, delivery.client.turn, denied, now=local_now(), reads_text=reads_text)
            case RequestError() as error:
                return error_outcome(error, now=local_now())
            case ConnectionError():
                return _crash(result)
            case SignInError() as error:
                return fatal_outcome(f"{self.agent.name}: {error}", ErrorKind.AUTH)
            case error:
                return failed_outcome(f"{self.agent.name}: {error}", ErrorKind.PROTOCOL)

    def _outcome_of_stop(self, stop: Stop, result: ProcessResult) -> ExecutorOutcome:
        if stop is not Stop.QUESTION:
            return stopped_outcome(stop, self.order.executor, self.delivery.bounds.limit) or _crash(result)
        request = self.delivery.question
        assert request is not None
        named = request.title if request.command else ""
        parts = {"kind": request.kind, "command": request.command, "named by the agent": named}
        lines = [f"{name}: {value}" for name, value in parts.items() if value] + [
            f"path: {path}" for path in request.paths
        ]
        question = permission_question(
            # The command comes from a model and can contain anything.
            shorten(" ".join(self.record.clean(request.command or request.title).split()), 200),
            shorten(self.record.clean("\n".join(lines)), _QUESTION_CHARACTERS),
            request.fingerprint,
        )
        return ExecutorOutcome(status=ExecutorStatus.NEEDS_PERSON, question=question)


def _crash(result: ProcessResult) -> ExecutorOutcome:
    return crash_outcome(result.exit_code, result.errors.decode("utf-8", "replace"), now=local_now())


@dataclass(frozen=True)
class AcpExecutor(AgentHost, Executor):
    """Hands the plan to an agent and responds to its permission requests."""

    agent: AcpAgent

    def availability(self) -> Availability:
        if not (self.agent.program or self.settings.program):
            return Availability()
        program = self._program("")
        if not program:
            return Availability(usable=False, reason=self._missing())
        if missing := self.missing_key(self.agent):
            return Availability(usable=False, reason=missing)
        return Availability(version=version_of(program) if self.agent.tells_version else "")

    def reconcile(self, order: WorkOrder, state_folder: Path) -> ExecutorOutcome | None:
        """Return the outcome recorded by a dead attempt, or an outcome that contains its session."""
        if outcome := read_stored_outcome(state_folder, order.key):
            return outcome
        session_id = read_stored_session(state_folder, order.key)
        if not session_id:
            return None
        token = ResumeToken(adapter=self.agent.name, session_id=session_id, host=host_identity().name)
        return ExecutorOutcome(status=ExecutorStatus.OUTCOME_UNKNOWN, resume=token)

    def effects_outside(self, order: WorkOrder) -> str:
        return (
            "the agent runs only in its own sandbox" if self.agent.own_sandbox else self.effects_of(self.agent, order)
        )

    def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
        """Run one turn of the agent.

        Raises:
            ExecutorError: the options or the settings are invalid, or the key is missing.
        """
        options = read_options(self.agent.options, order.executor, self.agent.name)
        if not self.agent.asks:
            refuse_questions(order.executor, self.agent.name)
        argv = options.argv if isinstance(options, AcpOptions) else ()
        program = self._program(argv[0] if argv else "")
        if not program:
            return fatal_outcome(self._missing(argv[0] if argv else ""), ErrorKind.MISSING_PROGRAM)
        sweep_runs(state_folder)
        home = agent_home(self.homes, order.episode_id, self.agent.name)
        arguments = self.settings.arguments
        inside = self.tree_inside(order, own_sandbox=self.agent.own_sandbox)
        with ExitStack() as stack:
            way = self.open_access(self.agent, order, own_bound=self.agent.bounds_calls)
            access, gateway = stack.enter_context(way)
            start = Start(
                home=home,
                access=access,
                command_path=command_path(inside, (self.homes, *self.writable)),
                choice=order.executor,
                options=options,
                arguments=arguments,
            )
            launch = self._with_login(self.agent.launch(start), home)
            write_files(home, launch.files)
            launch = replace(launch, argv=(program, *launch.argv, *arguments, *argv[1:]))
            try:
                request = self.build_request(order, launch, home)
            except ExecutorError as error:
                return fatal_outcome(error.message, ErrorKind.MISSING_PROGRAM)
            # Only now: creating it deletes the traces that `reconcile` reads.
            record = RunRecord(state_folder, order.key, self.secrets_of(self.agent, request, launch))
            try:
                fenced = self.open_sandbox(request, order, launch, home=home, hosts=access.hosts)
                request, fence = stack.enter_context(fenced)
            except SandboxUnavailableError as error:
                return fatal_outcome(error.message, ErrorKind.SANDBOX)
            sign_in, meta = self.agent.sign_in, launch.session_meta
            seen_order = order.evolve(root=str(inside))
            delivery = Delivery(seen_order, control, record, gateway, sign_in=sign_in, session_meta=meta)
            outcome = AcpRun(self.agent, order, delivery, record).deliver(request, control, fence)
            return outcome.evolve(model=access.model)

    def _with_login(self, launch: Launch, home: Path) -> Launch:
        """Add the agent's login if the settings ask for it.

        The login comes from a worker variable or from files.
        """
        if not self.settings.login:
            return launch
        if token := os.environ.get(self.agent.login_env):
            return replace(launch, secrets={**launch.secrets, self.agent.login_env: token})
        for login in self.agent.logins:
            copy_login(Path.home() / login, home / login)
        return launch

    def _program(self, program: str) -> str:
        usual = (self.agent.program,) if self.agent.program else ()
        return find_program(program or self.settings.program, *usual)

    def _missing(self, program: str = "") -> str:
        program_name = program or self.settings.program or self.agent.program
        if not program_name:
            return 'the executor acp requires a command line. Set the option argv, for example to ["my-agent", "--acp"]'
        how = f"Install the program ({self.agent.get_it})" if self.agent.get_it else "Install the program"
        return (
            f"the program {program_name!r} for the executor {self.agent.name} was not found. {how}, or set "
            f"executor.agents.{self.agent.name}.program to its path"
        )
