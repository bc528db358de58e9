"""Does the work with programs in a sandbox: the commands of the plan itself, or one agent that takes the whole plan."""

import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from activities.execution.ending import ended_early, limited, timed_out
from activities.execution.port import Availability, Control, Executor
from activities.execution.template import CommandOptions, fill, options_of, without_secrets, written_plan
from activities.process import GRACE_S, ProcessResult, Reason, search_path
from activities.process_output import BoundedOutput
from activities.sandbox.allowance import allowed, places
from activities.sandbox.port import (
    ExitReason,
    Network,
    Sandbox,
    SandboxResult,
    SandboxSpec,
    SandboxUnavailableError,
)
from tightloop.errors import ExecutorError, SettingsError
from tightloop.executor import SUMMARY_CHARACTERS, ErrorKind, ExecutorOutcome, ExecutorStatus, LimitHit, WorkOrder
from tightloop.message import PlannedStep
from tightloop.settings import ExecutorSettings, SandboxSettings
from tightloop.value import clip

PROGRAMS = ExecutorSettings().programs
FAILED_FROM = 2
"""Formatters and linters exit with 1 where findings are left, and with 2 where they could not work."""
END_LINES = 20
"""A limit is looked for in so many last lines: what an agent says before them may be its work."""

_SEPARATORS = re.compile(r"[=:,;@]")
_SHORT_OPTION = re.compile(r"^-\w(?=[/~])")
_DOCKER = "docker"
_KINDS = {
    ExitReason.MEMORY_LIMIT: ErrorKind.SANDBOX,
    ExitReason.PROCESS_LIMIT: ErrorKind.SANDBOX,
    ExitReason.OUTPUT_LIMIT: ErrorKind.SANDBOX,
    ExitReason.NOT_STARTED: ErrorKind.MISSING_PROGRAM,
}


