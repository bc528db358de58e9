"""A second party makes a proof again in a clone, and countersigns it: what it adds, and what it refuses."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.data.proof import CALC, FIXED, UNIT, UNITTEST, Work
from tests.support.git_sample import git
from tests.support.proofs import allow, make_key, sealed, signed
from tests.support.proving import prove
from tightloop.cli.main import app
from tightloop.client.proof.envelope import COUNTERSIGNATURE, SigningKey, read_envelope, sign, to_json
from tightloop.client.proof.statement import statement_of
from tightloop.client.proof.verify import open_repository
from tightloop.client.scenarios import ScenarioStore, read_scenarios
from tightloop.episode.check import CheckStatus
from tightloop.episode.proof import Proof, ProofVerdict
from tightloop.episode.proof.verdict import add_scenarios
from tightloop.episode.scenarios import ScenarioResult
from tightloop.settings import Settings

pytestmark = pytest.mark.timeout(300)
FIX = Work("fix", UNITTEST, write={"calc.py": FIXED}, goal="Let add() add")
SCENARIOS = """\
- name: large
  run: python3 -c "from calc import add; assert add(40, 2) == 42"
- name: product
  run: python3 -c "from calc import mul; assert mul(4, 2) == 8"
"""
Change = Callable[[bytes], bytes]


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use a separate state home, without the user's configuration."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIGHTLOOP_HOME", str(folder))
        patch.setenv("GIT_CONFIG_GLOBAL", str(folder / "gitconfig"))
        patch.delenv("SSH_AUTH_SOCK", raising=False)
        yield


class Side:
    """A proven project, its clone in CI, and both keys."""

    def __init__(self, folder: Path, work: Work) -> None:
        """Do the work, prove it, commit it and clone the project."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.project, self.clone = folder, folder / "project", folder / "clone"
        self.proof = prove(self.project, work, folder)
        git(self.project, "add", "-A")
        git(self.project, "commit", "-q", "-m", "work")
        git(folder, "clone", "-q", "--no-local", str(self.project), str(self.clone))
        self.author, self.second = make_key(folder, "author"), make_key(folder, "second")
        self.allowed = allow(self.author, folder / "allowed")
        line = f'CI namespaces="{COUNTERSIGNATURE}" {SigningKey(self.second).public}\n'
        self.allowed.write_text(self.allowed.read_text() + line)

    def verify(self, content: bytes, *options: object, key: Path | None = None) -> tuple[int, str]:
        """Verify a proof in the clone."""
        (self.folder / "proof.json").write_bytes(content)
        arguments = [self.folder / "proof.json", "--repo", self.clone, "--allowed-signers", self.allowed, *options]
        variables = {"TIGHTLOOP_PROOF__COUNTERSIGNING_KEY": str(key or self.second)}
        done = CliRunner().invoke(app, ["verify", *map(str, arguments)], env=variables)
        return done.exit_code, done.output

    def countersign(self, content: bytes, *options: object) -> tuple[int, str]:
        """Make a proof again and countersign it."""
        self.output.unlink(missing_ok=True)
        return self.verify(content, "--run", "--output", self.output, *options)

    def refuses(self, content: bytes, said: str, *options: object) -> str:
        """Check that a proof is not countersigned, and that the message says why."""
        code, out = self.countersign(content, *options)
        assert (code, said in out, self.output.exists()) == (1, True, False), out
        return out

    @property
    def output(self) -> Path:
        return self.folder / "countersigned.json"

    def signed(self, proof: Proof | None = None, change: Change = lambda content: content) -> bytes:
        """Return the proof, signed by its author."""
        return signed(proof or self.proof, self.author, change=change)


@pytest.fixture(scope="module")
def side(tmp_path_factory: pytest.TempPathFactory) -> Side:
    return Side(tmp_path_factory.mktemp("side"), FIX)


@pytest.fixture(scope="module")
def countersigned(side: Side) -> bytes:
    """Return a proof with both signatures."""
    code, out = side.countersign(side.signed())
    assert code == 0, out
    assert f"reproduced in bubblewrap: {FIX.command} passed (unittest 3 passed, 0 failed, 0 skipped)" in out
    return side.output.read_bytes()


def changing(**fields: object) -> Change:
    """Return a change of the details of a statement, which its author then signs."""

    def change(content: bytes) -> bytes:
        document = json.loads(content)
        document["predicate"]["tightloop"].update(fields)
        return json.dumps(document).encode()

    return change


def test_countersigned_proof_says_so_in_its_first_line(side: Side, countersigned: bytes) -> None:
    code, out = side.verify(countersigned, "--require", "countersigned")
    assert code == 0, out
    assert out.splitlines()[0] == "ep-proof: PROVEN by visible checks, countersigned by CI"
    assert "countersigned by CI with the key SHA256:" in out
    code, out = side.verify(side.signed(), "--require", "countersigned")
    assert (code, "the proof is not countersigned (nobody else has reproduced it)" in out) == (1, True)
    assert "countersigned" not in side.verify(side.signed())[1]


