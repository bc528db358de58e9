"""Shell steps: a command in the sandbox, its standard output apart from the rest of what it prints."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from activities.plan.attempts.runner import make_failure
from activities.plan.attempts.trees import find_protected_paths, protect_lists
from activities.plan.files import resolve_path, variable
from activities.plan.port import RunnerResult, Work
from activities.process import GRACE_S, Reason
from activities.sandbox.port import Sandbox, SandboxResult, SandboxSpec, allowed
from tightloop.errors import ExpressionError, InvalidRequestError
from tightloop.plan.action import ShellAction
from tightloop.plan.child import StepFailure
from tightloop.plan.expression import parse_expression
from tightloop.plan.failing import FailureClass
from tightloop.plan.step import Step
from tightloop.settings import SandboxSettings
from tightloop.value import clip
from tightloop.value.scrub import scrub

STDOUT_BYTES = 4 * 1024 * 1024
"""What is kept of the standard output; its beginning."""
TAIL_CHARACTERS = 300
# The shell's own arguments, so that neither folder nor file is read as a part of the command.
_WRAPPER = 'cd -- "$1" && exec /bin/sh -c "$2" >"$3"'


class ShellRunner:
    """Runs shell steps."""

    def __init__(self, sandbox: Sandbox, settings: SandboxSettings, *, grace_s: float = GRACE_S) -> None:
        """Take the sandbox, its bounds, and the time that a command may need to follow a polite signal."""
        self._sandbox = sandbox
        self._settings = settings
        self._grace_s = grace_s

    def preview(self, work: Work) -> str:
        """Return the command as it would be run."""
        return work.command.shown

    def run(self, work: Work) -> RunnerResult:
        """Run the command; see the port.

        Raises:
            SandboxUnavailableError: no sandbox works on this host. Not retryable: a person has to install one.
            SettingsError: the settings of the sandbox name a path that is not there. Not retryable.
        """
        action, command = work.action(ShellAction), work.command
        folder = resolve_path(work.root, action.folder) if action.folder not in ("", ".") else work.root
        if not folder.is_dir() or folder.is_symlink():
            raise InvalidRequestError(f"the folder {action.folder!r} is not there")
        protected = _protected(work)
        with _receiver() as (place, descriptor):
            argv = ("/bin/sh", "-c", _WRAPPER, "sh", str(folder), command.text, str(place))
            spec = allowed(self._settings, argv, work.root, wall_limit_s=work.step.timeout_s, grace_s=self._grace_s)
            # What is listed as readable lies on top of the writable tree.
            spec = replace(spec, readable=(*spec.readable, *sorted(protected)))
            given = {name: variable(name, work.resolve(value)) for name, value in action.environment.items()}
            spec = _widened(spec, work, {**given, **command.variables}, place.parent)
            result = self._sandbox.run(spec, cancelled=work.cancelled, started=work.started)
            stdout, is_cut = os.pread(descriptor, STDOUT_BYTES, 0), os.fstat(descriptor).st_size > STDOUT_BYTES
        code = result.exit_code if result.reason is Reason.EXITED else None
        text = _log(stdout, result.output)
        log = work.store.put(text.encode(), name=f"log of {work.step.id}", media_type="text/plain")
        return RunnerResult(
            outputs={"stdout": _as_output(stdout), "exit_code": code},
            artifacts={"log": log},
            command=command.shown,
            # First: what no step may make is removed whether or not the command failed.
            failure=_remove_protected(work, protected) or _failure(result, work.step, text, is_cut=is_cut),
            summary=f"exit code {code} after {result.duration_s:.1f} s" if code is not None else "",
            said=clip(scrub(result.output.decode("utf-8", "replace")).strip(), TAIL_CHARACTERS),
        )


def _as_output(stdout: bytes) -> str:
    """Return the standard output; of one line without its line break, as `$(...)` in a shell."""
    text = stdout.decode("utf-8", "replace")
    return text[:-1] if text.find("\n") == len(text) - 1 else text


@contextmanager
def _receiver() -> Iterator[tuple[Path, int]]:
    """Yield a file for the standard output and a descriptor of it.

    It is read by the descriptor: the command could have put a link in the place of the file.
    """
    with tempfile.TemporaryDirectory(prefix="tightloop-step-", ignore_cleanup_errors=True) as name:
        # Resolved: on macOS the temporary folder lies behind a link, and sandbox-exec goes by real paths.
        place = Path(name).resolve() / "stdout"
        descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            yield place, descriptor
        finally:
            os.close(descriptor)


def _widened(spec: SandboxSpec, work: Work, given: dict[str, str], receiver: Path) -> SandboxSpec:
    ours = {
        "TIGHTLOOP_SEED": str(work.plan.seed),
        "TIGHTLOOP_PLAN": work.scope.episode_id,
        "TIGHTLOOP_STEP": work.step.id,
        "TIGHTLOOP_ATTEMPT": str(work.request.attempt),
    }
    return replace(
        spec,
        # The plan's author named them: none is refused because its name looks like a secret.
        secrets={**spec.secrets, **given},
        environment={**spec.environment, **ours},
        writable=(*spec.writable, receiver),
        network=spec.network if work.plan.policy.shell_network else (),
    )


def _failure(result: SandboxResult, step: Step, log: str, *, is_cut: bool) -> StepFailure | None:
    if result.reason is Reason.WALL_LIMIT:
        return make_failure(f"the command took longer than {step.timeout_s:g} s and was ended", FailureClass.TRANSIENT)
    if result.reason is Reason.CANCELLED:
        return make_failure("the command was stopped", FailureClass.TRANSIENT)
    if result.reason is not Reason.EXITED:
        return make_failure(f"the command was ended: {result.message or result.reason.value}")
    if is_cut:
        return make_failure(f"the standard output is larger than {STDOUT_BYTES} bytes. Write it to a file of the tree")
    if result.exit_code and not _judges_exit_code(step):
        tail = clip(log.strip(), TAIL_CHARACTERS)
        return make_failure(f"exit code {result.exit_code}: {tail}" if tail else f"exit code {result.exit_code}")
    return None


def _protected(work: Work) -> frozenset[Path]:
    return find_protected_paths(work.root, protect_lists(work.plan.policy))


def _remove_protected(work: Work, before: frozenset[Path]) -> StepFailure | None:
    """Return the failure of a command that made files which no step may make, where git ignores them; they go."""
    made = sorted(_protected(work) - before)
    if not made:
        return None
    for place in made:
        shutil.rmtree(place, ignore_errors=True) if place.is_dir() else place.unlink(missing_ok=True)
    names = ", ".join(str(place.relative_to(work.root)) for place in made[:5])
    return make_failure(f"policy.protect covers {names}: no step may make that. It was removed", FailureClass.POLICY)


def _judges_exit_code(step: Step) -> bool:
    """Return whether the criteria say which exit code is right; else it is 0."""
    for rule in (one for one in step.expect if isinstance(one, str)):
        try:
            if {"exit_code", "outputs.exit_code"} & set(parse_expression(rule).references):
                return True
        except ExpressionError:
            continue
    return False


def _log(*outputs: bytes) -> str:
    """Return what a person reads: first the standard output, then everything else."""
    parts = [part.decode("utf-8", "replace") for part in outputs if part]
    return scrub("\n".join(part.rstrip("\n") for part in parts) + ("\n" if parts else ""))
