"""What a proof does not show, in sentences."""

from collections.abc import Iterable, Sequence

from tightloop.episode.check import Check
from tightloop.episode.proof.beginning import Beginning
from tightloop.episode.proof.verdict import Measured
from tightloop.value import counted, shorten

SHARED_PROCESS = (
    "all checkers but node --test tell of tests from the process that also runs the code under test: "
    "code that is written to deceive them is not excluded"
)
NO_TESTS = "there were no tests at the beginning: those that pass came with the work"


def not_held(
    measured: Sequence[Measured], beginning: Beginning, left_out: Sequence[str], checks: Iterable[Check]
) -> tuple[str, ...]:
    """Return what a proof does not show, a sentence each."""
    lines: list[str] = []
    runs = [check for one in measured for check in one.run.checks]
    for sandbox in dict.fromkeys(check.sandbox for check in runs if check.not_enforced):
        limits = dict.fromkeys(limit for check in runs if check.sandbox == sandbox for limit in check.not_enforced)
        lines.append(f"the sandbox {sandbox} did not hold: {', '.join(limits)}")
    for sandbox in dict.fromkeys(check.sandbox for check in runs):
        if sandbox in ("sandbox-exec", "unsafe-local"):
            lines.append(
                f"{sandbox} has no mounts: installed programs can be written, and know the place of the workspace"
            )
    silent = dict.fromkeys(check.run for check in runs if not check.reports)
    lines += [f"{shorten(run, 100)}: its exit status is all that is known of it" for run in silent]
    if any(report.checker != "node" for check in runs for report in check.reports):
        lines.append(SHARED_PROCESS)
    lines += [
        f"{shorten(check.run, 100)}: added later, so nothing is known of it at the beginning"
        for check in checks
        if beginning.check(check.run) is None
    ]
    if left_out:
        lines.append(
            f"without {counted(len(left_out), 'ignored path')} that came or changed since, such as {left_out[0]}"
        )
    return tuple(lines)
