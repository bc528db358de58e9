"""Executor that runs commands in the sandbox."""

import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path

from activities.artifacts.port import file_stem
from activities.executor.agent.record import SHORTEST_SECRET, looks_secret
from activities.executor.delivery import (
    early_outcome,
    failed_outcome,
    fatal_outcome,
    read_options,
    timeout_outcome,
    write_temporary_file,
)
from activities.executor.port import Availability, Control, Executor
from activities.process import GRACE_S, search_path
from activities.process.output import BoundedOutput
from activities.sandbox.choose import NAME as UNSAFE
from activities.sandbox.port import (
    Sandbox,
    SandboxResult,
    SandboxSpec,
    SandboxUnavailableError,
    build_spec,
    resolve_locations,
)
from activities.sandbox.visible import command_access, in_system
from tightloop.errors import ExecutorError, SettingsError
from tightloop.executor.limit import limited_outcome
from tightloop.executor.message import PlannedStep
from tightloop.executor.model import SUMMARY_CHARACTERS, ErrorKind, ExecutorOutcome, ExecutorStatus, LimitHit, WorkOrder
from tightloop.executor.options import CommandOptions
from tightloop.host.worktree import path_inside
from tightloop.settings import ExecutorSettings, SandboxSettings
from tightloop.value import clip

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


def fill(template: Sequence[str], order: WorkOrder, plan_file: Path, workspace: str) -> tuple[str, ...]:
    """Replace the placeholders in a template. `workspace` is the path of the project's folder inside the sandbox.

    Raises:
        ExecutorError: a placeholder is unknown.
    """
    values = {
        "plan_file": str(plan_file),
        "prompt_file": str(plan_file),
        "workspace": workspace,
        "iteration": str(order.iteration),
        "episode": order.episode_id,
    }

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            names = ", ".join(f"{{{name}}}" for name in values)
            raise ExecutorError(f"unknown placeholder {match[0]} in executor.argv. Use one of {names}")
        return values[match[1]]

    return tuple(_PLACEHOLDER.sub(value, part) for part in template)


PROGRAMS = ExecutorSettings().programs
FAILED_FROM = 2
"""Lowest exit code that means failure. Formatters and linters exit with 1 if findings remain, and with 2 or more if
they fail.
"""
END_LINES = 20
"""Number of last lines to search for a limit. Earlier output may be part of the agent's work."""
ERROR_CHARACTERS = 4_000

_SEPARATORS = re.compile(r"[=:,;@]")
_SHORT_OPTION = re.compile(r"^-\w(?=[/~])")
# Programs come from the image, so the host's PATH is irrelevant.
_DOCKER = "docker"