class CommandExecutor(Executor):
    """Runs the `run` steps of a plan one by one, or a command made of a template."""

    def __init__(
        self,
        sandbox: Sandbox,
        settings: SandboxSettings,
        *,
        programs: Collection[str] = PROGRAMS,
        argv: Sequence[str] = (),
        grace_s: float = GRACE_S,
        find_limit: Callable[[str], LimitHit | None] | None = None,
    ) -> None:
        """Take the walls and what may be run behind them.

        Args:
            sandbox: where every command runs.
            settings: its bounds.
            programs: names that the steps of a plan may run.
            argv: template used where the order has none; empty: the plan's steps are run.
            grace_s: how long a process may take to follow a polite signal.
            find_limit: reads a provider's limit out of the last `END_LINES` lines of a template's command that
                failed (exit code other than 0); never asked about one that succeeded.
        """
        self._sandbox = sandbox
        self._settings = settings
        self._programs = frozenset(programs)
        self._argv = tuple(argv)
        self._grace_s = grace_s
        self._find_limit = find_limit

    def availability(self) -> Availability:
        """Look for walls that work, and for the program of the settings' template; see the port."""
        if problem := self._sandbox.probe():
            return Availability(usable=False, reason=problem)
        program = self._argv[0] if self._argv else ""
        if program and self._sandbox.name != _DOCKER and "{" not in program and shutil.which(program) is None:
            return Availability(
                usable=False,
                reason=f"program {program!r} of executor.argv was not found in PATH. Install it where the worker runs",
            )
        return Availability()

    def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
        """Run the template or the steps; see the port.

        Raises:
            ExecutorError: the options, the template or the settings of the sandbox are wrong.
        """
        try:
            return self._execute(order, control, state_folder)
        except SandboxUnavailableError as error:
            return ExecutorOutcome(status=ExecutorStatus.FATAL, error=error.message, error_kind=ErrorKind.SANDBOX)
        except SettingsError as error:
            raise ExecutorError(error.message) from error

    def _execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
        options = options_of(order)
        delivery = _Delivery(self._sandbox, self._settings, self._grace_s, order, control)
        if template := options.argv or self._argv:
            with written_plan(order, state_folder) as plan_file:
                return self._run_template(fill(template, order, plan_file), options, delivery, plan_file)
        if refusal := self._refusal(order):
            return ExecutorOutcome(status=ExecutorStatus.REFUSED, summary=refusal, error=refusal)
        if self._sandbox.name != _DOCKER and (missing := _missing_program(order)):
            return ExecutorOutcome(status=ExecutorStatus.FATAL, error=missing, error_kind=ErrorKind.MISSING_PROGRAM)
        return _Steps(delivery).run()

    def _run_template(
        self, argv: tuple[str, ...], options: CommandOptions, delivery: "_Delivery", plan_file: Path
    ) -> ExecutorOutcome:
        choice = delivery.order.executor
        spec = delivery.spec(argv, choice.wall_limit_s)
        spec = replace(
            spec,
            network=Network.HOST if options.network else spec.network,
            readable=(*spec.readable, *places(options.read, "option read of the command executor"), plan_file),
            writable=(*spec.writable, *places(options.write, "option write of the command executor")),
            secrets=options.variables(os.environ),
            stdin=plan_file if options.stdin else None,
        )
        result = delivery.run(spec)
        transcript = without_secrets(result.output, spec.secrets)
        output = transcript.decode("utf-8", "replace")
        said = clip(output.strip(), SUMMARY_CHARACTERS)
        outcome = _ended_early(result, delivery.order)
        if outcome is None and result.exit_code == 0:
            outcome = ExecutorOutcome(status=ExecutorStatus.COMPLETED)
        elif outcome is None:
            outcome = self._failed(output, said or f"{argv[0]} exited with {result.exit_code} and said nothing")
        return outcome.model_copy(
            update={
                "summary": said,
                "exit_code": result.exit_code,
                "cpu_s": result.cpu_s,
                "transcript": transcript,
                "versions": {"sandbox": result.backend},
            }
        )

    def _failed(self, output: str, error: str) -> ExecutorOutcome:
        end = "\n".join(output.rstrip().splitlines()[-END_LINES:])
        limit = self._find_limit(end) if self._find_limit else None
        return ExecutorOutcome(status=ExecutorStatus.FAILED, error=error) if limit is None else limited(limit, error)

    def _refusal(self, order: WorkOrder) -> str:
        root = Path(order.root).resolve()
        for number, step in enumerate(order.plan.steps, start=1):
            if step.run and (problem := self._problem(step.run, root)):
                return f"step {number} was refused, and nothing was run: {problem}"
        return ""

    def _problem(self, run: tuple[str, ...], root: Path) -> str:
        program = clip(run[0], 80)
        if run[0] not in self._programs:
            known = ", ".join(sorted(self._programs)) or "none"
            return f"program {program!r} is not in the setting executor.programs ({known}). Add it there to allow it"
        for argument in run[1:]:
            if leaves(argument, root):
                return f"argument {clip(argument, 80)!r} of {program} leads out of the working tree"
        return ""


def leaves(argument: str, root: Path) -> bool:
    """Return whether an argument of a command names a place outside `root`, which must be resolved.

    Looks at each path in it, as in `--config=/etc/x` or `-I/usr`, and follows symbolic links. A guard
    against slips of a planner; a wall against malice is the sandbox.
    """
    return any(_outside(part, root) for part in _SEPARATORS.split(_SHORT_OPTION.sub("", argument)))


def _outside(path: str, root: Path) -> bool:
    if "\0" in path or path.startswith("~") or ".." in re.split(r"[/\\]", path):
        return True
    try:
        return not (root / path).resolve().is_relative_to(root)
    except (OSError, RuntimeError):
        return True


