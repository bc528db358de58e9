"""The shell steps of deploy/ci in a container of Debian's packages: no hosted runner, but the steps as they are.

Needs root on Debian for the container, and the package indexes of Debian and Python. It takes about ten minutes.
`TIGHTLOOP_TEST_DEBIAN` names the folder of a small Debian that is used instead of a new one.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from activities.workspace.result import PROOFS, TakeRequest, take_result
from activities.workspace.working_tree import Workspaces
from tests.data.proof import CALC, FIXED, UNITTEST, Work
from tests.support.compose.debian import small_system
from tests.support.git_sample import git
from tests.support.proofs import allow, make_key, signed
from tests.support.proving import prove
from tests.support.stack.stack import ROOT
from tightloop.cli.main import app
from tightloop.client.proof.envelope import COUNTERSIGNATURE, SigningKey
from tightloop.client.scenarios import ScenarioStore, read_scenarios
from tightloop.episode.check import CheckStatus
from tightloop.episode.proof import Proof, ProofVerdict
from tightloop.episode.proof.verdict import add_scenarios
from tightloop.episode.scenarios import ScenarioResult
from tightloop.settings import Settings

pytestmark = [
    pytest.mark.timeout(3_600),
    pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() != 0 or not all(map(shutil.which, ("apt-get", "dpkg", "unshare"))),
        reason="a container of Debian's packages needs root on Debian",
    ),
]
RELEASE = "bookworm"
PACKAGES = ("git", "python3", "python3-venv", "ca-certificates")
"""Packages in the images of both services. The steps install the rest."""
STEP_S = 1_500.0
FIX = Work("fix", UNITTEST, write={"calc.py": FIXED}, goal="Let add() add")
SCENARIO = '- python3 -c "from calc import add; assert add(40, 2) == 42"\n'
ENTER = """
mount --make-rprivate /
mount --bind "$SYSTEM" "$SYSTEM"
mount -t proc proc "$SYSTEM/proc"
mount --rbind /dev "$SYSTEM/dev"
cp --dereference /etc/resolv.conf "$SYSTEM/etc/resolv.conf"
cd "$SYSTEM"
mkdir -p .old
pivot_root . .old
umount -l /.old
cd "$FOLDER"
exec env --ignore-environment "$@"
"""


class Container:
    """A small Debian with this project's sources, which runs steps as root."""

    def __init__(self, system: Path) -> None:
        """Copy the sources into the system, as they are committed or would be."""
        self.system = system
        names = git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "-z").decode().split("\0")
        for name in filter(None, names):
            if (ROOT / name).is_file():
                target = self.host("/w/source", name)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, target)

    def host(self, *parts: str) -> Path:
        """Return the path on this host of one in the container."""
        return self.system / "/".join(parts).lstrip("/")

    def run(
        self, script: str, shell: tuple[str, ...], folder: str, variables: Mapping[str, str]
    ) -> "subprocess.CompletedProcess[str]":
        """Run a script in a folder, with nothing in its environment but the variables."""
        self.host("/w/step.sh").write_text(script)
        base = {
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "PIP_DEFAULT_TIMEOUT": "180",
        }
        pairs = [f"{name}={value}" for name, value in {**base, **variables}.items()]
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", ENTER, "sh", *pairs, *shell]
        return subprocess.run(
            [*command, "/w/step.sh"],
            env={**os.environ, "SYSTEM": str(self.system), "FOLDER": folder},
            capture_output=True,
            text=True,
            timeout=STEP_S,
            check=False,
        )


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIGHTLOOP_HOME", str(folder))
        patch.setenv("GIT_CONFIG_GLOBAL", str(folder / "gitconfig"))
        yield folder


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    folder = tmp_path_factory.mktemp("debian")
    ready = os.environ.get("TIGHTLOOP_TEST_DEBIAN")
    container = Container(Path(ready) if ready else small_system(folder, RELEASE, PACKAGES))
    yield container
    shutil.rmtree(container.host("/w"))
    shutil.rmtree(folder)