@dataclass(frozen=True)
class CommandExecutor(Executor):
    """Runs the `run` steps of a plan one by one, or runs a command built from a template."""

    sandbox: Sandbox
    """The sandbox for all commands."""
    settings: SandboxSettings
    """The limits of the sandbox."""
    _: KW_ONLY
    programs: Collection[str] = PROGRAMS
    """Names of the programs that plan steps may run."""
    argv: Sequence[str] = ()
    """The template for orders without one. If empty, the plan's steps are run."""
    grace_s: float = GRACE_S
    """Seconds between SIGTERM and SIGKILL."""
    find_limit: Callable[[str], LimitHit | None] | None = None
    """Detects a provider limit in the last `END_LINES` lines of a failed template command. It is not called for
    commands that exit with code zero."""

    def availability(self) -> Availability:
        if problem := self.sandbox.probe():
            return Availability(usable=False, reason=problem)
        program = self.argv[0] if self.argv else ""
        # A placeholder is only known for an order, so such a program cannot be looked up yet.
        if program and self.sandbox.name != _DOCKER and "{" not in program and shutil.which(program) is None:
            return Availability(
                usable=False,
                reason=f"program {program!r} in executor.argv was not found in PATH. Install the program on the "
                "worker's host",
            )
        return Availability()

    def effects_outside(self, order: WorkOrder) -> str:
        options = read_options(CommandOptions, order.executor, "command")
        if self.sandbox.name == UNSAFE:
            return "the command runs without a sandbox"
        open_to = (*self.settings.network, *options.network, *self.settings.write, *options.write)
        return f"the command may reach {', '.join(open_to)}" if open_to else ""

    def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
        """Run the command from the template or the steps of the plan.

        Raises:
            ExecutorError: the options, the template or the sandbox settings are invalid.
        """
        try:
            options = read_options(CommandOptions, order.executor, "command")
            if template := options.argv or self.argv:
                # Outside the paths that the executor may write.
                plan = state_folder / "plans" / f"{file_stem(order.key)}.md"
                with write_temporary_file(plan, order.prompt) as plan_file:
                    project = path_inside(self.sandbox.name, Path(order.root)) / order.folder
                    argv = fill(template, order, plan_file, str(project))
                    return self._run_template(argv, options, order, control, plan_file)
            if refusal := self._refusal(order):
                return ExecutorOutcome(status=ExecutorStatus.REFUSED, summary=refusal, error=refusal)
            path = search_path(path_inside(self.sandbox.name, Path(order.root)))["PATH"]
            programs = [step.run[0] for step in order.plan.steps if step.run and self.sandbox.name != _DOCKER]
            # Checked for all steps before the first runs: half a plan would be worse than none.
            if missing := [program for program in programs if shutil.which(program, path=path) is None]:
                return fatal_outcome(
                    f"program {missing[0]!r} was not found in the workspace's .venv, next to tightloop's Python, "
                    "or in PATH. Install the program on the worker's host",
                    ErrorKind.MISSING_PROGRAM,
                )
            run = partial(self.sandbox.run, cancelled=control.is_cancelled, started=control.own_process)
            return _Steps(order, lambda argv, left: run(self._spec(argv, order, left))).run()
        except SandboxUnavailableError as error:
            return fatal_outcome(error.message, ErrorKind.SANDBOX)
        except SettingsError as error:
            raise ExecutorError(error.message) from error

    def _run_template(
        self, argv: tuple[str, ...], options: CommandOptions, order: WorkOrder, control: Control, plan_file: Path
    ) -> ExecutorOutcome:
        choice = order.executor
        spec = self._spec(argv, order, choice.wall_limit_s)
        # What an order opens is added to the settings, and never replaces them.
        spec = replace(
            spec,
            network=(*spec.network, *options.network),
            readable=(
                *spec.readable,
                *resolve_locations(options.read, "executor.options.read"),
                plan_file,
            ),
            writable=(*spec.writable, *resolve_locations(options.write, "executor.options.write")),
            secrets=options.variables(os.environ),
            stdin=plan_file if options.stdin else None,
        )
        result = self.sandbox.run(spec, cancelled=control.is_cancelled, started=control.own_process)
        transcript = result.output
        for name, value in spec.secrets.items():
            # A short or public value would be cut out of ordinary words of the output.
            if looks_secret(name) and len(value) >= SHORTEST_SECRET:
                transcript = transcript.replace(value.encode(), b"**********")
        output = transcript.decode("utf-8", "replace")
        summary = clip(output.strip(), SUMMARY_CHARACTERS)
        outcome = early_outcome(result, choice)
        if outcome is None and result.exit_code == 0:
            outcome = ExecutorOutcome(status=ExecutorStatus.COMPLETED)
        elif outcome is None:
            end = "\n".join(output.rstrip().splitlines()[-END_LINES:])
            error = clip(end, ERROR_CHARACTERS) or f"{argv[0]} exited with {result.exit_code} without output"
            # Only after a failure: the output of a successful command may quote an error message.
            limit = self.find_limit(end) if self.find_limit else None
            outcome = limited_outcome(limit, error) if limit else failed_outcome(error)
            # A limit passes by itself, and a hidden file does not.
            if limit is None and (hidden := self._hidden_file(spec)):
                option = f"--executor-option 'read=[\"{hidden.parent}\"]'"
                why = (
                    f"the command cannot read {hidden} in the sandbox. Start again with {option}, or add the "
                    "folder to the setting sandbox.read."
                )
                outcome = fatal_outcome(f"{why}\n{error}", ErrorKind.CONFIG)
        return outcome.evolve(
            summary=summary,
            exit_code=result.exit_code,
            cpu_s=result.cpu_s,
            transcript=transcript,
            versions={"sandbox": result.backend},
        )

    def _spec(self, argv: tuple[str, ...], order: WorkOrder, wall_limit_s: float) -> SandboxSpec:
        root = Path(order.root)
        spec = build_spec(self.settings, argv, root, wall_limit_s=wall_limit_s, grace_s=self.grace_s)
        return replace(spec, idle_limit_s=order.executor.idle_limit_s)

    def _hidden_file(self, spec: SandboxSpec) -> Path | None:
        """Return a host file that an argument names but the sandbox hides, or None."""
        if self.sandbox.name in (_DOCKER, UNSAFE):
            return None
        root = path_inside(self.sandbox.name, spec.root)
        access = command_access(spec, search_path(root)["PATH"])
        visible = (root, spec.root, *access.programs, *access.readable, *access.writable)
        for path in map(Path, spec.argv[1:]):
            shown = in_system(path.resolve()) or any(path.is_relative_to(folder) for folder in visible)
            if path.is_absolute() and path.is_file() and not shown:
                return path
        return None

    def _refusal(self, order: WorkOrder) -> str:
        root, problem = Path(order.root).resolve(), ""
        for number, step in enumerate(order.plan.steps, start=1):
            if not step.run:
                continue
            program = clip(step.run[0], 80)
            outside = next((argument for argument in step.run[1:] if is_outside(argument, root)), None)
            if step.run[0] not in self.programs:
                allowed_programs = ", ".join(sorted(self.programs)) or "none"
                problem = (
                    f"program {program!r} is not in executor.programs ({allowed_programs}). To allow the "
                    "program, add it to this setting"
                )
            elif outside is not None:
                problem = f"argument {clip(outside, 80)!r} of {program} points outside the working tree"
            if problem:
                return f"step {number} was rejected and nothing ran: {problem}"
        return ""