def test_countersignature_alone_proves_nothing(side: Side, countersigned: bytes) -> None:
    envelope = read_envelope(countersigned)
    alone = to_json(envelope.evolve(signatures=envelope.signatures[1:])).encode()
    for options in ([], ["--unsigned"], ["--require", "countersigned"]):
        code, out = side.verify(alone, *options)
        assert (code, "the proof's first signature is missing" in out) == (1, True)


def test_countersignature_of_another_proof_is_refused(side: Side, countersigned: bytes) -> None:
    second = read_envelope(countersigned).signatures[1]
    other = sealed(changing(episode="another")(statement_of(side.proof).content), side.author)
    content = to_json(other.evolve(signatures=(*other.signatures, second))).encode()
    for options in ([], ["--require", "countersigned"]):
        code, out = side.verify(content, *options)
        assert (code, "the countersignature belongs to another proof" in out) == (1, True)


def test_neither_key_can_do_the_work_of_the_other(side: Side, tmp_path: Path) -> None:
    envelope = read_envelope(side.signed())
    own = sign(envelope.signed_bytes, SigningKey(side.author), COUNTERSIGNATURE)
    content = to_json(envelope.evolve(signatures=(*envelope.signatures, own))).encode()
    code, out = side.verify(content, "--require", "countersigned")
    assert (code, "a key that is not allowed to countersign" in out) == (1, True)
    code, out = side.verify(signed(side.proof, side.second))
    assert (code, "does not belong to an allowed signer" in out) == (1, True)
    # A line without namespaces allows a key both, but the second party has to be another one.
    both = allow(side.author, tmp_path / "both", options="")
    code, out = side.verify(content, "--require", "countersigned", "--allowed-signers", both)
    assert (code, "nobody else has reproduced it" in out) == (1, True)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        (
            "passed",
            4,
            "the proof says passed (unittest 4 passed, 0 failed, 0 skipped), but the result on this host is passed",
        ),
        ("skipped", 1, "1 skipped), but the result on this host is"),
        ("namesSha256", "0" * 64, "the unittest tests have different names, although there are just as many of them"),
    ],
)
def test_other_tests_than_those_of_the_proof_are_told(side: Side, field: str, value: object, said: str) -> None:
    def change(content: bytes) -> bytes:
        document = json.loads(content)
        document["predicate"]["tightloop"]["runs"][0]["checks"][0]["reports"][0][field] = value
        return json.dumps(document).encode()

    assert FIX.command in side.refuses(side.signed(change=change), said)


def test_flipped_result_is_told_with_both_results_and_the_output(tmp_path: Path) -> None:
    """The work is not done, but its author says and signs that it is."""
    side = Side(tmp_path, replace(FIX, write={"calc.py": CALC + "\n# TODO\n"}))
    assert side.proof.verdict is not ProofVerdict.PROVEN
    [run] = side.proof.runs
    passed = tuple(check.evolve(status=CheckStatus.PASSED, exit_code=0) for check in run.checks)
    forged = side.proof.evolve(
        runs=(run.evolve(checks=passed),), findings=(), verdict=ProofVerdict.PROVEN, evidence=side.proof.evidence
    )
    forged = forged.evolve(evidence=forged.evidence.evolve(seen_to_fail=True))
    out = side.refuses(side.signed(forged), f"{FIX.command}: the proof says passed (unittest 1 passed, 2 failed")
    assert "but the result on this host is failed with exit status 1" in out
    assert "AssertionError" in out


def test_changed_list_of_checks_is_refused(side: Side) -> None:
    def change(content: bytes) -> bytes:
        document = json.loads(content)
        document["predicate"]["tightloop"]["runs"][0]["checks"][0]["run"] = "true"
        return json.dumps(document).encode()

    side.refuses(side.signed(change=change), "the digest of the definition of done does not match its commands")
    # With a digest that fits: nothing was red, and no test ran.
    [run] = side.proof.runs
    easy = tuple(check.evolve(run="true", name="true") for check in run.checks)
    out = side.refuses(side.signed(side.proof.evolve(runs=(run.evolve(checks=easy),))), "true: the proof says passed")
    assert "a check failed before the work, but all checks pass on the initial files" in out


