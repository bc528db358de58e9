"""Executor that follows a script. It is deterministic, works offline and can be made to fail in every way.

    steps:                       # one per iteration
      - write: [{path: "notes/{n}.md", text: "iteration {n}"}]
        append: [{path: log.txt, text: "once more"}]
        delete: [{path: old.py}]
        run: [ruff, check, --fix, .]
        sleep: 0.5
        status: completed        # or failed, refused, fatal, limit_hit ...
        usage: {input_tokens: 1200, output_tokens: 300}
      - {write: [{path: half.py}], crash: true}      # crash: before - before any action
      - {hang: true}
      - {stall: "Reconnecting... 1/5"}               # a program prints this and waits for the idle limit
      - {orphan: {path: late.txt, after_s: 5}}       # a daemon that tries to edit the tree after the delivery
      - {write: [{path: whole.py}], limit_tries: 2, retry_after_s: 0.5, evidence: "429"}
    repeat: false                # true: start over after the last step
    effects_outside: ""          # pretended effects outside the working tree

Actions within a step run in this order: write, append, delete, run, orphan, stall, sleep, crash, hang, end. The script
is given in `executor.options`, or in a YAML file in the workspace that the option `script` names. `{n}` in a path, a
text or an argument is replaced with the iteration number.
"""

import os
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from signal import SIGKILL

import yaml
from pydantic import ValidationError

from activities.artifacts.port import file_stem
from activities.executor.delivery import cancelled_outcome, early_outcome, failed_outcome, timeout_outcome
from activities.executor.port import Control, Executor
from activities.process import GRACE_S, ProcessRequest, ProjectProgram, run_process, search_path
from activities.process.output import BoundedOutput
from tightloop.errors import ExecutorError
from tightloop.executor.model import SUMMARY_CHARACTERS, ExecutorOutcome, ExecutorStatus, LimitHit, Usage, WorkOrder
from tightloop.executor.options import Script, ScriptStep
from tightloop.host import private_folder
from tightloop.value import clip, first_problem, format_count, unknown_fields
from tightloop.value.documents import load_yaml

_POLL_S = 0.05
"""Interval for polling the control, which must be polled at least once a second."""


