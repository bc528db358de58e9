"""Activities that run checks."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field
from temporalio import activity
from temporalio.exceptions import CancelledError

from activities.artifacts.port import ArtifactStore, ArtifactStores, find_model, get_model, put_model
from activities.attempt import should_stop
from activities.workspace.scope import EpisodeScope
from tightloop.episode.budget import check_work
from tightloop.episode.check import (
    FAILING_LIMIT,
    Check,
    CheckReport,
    CheckResult,
    CheckStatus,
    FailedCheck,
    Verification,
    check_key,
    check_name,
    judge,
    newly_failing,
    progress,
    regress,
)
from tightloop.episode.failure import explain_output
from tightloop.episode.model import EpisodeRequest
from tightloop.safety.drift import DriftCause
from tightloop.value import ArtifactRef, Value
from tightloop.value.scrub import scrub

if TYPE_CHECKING:
    from activities.checks.runner import CheckRunner
    from activities.workspace.working_tree import CheckedTree, Workspaces


class CommandResult(Value):
    """Result of a command."""

    exit_code: int | None
    """Exit code of the command. None if it was killed at its time limit or could not start."""
    timed_out: bool = False
    duration_s: float = 0.0
    cpu_s: float | None = None
    output: bytes = Field(default=b"", repr=False)
    """Interleaved stdout and stderr. If the output is too long, only the tail is kept."""
    sandbox: str = ""
    """Name of the sandbox, such as `bubblewrap`."""
    not_enforced: tuple[str, ...] = ()
    """Limits that were not enforced in this run."""


@dataclass(frozen=True, kw_only=True)
class CheckView:
    """Changes to the environment of a check, such as extra mounts or another working folder."""

    content: Path | None = None
    """Folder mounted at the working folder's path. If None, the working folder itself is used."""
    mounts: tuple[tuple[Path, Path], ...] = ()
    """Read-only mounts, as pairs of a source and the path that the check sees."""
    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    network: bool = True
    """True if the check may reach the hosts in the settings."""
    shared_folders: bool = True
    """True if the check may write to the folders of `sandbox.write`."""


# Every verification stays in the episode's history; the full output is an artifact.
TAIL_IN_HISTORY = 360


class VerifyRequest(Value):
    """The tree to check, and the earlier results to compare with."""

    scope: EpisodeScope
    expected_tree: str
    previous: ArtifactRef | None = None
    """Previous report."""
    failed_before: tuple[str, ...] = ()
    """Keys of the checks that have failed before."""


class VerificationActivities:
    """Activities that run checks."""

    def __init__(self, workspaces: "Workspaces", stores: ArtifactStores, runner: "CheckRunner") -> None:
        self._workspaces = workspaces
        self._stores = stores
        self._runner = runner

    @activity.defn(no_thread_cancel_exception=True)
    def verify(self, request: VerifyRequest) -> Verification:
        """Run every check, then restore the checked tree. Idempotent.

        Checks may write reports, caches and other files into the tree. These files are reverted unless git
        ignores them. The evidence therefore applies to exactly the delivered tree.
        """
        store = self._stores(Path(request.scope.workspace))
        checks = get_model(store, request.scope.stored_request, EpisodeRequest).definition_of_done
        with store.open_batch() as together, self._workspaces.hold(request.scope) as tree:
            drift = tree.expect(request.expected_tree)
            results, flaky = [], []
            try:
                for number, check in enumerate(checks, start=1):
                    activity.heartbeat(check_work(check, number, len(checks), datetime.now(UTC)))
                    result, is_flaky = run_check_with_retry(
                        self._runner,
                        check,
                        tree,
                        together,
                        expected_tree=request.expected_tree,
                        cancelled=should_stop,
                        failed_before=request.failed_before,
                    )
                    results.append(result)
                    flaky += [check_name(result.name)] if is_flaky else []
            finally:
                # Before the report, which must describe the delivered tree. Also if a person stops a check: its
                # leftovers must not be mistaken for their edits.
                touched = tree.ensure(request.expected_tree, DriftCause.DURING_CHECKS)
            report = CheckReport(tree=request.expected_tree, results=tuple(results))
            before = find_model(store, request.previous, CheckReport)
            verification = verification_of(together, report, before)
        attempt = activity.info().attempt
        return verification.evolve(
            drift=drift,
            touched=touched,
            checks_touched_tree=touched is not None,
            flaky=tuple(flaky[:FAILING_LIMIT]),
            attempt=attempt,
        )


