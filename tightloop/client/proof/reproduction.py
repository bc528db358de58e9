"""Comparison of a proof with its reproduction, and the countersignature."""

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tightloop.client.proof.envelope import COUNTERSIGNATURE, Envelope, SigningKey, sign
from tightloop.client.proof.statement import CheckDetails, ReportDetails, RunDetails, Statement
from tightloop.client.proof.verify import Point, Repository
from tightloop.episode.check import Check
from tightloop.episode.proof import TestsFrom
from tightloop.episode.scenarios import ScenarioBundle
from tightloop.errors import InvalidRequestError, ProofError
from tightloop.wording import format_count

LEAST_SECONDS = 600.0
"""Minimum time limit of each check in seconds; the limit is four times its original duration if that is more.

A proof does not record the original limits.
"""
_SHOWN = 5
_RUNS = {TestsFrom.DELIVERED: "", TestsFrom.BEGINNING: " (with the original tests)"}


def request_of(repository: Repository, statement: Statement, scenarios: ScenarioBundle | None) -> dict[str, Any]:
    """Build the request that asks another party to reproduce a proof.

    Raises:
        ProofError: the repository lacks the initial files, or the scenarios are missing or do not match
            the proof.
    """
    details = statement.predicate.tightloop
    claimed = details.scenarios
    if not repository.has(details.base_tree):
        raise ProofError(
            f"the repository {repository.root} does not contain the initial files of the run "
            f"({details.base_tree[:12]}). On the run's host, run tightloop proof ID --attach and push the ref that the "
            "command prints. Then fetch the ref here"
        )
    if claimed is not None and claimed.total and scenarios is None:
        total = format_count(claimed.total, "hidden scenario")
        raise ProofError(
            f"the proof claims {total}, but none were provided. Provide the scenarios with --scenarios BUNDLE"
        )
    if scenarios is not None and (claimed is None or scenarios.commitment.digest != claimed.sha256):
        has = (
            f"the digest in the proof is {claimed.sha256[:12]}"
            if claimed and claimed.total
            else "the proof has no hidden scenarios"
        )
        raise ProofError(
            "the bundle does not match the hidden scenarios in the proof. The digest of the bundle is "
            f"{scenarios.commitment.digest[:12]}, but {has}. Use the original bundle from `tightloop scenarios pack`. "
            "Packing the folder again changes the digest"
        )
    checks = tuple(
        Check(run=check.run, name=check.name, timeout_s=max(LEAST_SECONDS, 4 * check.seconds))
        for check in details.runs[0].checks
    )
    return {
        "root": str(repository.root),
        "objects": [str(repository.objects), str(repository.git_folder / "objects")],
        "base_tree": details.base_tree,
        "tree": statement.tree,
        "checks": [check.model_dump(mode="json") for check in checks],
        "with_failures": [check.run for check in details.runs[0].checks if check.exit_code],
        "announced": list(details.announced),
        "scenarios": scenarios and scenarios.model_dump(mode="json"),
    }


def compare(claimed: Statement, reproduced: Statement, tails: Mapping[str, str]) -> Iterator[Point]:
    """Compare a proof with its reproduction. Yield a point for each part of the proof.

    If the results differ, the point fails and shows both results. The durations, the sandbox and its
    unenforced limits may differ.

    Args:
        claimed: statement of the proof.
        reproduced: statement of the reproduction.
        tails: end of the output of each command that failed in the reproduction.
    """
    old, new = claimed.predicate.tightloop, reproduced.predicate.tightloop
    trees = (claimed.tree, old.base_tree), (reproduced.tree, new.base_tree)
    if trees[0] != trees[1]:
        yield Point(False, _difference("the files", *(" based on ".join(tree[:12] for tree in pair) for pair in trees)))
        return
    runs = {run.tests: run for run in new.runs}
    for run in old.runs:
        yield from _compare_runs(run, runs.pop(run.tests, None), tails)
    for run in runs.values():
        yield Point(False, f"the proof is missing a required run of the checks{_RUNS[run.tests]}")
    changed = {(file.path, file.change) for file in old.changed}, {(file.path, file.change) for file in new.changed}
    if changed[0] != changed[1] or old.changed_count != new.changed_count:
        names = (sorted(path for path, _ in one - other) for one, other in (changed, changed[::-1]))
        texts = [", ".join(paths[:_SHOWN]) or "no other file" for paths in names]
        yield Point(False, _difference("changed files that determine the result of a check", *texts))
    claimed_rules = {finding.rule for finding in old.findings}
    for finding in new.findings:
        if finding.rule not in claimed_rules and not finding.asked_by:
            yield Point(False, f"{finding.rule.value}: {finding.text}. The proof does not mention this finding")
    if old.seen_to_fail and not new.seen_to_fail and not (new.scenarios and new.scenarios.failed_before):
        yield Point(
            False, "the proof claims that a check failed before the work, but all checks pass on the initial files"
        )
    if old.scenarios and old.scenarios.total:
        yield _compare_scenarios(claimed, reproduced)


