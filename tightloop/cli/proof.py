"""Commands to show and export a proof and to verify a proof file."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import click

from tightloop.cli.host.server_part import run_again
from tightloop.cli.parameters import Argument, AsJson, Id, Option
from tightloop.cli.session import session_of
from tightloop.cli.terminal import print_note, show, show_json
from tightloop.client.proof.envelope import MOST_BYTES, NoSigningKeyError, seal, sign, signing_key, to_json
from tightloop.client.proof.statement import CheckDetails, Details, Result, RunDetails, Statement, statement_of
from tightloop.client.proof.verify import Point, Rules, Verified, find_proof
from tightloop.client.proof.verify import verify as verify_content
from tightloop.episode.check import Check, CheckStatus
from tightloop.episode.proof import ProofVerdict, TestsFrom
from tightloop.episode.scenarios import ScenarioResult, proof_level
from tightloop.errors import InvalidRequestError
from tightloop.run.outcome import FAILED, QUALIFIED
from tightloop.wording import format_count

RESULT_SECONDS = 15.0


def proof(
    context: click.Context,
    workflow: Id,
    output: Annotated[Path | None, Option(help="Write the signed proof to this file.")] = None,
    unsigned: Annotated[bool, Option("--unsigned", help="Do not sign the proof.")] = False,
    of_run: Annotated[
        str, Option("--run", metavar="RUN", help="Id of an earlier run. List runs with: tightloop export ID")
    ] = "",
    as_json: Annotated[bool, Option("--json", help="Print the signed proof.")] = False,
) -> None:
    proof_record = session_of(context).on(workflow, lambda client, key: find_proof(client, key, of_run))
    statement = statement_of(proof_record)
    if output is not None or as_json:
        text = _seal_content(statement.content, unsigned=unsigned)
        if as_json:
            click.echo(text, nl=False)
        if output is not None:
            try:
                output.write_text(text, encoding="utf-8")
            except OSError as error:
                raise InvalidRequestError(f"cannot write {output}: {error.strerror}") from None
            print_note(f"wrote {output}. Verify it: tightloop verify {output}")
    if not as_json:
        show("\n".join(proof_lines(statement)))
    # After the output, because a failed proof is evidence, too.
    if statement.predicate.result is Result.FAILED:
        raise click.exceptions.Exit(FAILED)
    if statement.predicate.tightloop.verdict is not ProofVerdict.PROVEN:
        raise click.exceptions.Exit(QUALIFIED)


def verify(
    context: click.Context,
    file: Annotated[Path, Argument(metavar="PROOF", help="File that `tightloop proof ID --output` wrote.")],
    repo: Annotated[Path, Option(help="Top of the git working tree that the proof must match.")] = Path(),
    alone: Annotated[bool, Option("--alone", help="Check only the proof, not the files.")] = False,
    allowed_signers: Annotated[
        Path | None,
        Option(help="File with trusted keys, see ssh-keygen(1). Default: your own key and the keys that git trusts."),
    ] = None,
    unsigned: Annotated[bool, Option("--unsigned", help="Accept a proof without a signature.")] = False,
    accepted: Annotated[
        bool, Option("--accepted", help="Also accept proofs that are not proven but were accepted by a person.")
    ] = False,
    strict: Annotated[
        bool,
        Option("--strict", help="Refuse a proof with changes that a person asked for only after they were made."),
    ] = False,
    require: Annotated[
        list[Literal["scenarios"]] | None,
        Option(help="Reject a proof that shows less: hidden scenarios that all passed. Repeatable."),
    ] = None,
    run: Annotated[
        bool,
        Option("--run", help="If all other checks pass, run the commands again in a fresh checkout."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    if strict and accepted:
        raise InvalidRequestError("--strict cannot be used with --accepted, which allows more")
    if alone and run:
        raise InvalidRequestError("--run cannot be used with --alone, because it needs the files")
    session = session_of(context)

    def run_commands(root: Path, content: Path, commands: tuple[str, ...]) -> Iterator[Point]:
        for result in run_again(session, root, content, tuple(Check(run=command) for command in commands)):
            passed = result["status"] == CheckStatus.PASSED
            suffix = "" if passed or not result["tail"] else f": {result['tail']}"
            yield Point(
                passed, f"run again in {result['sandbox'] or 'no sandbox'}: {result['run']} {result['status']}{suffix}"
            )

    rules = Rules(
        None if alone else repo,
        allowed_signers,
        unsigned=unsigned,
        accepted=accepted,
        strict=strict,
        scenarios="scenarios" in (require or ()),
    )
    verification = verify_content(_content(file), rules, run_commands if run else None)
    _show(verification, as_json=as_json)
    if not verification.proven:
        raise click.exceptions.Exit(FAILED)


def _seal_content(content: bytes, *, unsigned: bool) -> str:
    """Return the envelope, signed with this user's key. Workers do not have this key."""
    envelope = seal(content)
    if not unsigned:
        try:
            envelope = seal(content, [sign(envelope.signed_bytes, signing_key())])
        # Not an error: an unsigned proof can still be compared, and `verify --unsigned` accepts it.
        except NoSigningKeyError as error:
            print_note(f"the proof is not signed: {error.message}")
    return to_json(envelope)


