"""Commands to show and export a proof and to verify a proof file."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal

import click

from tightloop.cli.host.server_part import reproduce_proof, take_result
from tightloop.cli.parameters import Argument, AsJson, Id, Option
from tightloop.cli.session import session_of
from tightloop.cli.terminal import print_note, show, show_json
from tightloop.client.client import TightloopClient
from tightloop.client.proof.envelope import MOST_BYTES, NoSigningKeyError, seal, sign, signing_key, to_json
from tightloop.client.proof.reproduction import compare, countersign, countersigning_key, request_of
from tightloop.client.proof.statement import (
    CheckDetails,
    Details,
    Result,
    RunDetails,
    ScenarioDetails,
    Statement,
    statement_of,
)
from tightloop.client.proof.verify import Point, Repository, Rules, Verified, find_proof
from tightloop.client.proof.verify import verify as verify_content
from tightloop.client.scenarios import ScenarioStore
from tightloop.episode.proof import Proof, ProofVerdict, TestsFrom
from tightloop.episode.scenarios import ScenarioResult, proof_level
from tightloop.errors import InvalidRequestError
from tightloop.run.outcome import FAILED, QUALIFIED
from tightloop.wording import format_count

RESULT_SECONDS = 15.0


def proof(
    context: click.Context,
    workflow: Id,
    output: Annotated[Path | None, Option(help="Write the signed proof to this file.")] = None,
    attach: Annotated[
        bool,
        Option(
            "--attach",
            help="Write the signed proof to a git ref that CI can fetch. The ref is named after the proven tree.",
        ),
    ] = False,
    unsigned: Annotated[bool, Option("--unsigned", help="Do not sign the proof.")] = False,
    of_run: Annotated[
        str,
        Option(
            "--run",
            metavar="RUN",
            help="Show the proof of an earlier run, specified by its run ID. List the runs with: tightloop export ID",
        ),
    ] = "",
    as_json: Annotated[bool, Option("--json", help="Print the signed proof.")] = False,
) -> None:
    session = session_of(context)

    async def find(client: TightloopClient, key: str) -> tuple[Proof, str]:
        return await find_proof(client, key, of_run), (await client.summary(key)).workspace

    proof_record, workspace = session.on(workflow, find)
    statement = statement_of(proof_record)
    if output is not None or as_json or attach:
        text = _seal_content(statement.content, unsigned=unsigned)
        if as_json:
            click.echo(text, nl=False)
        if output is not None:
            _write(output, text)
            print_note(f"wrote {output}. Verify the proof: tightloop verify {output}")
        if attach:
            what = {"proof": text, "base": proof_record.base_tree, "tree": proof_record.delivered_tree}
            print_note(take_result(session, {"run": proof_record.episode_id, "workspace": workspace, **what}))
    if not as_json:
        show("\n".join(proof_lines(statement)))
    # After the output, because a failed proof is evidence, too.
    if statement.predicate.result is Result.FAILED:
        raise click.exceptions.Exit(FAILED)
    if statement.predicate.tightloop.verdict is not ProofVerdict.PROVEN:
        raise click.exceptions.Exit(QUALIFIED)


def verify(
    context: click.Context,
    file: Annotated[Path, Argument(metavar="PROOF", help="File written by `tightloop proof ID --output`.")],
    repo: Annotated[Path, Option(help="Root of the git working tree that the proof must match.")] = Path(),
    alone: Annotated[bool, Option("--alone", help="Check only the proof, not the files.")] = False,
    allowed_signers: Annotated[
        Path | None,
        Option(help="File with trusted keys (see ssh-keygen(1)). Default: your own key and the keys that git trusts."),
    ] = None,
    unsigned: Annotated[bool, Option("--unsigned", help="Accept a proof without a signature.")] = False,
    accepted: Annotated[
        bool, Option("--accepted", help="Also allow unproven results that a person has accepted.")
    ] = False,
    strict: Annotated[
        bool,
        Option(
            "--strict", help="Reject the proof if a change was made first and only confirmed by a person afterwards."
        ),
    ] = False,
    require: Annotated[
        list[Literal["scenarios", "countersigned"]] | None,
        Option(
            help="Requirement for accepting a proof: scenarios (all hidden scenarios passed) or countersigned (a "
            "second party has signed the proof). Repeatable."
        ),
    ] = None,
    run: Annotated[
        bool,
        Option(
            "--run",
            help="If everything else is valid, reproduce the proof in a fresh checkout and compare the results.",
        ),
    ] = False,
    base: Annotated[
        str,
        Option(
            help=(
                "Branch or commit whose history must contain the exact initial files of the run. Otherwise, the proof "
                "is rejected."
            )
        ),
    ] = "",
    scenarios: Annotated[
        Path | None, Option(help="Encrypted bundle of the hidden scenarios named in the proof. Requires --run.")
    ] = None,
    output: Annotated[
        Path | None,
        Option(
            help="If --run succeeds, add a second signature and write the proof to this file. See docs/trust/ci.md."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    if strict and accepted:
        raise InvalidRequestError(
            "--strict cannot be used with --accepted, because --accepted also allows unproven results"
        )
    if alone and run:
        raise InvalidRequestError("--run cannot be used with --alone, because --run needs the files")
    if alone and base:
        raise InvalidRequestError("--base cannot be used with --alone, because --base needs the repository")
    if not run and (scenarios or output):
        raise InvalidRequestError(f"{'--scenarios' if scenarios else '--output'} requires --run")
    session = session_of(context)
    bundle = None if scenarios is None else ScenarioStore(session.settings).read(scenarios, workspace=repo)
    sandbox = session.settings.sandbox
    visible = (repo, *(Path(folder).expanduser() for folder in (*sandbox.read, *sandbox.write)))
    # First, because the checks may take long.
    key = None if output is None else countersigning_key(session.settings.proof.countersigning_key, visible)
    made_again: list[Statement] = []

    def reproduce(repository: Repository, statement: Statement) -> Iterable[Point]:
        document, tails = reproduce_proof(session, request_of(repository, statement, bundle))
        made_again.append(Statement.model_validate(document))
        return compare(statement, made_again[0], tails)

    rules = Rules(
        None if alone else repo,
        allowed_signers,
        unsigned=unsigned,
        accepted=accepted,
        strict=strict,
        scenarios="scenarios" in (require or ()),
        base=base,
        countersigned="countersigned" in (require or ()),
    )
    verification = verify_content(_content(file), rules, reproduce if run else None)
    _show(verification, as_json=as_json)
    if not verification.proven:
        raise click.exceptions.Exit(FAILED)
    if output is not None and key is not None and verification.envelope is not None:
        envelope = countersign(verification.envelope, made_again[0], key)
        _write(output, to_json(envelope))
        print_note(f"wrote {output}, countersigned with the key {envelope.signatures[-1].keyid}")


def _seal_content(content: bytes, *, unsigned: bool) -> str:
    """Wrap the content in an envelope, signed with the user's key. Workers do not have this key."""
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


