"""Projects of `tests/data/proof` on disk."""

import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from shutil import copytree, which

from activities.artifacts.stores import open_local_store
from activities.checks.runner import CheckRunner
from activities.proof import untracked
from activities.proof.checkouts import LocalCheckouts
from activities.proof.port import LockedTrees
from activities.proof.proving import Subject, prove_tree
from activities.proof.runs import Runs
from activities.sandbox.choose import choose_sandbox
from activities.workspace.scope import EpisodeScope
from activities.workspace.working_tree import Workspaces
from tests.data.proof import NODE, Work
from tests.support.git_sample import make_repository
from tests.support.runners import VITEST, link_modules
from tightloop.episode.check import Check, ProofRule
from tightloop.episode.proof import Proof
from tightloop.episode.proof.report import CheckBaseline, InitialState
from tightloop.safety.drift import DriftCause
from tightloop.settings import SandboxSettings


@cache
def has_node() -> bool:
    """Whether node runs tests and tells of them."""
    if which("node") is None:
        return False
    told = subprocess.run(["node", "--help"], capture_output=True, text=True, check=False)
    return "--test-reporter-destination" in told.stdout


def make_environment(folder: Path) -> Path:
    """Make a `.venv` with pytest, once for many projects: it sees the packages of the tests' own Python."""
    venv.create(folder, symlinks=True, with_pip=False)
    [site] = folder.glob("lib/python3.*/site-packages")
    (site / "outer.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    script = folder / "bin" / "pytest"
    # Relative, so that the folder can be copied.
    script.write_text(
        '#!/bin/sh\nexec "$(dirname "$0")/python" -c "import sys, pytest; sys.exit(pytest.main())" "$@"\n'
    )
    script.chmod(0o755)
    return folder


def make_project(folder: Path, work: Work, environment: Path) -> Path:
    """Make the repository that some work is done in."""
    make_repository(folder, work.project())
    if work.environment:
        copytree(environment, folder / ".venv", symlinks=True)
    if work.checker == NODE:
        package = folder / "node_modules" / "same"
        package.mkdir(parents=True)
        (package / "index.js").write_text(
            "module.exports = (a, b) => { if (a !== b) throw new Error(`${a} is not ${b}`); };\n"
        )
    if work.checker == VITEST:
        link_modules(folder)
    return folder


def prove(folder: Path, work: Work, environment: Path, read: Sequence[Path] = ()) -> Proof:
    """Do some work in a new project and prove it, in the sandbox of this host but without an episode.

    `read` holds folders that the checks may read besides those of the system.
    """
    root = make_project(folder, work, environment)
    checks = tuple(Check(run=command) for command in work.command.splitlines())
    scope = EpisodeScope(episode_id="ep-proof", workspace=str(root))
    workspaces = Workspaces(lock_wait=timedelta(seconds=10))
    workspaces.prepare(scope, take_over=lambda _episode: True)
    settings = SandboxSettings(read=[str(path) for path in read])
    runner = CheckRunner(choose_sandbox(settings), settings)
    with workspaces.hold(scope) as tree:
        use = Runs(tree, open_local_store(root), runner, LocalCheckouts(), lambda: False, lambda _work: None)
        begun = tree.snapshot()
        manifest = untracked.survey(root, LockedTrees(tree).files(begun)).write()
        outcomes = use.run_in_place(checks, begun)
        tree.ensure(begun, DriftCause.DURING_CHECKS)
        baselines = tuple(
            CheckBaseline(run=result.run, passed=result.passed, exit_code=result.exit_code, observation=observation)
            for result, observation, _ in outcomes
        )
        stored = use.store.put(manifest, name="beside the tree", media_type="application/zlib")
        beginning = InitialState(tree=begun, root=str(root), checks=baselines, ignored=stored)
        _do(root, work)
        return prove_tree(
            use,
            Subject(work.wanted, work.wanted, checks),
            workflow_id=scope.episode_id,
            delivered=tree.snapshot(),
            beginning=beginning,
            allowed=tuple(map(ProofRule, work.allow)),
        )


def _do(root: Path, work: Work) -> None:
    for path, text in work.write.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    for path in work.delete:
        (root / path).unlink()
    if work.run:
        subprocess.run(work.run, cwd=root, check=True, capture_output=True)


PYTHON = sys.executable