class ScriptedExecutor(Executor):
    """Follows the script in the order's options. You can also use it in your own tests."""

    def __init__(self, *, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s

    def effects_outside(self, order: WorkOrder) -> str:
        return read_script(order).effects_outside

    def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
        """Run the script's step for this iteration. If there is no such step, nothing changes.

        Raises:
            ExecutorError: the script is invalid or leaves the working tree. Nothing was done.
        """
        script = read_script(order)
        index = order.iteration - 1
        if script.repeat:
            index %= len(script.steps)
        if not 0 <= index < len(script.steps):
            return ExecutorOutcome(
                status=ExecutorStatus.NO_CHANGE,
                summary=f"the script has only {format_count(len(script.steps), 'step')}, "
                f"but iteration {order.iteration} needs another step",
            )
        step = script.steps[index]
        orphaned = (step.orphan.path,) if step.orphan else ()
        # All paths before the first change, so that a bad script changes nothing.
        for path in (*(file.path for file in (*step.write, *step.append)), *orphaned):
            inside(order, path)
        for deleted in step.delete:
            inside(order, deleted.path, follow=False)
        if (number := try_of(order.key)) <= step.limit_tries:
            summary = f"the script hit a limit in try {number} of {step.limit_tries}"
            return _ending(step.evolve(summary=summary), ExecutorStatus.LIMIT_HIT)
        return _Performance(step, order, control, self._grace_s).run(state_folder)


def try_of(key: str) -> int:
    """Return the attempt number, starting at 1, from a key of the form `<run>/<iteration>/<try>`."""
    last = key.rpartition("/")[2]
    return int(last) if last.isdecimal() else 1


def read_script(order: WorkOrder) -> Script:
    """Read the script that an order contains or names.

    Raises:
        ExecutorError: the script is missing or invalid. The message contains the position of the error.
    """
    options = order.executor.options
    source = "executor.options"
    document: object = options
    if "script" in options:
        if set(options) != {"script"} or not isinstance(options["script"], str):
            raise ExecutorError("executor.options.script must be a single path and the only option")
        source = options["script"]
        try:
            document = load_yaml(inside(order, source).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ExecutorError(f"cannot read the script {source!r}: {error}") from error
    try:
        return Script.model_validate(document)
    except ValidationError as error:
        # A misspelled field is the likely reason for the other problems, so it is reported first.
        problem = next(unknown_fields(Script, document), "") or first_problem(error)
        raise ExecutorError(f"the script in {source} is invalid: {problem}") from None


def insert_iteration(text: str, order: WorkOrder) -> str:
    """Replace `{n}` with the iteration number."""
    return text.replace("{n}", str(order.iteration))


def inside(order: WorkOrder, path: str, *, follow: bool = True) -> Path:
    """Resolve a path from the script within the working tree.

    Args:
        order: the order that names the working tree.
        path: the path, relative to the working tree.
        follow: whether to resolve a symlink at the end of the path.

    Raises:
        ExecutorError: the path is the tree itself or is outside it.
    """
    if "\0" in path:
        raise ExecutorError(f"cannot use path {path!r} in the script: it contains a null byte")
    root = Path(order.root).resolve()
    location = root / insert_iteration(path, order)
    try:
        # A deletion removes the link itself, so its target does not matter.
        real = location.resolve() if follow else location.parent.resolve() / location.name
    except (OSError, RuntimeError) as error:
        raise ExecutorError(f"cannot use path {path!r} in the script: {error}") from error
    if real == root or not real.is_relative_to(root) or real.name == "..":
        raise ExecutorError(f"path {path!r} in the script points outside the working tree {order.root}")
    return real


def _ending(step: ScriptStep, status: ExecutorStatus) -> ExecutorOutcome:
    limit = None
    if status is ExecutorStatus.LIMIT_HIT:
        wait = None if step.retry_after_s is None else timedelta(seconds=step.retry_after_s)
        limit = LimitHit(retry_after=wait, evidence=step.evidence)
    usage = None if step.usage is None else Usage.model_validate(step.usage.model_dump())
    return ExecutorOutcome(status=status, summary=step.summary, error=step.error, limit=limit, usage=usage)


class _Performance:
    """The execution of one step of a script."""

    def __init__(self, step: ScriptStep, order: WorkOrder, control: Control, grace_s: float) -> None:
        self._step = step
        self._order = order
        self._control = control
        self._grace_s = grace_s
        self._deadline = time.monotonic() + order.executor.wall_limit_s
        self._done: list[str] = []
        self._exit_code: int | None = None
        self._transcript = BoundedOutput()

    def run(self, state_folder: Path) -> ExecutorOutcome:
        outcome = self._act(state_folder) or _ending(self._step, self._step.status)
        summary = outcome.summary or "; ".join(self._done) or "nothing to do"
        return outcome.evolve(
            summary=clip(summary, SUMMARY_CHARACTERS), exit_code=self._exit_code, transcript=self._transcript.value()
        )

    def _act(self, state_folder: Path) -> ExecutorOutcome | None:
        """Run the actions of the step. Return an outcome if the step ends before its scripted outcome."""
        if self._step.crash == "before":
            _crash_once(self._order.key, state_folder)
        try:
            self._touch()
        except OSError as error:
            return failed_outcome(f"the script failed: {error}")
        for argv in self._programs():
            if early := self._run(argv):
                return early
        early = self._wait(self._step.sleep)
        if early is None and self._step.crash is True:
            _crash_once(self._order.key, state_folder)
        return early or (self._wait(None) if self._step.hang else None)

    def _touch(self) -> None:
        for how, files in (("write", self._step.write), ("append", self._step.append)):
            for file in files:
                self._note(f"{how} {file.path}")
                location = inside(self._order, file.path)
                location.parent.mkdir(parents=True, exist_ok=True)
                # newline="": the script's line ends are written as they are on every platform.
                with location.open(how[0], encoding="utf-8", newline="") as stream:
                    stream.write(insert_iteration(file.text, self._order))
        for path in self._step.delete:
            self._note(f"delete {path.path}")
            location = inside(self._order, path.path, follow=False)
            if location.is_dir() and not location.is_symlink():
                shutil.rmtree(location)
            else:
                location.unlink(missing_ok=True)

    def _programs(self) -> Iterator[tuple[str, ...]]:
        if self._step.run:
            yield tuple(insert_iteration(part, self._order) for part in self._step.run)
        if (orphan := self._step.orphan) is not None:
            late = f"sleep {orphan.after_s:g}; printf %s {shlex.quote(orphan.text)} > {shlex.quote(orphan.path)}"
            # `env -i` removes the mark by which descendants are found, `setsid` leaves the process group:
            # the hardest case for the cleanup.
            daemon = shlex.join(("env", "-i", "setsid", "/bin/sh", "-c", late))
            yield ("/bin/sh", "-c", f"{daemon} </dev/null >/dev/null 2>&1 &")
        if self._step.stall is not None:
            # `exec`: the signal must reach the sleeping program, not a shell that waits for it.
            yield ("/bin/sh", "-c", f"printf %s {shlex.quote(self._step.stall)}; exec sleep 1000000")

    def _run(self, argv: tuple[str, ...]) -> ExecutorOutcome | None:
        root = Path(self._order.root)
        request = ProcessRequest(
            # Like a person running the script: unsandboxed, with the project's programs.
            program=ProjectProgram(argv[0]),
            arguments=argv[1:],
            cwd=root,
            environment=search_path(root),
            wall_limit_s=max(self._deadline - time.monotonic(), 0),
            idle_limit_s=self._order.executor.idle_limit_s,
            grace_s=self._grace_s,
        )
        result = run_process(request, cancelled=self._control.is_cancelled, started=self._control.own_process)
        ending = result.reason.value if result.exit_code is None else f"exit {result.exit_code}"
        self._note(f"run {' '.join(argv)} ({ending})")
        self._transcript.add(result.output)
        self._exit_code = result.exit_code
        return early_outcome(result, self._order.executor)

    def _wait(self, seconds: float | None) -> ExecutorOutcome | None:
        """Wait for the given number of seconds, or forever if it is None.

        Return an outcome if the wait is cancelled or exceeds the wall limit.
        """
        until = None if seconds is None else time.monotonic() + seconds
        while until is None or time.monotonic() < until:
            if self._control.is_cancelled():
                return cancelled_outcome()
            if time.monotonic() >= self._deadline:
                return timeout_outcome(self._order.executor)
            time.sleep(_POLL_S if until is None else min(_POLL_S, max(until - time.monotonic(), 0)))
        return None

    def _note(self, line: str) -> None:
        self._done.append(clip(line, 120))
        self._transcript.add(f"{line}\n".encode("utf-8", "replace"))


def _crash_once(key: str, state_folder: Path) -> None:
    folder = state_folder / "scripted"
    private_folder(folder)
    with suppress(FileExistsError):
        # The marker first: the attempt after the crash must find it and continue.
        (folder / f"{file_stem(key)}.crashed").touch(mode=0o600, exist_ok=False)
        # Not `sys.exit`: no handler and no `finally` may run, as in a power loss.
        os.kill(os.getpid(), SIGKILL)
