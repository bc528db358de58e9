"""Shell steps, which run a sandboxed command and capture its standard output separately."""

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
from activities.sandbox.port import Sandbox, SandboxResult, SandboxSpec, build_spec
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
"""Number of bytes to keep from the start of standard output."""
TAIL_CHARACTERS = 300
# Passed as arguments, so that folder and file are never parsed as part of the command.
_WRAPPER = 'cd -- "$1" && exec /bin/sh -c "$2" >"$3"'


class ShellRunner:
    """Runs shell steps."""

    def __init__(self, sandbox: Sandbox, settings: SandboxSettings, *, grace_s: float = GRACE_S) -> None:
        """Set the sandbox, its settings, and the number of seconds between SIGTERM and SIGKILL."""
        self._sandbox = sandbox
        self._settings = settings
        self._grace_s = grace_s

    def preview(self, work: Work) -> str:
        return work.command.inlined_text

    def run(self, work: Work) -> RunnerResult:
        """Run the step's command in the sandbox.

        Raises:
            SandboxUnavailableError: no sandbox works on this host. Not retryable, because a person has to install
                one.
            SettingsError: the sandbox settings refer to a missing path. Not retryable.
        """
        action, command = work.action(ShellAction), work.command
        folder = resolve_path(work.root, action.folder) if action.folder not in ("", ".") else work.root
        if not folder.is_dir() or folder.is_symlink():
            raise InvalidRequestError(f"the folder {action.folder!r} does not exist")
        protected = _protected_paths(work)
        with _receiver() as (stdout_file, descriptor):
            argv = (
                "/bin/sh",
                "-c",
                _WRAPPER,
                "sh",
                f"./{folder.relative_to(work.root)}",
                command.text,
                str(stdout_file),
            )
            spec = build_spec(self._settings, argv, work.root, wall_limit_s=work.step.timeout_s, grace_s=self._grace_s)
            # Readable paths are mounted over the writable tree.
            spec = replace(spec, readable=(*spec.readable, *sorted(protected)))
            # Resolved like values in the command, within the same limits of the kernel.
            environment = {name: variable(name, work.resolve(value)) for name, value in action.environment.items()}
            spec = _widen_spec(spec, work, {**environment, **command.variables}, stdout_file.parent)
            result = self._sandbox.run(spec, cancelled=work.cancelled, started=work.record_process)
            stdout, is_cut = os.pread(descriptor, STDOUT_BYTES, 0), os.fstat(descriptor).st_size > STDOUT_BYTES
        code = result.exit_code if result.reason is Reason.EXITED else None
        text = _log(stdout, result.output)
        log = work.store.put(text.encode(), name=f"log of {work.step.id}", media_type="text/plain")
        return RunnerResult(
            outputs={"stdout": _as_output(stdout), "exit_code": code},
            artifacts={"log": log},
            command=command.inlined_text,
            # First: remove forbidden files whether or not the command failed.
            failure=_remove_protected_files(work, protected) or _failure(result, work.step, text, is_cut=is_cut),
            summary=f"exit code {code} after {result.duration_s:.1f} s" if code is not None else "",
            output_tail=clip(scrub(result.output.decode("utf-8", "replace")).strip(), TAIL_CHARACTERS),
        )


def _as_output(stdout: bytes) -> str:
    """Convert standard output to an output value. A single line loses its newline, as with `$(...)`."""
    text = stdout.decode("utf-8", "replace")
    return text[:-1] if text.find("\n") == len(text) - 1 else text


@contextmanager
def _receiver() -> Iterator[tuple[Path, int]]:
    """Yield a file that receives standard output, and a descriptor for reading the file."""
    with tempfile.TemporaryDirectory(prefix="tightloop-step-", ignore_cleanup_errors=True) as name:
        # Resolved: on macOS the temporary folder is a symlink, and sandbox-exec matches real paths.
        stdout_file = Path(name).resolve() / "stdout"
        # Opened before the command starts: it could replace the file by a symlink, and we would read the target.
        descriptor = os.open(stdout_file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            yield stdout_file, descriptor
        finally:
            os.close(descriptor)


def _widen_spec(spec: SandboxSpec, work: Work, variables: dict[str, str], receiver: Path) -> SandboxSpec:
    ours = {
        "TIGHTLOOP_SEED": str(work.plan.seed),
        "TIGHTLOOP_PLAN": work.scope.episode_id,
        "TIGHTLOOP_STEP": work.step.id,
        "TIGHTLOOP_ATTEMPT": str(work.request.attempt),
    }
    return replace(
        spec,
        # Named by the plan's author, so none is rejected for looking like a secret.
        secrets={**spec.secrets, **variables},
        environment={**spec.environment, **ours},
        writable=(*spec.writable, receiver),
        network=spec.network if work.plan.policy.shell_network else (),
    )


def _failure(result: SandboxResult, step: Step, log: str, *, is_cut: bool) -> StepFailure | None:
    if result.reason is Reason.WALL_LIMIT:
        return make_failure(
            f"the command took longer than {step.timeout_s:g} s and was terminated", FailureClass.TRANSIENT
        )
    if result.reason is Reason.CANCELLED:
        return make_failure("the command was stopped", FailureClass.TRANSIENT)
    if result.reason is not Reason.EXITED:
        return make_failure(f"the command was terminated: {result.message or result.reason.value}")
    # Later steps must not take the beginning of an output for all of it.
    if is_cut:
        return make_failure(
            f"standard output is larger than {STDOUT_BYTES} bytes. Write the output to a file in the tree"
        )
    if result.exit_code and not _judges_exit_code(step):
        tail = clip(log.strip(), TAIL_CHARACTERS)
        return make_failure(f"exit code {result.exit_code}: {tail}" if tail else f"exit code {result.exit_code}")
    return None


def _protected_paths(work: Work) -> frozenset[Path]:
    return find_protected_paths(work.root, protect_lists(work.plan.policy))


def _remove_protected_files(work: Work, before: frozenset[Path]) -> StepFailure | None:
    """Remove protected ignored files that the command created. Return a failure if there were any."""
    # Ignored files are in no snapshot, so undoing the step would leave them behind.
    created = sorted(_protected_paths(work) - before)
    if not created:
        return None
    for path in created:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    names = ", ".join(str(path.relative_to(work.root)) for path in created[:5])
    return make_failure(
        f"policy.protect forbids changes to {names}. The files that the step created were removed", FailureClass.POLICY
    )


def _judges_exit_code(step: Step) -> bool:
    """Return whether the criteria check the exit code. If they do not, the exit code must be 0."""
    for rule in (criterion for criterion in step.expect if isinstance(criterion, str)):
        try:
            if {"exit_code", "outputs.exit_code"} & set(parse_expression(rule).references):
                return True
        except ExpressionError:
            continue
    return False


def _log(*outputs: bytes) -> str:
    """Format a log for people. Standard output comes first, followed by everything else."""
    parts = [part.decode("utf-8", "replace") for part in outputs if part]
    return scrub("\n".join(part.rstrip("\n") for part in parts) + ("\n" if parts else ""))