def _compare_runs(old: RunDetails, new: RunDetails | None, tails: Mapping[str, str]) -> Iterator[Point]:
    suffix = _RUNS[old.tests]
    if new is None:
        yield Point(False, f"the proof includes a check run{suffix} that was not needed on this host")
        return
    for one, other in zip_longest(old.checks, new.checks):
        if one is None or other is None or one.run != other.run:
            yield Point(
                False, _difference(f"the checks{suffix}", one.run if one else "none", other.run if other else "")
            )
            continue
        before, now = _result(one), _result(other)
        title = f"{one.run}{suffix}"
        if before != now:
            tail = f": {tails[other.run]}" if other.run in tails else ""
            yield Point(False, _difference(title, before, now) + tail)
        elif names := [a.checker for a, b in zip(_reports(one), _reports(other), strict=True) if a != b]:
            yield Point(
                False, f"{title}: the {names[0]} tests have different names, although there are just as many of them"
            )
        else:
            yield Point(True, f"reproduced in {other.sandbox or 'no sandbox'}: {title} {now}")


def _reports(check: CheckDetails) -> list[ReportDetails]:
    return sorted(check.reports, key=lambda report: report.checker)


def _result(check: CheckDetails) -> str:
    parts = [
        f"{report.checker} {report.passed} passed, {report.failed} failed, {report.skipped} skipped"
        + (f", {report.deselected} deselected" if report.deselected else "")
        + (f", {report.missing} of the original tests missing or not passed" if report.missing else "")
        + ("" if report.complete else ", incomplete")
        for report in _reports(check)
    ]
    status = check.status.value.replace("_", " ")
    # A check with known failures passes with another exit status.
    status += f" with exit status {check.exit_code}" if check.exit_code else ""
    return f"{status} ({'; '.join(parts)})" if parts else status


def _compare_scenarios(claimed: Statement, reproduced: Statement) -> Point:
    old, new = claimed.predicate.tightloop.scenarios, reproduced.predicate.tightloop.scenarios
    texts = [f"{each.passed} of {each.total} passed" if each else "none" for each in (old, new)]
    # After an amendment, new scenarios have no result on the initial files.
    if old and new and not old.changes and old.failed_before != new.failed_before:
        texts = [f"{each.failed_before} failed on the initial files" for each in (old, new)]
    if texts[0] != texts[1]:
        return Point(False, _difference("hidden scenarios", *texts))
    return Point(True, f"reproduced: hidden scenarios {texts[0]}")


def _difference(what: str, claimed: str, reproduced: str) -> str:
    return f"{what}: the proof says {claimed}, but the result on this host is {reproduced}"


def countersigning_key(path: str, visible: tuple[Path, ...]) -> SigningKey:
    """Return the key from the setting `proof.countersigning_key`.

    Args:
        path: value of the setting.
        visible: folders that checks can read.

    Raises:
        InvalidRequestError: the key is not set, does not exist, or is readable by checks.
    """
    if not path:
        raise InvalidRequestError(
            "--output needs a key to countersign. Set TIGHTLOOP_PROOF__COUNTERSIGNING_KEY to the path of an SSH key"
        )
    file = Path(path).expanduser().absolute()
    if not file.is_file():
        raise InvalidRequestError(f"proof.countersigning_key is {path!r}, which is not a file")
    for folder in visible:
        if file.resolve().is_relative_to(folder.resolve()):
            raise InvalidRequestError(
                f"checks can read {folder}, so the key file {file} (proof.countersigning_key) is not safe there. "
                "Move the key"
            )
    return SigningKey(file)


def countersign(envelope: Envelope, reproduced: Statement, key: SigningKey) -> Envelope:
    """Add a countersignature to the envelope of a reproduced proof.

    Raises:
        ProofError: the checks were not run in a sandbox that hides the key, or the signing program fails.
    """
    for run in reproduced.predicate.tightloop.runs:
        for check in run.checks:
            if "reads" in check.not_enforced or not check.sandbox:
                raise ProofError(
                    f"not countersigned, because the command could read the key when {check.run} ran (sandbox: "
                    f"{check.sandbox or 'no sandbox'}). Install bubblewrap"
                )
    signature = sign(envelope.signed_bytes, key, COUNTERSIGNATURE)
    return envelope.evolve(signatures=(*envelope.signatures, signature))
