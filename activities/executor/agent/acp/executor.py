"""Runs any agent that speaks the Agent Client Protocol (https://agentclientprotocol.com)."""

import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from activities.executor.agent.acp.agents import AcpAgent, Start
from activities.executor.agent.acp.delivery import Delivery
from activities.executor.agent.acp.run import AcpRun
from activities.executor.agent.home import agent_home, copy_login, write_files
from activities.executor.agent.host import AgentHost
from activities.executor.agent.port import Launch
from activities.executor.agent.program import command_path, find_program, version_of
from activities.executor.agent.record import RunRecord, kept_outcome, kept_session, sweep_runs
from activities.executor.ending import fatal_outcome
from activities.executor.options import read_options, refuse_questions
from activities.executor.port import Availability, Control, Executor
from activities.sandbox.port import SandboxUnavailableError
from tightloop.errors import ExecutorError
from tightloop.executor.model import ErrorKind, ExecutorOutcome, ExecutorStatus, ResumeToken, WorkOrder
from tightloop.executor.options import AcpOptions
from tightloop.host.identity import host_identity


@dataclass(frozen=True)
class AcpExecutor(AgentHost, Executor):
    """Hands the plan to one agent and answers what it asks."""

    agent: AcpAgent

    def availability(self) -> Availability:
        """Look for the program and the key; see the port."""
        if not (self.agent.program or self.settings.program):
            return Availability()
        program = self._program("")
        if not program:
            return Availability(usable=False, reason=self._missing())
        if missing := self.missing_key(self.agent):
            return Availability(usable=False, reason=missing)
        return Availability(version=version_of(program) if self.agent.tells_version else "")

    def reconcile(self, order: WorkOrder, state_folder: Path) -> ExecutorOutcome | None:
        """Return the outcome that a dead attempt had reached already, or its session; see the port."""
        if outcome := kept_outcome(state_folder, order.key):
            return outcome
        session_id = kept_session(state_folder, order.key)
        if not session_id:
            return None
        token = ResumeToken(adapter=self.agent.name, session_id=session_id, host=host_identity().name)
        return ExecutorOutcome(status=ExecutorStatus.OUTCOME_UNKNOWN, resume=token)

    def effects_outside(self, order: WorkOrder) -> str:
        """Return what its walls leave open; see the port."""
        return "it has no sandbox but its own" if self.agent.own_sandbox else self.effects_of(self.agent, order)

    def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
        """Work through one turn of the agent; see the port.

        Raises:
            ExecutorError: the options or the settings are wrong, or the key is missing.
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
        with ExitStack() as stack:
            way = self.open_access(self.agent, order, own_bound=self.agent.bounds_calls)
            access, gateway = stack.enter_context(way)
            start = Start(
                home=home,
                access=access,
                command_path=command_path(Path(order.root), (self.homes, *self.writable)),
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
            record = RunRecord(state_folder, order.key, self.secrets_of(self.agent, request, launch))
            try:
                fenced = self.behind_fence(request, order, launch, home=home, hosts=access.hosts)
                request, fence = stack.enter_context(fenced)
            except SandboxUnavailableError as error:
                return fatal_outcome(error.message, ErrorKind.SANDBOX)
            sign_in, meta = self.agent.sign_in, launch.session_meta
            delivery = Delivery(order, control, record, gateway, sign_in=sign_in, session_meta=meta)
            outcome = AcpRun(self.agent, order, delivery, record).deliver(request, control, fence)
            return outcome.evolve(model=access.model)

    def _with_login(self, launch: Launch, home: Path) -> Launch:
        """Give the agent its own login, where the settings say so: out of a variable of the worker, or its files."""
        if not self.settings.login:
            return launch
        if token := os.environ.get(self.agent.login_env):
            return replace(launch, secrets={**launch.secrets, self.agent.login_env: token})
        for login in self.agent.logins:
            copy_login(Path.home() / login, home / login)
        return launch

    def _program(self, chosen: str) -> str:
        usual = (self.agent.program,) if self.agent.program else ()
        return find_program(chosen or self.settings.program, *usual)

    def _missing(self, chosen: str = "") -> str:
        wanted = chosen or self.settings.program or self.agent.program
        if not wanted:
            return 'the executor acp needs a command line: give the option argv, such as ["my-agent", "--acp"]'
        how = f"Install it ({self.agent.get_it})" if self.agent.get_it else "Install it"
        return (
            f"the program {wanted!r} of the executor {self.agent.name} was not found. {how}, or set "
            f"executor.agents.{self.agent.name}.program to where it is"
        )