def is_outside(argument: str, root: Path) -> bool:
    """Return whether an argument refers to a path outside `root`. The root must be a resolved path.

    Each path in the argument is checked, for example in `--config=/etc/x` or `-I/usr`, and symlinks are
    followed. This catches mistakes made by a planner. The sandbox protects against malicious commands.
    """
    for path in _SEPARATORS.split(_SHORT_OPTION.sub("", argument)):
        if "\0" in path or path.startswith("~") or ".." in re.split(r"[/\\]", path):
            return True
        try:
            if not (root / path).resolve().is_relative_to(root):
                return True
        except (OSError, RuntimeError):
            return True
    return False


class _Steps:
    """A single pass over the steps of a plan."""

    def __init__(self, order: WorkOrder, run: Callable[[tuple[str, ...], float], SandboxResult]) -> None:
        self._order = order
        self._run = run
        self._deadline = time.monotonic() + order.executor.wall_limit_s
        self._done: list[str] = []
        self._exit_code: int | None = None
        self._cpu_s: float | None = None
        self._backend = ""
        self._transcript = BoundedOutput()

    def run(self) -> ExecutorOutcome:
        for step in self._order.plan.steps:
            if not step.run:
                # Such a step is for agents. The others still run, and the checks show whether it was needed.
                self._done.append(f"skipped {clip(step.title, 80)!r} because it has no command")
            elif early := self._run_step(step):
                return self._outcome(early)
        status = ExecutorStatus.NO_CHANGE if self._exit_code is None else ExecutorStatus.COMPLETED
        return self._outcome(ExecutorOutcome(status=status))

    def _run_step(self, step: PlannedStep) -> ExecutorOutcome | None:
        """Run one step of the plan. Return an outcome if the step ends the pass."""
        # The wall limit is that of the delivery, so each step gets only what the earlier ones left.
        left = self._deadline - time.monotonic()
        if left <= 0:
            return timeout_outcome(self._order.executor)
        command = " ".join(step.run)
        result = self._run(step.run, left)
        self._backend = result.backend
        if result.cpu_s is not None:
            self._cpu_s = (self._cpu_s or 0.0) + result.cpu_s
        ending = result.reason.value if result.exit_code is None else f"exit {result.exit_code}"
        self._done.append(f"{clip(command, 120)} ({ending})")
        self._transcript.add(f"$ {command}\n".encode("utf-8", "replace") + result.output + f"\n[{ending}]\n".encode())
        if early := early_outcome(result, self._order.executor):
            return early
        code = result.exit_code or 0
        # A program killed by a signal has a negative exit code.
        self._exit_code = max(self._exit_code or 0, code, key=abs)
        if 0 <= code < FAILED_FROM:
            return None
        output = result.output.decode("utf-8", "replace").strip()
        error = clip(f"{clip(command, 120)} exited with {code}: {output}", SUMMARY_CHARACTERS)
        return failed_outcome(error, ErrorKind.STEP)

    def _outcome(self, outcome: ExecutorOutcome) -> ExecutorOutcome:
        return outcome.evolve(
            summary=clip("; ".join(self._done) or "the plan has no steps", SUMMARY_CHARACTERS),
            exit_code=self._exit_code,
            cpu_s=self._cpu_s,
            transcript=self._transcript.value(),
            versions={"sandbox": self._backend} if self._backend else {},
        )
