"""Signed proofs with real keys, a real agent and real repositories: what is proven, and what is not."""

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.episodes import Git
from tests.support.proofs import allow, make_key, proof_of, run_of, sealed, signed
from tightloop.cli.main import app
from tightloop.client.proof.envelope import (
    PAYLOAD_TYPE,
    NoSigningKeyError,
    Signature,
    SigningKey,
    allowed_signers,
    encode,
    read_envelope,
    seal,
    sign,
    signed_bytes,
    signer,
    signing_key,
    to_json,
)
from tightloop.client.proof.statement import statement_of
from tightloop.client.proof.verify import Rules, Verified, open_repository, verify
from tightloop.episode.check import CheckStatus, ProofRule
from tightloop.episode.proof import Proof, ProofFinding, ProofVerdict
from tightloop.episode.proof.verdict import add_scenarios
from tightloop.episode.scenarios import ScenarioResult
from tightloop.errors import InvalidRequestError

DOUBT = ProofFinding(rule=ProofRule.TESTS_CHANGED, text="tests/test_shop.py was removed")


@pytest.fixture(autouse=True)
def no_agent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The configuration of whoever runs the tests says nothing here."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return make_key(tmp_path)


@pytest.fixture
def allowed(tmp_path: Path, key: Path) -> Path:
    return allow(key, tmp_path / "allowed")


@pytest.fixture
def configure(tmp_path: Path) -> Callable[[str], None]:
    def configure(signing_key: str) -> None:
        (tmp_path / "gitconfig").write_text(f"[gpg]\nformat = ssh\n[user]\nsigningkey = {signing_key}\n")

    return configure


@pytest.fixture
def tree(workspace: Path, git: Git) -> str:
    return git(workspace, "rev-parse", "HEAD^{tree}")


def problems(found: Verified) -> list[str]:
    """Return what does not hold."""
    assert not found.proven
    return [point.text for point in found.points if not point.holds]


def test_signed_proof_of_these_files_is_proven(key: Path, allowed: Path, workspace: Path, tree: str) -> None:
    found = verify(signed(proof_of(tree), key), Rules(workspace, allowed))
    assert found.proven, found.points
    assert [point.text.partition(" with the key")[0] for point in found.points] == [
        "signed by me@example.com",
        "all 2 commands in the definition of done passed in a fresh checkout",
        f"the commit checked out in {workspace} contains exactly the proven files ({tree[:12]})",
    ]