def verification_of(store: ArtifactStore, report: CheckReport, before: CheckReport | None = None) -> Verification:
    """Store a check report and return a summary for Temporal.

    The summary compares the report with the previous report.
    """
    failed = report.failed
    return Verification(
        tree=report.tree,
        total=len(report.results),
        failed=tuple(
            FailedCheck(
                name=check_name(result.name),
                key=check_key(result.run),
                status=result.status,
                signature=result.signature,
                # Scrub before shortening: a truncated secret no longer matches any pattern.
                tail=explain_output(scrub(result.tail), TAIL_IN_HISTORY),
            )
            for result in failed[:FAILING_LIMIT]
        ),
        failed_count=len(failed),
        signature=report.signature,
        progress=progress(before, report),
        regress=regress(before, report),
        same=before is not None and before.signature == report.signature,
        newly_failing=tuple(check_name(name) for name in newly_failing(before, report)[:5]),
        cpu_s=sum(measured) if (measured := [r.cpu_s for r in report.results if r.cpu_s is not None]) else None,
        remarks=tuple(result.remark for result in report.results if result.remark)[:5],
        report=put_model(store, report, name="checks"),
    )


def run_check(
    runner: "CheckRunner",
    check: Check,
    tree: "CheckedTree",
    store: ArtifactStore,
    *,
    expected_tree: str,
    cancelled: Callable[[], bool],
    view: CheckView = CheckView(),
) -> CheckResult:
    """Run one check, store its output as an artifact and evaluate the result.

    Raises:
        CancelledError: the activity was cancelled in the meantime.
    """
    result = runner.run(check, tree.root, cancelled=cancelled, started=tree.own_process, view=view)
    # The command was killed then, and its result says nothing about the tree.
    if cancelled():
        raise CancelledError(f"verification was stopped during {check.title!r}")
    judged = judge(
        check,
        tree=expected_tree,
        exit_code=result.exit_code,
        timed_out=result.timed_out,
        duration_s=result.duration_s,
        output=result.output.decode("utf-8", "replace"),
        artifact=store.put(result.output, name=f"output of {check_name(check.title)}", media_type="text/plain"),
    )
    return judged.evolve(sandbox=result.sandbox, not_enforced=result.not_enforced, cpu_s=result.cpu_s)


def run_check_with_retry(
    runner: "CheckRunner",
    check: Check,
    tree: "CheckedTree",
    store: ArtifactStore,
    *,
    expected_tree: str,
    cancelled: Callable[[], bool],
    failed_before: Collection[str],
) -> tuple[CheckResult, bool]:
    """Run one check. Retry its first failure, which could be due to chance.

    `failed_before` contains the keys of the checks that have failed before. These checks are not retried.

    Returns:
        The result, and whether the check is flaky. A flaky check failed first and then passed. It counts
        as passed.

    Raises:
        CancelledError: the activity was cancelled in the meantime.
    """
    result = run_check(runner, check, tree, store, expected_tree=expected_tree, cancelled=cancelled)
    # A check that ran out of time would cost as much time again.
    if result.status is not CheckStatus.FAILED or check_key(check.run) in failed_before:
        return result, False
    again = run_check(runner, check, tree, store, expected_tree=expected_tree, cancelled=cancelled)
    return (again, True) if again.passed else (result, False)