def _content(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            # One byte more than allowed, so that a larger file is rejected instead of truncated.
            return stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise InvalidRequestError(f"cannot read the proof {file}: {error.strerror}. Check the path") from None


def _show(verification: Verified, *, as_json: bool) -> None:
    if as_json:
        statement = verification.statement and json.loads(verification.statement.model_dump_json(by_alias=True))
        points = [{"holds": point.holds, "text": point.text} for point in verification.points]
        show_json({"proven": verification.proven, "points": points, "statement": statement})
        return
    if verification.statement is not None:
        show("\n".join(proof_lines(verification.statement)), "")
    show("\n".join(f"{'yes' if point.holds else 'NO '}  {point.text}" for point in verification.points))
    show("proven" if verification.proven else "not proven")


_DIGITS = 12
_SHOWN = 12
_RUNS = {
    TestsFrom.DELIVERED: "with the tests as delivered",
    TestsFrom.BEGINNING: "with the original tests, test data and checker configuration",
}


def proof_lines(statement: Statement) -> Iterator[str]:
    """Yield the lines of a proof."""
    predicate, details = statement.predicate, statement.predicate.tightloop
    yield f"{details.episode}: {_verdict(predicate.result, details)}"
    yield f"files: git tree {statement.tree[:_DIGITS]}, based on {details.base_tree[:_DIGITS]}"
    yield f"run in a fresh checkout of these files, {details.started_at:%Y-%m-%d %H:%M %Z}:"
    for run in details.runs:
        yield from _run_lines(run)
    if scenarios := details.scenarios:
        failed_before = f", {scenarios.failed_before} of them failed at the start" if scenarios.failed_before else ""
        if scenarios.total:
            drafted = f" ({scenarios.drafted} drafted)" if scenarios.drafted else ""
            passed = f"{scenarios.passed} of {scenarios.total}{drafted} passed"
            yield f"  hidden scenarios {scenarios.digests}: {passed}{failed_before}"
        yield from (f"  hidden scenarios: {change}" for change in scenarios.changes)
    for finding in details.findings:
        how = f"asked for by {finding.asked_by}" if finding.asked_by else ""
        how = "announced beforehand" if finding.announced else how
        yield f"found: {finding.text}" + (f" ({how})" if how else "")
    for file in details.changed[:_SHOWN]:
        yield f"changed: {file.path} ({file.kind.value.replace('_', ' ')} {file.change.value})"
    if details.changed_count > _SHOWN:
        yield f"changed: {details.changed_count - _SHOWN} more"
    if details.files_changed is not None:
        yield f"{format_count(details.files_changed, 'file')} changed"
    # Names alone cannot say what else decides a check.
    if not details.changed_count and all(check.watched for run in details.runs for check in run.checks):
        yield "no test, test data or checker configuration changed"
    for sentence in details.not_held:
        yield f"not shown: {sentence}"


def _verdict(result: Result, details: Details) -> str:
    if details.verdict is ProofVerdict.ACCEPTED:
        return f"NOT PROVEN, accepted by {details.accepted_by or 'someone'}"
    if details.verdict is ProofVerdict.NOT_PROVEN:
        return f"NOT PROVEN: {', '.join(details.doubts)}"
    if result is Result.FAILED:
        return "NOT PROVEN"
    scenarios = details.scenarios
    proven = proof_level(ScenarioResult.of(scenarios, digest=scenarios.sha256) if scenarios else None)
    if result is Result.PASSED:
        return proven
    return (
        f"{proven}; {'; '.join(details.asked)}"
        if details.asked
        else f"{proven}, with changes that were announced beforehand"
    )


def _run_lines(run: RunDetails) -> Iterator[str]:
    yield f"  {_RUNS[run.tests]}:"
    for check in run.checks:
        yield f"    {check.status.value.replace('_', ' ')}: {check.run}{_counts(check)}{_sandbox_text(check)}"


def _counts(check: CheckDetails) -> str:
    summaries = [
        f"{report.checker}: {format_count(report.total, 'test')}, {report.passed} passed"
        + (f", {report.failed} failed" if report.failed else "")
        + (f", {report.skipped} skipped" if report.skipped else "")
        + (f", {report.missing} of the original ones not passed" if report.missing else "")
        + ("" if report.complete else ", report incomplete")
        for report in check.reports
    ]
    return f" ({'; '.join(summaries)})" if summaries else " (exit status only)"


def _sandbox_text(check: CheckDetails) -> str:
    if not check.sandbox:
        return ""
    missing = f", which did not enforce: {', '.join(check.not_enforced)}" if check.not_enforced else ""
    return f" in {check.sandbox}{missing}"