def test_every_changed_character_of_payload_and_signature_is_noticed(key: Path, allowed: Path) -> None:
    envelope = read_envelope(signed(proof_of("a" * 40), key))
    [signature] = envelope.signatures
    for text, put in (
        (envelope.payload, lambda new: envelope.evolve(payload=new)),
        (signature.sig, lambda new: envelope.evolve(signatures=(signature.evolve(sig=new),))),
    ):
        for at in range(0, len(text), max(1, len(text) // 25)):
            other = text[:at] + ("B" if text[at] != "B" else "C") + text[at + 1 :]
            assert problems(verify(to_json(put(other)).encode(), Rules(allowed_signers=allowed)))


def test_signature_for_something_else_does_not_count(key: Path, allowed: Path, tmp_path: Path) -> None:
    """Such as one of a commit, which git makes with the same key in its own namespace."""
    content = statement_of(proof_of("a" * 40)).content
    file = tmp_path / "content"
    file.write_bytes(signed_bytes(PAYLOAD_TYPE, content))
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-n", "git", "-f", key, file], check=True, capture_output=True)
    armour = file.with_suffix(".sig").read_text().splitlines()[1:-1]
    envelope = seal(content, [Signature(sig="".join(armour))])
    [problem] = problems(verify(to_json(envelope).encode(), Rules(allowed_signers=allowed)))
    assert "it was signed for another purpose" in problem


def test_type_of_the_payload_is_signed_too(key: Path) -> None:
    content = statement_of(proof_of("a" * 40)).content
    signature = sign(signed_bytes("text/plain", content), SigningKey(key))
    [problem] = problems(verify(to_json(seal(content, [signature])).encode(), Rules()))
    assert problem.startswith("the signature does not match")


def test_key_of_somebody_else_is_not_trusted(key: Path, tmp_path: Path) -> None:
    other = allow(make_key(tmp_path, "other"), tmp_path / "others")
    [problem] = problems(verify(signed(proof_of("a" * 40), key), Rules(allowed_signers=other)))
    assert "a key that does not belong to an allowed signer" in problem
    [problem] = problems(verify(signed(proof_of("a" * 40), key), Rules()))
    assert "--allowed-signers FILE" in problem


@pytest.mark.parametrize("options", ['namespaces="git"', 'valid-before="20000101"', "cert-authority"])
def test_key_that_is_allowed_for_something_else_is_not_trusted(key: Path, tmp_path: Path, options: str) -> None:
    allowed = allow(key, tmp_path / "allowed", options=options)
    assert problems(verify(signed(proof_of("a" * 40), key), Rules(allowed_signers=allowed)))


def test_one_trusted_signature_is_enough(key: Path, tmp_path: Path, allowed: Path) -> None:
    content = statement_of(proof_of("a" * 40)).content
    both = [sealed(content, each).signatures[0] for each in (make_key(tmp_path, "other"), key)]
    assert verify(to_json(seal(content, both)).encode(), Rules(allowed_signers=allowed)).proven


def test_unsigned_proof_is_not_proven_unless_that_is_said(workspace: Path, tree: str) -> None:
    content = to_json(seal(statement_of(proof_of(tree)).content)).encode()
    [problem] = problems(verify(content, Rules(workspace)))
    assert (
        problem
        == "the proof is not signed, so anyone could have written it. To accept an unsigned proof, add --unsigned"
    )
    assert verify(content, Rules(workspace, unsigned=True)).proven


def test_unsigned_is_not_said_of_a_bad_signature(key: Path, tmp_path: Path) -> None:
    other = allow(make_key(tmp_path, "other"), tmp_path / "others")
    assert problems(verify(signed(proof_of("a" * 40), key), Rules(allowed_signers=other, unsigned=True)))


@pytest.mark.parametrize(
    ("proof", "said"),
    [
        (proof_of("a" * 40).evolve(verdict=ProofVerdict.DOUBTED, findings=(DOUBT,)), "not proven (FAILED)"),
        (proof_of("a" * 40).evolve(runs=(run_of("false", status=CheckStatus.FAILED),)), "not proven (FAILED): false"),
        (proof_of("a" * 40).evolve(runs=()), "no run of the definition of done"),
    ],
)
def test_signed_failure_is_not_proven(key: Path, allowed: Path, proof: Proof, said: str) -> None:
    assert any(said in problem for problem in problems(verify(signed(proof, key), Rules(allowed_signers=allowed))))


def test_what_a_person_accepted_is_proven_only_where_that_is_said(key: Path, allowed: Path) -> None:
    proof = proof_of("a" * 40).evolve(verdict=ProofVerdict.ACCEPTED, findings=(DOUBT,), accepted_by="eva")
    content = signed(proof, key)
    found = problems(verify(content, Rules(allowed_signers=allowed)))
    assert found == [
        "tests/test_shop.py was removed (accepted by eva)",
        "the result was not proven, but eva accepted it. To accept such a proof, add --accepted",
    ]
    assert verify(content, Rules(allowed_signers=allowed, accepted=True)).proven


def test_what_was_announced_is_proven_and_told(key: Path, allowed: Path) -> None:
    proof = proof_of("a" * 40).evolve(findings=(DOUBT.evolve(announced=True),))
    found = verify(signed(proof, key), Rules(allowed_signers=allowed))
    assert found.proven
    assert "tests/test_shop.py was removed (announced beforehand)" in [point.text for point in found.points]


@pytest.mark.parametrize(
    ("total", "passed", "holds", "said"),
    [
        (2, 2, True, "2 hidden scenarios passed"),
        (0, 0, False, "the proof has no hidden scenarios"),
        (2, 1, False, "1 of 2 hidden scenarios passed"),
    ],
)
def test_scenarios_can_be_required(
    key: Path, allowed: Path, tmp_path: Path, total: int, passed: int, holds: bool, said: str
) -> None:
    result = ScenarioResult(digest="a" * 64 if total else "", total=total, passed=passed, changes=("ada withdrew it",))
    # The owner may have allowed that some fail, but whoever requires them did not.
    content = signed(add_scenarios(proof_of("a" * 40), result, (ProofRule.SCENARIOS_FAILED,)), key)
    assert verify(content, Rules(allowed_signers=allowed)).proven
    found = verify(content, Rules(allowed_signers=allowed, scenarios=True))
    assert (found.proven, any(said in point.text for point in found.points)) == (holds, True)
    file = tmp_path / "proof.json"
    file.write_bytes(content)
    options = ["--alone", "--allowed-signers", str(allowed), "--require", "scenarios"]
    done = CliRunner().invoke(app, ["verify", str(file), *options])
    assert done.exit_code == (0 if holds else 1)
    assert "hidden scenarios: ada withdrew it" in done.output


def test_proof_of_another_repository_or_another_commit_is_refused(
    key: Path, allowed: Path, workspace: Path, git: Git, tree: str, tmp_path: Path
) -> None:
    content, rules = signed(proof_of(tree), key), Rules(workspace, allowed)
    (workspace / "new.txt").write_text("later\n")
    git(workspace, "add", "-A")
    git(workspace, "commit", "-qm", "later")
    [problem] = problems(verify(content, rules))
    assert "but they are not checked out" in problem
    other = tmp_path / "other"
    subprocess.run(["git", "init", "-q", str(other)], check=True)
    [problem] = problems(verify(content, Rules(other, allowed)))
    assert problem.startswith("the proof covers different files")


def test_files_that_were_not_committed_are_compared_byte_for_byte(
    key: Path, allowed: Path, workspace: Path, git: Git, tmp_path: Path
) -> None:
    (workspace / ".gitattributes").write_text("*.txt text eol=crlf\n*.bin filter=evil\n")
    (workspace / ".gitignore").write_text("ignored\n")
    git(workspace, "config", "filter.evil.clean", f"touch {tmp_path}/ran; cat")
    git(workspace, "config", "core.fsmonitor", f"touch {tmp_path}/ran")
    (workspace / "a.txt").write_bytes(b"one\r\ntwo\n")
    (workspace / "b.bin").write_bytes(b"\0\1")
    (workspace / "ignored").write_text("not covered\n")
    subprocess.run(["git", "init", "-q", str(workspace / "nested")], check=True)
    (workspace / "nested" / "inner.txt").write_text("x\n")
    with open_repository(workspace) as repository:
        tree = repository.on_disk()
    rules = Rules(workspace, allowed)
    assert verify(signed(proof_of(tree), key), rules).proven
    (workspace / "ignored").write_text("changed\n")
    assert verify(signed(proof_of(tree), key), rules).proven
    for changed in ("a.txt", "nested/inner.txt"):
        before = (workspace / changed).read_bytes()
        (workspace / changed).write_bytes(before.replace(b"\n", b"\r\n"))
        assert not verify(signed(proof_of(tree), key), rules).proven, changed
        (workspace / changed).write_bytes(before)
    assert verify(signed(proof_of(tree), key), rules).proven
    assert not (tmp_path / "ran").exists()


def test_repository_of_somebody_else_runs_nothing(
    key: Path, allowed: Path, workspace: Path, git: Git, tmp_path: Path
) -> None:
    """A remote that promises missing objects, hooks, and an empty object in place of the tree of the proof."""
    ran = tmp_path / "ran"
    script = tmp_path / "run.sh"
    script.write_text(f"#!/bin/sh\ntouch {ran}\n")
    script.chmod(0o755)
    missing = "d" * 40
    for name, value in {
        "remote.evil.url": f"ext::{script}",
        "remote.evil.promisor": "true",
        "remote.evil.partialclonefilter": "blob:none",
        "extensions.partialClone": "evil",
        "core.repositoryFormatVersion": "1",
        "protocol.ext.allow": "always",
        "core.hooksPath": str(tmp_path),
        "core.sshCommand": str(script),
        "core.pager": str(script),
        "diff.external": str(script),
        "gpg.ssh.program": str(script),
        "user.signingkey": str(script),
        "core.worktree": str(tmp_path),
    }.items():
        git(workspace, "config", name, value)
    place = workspace / ".git" / "objects" / missing[:2] / missing[2:]
    place.parent.mkdir()
    place.touch()
    assert problems(verify(signed(proof_of(missing), key), Rules(workspace, allowed)))
    with pytest.raises(NoSigningKeyError):
        signing_key()
    assert not ran.exists()


def test_digest_of_a_configuration_file_has_to_be_that_of_the_tree(
    key: Path, allowed: Path, workspace: Path, tree: str
) -> None:
    [name, *_] = sorted(path.name for path in workspace.iterdir() if path.is_file())
    [problem] = problems(verify(signed(proof_of(tree, configuration={name: "e" * 64}), key), Rules(workspace, allowed)))
    assert problem == f"the digest of {name} in the proof does not match the proven files"


@pytest.mark.parametrize("path", ["../outside", "a\0b", "-x", "/etc/passwd", "x:y"])
def test_odd_paths_of_a_statement_are_only_paths(
    key: Path, allowed: Path, workspace: Path, tree: str, path: str
) -> None:
    content = signed(proof_of(tree, configuration={path: "e" * 64}), key)
    assert len(problems(verify(content, Rules(workspace, allowed)))) == 1


def test_repository_whose_git_folder_is_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".git")
    with pytest.raises(InvalidRequestError, match="not the root of a git working tree"):
        verify(b"", Rules(tmp_path))


def test_key_is_read_from_the_users_own_configuration(key: Path, configure: Callable[[str], None]) -> None:
    with pytest.raises(NoSigningKeyError, match="git config --global gpg"):
        signing_key()
    configure(f"{key}-that-is-not-there")
    with pytest.raises(NoSigningKeyError, match="does not exist"):
        signing_key()
    configure(str(key))
    content = statement_of(proof_of("a" * 40)).content
    envelope = seal(content, [sign(seal(content).signed_bytes, signing_key())])
    assert re.fullmatch(r"SHA256:\S{43}", envelope.signatures[0].keyid)
    # One's own key needs no file of allowed signers.
    assert verify(to_json(envelope).encode(), Rules()).proven


@pytest.fixture
def agent(key: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An agent that holds the key, whose private file is gone."""
    told = subprocess.run(["ssh-agent", "-s"], capture_output=True, text=True, check=True).stdout
    for name in ("SSH_AUTH_SOCK", "SSH_AGENT_PID"):
        found = re.search(f"{name}=([^;]+)", told)
        assert found
        monkeypatch.setenv(name, found.group(1))
    subprocess.run(["ssh-add", "-q", str(key)], check=True, capture_output=True)
    key.unlink()
    try:
        yield
    finally:
        subprocess.run(["ssh-agent", "-k"], check=True, capture_output=True)


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("literal", [False, True])
def test_agent_signs_for_a_public_key(key: Path, configure: Callable[[str], None], literal: bool) -> None:
    public = key.with_suffix(".pub")
    configure(f"key::{public.read_text()}" if literal else str(public))
    made = sign(b"content", signing_key())
    with allowed_signers(None) as files:
        assert signer(b"content", made.sig, files) is not None


def test_key_with_a_passphrase_and_nobody_to_type_it_is_refused_with_a_sentence(key: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", str(key)], check=True, capture_output=True)
    # Without a terminal of its own, as under a service manager; a test must not wait for a person.
    done = subprocess.run(
        ["setsid", "-w", os.sys.executable, "-c", _SIGN, str(key)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,  # type: ignore[attr-defined]
    )
    assert "ssh-keygen could not sign" in done.stdout, done


_SIGN = """
import sys
from pathlib import Path
from tightloop.client.proof.envelope import SigningKey, sign
from tightloop.errors import ProofError
try:
    sign(b"content", SigningKey(Path(sys.argv[1])))
except ProofError as error:
    print(error)
"""


def test_plain_ssh_keygen_and_jq_verify_it(key: Path, allowed: Path, tmp_path: Path) -> None:
    """The commands of docs/trust/ci.md."""
    (tmp_path / "proof.json").write_bytes(signed(proof_of("a" * 40), key))
    page = (Path(__file__).parents[2] / "docs" / "trust" / "ci.md").read_text()
    [script] = re.findall(r"```sh\n(jq .*?)```", page, re.DOTALL)
    done = subprocess.run(["sh", "-euc", script], cwd=tmp_path, capture_output=True, text=True)
    assert 'Good "tightloop-proof" signature for me@example.com' in done.stdout, done
    altered = json.loads((tmp_path / "proof.json").read_text())
    altered["payload"] = encode(statement_of(proof_of("e" * 40)).content)
    (tmp_path / "proof.json").write_text(json.dumps(altered))
    assert subprocess.run(["sh", "-euc", script], cwd=tmp_path, capture_output=True).returncode != 0


@pytest.mark.parametrize(
    "sig", ["", "AAAA", encode(b"SSHSIG"), encode(b"SSHSIG" + b"\0" * 200), encode(os.urandom(300))]
)
def test_bytes_that_are_not_a_signature_are_refused(sig: str, allowed: Path) -> None:
    envelope = seal(statement_of(proof_of("a" * 40)).content, [Signature(sig=sig)])
    assert problems(verify(to_json(envelope).encode(), Rules(allowed_signers=allowed)))


def test_command_verifies_with_exit_codes_for_proven_not_proven_and_wrong_use(
    key: Path, allowed: Path, workspace: Path, tree: str, tmp_path: Path
) -> None:
    def run(*arguments: object) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["verify", *map(str, arguments)])
        return done.exit_code, done.output

    file = tmp_path / "proof.json"
    file.write_bytes(signed(proof_of(tree), key))
    trusted = ("--repo", workspace, "--allowed-signers", allowed)
    code, out = run(file, *trusted)
    assert (code, out.splitlines()[-1]) == (0, "proven")
    assert "passed: pytest -q (pytest: 3 tests, 3 passed) in bubblewrap" in out
    assert "limitation: processor time was not bounded" in out
    code, out = run(file, *trusted, "--json")
    assert json.loads(out)["proven"] is True
    assert run(file, "--alone", "--allowed-signers", allowed)[0] == 0
    code, out = run(file, "--repo", workspace)
    assert (code, out.splitlines()[0]) == (1, "NOT PROVEN. The file claims:"), "a key that nobody trusts"
    (workspace / "notes.txt").write_text("changed\n")
    subprocess.run(
        ["git", "-C", workspace, "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qam", "x"], check=True
    )
    assert run(file, *trusted)[0] == 1
    file.write_bytes(file.read_bytes()[:-40])
    code, out = run(file, *trusted)
    assert (code, "Is the file complete?" in out) == (1, True)
    for wrong in (
        (tmp_path / "missing.json", *trusted),
        (file, "--repo", tmp_path, "--alone", "--allowed-signers", tmp_path / "missing"),
        (file, "--what"),
    ):
        assert run(*wrong)[0] == 2, wrong
    file.write_bytes(signed(proof_of(tree), key))
    assert run(file, "--repo", tmp_path, "--allowed-signers", allowed)[0] == 2, "not a working tree"


def test_commands_of_a_proof_that_does_not_hold_are_not_run(
    key: Path, workspace: Path, tree: str, tmp_path: Path
) -> None:
    file = tmp_path / "proof.json"
    file.write_bytes(signed(proof_of(tree), key))
    done = CliRunner().invoke(app, ["verify", str(file), "--repo", str(workspace), "--run"])
    assert done.exit_code == 1
    assert "reproduced" not in done.output