def _write(output: Path, text: str) -> None:
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidRequestError(f"cannot write {output}: {error.strerror}") from None


def _show(verification: Verified, *, as_json: bool) -> None:
    if as_json:
        statement = verification.statement and json.loads(verification.statement.model_dump_json(by_alias=True))
        points = [{"holds": point.holds, "text": point.text} for point in verification.points]
        by = verification.countersigned_by
        show_json({"proven": verification.proven, "countersigned_by": by, "points": points, "statement": statement})
        return
    if verification.statement is not None:
        lines = list(proof_lines(verification.statement, verification.countersigned_by))
        # The first line of a forged proof says "PROVEN", and must not be the first thing to be read.
        show("\n".join(lines if verification.proven else ["NOT PROVEN. The file claims:", *lines]), "")
    show("\n".join(f"{'yes' if point.holds else 'NO '}  {point.text}" for point in verification.points))
    show("proven" if verification.proven else "not proven")


_DIGITS = 12
_SHOWN = 12
_RUNS = {
    TestsFrom.DELIVERED: "with the tests as delivered",
    TestsFrom.BEGINNING: "with the original tests, test data and checker configuration",
}


def proof_lines(statement: Statement, countersigned_by: str = "") -> Iterator[str]:
    """Yield the lines that describe a proof, without verifying its signatures."""
    predicate, details = statement.predicate, statement.predicate.tightloop
    second = f", countersigned by {countersigned_by}" if countersigned_by else ""
    yield f"{details.episode}: {_verdict(predicate.result, details, second)}"
    yield f"files: git tree {statement.tree[:_DIGITS]}, based on {details.base_tree[:_DIGITS]}"
    yield f"run in a fresh checkout of these files, {details.started_at:%Y-%m-%d %H:%M %Z}:"
    for run in details.runs:
        yield from _run_lines(run)
    if details.scenarios:
        yield from _scenario_lines(details.scenarios)
    if review := details.review:
        unread = f", which saw {review.unread} of {format_count(review.files, 'file')} only in part"
        yield f"reviewed by the model {review.model}" + (unread if review.unread else "")
    for finding in details.findings:
        how = f"requested by {finding.asked_by}" if finding.asked_by else ""
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
        yield f"limitation: {sentence}"


def _scenario_lines(scenarios: ScenarioDetails) -> Iterator[str]:
    failed_before = f", {scenarios.failed_before} of them failed at the start" if scenarios.failed_before else ""
    if scenarios.total:
        drafted = f" ({scenarios.drafted} drafted)" if scenarios.drafted else ""
        passed = f"{scenarios.passed} of {scenarios.total}{drafted} passed"
        yield f"  hidden scenarios {scenarios.digests}: {passed}{failed_before}"
    yield from (f"  hidden scenarios: {change}" for change in scenarios.changes)


def _verdict(result: Result, details: Details, second: str) -> str:
    if details.verdict is ProofVerdict.ACCEPTED:
        return f"NOT PROVEN, accepted by {details.accepted_by or 'someone'}"
    if details.verdict is ProofVerdict.NOT_PROVEN:
        return f"NOT PROVEN: {', '.join(details.doubts)}"
    if result is Result.FAILED:
        return "NOT PROVEN"
    scenarios = details.scenarios
    proven = proof_level(ScenarioResult.of(scenarios, digest=scenarios.sha256) if scenarios else None) + second
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
        + (f", {report.missing} of the original tests missing or not passed" if report.missing else "")
        + ("" if report.complete else ", report incomplete")
        for report in check.reports
    ]
    return f" ({'; '.join(summaries)})" if summaries else " (exit status only)"


def _sandbox_text(check: CheckDetails) -> str:
    if not check.sandbox:
        return ""
    missing = f", which did not enforce: {', '.join(check.not_enforced)}" if check.not_enforced else ""
    return f" in {check.sandbox}{missing}"