def _missing_program(order: WorkOrder) -> str:
    path = search_path(Path(order.root))["PATH"]
    for step in order.plan.steps:
        if step.run and shutil.which(step.run[0], path=path) is None:
            return (
                f"program {step.run[0]!r} was not found in the .venv of the workspace, beside tightloop's Python "
                "or in PATH. Install it where the worker runs"
            )
    return ""


def _ended_early(result: SandboxResult, order: WorkOrder) -> ExecutorOutcome | None:
    as_process = ProcessResult(reason=Reason(result.reason.value), message=result.message)
    outcome = ended_early(as_process, order.executor)
    if outcome is None or result.reason not in _KINDS:
        return outcome
    return outcome.model_copy(update={"error_kind": _KINDS[result.reason]})


@dataclass(frozen=True)
class _Delivery:
    """Runs the commands of one order."""

    sandbox: Sandbox
    settings: SandboxSettings
    grace_s: float
    order: WorkOrder
    control: Control

    def spec(self, argv: tuple[str, ...], wall_limit_s: float) -> SandboxSpec:
        root = Path(self.order.root)
        spec = allowed(self.settings, argv, root, wall_limit_s=wall_limit_s, grace_s=self.grace_s)
        return replace(spec, idle_limit_s=self.order.executor.idle_limit_s)

    def run(self, spec: SandboxSpec) -> SandboxResult:
        return self.sandbox.run(spec, cancelled=self.control.cancelled, started=self.control.own_process)


class _Steps:
    """One pass over the steps of a plan."""

    def __init__(self, delivery: _Delivery) -> None:
        self._delivery = delivery
        self._order = delivery.order
        self._deadline = time.monotonic() + self._order.executor.wall_limit_s
        self._done: list[str] = []
        self._exit_code: int | None = None
        self._cpu_s: float | None = None
        self._backend = ""
        self._transcript = BoundedOutput()

    def run(self) -> ExecutorOutcome:
        for step in self._order.plan.steps:
            if not step.run:
                self._done.append(f"not done: {clip(step.title, 80)!r} has no command")
            elif early := self._run_step(step):
                return self._outcome(early)
        status = ExecutorStatus.NO_CHANGE if self._exit_code is None else ExecutorStatus.COMPLETED
        return self._outcome(ExecutorOutcome(status=status))

    def _run_step(self, step: PlannedStep) -> ExecutorOutcome | None:
        """Run one command; return an outcome where it ends the pass."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            return timed_out(self._order.executor)
        command = " ".join(step.run)
        result = self._delivery.run(self._delivery.spec(step.run, left))
        self._backend = result.backend
        self._note(command, result)
        if early := _ended_early(result, self._order):
            return early
        code = result.exit_code or 0
        self._exit_code = max(self._exit_code or 0, code, key=abs)
        if 0 <= code < FAILED_FROM:
            return None
        said = result.output.decode("utf-8", "replace").strip()
        error = clip(f"{clip(command, 120)} exited with {code}: {said}", SUMMARY_CHARACTERS)
        return ExecutorOutcome(status=ExecutorStatus.FAILED, error=error)

    def _note(self, command: str, result: SandboxResult) -> None:
        if result.cpu_s is not None:
            self._cpu_s = (self._cpu_s or 0.0) + result.cpu_s
        ending = result.reason.value if result.exit_code is None else f"exit {result.exit_code}"
        self._done.append(f"{clip(command, 120)} ({ending})")
        self._transcript.add(f"$ {command}\n".encode("utf-8", "replace") + result.output + f"\n[{ending}]\n".encode())

    def _outcome(self, outcome: ExecutorOutcome) -> ExecutorOutcome:
        return outcome.model_copy(
            update={
                "summary": clip("; ".join(self._done) or "the plan has no steps", SUMMARY_CHARACTERS),
                "exit_code": self._exit_code,
                "cpu_s": self._cpu_s,
                "transcript": self._transcript.value(),
                "versions": {"sandbox": self._backend} if self._backend else {},
            }
        )
