"""The commands about proofs: show one and write it to a file, and verify such a file."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import click

from tightloop.cli import FAILED
from tightloop.cli.host.server_part import run_again
from tightloop.cli.parameters import Argument, AsJson, Id, Option
from tightloop.cli.session import session_of
from tightloop.cli.terminal import remark, show, show_json
from tightloop.cli.views import proof_lines
from tightloop.client.proof.envelope import MOST_BYTES, NoSigningKeyError, seal, sign, signing_key, to_json
from tightloop.client.proof.statement import Result, statement_of
from tightloop.client.proof.verify import Point, Rules, Verified, find_proof
from tightloop.client.proof.verify import verify as verify_content
from tightloop.episode.check import CheckStatus
from tightloop.errors import InvalidRequestError

RESULT_SECONDS = 15.0


def proof(
    context: click.Context,
    workflow: Id,
    output: Annotated[Path | None, Option(help="Write the signed proof to this file.")] = None,
    unsigned: Annotated[bool, Option("--unsigned", help="Do not sign it.")] = False,
    of_run: Annotated[
        str, Option("--run", metavar="RUN", help="Of an earlier run; `tightloop export ID` names them.")
    ] = "",
    as_json: Annotated[bool, Option("--json", help="Print the signed proof.")] = False,
) -> None:
    found = session_of(context).on(workflow, lambda client, key: find_proof(client, key, of_run))
    statement = statement_of(found)
    if output is not None or as_json:
        text = _sealed(statement.content, unsigned=unsigned)
        if as_json:
            click.echo(text, nl=False)
        if output is not None:
            try:
                output.write_text(text, encoding="utf-8")
            except OSError as error:
                raise InvalidRequestError(f"{output} cannot be written: {error.strerror}") from None
            remark(f"wrote {output}. Verify it: tightloop verify {output}")
    if not as_json:
        show("\n".join(proof_lines(statement)))
    if statement.predicate.result is Result.FAILED:
        raise click.exceptions.Exit(FAILED)


def verify(
    context: click.Context,
    file: Annotated[Path, Argument(metavar="PROOF", help="File that `tightloop proof ID --output` wrote.")],
    repo: Annotated[Path, Option(help="Top of the git working tree that it has to be about.")] = Path(),
    alone: Annotated[bool, Option("--alone", help="Look at the proof only, and at no files.")] = False,
    allowed_signers: Annotated[
        Path | None,
        Option(help="Keys to trust, as ssh-keygen(1) has them. Default: those git trusts for you, and your own."),
    ] = None,
    unsigned: Annotated[bool, Option("--unsigned", help="A proof without a signature will do.")] = False,
    accepted: Annotated[
        bool, Option("--accepted", help="So will one in which a person accepted what spoke against it.")
    ] = False,
    run: Annotated[
        bool,
        Option("--run", help="If all else holds, run its commands again, in a fresh checkout."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    if alone and run:
        raise InvalidRequestError("--run needs the files, so it cannot be used with --alone")
    session = session_of(context)

    def run_commands(root: Path, content: Path, commands: tuple[str, ...]) -> Iterator[Point]:
        for done in run_again(session, root, content, commands):
            passed = done["status"] == CheckStatus.PASSED
            said = "" if passed or not done["tail"] else f": {done['tail']}"
            yield Point(passed, f"run again in {done['sandbox'] or 'no sandbox'}: {done['run']} {done['status']}{said}")

    rules = Rules(None if alone else repo, allowed_signers, unsigned=unsigned, accepted=accepted)
    found = verify_content(_content(file), rules, run_commands if run else None)
    _show(found, as_json=as_json)
    if not found.proven:
        raise click.exceptions.Exit(FAILED)


def _sealed(content: bytes, *, unsigned: bool) -> str:
    """Return the envelope; the key and its agent are this user's, which a worker does not have."""
    envelope = seal(content)
    if not unsigned:
        try:
            envelope = seal(content, [sign(envelope.signed_bytes, signing_key())])
        except NoSigningKeyError as error:
            remark(f"the proof is not signed: {error.message}")
    return to_json(envelope)


def _content(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            # One more than is allowed, so that a longer file is refused and not cut.
            return stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise InvalidRequestError(f"the proof {file} cannot be read: {error.strerror}. Name a file") from None


def _show(found: Verified, *, as_json: bool) -> None:
    if as_json:
        statement = found.statement and json.loads(found.statement.model_dump_json(by_alias=True))
        points = [{"holds": point.holds, "text": point.text} for point in found.points]
        show_json({"proven": found.proven, "points": points, "statement": statement})
        return
    if found.statement is not None:
        show("\n".join(proof_lines(found.statement)), "")
    show("\n".join(f"{'yes' if point.holds else 'NO '}  {point.text}" for point in found.points))
    show("proven" if found.proven else "not proven")
