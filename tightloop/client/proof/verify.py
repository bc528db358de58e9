"""Checks a proof without a network: its form, its signature, and that the files here are those it is about."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from tightloop.client.proof.envelope import Envelope, read_envelope
from tightloop.client.proof.signing import allowed_signers, signer
from tightloop.client.proof.statement import Result, Statement, read_statement
from tightloop.client.proof.tree import Repository, open_repository
from tightloop.episode.proof import ProofVerdict
from tightloop.errors import ProofError
from tightloop.value import counted


@dataclass(frozen=True)
class Point:
    """One thing that was looked at."""

    holds: bool
    text: str
    """A sentence."""


Run = Callable[[Path, Path, tuple[str, ...]], Iterable[Point]]
"""Runs commands again: the working tree with its installed programs, a checkout, the commands."""


@dataclass
class Verified:
    """What a proof shows, point by point."""

    statement: Statement | None = None
    points: list[Point] = field(default_factory=list)

    @property
    def proven(self) -> bool:
        """Whether every point holds."""
        return bool(self.points) and all(point.holds for point in self.points)

    def add(self, holds: bool, text: str) -> None:
        """Add a point."""
        self.points.append(Point(holds, text))


@dataclass(frozen=True)
class Rules:
    """What counts as proven."""

    repository: Path | None = None
    """Top of the working tree that the proof has to be about; None: the proof is looked at by itself."""
    allowed_signers: Path | None = None
    """None: the user's own; see `allowed_signers`."""
    unsigned: bool = False
    """A proof without a signature will do."""
    accepted: bool = False
    """So will one in which a person accepted what spoke against it."""


def verify(content: bytes, rules: Rules, run: Run | None = None) -> Verified:
    """Look at everything that a proof claims, as far as it can be read.

    Args:
        content: of the file.
        rules: what counts.
        run: runs the definition of done again on files that are the proven ones; not called where anything else
            does not hold, because whoever wrote the proof chose the commands.

    Raises:
        InvalidRequestError: the repository or the file of allowed signers cannot be used.
    """
    found = Verified()
    place = nullcontext() if rules.repository is None else open_repository(rules.repository)
    # Opened first: wrong use is told as such, whatever the proof is.
    with allowed_signers(rules.allowed_signers) as allowed, place as repository:
        try:
            envelope = read_envelope(content)
            found.statement = read_statement(envelope.content)
            _check_signature(found, envelope, rules, allowed)
            _check_result(found, found.statement, rules)
            if repository is not None:
                _check_tree(found, found.statement, repository)
                if run is not None and found.proven:
                    _run_again(found, found.statement, repository, run)
        except ProofError as error:
            found.add(False, error.message)
    return found


def _run_again(found: Verified, statement: Statement, repository: Repository, run: Run) -> None:
    with TemporaryDirectory(prefix="tightloop-rerun-") as made:
        content = Path(made).resolve() / "tree"
        content.mkdir()
        repository.check_out(statement.tree, content)
        for point in run(repository.root, content, statement.commands):
            found.points.append(point)


def _check_signature(found: Verified, envelope: Envelope, rules: Rules, allowed: tuple[Path, ...]) -> None:
    if not envelope.signatures:
        text = "it is not signed: anybody could have written it"
        found.add(rules.unsigned, text if rules.unsigned else f"{text}. To accept that: --unsigned")
        return
    problems = []
    for signature in envelope.signatures:
        try:
            if known := signer(envelope.signed_bytes, signature.sig, allowed):
                found.add(True, f"signed by {known.principal} with the key {known.fingerprint}")
                return
            problems.append("it is signed with a key that you do not list among the allowed signers")
        except ProofError as error:
            problems.append(error.message)
    hint = "" if rules.allowed_signers else ". Name a file of allowed signers: --allowed-signers FILE"
    found.add(False, f"{problems[0]}{hint}")


def _check_result(found: Verified, statement: Statement, rules: Rules) -> None:
    predicate, details = statement.predicate, statement.predicate.tightloop
    commands = counted(len(statement.commands), "command")
    for finding in details.findings:
        how = "announced beforehand" if finding.announced else f"accepted by {details.accepted_by or 'nobody'}"
        proven = details.verdict is ProofVerdict.PROVEN and finding.announced
        found.add(proven or (rules.accepted and bool(details.accepted_by)), f"{finding.text} ({how})")
    match predicate.result, details.verdict:
        case Result.PASSED | Result.WARNED, ProofVerdict.PROVEN:
            found.add(True, f"all {commands} of the definition of done passed in a fresh checkout")
        case Result.WARNED, ProofVerdict.ACCEPTED:
            who = details.accepted_by or "somebody"
            hint = "" if rules.accepted else ". To count that: --accepted"
            found.add(rules.accepted, f"it was not proven, but accepted by {who}{hint}")
        case _:
            failed = ", ".join(predicate.failed_tests[:3]) or "no command that failed is named"
            found.add(False, f"it says that the work is not proven ({predicate.result.value}): {failed}")


def _check_tree(found: Verified, statement: Statement, repository: Repository) -> None:
    tree = statement.tree
    if repository.head() == tree:
        found.add(
            True, f"the commit that is checked out in {repository.root} has exactly the proven files ({tree[:12]})"
        )
    elif repository.on_disk() == tree:
        found.add(True, f"the files in {repository.root} are exactly the proven ones ({tree[:12]})")
    elif repository.has(tree):
        found.add(
            False,
            f"the proven files ({tree[:12]}) are in the repository {repository.root}, but neither checked out nor on "
            "disk. Check out the commit that has them",
        )
        return
    else:
        found.add(False, f"it is about other files ({tree[:12]}): they are not in the repository {repository.root}")
        return
    for path, digest in statement.configuration_files:
        if repository.sha256_of(tree, path) != digest:
            found.add(False, f"it names another content of {path} than the proven files have")