def test_hidden_change_of_a_test_is_told(tmp_path: Path) -> None:
    weak = UNIT.replace("self.assertEqual(add(2, 2), 4)", "pass").replace("[[", "[[")
    work = replace(FIX, write={"tests/test_calc.py": weak, "tests/data/cases.json": "[]\n"})
    side = Side(tmp_path, work)
    assert side.proof.verdict is ProofVerdict.DOUBTED
    forged = side.proof.evolve(
        runs=side.proof.runs[:1], findings=(), changed=(), changed_count=0, verdict=ProofVerdict.PROVEN
    )
    out = side.refuses(
        side.signed(forged), "the proof is missing a required run of the checks (with the original tests)"
    )
    assert (
        "changed files that determine the result of a check: the proof says no other file, but the result on this "
        "host is tests/" in out
    )
    assert "tests_changed: " in out
    assert "The proof does not mention this finding" in out


def test_proof_of_another_tree_is_refused_before_anything_runs(side: Side) -> None:
    other = side.proof.evolve(delivered_tree=side.proof.base_tree)
    out = side.refuses(side.signed(other), "but they are not checked out")
    assert "reproduced" not in out
    side.refuses(side.signed(side.proof.evolve(delivered_tree="e" * 40)), "the proof covers different files")
    out = side.refuses(
        side.signed(side.proof.evolve(base_tree="e" * 40)),
        "does not contain the initial files of the run (eeeeeeeeeeee)",
    )
    assert "tightloop proof ID --attach" in out


def test_initial_files_have_to_be_in_the_history_of_the_base_on_request(tmp_path: Path) -> None:
    """Otherwise, an author could begin with tests that ask for nothing."""
    weak = UNIT.replace("self.assertEqual(add(2, 2), 4)", "pass")
    side = Side(tmp_path, replace(FIX, base={"tests/test_calc.py": weak}))
    code, out = side.verify(side.signed(), "--base", "HEAD^")
    assert (code, "the history of HEAD^ contains a commit with the files" in out) == (0, True), out
    assert side.verify(side.signed(), "--base", "missing")[0] == 2
    assert side.verify(side.signed(), "--base", "HEAD", "--alone")[0] == 2
    git(side.project, "checkout", "-q", "HEAD^")
    (side.project / "tests" / "test_calc.py").write_text(UNIT)
    git(side.project, "commit", "-q", "-a", "-m", "real tests", "--amend")
    git(side.clone, "fetch", "-q", str(side.project), "HEAD")
    code, out = side.verify(side.signed(), "--base", "FETCH_HEAD")
    assert (code, "the history of FETCH_HEAD does not contain a commit with the files" in out) == (1, True), out


def test_proof_that_is_not_signed_by_a_trusted_key_is_not_made_again(side: Side, tmp_path: Path) -> None:
    stranger = make_key(tmp_path, "stranger")
    assert "reproduced" not in side.refuses(
        signed(side.proof, stranger), "a key that does not belong to an allowed signer"
    )