class Origin:
    """The repository of a project on a server, with a proof attached to the last commit, and both keys."""

    def __init__(self, container: Container, name: str, work: Work, *, scenarios: bool = False) -> None:
        """Do the work, prove it, attach the proof and push both."""
        self.container, self.name = container, name
        self.folder = container.host("/w", name)
        self.folder.mkdir(parents=True)
        project = self.folder / "project"
        self.proof = prove(project, work, self.folder)
        if scenarios:
            store = ScenarioStore(Settings())
            (self.folder / "scenarios.yaml").write_text(SCENARIO)
            bundle = read_scenarios(self.folder / "scenarios.yaml")
            (self.folder / "bundle").write_bytes(store.seal(bundle))
            result = ScenarioResult(digest=bundle.commitment.digest, total=1, passed=1, failed_before=1)
            self.proof = add_scenarios(self.proof, result, ())
        git(project, "add", "-A")
        git(project, "commit", "-q", "-m", "work")
        self.author, self.second = make_key(self.folder, "author"), make_key(self.folder, "second")
        self.allowed = allow(self.author, self.folder / "allowed")
        self.base = git(project, "rev-parse", "HEAD^").decode().strip()
        self.ref = f"{PROOFS}/{self.proof.delivered_tree}"
        self.attach(self.proof)
        git(self.folder, "init", "-q", "--bare", "-b", "main", "origin.git")
        git(project, "push", "-q", str(self.folder / "origin.git"), "main", self.ref)
        # As the services do: without history, and without other refs.
        git(self.folder, "clone", "-q", "--depth", "1", f"file://{self.folder}/origin.git", "checkout")
        git(self.folder / "checkout", "remote", "set-url", "origin", f"file:///w/{name}/origin.git")

    def attach(self, proof: Proof) -> None:
        """Attach a signed proof, as `tightloop proof ID --attach` does."""
        text = signed(proof, self.author).decode()
        workspaces = Workspaces(lock_wait=timedelta(seconds=10))
        request = TakeRequest(
            run=proof.episode_id,
            workspace=str(self.folder / "project"),
            proof=text,
            base=proof.base_tree,
            tree=proof.delivered_tree,
        )
        assert self.ref in take_result(workspaces, request)

    def signers(self) -> str:
        """Return the file of allowed signers for everybody else."""
        line = f'CI namespaces="{COUNTERSIGNATURE}" {SigningKey(self.second).public}\n'
        (self.folder / "signers").write_text(self.allowed.read_text() + line)
        return str(self.folder / "signers")


def assert_countersigned(origin: Origin, file: Path, said: str) -> None:
    """Check on this host that the envelope of the CI holds in the project."""
    options = ["--repo", origin.folder / "project", "--allowed-signers", origin.signers(), "--require", "countersigned"]
    done = CliRunner().invoke(app, ["verify", str(file), *map(str, options)])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[0] == f"ep-proof: {said}, countersigned by CI"


class Action:
    """The composite action, run step by step."""

    def __init__(self, container: Container) -> None:
        """Read the steps."""
        self._container = container
        document = yaml.safe_load((ROOT / "deploy" / "ci" / "github" / "action.yml").read_text())
        self._inputs = {name: str(given.get("default", "")) for name, given in document["inputs"].items()}
        self._steps: list[dict[str, Any]] = document["runs"]["steps"]

    def run(self, origin: Origin, **inputs: str) -> tuple[int, str, dict[str, str]]:
        """Run the shell steps until one fails; return its exit status, all output, and the outputs of the last one."""
        given = {
            **self._inputs,
            "base": origin.base,
            **{name.replace("_", "-"): value for name, value in inputs.items()},
        }
        temporary = f"/w/{origin.name}/runner"
        self._container.host(temporary).mkdir(exist_ok=True)
        outputs = self._container.host(temporary, "outputs")
        outputs.write_text("")
        log, code = "", 0
        for step in self._steps:
            if "run" not in step:
                continue
            assert step["shell"] == "bash"
            variables = {name: self._value(text, given) for name, text in step.get("env", {}).items()}
            variables |= {"RUNNER_TEMP": temporary, "GITHUB_OUTPUT": f"{temporary}/outputs"}
            # As documented for `shell: bash`.
            shell = ("bash", "--noprofile", "--norc", "-eo", "pipefail")
            done = self._container.run(step["run"], shell, f"/w/{origin.name}/checkout", variables)
            log, code = log + done.stdout + done.stderr, done.returncode
            if code:
                break
        pairs = (line.partition("=") for line in outputs.read_text().splitlines())
        return code, log, {name: value for name, _, value in pairs}

    def _value(self, text: str, inputs: Mapping[str, str]) -> str:
        known = {f"inputs.{name}": value for name, value in inputs.items()}
        known["github.action_path"] = "/w/source/deploy/ci/github"
        return re.sub(r"\$\{\{ *(.*?) *\}\}", lambda match: known[match[1]], text)


