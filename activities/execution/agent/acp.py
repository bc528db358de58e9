"""Runs any agent that speaks the Agent Client Protocol (https://agentclientprotocol.com)."""

import contextlib
import os
from pathlib import Path

from pydantic import ValidationError

from activities.execution.agent.access import Access, missing_key, open_access
from activities.execution.agent.acp_agents import AcpAgent
from activities.execution.agent.acp_delivery import Delivery
from activities.execution.agent.acp_record import RunRecord, kept_outcome
from activities.execution.agent.acp_run import AcpRun
from activities.execution.agent.executor import NO_FENCE
from activities.execution.agent.home import agent_home, copy_login, write_files
from activities.execution.agent.port import Launch
from activities.execution.agent.program import find_program, version_of
from activities.execution.agent.record import looks_secret, sweep_runs
from activities.execution.port import Availability, Control, Executor
from activities.model_gateway.port import Gateways
from activities.process import GRACE_S, ProcessRequest, search_path
from activities.sandbox.port import Fence, SandboxUnavailableError
from tightloop.errors import ExecutorError
from tightloop.executor import AgentMode, ErrorKind, ExecutorOutcome, ExecutorStatus, WorkOrder
from tightloop.settings import AgentSettings
from tightloop.value import Document

BEYOND_S = 60.0
"""The wall limit ends the turn, so that the session can go on; so much later the process is killed in any case."""


class AcpOptions(Document):
    """What a request may set in `executor.options`."""

    argv: tuple[str, ...] = ()
    """Of the `acp` executor: the whole command line; the person who starts the episode vouches for it."""