def test_repository_and_its_files_run_nothing_outside_the_sandbox(side: Side, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    script = tmp_path / "run.sh"
    script.write_text(f"#!/bin/sh\ntouch {ran}\ncat\n")
    script.chmod(0o755)
    files: dict[str, str | None] = {".gitattributes": "*.py filter=evil diff=evil\n"}
    files["sitecustomize.py"] = f"open({str(ran)!r}, 'w')\n"
    hostile = Side(tmp_path / "hostile", replace(FIX, base=files))
    for name, value in {
        "filter.evil.smudge": str(script),
        "filter.evil.clean": str(script),
        "filter.evil.required": "true",
        "core.fsmonitor": str(script),
        "core.hooksPath": str(tmp_path / "hooks"),
        "core.sshCommand": str(script),
        "extensions.worktreeConfig": "true",
    }.items():
        git(hostile.clone, "config", name, value)
    for folder in (tmp_path / "hooks", hostile.clone / ".git" / "hooks"):
        folder.mkdir(exist_ok=True)
        for hook in ("post-checkout", "post-index-change", "reference-transaction"):
            shutil.copy(script, folder / hook)
    code, out = hostile.countersign(hostile.signed())
    assert code == 0, out
    assert not ran.exists()


def test_checks_do_not_reach_the_key(tmp_path: Path) -> None:
    look = f"""
import glob, os
seen = [os.environ.get("TIGHTLOOP_PROOF__COUNTERSIGNING_KEY", "")]
for path in [{str(tmp_path / "second")!r}, *glob.glob("/proc/*/environ")]:
    try:
        seen.append(open(path, errors="replace").read())
    except OSError:
        pass
assert not any("PRIVATE KEY" in text or {str(tmp_path / "second")!r} in text for text in seen), seen
"""
    side = Side(tmp_path, replace(FIX, base={"look.py": look}, done=f"{FIX.command} && python look.py"))
    code, out = side.countersign(side.signed())
    assert code == 0, out
    done = subprocess.run(
        [sys.executable, "look.py"],
        cwd=side.clone,
        env={**os.environ, "TIGHTLOOP_PROOF__COUNTERSIGNING_KEY": str(side.second)},
        capture_output=True,
        check=False,
    )
    assert b"AssertionError" in done.stderr, "without the sandbox it sees both"


def test_key_that_checks_can_read_is_refused(side: Side) -> None:
    for key, said in ((side.clone / "key", "is not safe there"), (side.folder / "missing", "is not a file")):
        if key.parent == side.clone:
            shutil.copy(side.second, key)
        code, out = side.verify(side.signed(), "--run", "--output", side.output, key=key)
        assert (code, said in out) == (2, True), out
    (side.clone / "key").unlink()


@pytest.mark.parametrize("options", [["--output", "x"], ["--scenarios", "x"]])
def test_options_of_a_run_need_a_run(side: Side, options: list[str]) -> None:
    code, out = side.verify(side.signed(), *options)
    assert (code, f"{options[0]} requires --run" in out) == (2, True)


@pytest.fixture(scope="module")
def bundle(side: Side) -> Path:
    """Return an encrypted bundle with two scenarios, one of which fails at the start."""
    (side.folder / "scenarios.yaml").write_text(SCENARIOS)
    file = side.folder / "bundle"
    file.write_bytes(ScenarioStore(Settings()).seal(read_scenarios(side.folder / "scenarios.yaml")))
    return file


def test_hidden_scenarios_are_reproduced_if_their_bundle_is_given(side: Side, bundle: Path) -> None:
    digest = ScenarioStore(Settings()).read(bundle).commitment.digest
    result = ScenarioResult(digest=digest, total=2, passed=2, failed_before=1)
    content = side.signed(add_scenarios(side.proof, result, ()))
    code, out = side.countersign(content, "--scenarios", bundle)
    assert code == 0, out
    assert "reproduced: hidden scenarios 2 of 2 passed" in out
    code, out = side.verify(side.output.read_bytes(), "--require", "countersigned", "--require", "scenarios")
    assert (code, out.splitlines()[0]) == (0, "ep-proof: PROVEN, also by 2 hidden scenarios, countersigned by CI")
    side.refuses(
        content,
        "the proof claims 2 hidden scenarios, but none were provided. Provide the scenarios with --scenarios BUNDLE",
    )
    # The same scenarios, packed once more.
    side.refuses(
        content,
        "the bundle does not match the hidden scenarios in the proof",
        "--scenarios",
        side.folder / "scenarios.yaml",
    )
    side.refuses(side.signed(), "but the proof has no hidden scenarios", "--scenarios", bundle)
    more = ScenarioResult(digest=digest, total=2, passed=2, failed_before=2)
    out = side.refuses(side.signed(add_scenarios(side.proof, more, ())), "hidden scenarios", "--scenarios", bundle)
    assert "the proof says 2 failed on the initial files, but the result on this host is 1 failed" in out


def test_files_that_were_never_committed_are_in_the_attached_ref(side: Side, tmp_path: Path) -> None:
    """Such as the initial ones, if the run began with changes. Fetching the ref is enough."""
    orphan = git(side.project, "commit-tree", side.proof.base_tree, "-m", "base").decode().strip()
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{side.project}", str(clone))
    with open_repository(clone) as repository:
        assert not repository.has(side.proof.base_tree)
    git(side.project, "update-ref", "refs/tightloop-proofs/x", orphan)
    git(clone, "fetch", "-q", "origin", "refs/tightloop-proofs/x")
    side.clone, before = clone, side.clone
    try:
        assert side.countersign(side.signed())[0] == 0
    finally:
        side.clone = before


def test_environment_of_the_clone_is_used_and_its_other_ignored_files_are_not(tmp_path: Path) -> None:
    """As installed by the job, read-only."""
    work = replace(FIX, done="look && python3 -m unittest -q", base={".gitignore": ".venv/\nstray.txt\n__pycache__/\n"})
    folder = tmp_path / "env"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "look").write_text("#!/bin/sh\ntest -f calc.py && ! test -e stray.txt && ! touch .venv/bin/new\n")
    (folder / "bin" / "look").chmod(0o755)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\n")
    work = replace(work, run=("cp", "-r", os.fspath(folder), ".venv"))
    side = Side(tmp_path / "side", replace(work, done="python3 -m unittest -q"))
    shutil.copytree(folder, side.clone / ".venv")
    (side.clone / "stray.txt").write_text("not part of the tree\n")
    [run] = side.proof.runs
    looked = tuple(check.evolve(run=work.done, name=work.done) for check in run.checks)
    code, out = side.countersign(side.signed(side.proof.evolve(runs=(run.evolve(checks=looked),))))
    assert code == 0, out
    assert not (side.clone / ".venv" / "bin" / "new").exists()
