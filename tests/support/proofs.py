"""Proofs and signing keys for tests."""

import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from tightloop.client.proof.envelope import Envelope, SigningKey, seal, sign, to_json
from tightloop.client.proof.statement import statement_of
from tightloop.episode.check import CheckStatus
from tightloop.episode.proof import CheckRun, ConfigurationFile, Proof, ProofRun, ProofVerdict, TestReport, TestsFrom

BEGAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
BASE = "b" * 40
BEGINNING = TestsFrom.BEGINNING


def run_of(
    *commands: str, tests: TestsFrom = TestsFrom.DELIVERED, status: CheckStatus = CheckStatus.PASSED
) -> ProofRun:
    """Return a run in which every command has this status."""
    report = TestReport(checker="pytest", is_complete=True, total=3, passed=3, names_sha256="0" * 64)
    checks = tuple(
        CheckRun(
            name=run,
            run=run,
            status=status,
            exit_code=0,
            reports=(report,),
            sandbox="bubblewrap",
            tail="secret",
            watched=True,
        )
        for run in commands
    )
    return ProofRun(tests=tests, checks=checks, started=BEGAN, ended=BEGAN)


def proof_of(tree: str, *, configuration: dict[str, str] | None = None) -> Proof:
    """Return a proof without anything that speaks against it."""
    return Proof(
        episode_id="episode-1",
        goal="a goal that stays here",
        base_tree=BASE,
        delivered_tree=tree,
        runs=(run_of("pytest -q", "ruff check ."), run_of("pytest -q", "ruff check .", tests=BEGINNING)),
        configuration=tuple(ConfigurationFile(path=path, sha256=sha) for path, sha in (configuration or {}).items()),
        verdict=ProofVerdict.PROVEN,
        not_held=("processor time was not bounded",),
        started=BEGAN,
        ended=BEGAN,
    )


def make_key(folder: Path, name: str = "id_ed25519") -> Path:
    """Make a key without a passphrase; return its private file."""
    file = folder / name
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(file)], check=True)
    return file


def allow(key: Path, file: Path, *, options: str = 'namespaces="tightloop-proof"') -> Path:
    """Write a file of allowed signers for a key."""
    file.write_text(f"me@example.com {options} {SigningKey(key).public}\n")
    return file


def signed(proof: Proof, key: Path, *, change: Callable[[bytes], bytes] = lambda content: content) -> bytes:
    """Return the file of a signed proof; `change` alters its statement before it is signed."""
    return to_json(sealed(change(statement_of(proof).content), key)).encode()


def sealed(content: bytes, key: Path) -> Envelope:
    """Return signed bytes."""
    return seal(content, [sign(seal(content).signed_bytes, SigningKey(key))])
