"""Shows proofs in plain words."""

from collections.abc import Iterator

from tightloop.client.proof.statement import CheckDetails, Details, Result, RunDetails, Statement
from tightloop.episode.proof import ProofVerdict, TestsFrom
from tightloop.value import counted

_DIGITS = 12
_SHOWN = 12
_RUNS = {
    TestsFrom.DELIVERED: "with the tests as delivered",
    TestsFrom.BEGINNING: "with tests, test data and checker configuration of the beginning",
}


def proof_lines(statement: Statement) -> Iterator[str]:
    """Yield what a proof says, a line each."""
    predicate, details = statement.predicate, statement.predicate.tightloop
    yield f"{details.episode}: {_verdict(predicate.result, details)}"
    yield f"files: git tree {statement.tree[:_DIGITS]}, made from {details.base_tree[:_DIGITS]}"
    yield f"run in a fresh checkout of these files, {details.started_at:%Y-%m-%d %H:%M %Z}:"
    for run in details.runs:
        yield from _run_lines(run)
    for finding in details.findings:
        yield f"found: {finding.text}" + (" (announced beforehand)" if finding.announced else "")
    for file in details.changed[:_SHOWN]:
        yield f"changed: {file.path} ({file.kind.value.replace('_', ' ')} {file.change.value})"
    if details.changed_count > _SHOWN:
        yield f"changed: {details.changed_count - _SHOWN} more"
    if not details.changed_count:
        yield "no test, test data or checker configuration changed"
    for sentence in details.not_held:
        yield f"not shown: {sentence}"


def _verdict(result: Result, details: Details) -> str:
    if details.verdict is ProofVerdict.ACCEPTED:
        return f"NOT PROVEN, accepted by {details.accepted_by or 'somebody'}"
    if result is Result.FAILED:
        return "NOT PROVEN"
    return "PROVEN" if result is Result.PASSED else "PROVEN, with changes that were announced beforehand"


def _run_lines(run: RunDetails) -> Iterator[str]:
    yield f"  {_RUNS[run.tests]}:"
    for check in run.checks:
        yield f"    {check.status.value.replace('_', ' ')}: {check.run}{_counts(check)}{_walls(check)}"


def _counts(check: CheckDetails) -> str:
    told = [
        f"{report.checker}: {counted(report.total, 'test')}, {report.passed} passed"
        + (f", {report.failed} failed" if report.failed else "")
        + (f", {report.skipped} skipped" if report.skipped else "")
        + (f", {report.missing} missing" if report.missing else "")
        + ("" if report.complete else ", report incomplete")
        for report in check.reports
    ]
    return f" ({'; '.join(told)})" if told else " (exit status only)"


def _walls(check: CheckDetails) -> str:
    if not check.sandbox:
        return ""
    missing = f", which did not hold: {', '.join(check.not_enforced)}" if check.not_enforced else ""
    return f" in {check.sandbox}{missing}"