class AcpExecutor(Executor):
    """Hands the plan to one agent and answers what it asks."""

    def __init__(
        self,
        agent: AcpAgent,
        *,
        settings: AgentSettings,
        homes: Path,
        gateways: Gateways | None = None,
        fence: Fence | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        """Take the agent and what surrounds it.

        Args:
            agent: a row of `acp_agents.AGENTS`.
            settings: of this agent on this host.
            homes: folder for the homes of agents, outside of the temporary folder.
            gateways: opens doors to the model; None: the agent gets the key itself.
            fence: walls for agents that have none of their own; None: these are refused but in mode `full`.
            grace_s: how long the process may take to follow a polite signal.
        """
        self._agent = agent
        self._settings = settings
        self._homes = homes
        self._gateways = gateways
        self._fence = fence
        self._grace_s = grace_s

    def availability(self) -> Availability:
        """Look for the program and the key; see the port."""
        if not (self._agent.program or self._settings.program):
            return Availability()
        program = self._program("")
        if not program:
            return Availability(usable=False, reason=self._missing())
        if missing := missing_key(self._settings, name=self._agent.name, default_key_env=self._agent.key_env):
            return Availability(usable=False, reason=missing)
        return Availability(version=version_of(program) if self._agent.tells_version else "")

    def reconcile(self, order: WorkOrder, state_folder: Path) -> ExecutorOutcome | None:
        """Return the outcome that a dead attempt had reached already; see the port."""
        return kept_outcome(state_folder, order.key)

    def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
        """Work through one turn of the agent; see the port.

        Raises:
            ExecutorError: the options or the settings are wrong, or there is no key.
        """
        argv = _options(order).argv
        if argv and self._agent.program:
            raise ExecutorError(f"the executor {self._agent.name} takes no option argv. Use the executor acp for that")
        program = self._program(argv[0] if argv else "")
        if not program:
            return _fatal(self._missing(argv[0] if argv else ""), ErrorKind.MISSING_PROGRAM)
        sweep_runs(state_folder)
        home = agent_home(self._homes, order.episode_id, self._agent.name)
        with self._access(order) as access:
            launch = self._agent.launch(home, access.model_access, order.executor.mode)
            write_files(home, launch.files)
            if self._settings.login:
                for login in self._agent.logins:
                    copy_login(Path.home() / login, home / login)
            request = self._request(order, (program, *launch.argv, *self._settings.arguments, *argv[1:]), launch, home)
            try:
                fenced, fence = self._fenced(request, order, home)
            except SandboxUnavailableError as error:
                return _fatal(error.message, ErrorKind.SANDBOX)
            secrets = [value for name, value in request.secrets.items() if name in launch.secrets or looks_secret(name)]
            # An agent without a fence could find the worker's own key, too.
            own = os.environ.get(self._settings.api_key_env or self._agent.key_env, "")
            record = RunRecord(state_folder, order.key, [access.model_access.key, own, *secrets])
            delivery = Delivery(order, control, record, access.gateway, sign_in=self._agent.sign_in)
            return AcpRun(self._agent, order, delivery, record).deliver(fenced, control, fence)

    def _program(self, chosen: str) -> str:
        usual = (self._agent.program,) if self._agent.program else ()
        return find_program(chosen or self._settings.program, *usual)

    def _missing(self, chosen: str = "") -> str:
        wanted = chosen or self._settings.program or self._agent.program
        if not wanted:
            return 'the executor acp needs a command line: give the option argv, such as ["my-agent", "--acp"]'
        how = f"Install it ({self._agent.get_it})" if self._agent.get_it else "Install it"
        return (
            f"the program {wanted!r} of the executor {self._agent.name} was not found. {how}, or set "
            f"executor.agents.{self._agent.name}.program to where it is"
        )

    def _access(self, order: WorkOrder) -> contextlib.AbstractContextManager[Access]:
        return open_access(
            self._settings,
            order,
            wire=self._agent.wire,
            default_base_url=self._agent.base_url,
            default_key_env=self._agent.key_env,
            gateways=self._gateways,
        )

    def _request(self, order: WorkOrder, argv: tuple[str, ...], launch: Launch, home: Path) -> ProcessRequest:
        passed = {name: os.environ[name] for name in self._settings.environment if name in os.environ}
        return ProcessRequest(
            argv=argv,
            cwd=Path(order.root),
            environment={**search_path(Path(order.root)), **launch.environment, "HOME": str(home)},
            secrets={**passed, **launch.secrets},
            inherit=False,
            wall_limit_s=order.executor.wall_limit_s + BEYOND_S,
            grace_s=self._grace_s,
            separate_errors=True,
        )

    def _fenced(self, request: ProcessRequest, order: WorkOrder, home: Path) -> tuple[ProcessRequest, str]:
        if self._agent.own_sandbox:
            return request, "own"
        if order.executor.mode is AgentMode.FULL:
            return request, "none"
        if self._fence is None:
            raise SandboxUnavailableError(NO_FENCE.format(name=self._agent.name))
        root, installed = Path(order.root), _installed(request.argv[0])
        reads_only = order.executor.mode is AgentMode.READ_ONLY
        writable, readable = ((home,), (*installed, root)) if reads_only else ((root, home), installed)
        return self._fence.around(request, writable=writable, readable=readable), self._fence.name


def _options(order: WorkOrder) -> AcpOptions:
    try:
        return AcpOptions.model_validate(order.executor.options)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ExecutorError(
            f"option {place!r} of the executor {order.executor.name} is wrong: {first['msg']}. "
            'The executor acp knows `argv`, such as ["my-agent", "--acp"]; the others take no options'
        ) from None


def _fatal(error: str, kind: ErrorKind) -> ExecutorOutcome:
    return ExecutorOutcome(status=ExecutorStatus.FATAL, error=error, error_kind=kind)


def _installed(program: str) -> tuple[Path, ...]:
    """Return what a fence that hides the user's home has to show of a program that may lie in it."""
    real = Path(program).resolve()
    modules = [folder for folder in real.parents if folder.name == "node_modules"]
    return tuple(dict.fromkeys([Path(program).parent, modules[-1] if modules else real.parent]))