@pytest.fixture(scope="module")
def action(container: Container) -> Action:
    return Action(container)


@pytest.fixture(scope="module")
def fixed(container: Container) -> Origin:
    return Origin(container, "fixed", FIX)


def test_action_makes_the_proof_again_and_countersigns_it(container: Container, action: Action, fixed: Origin) -> None:
    key, signers = fixed.second.read_text(), fixed.allowed.read_text()
    code, log, outputs = action.run(fixed, allowed_signers=signers, countersigning_key=key)
    assert code == 0, log[-4000:]
    assert f"reproduced in bubblewrap: {FIX.command} passed (unittest 3 passed" in log
    assert not container.host("/w/fixed/runner/countersigning-key").exists()
    assert_countersigned(fixed, container.host(outputs["proof"]), "PROVEN by visible checks")
    # A pull request from a fork has no secrets.
    code, log, outputs = action.run(fixed, allowed_signers=signers)
    assert (code, outputs) == (0, {}), log[-4000:]


def test_action_gets_the_hidden_scenarios_from_a_bundle(container: Container, action: Action, home: Path) -> None:
    origin = Origin(container, "hidden", FIX, scenarios=True)
    given = {"allowed_signers": origin.allowed.read_text(), "countersigning_key": origin.second.read_text()}
    code, log, outputs = action.run(origin, **given)
    assert (code, "the proof claims 1 hidden scenario, but none were provided" in log, outputs) == (1, True, {}), log[
        -4000:
    ]
    code, log, outputs = action.run(
        origin, **given, scenarios="/w/hidden/bundle", scenarios_key=(home / "keys.json").read_text()
    )
    assert code == 0, log[-4000:]
    assert_countersigned(origin, container.host(outputs["proof"]), "PROVEN, also by 1 hidden scenario")


def test_action_refuses_what_is_not_proven(container: Container, action: Action, fixed: Origin) -> None:
    given = {"allowed_signers": fixed.allowed.read_text(), "countersigning_key": fixed.second.read_text()}
    lazy = Origin(container, "lazy", replace(FIX, write={"calc.py": CALC + "\n# done\n"}))
    [run] = lazy.proof.runs
    passed = tuple(check.evolve(status=CheckStatus.PASSED, exit_code=0) for check in run.checks)
    facts = lazy.proof.evidence.evolve(seen_to_fail=True)
    forged = lazy.proof.evolve(
        runs=(run.evolve(checks=passed),), findings=(), verdict=ProofVerdict.PROVEN, evidence=facts
    )
    lazy.attach(forged)
    git(lazy.folder / "project", "push", "-q", "--force", str(lazy.folder / "origin.git"), lazy.ref)
    code, log, outputs = action.run(lazy, **{**given, "allowed_signers": lazy.allowed.read_text()})
    assert (code, outputs) == (1, {}), log[-4000:]
    assert "but the result on this host is failed with exit status 1" in log
    code, log, _ = action.run(lazy, **given)
    assert (code, "a key that does not belong to an allowed signer" in log) == (1, True), log[-4000:]
    git(lazy.folder / "origin.git", "update-ref", "-d", lazy.ref)
    code, log, _ = action.run(lazy, **given)
    assert (code, "::error::No proof is attached to the files of this commit" in log) == (1, True), log[-4000:]


def test_job_of_gitlab_countersigns_too(container: Container, fixed: Origin) -> None:
    job = yaml.safe_load((ROOT / "deploy" / "ci" / "gitlab.yml").read_text())["tightloop-proof"]
    variables = {
        **job["variables"],
        "TIGHTLOOP_PACKAGES": "--constraint /w/source/constraints.txt /w/source /w/source/deploy/server",
        "TIGHTLOOP_ALLOWED_SIGNERS": "/w/fixed/allowed",
        "CI_MERGE_REQUEST_DIFF_BASE_SHA": fixed.base,
        "TIGHTLOOP_COUNTERSIGNING_KEY": "/w/fixed/file-variable",
    }
    # The runner lets everybody read its files.
    container.host("/w/fixed/file-variable").write_bytes(fixed.second.read_bytes())
    container.host("/w/fixed/file-variable").chmod(0o666)
    script = "\n".join([*job["before_script"], *job["script"]])
    done = container.run(script, ("sh", "-e"), "/w/fixed/checkout", variables)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert job["artifacts"]["paths"] == ["countersigned.json"]
    assert_countersigned(fixed, fixed.folder / "checkout" / "countersigned.json", "PROVEN by visible checks")
