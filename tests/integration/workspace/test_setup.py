"""Setup commands install real packages in the sandbox, which are cached and mounted into worktrees."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from activities.checks.activity import CommandResult
from activities.checks.runner import ProcessCheckRunner
from activities.checks.setup import CACHE, SandboxedSetups, free_cache
from activities.workspace.folders import root_of
from activities.workspace.port import SetUpResult
from activities.workspace.scope import EpisodeScope
from activities.workspace.working_tree import GitWorkspaces
from tests.support.git_sample import make_repository, scope_of
from tests.support.sandboxes import box, sandbox_named
from tightloop.checks.setup import INSTALL, SKIP, Setup
from tightloop.episode.check import Check
from tightloop.host import state_home
from tightloop.settings import SandboxSettings, WorkspaceSettings

PACKAGE = json.dumps({"name": "sample", "version": "1.0.0", "dependencies": {"is-number": "7.0.0"}})
TEST = "const n = require('is-number'); if (!n('5')) throw new Error('no number');\n"
# With ports, because the names may resolve to a mirror in a private network.
HOSTS = ("registry.npmjs.org:443", "pypi.org:443", "files.pythonhosted.org:443")
SETTINGS = WorkspaceSettings(setup_hosts=HOSTS)
IGNORED = ".venv/\nnode_modules/\n"


@pytest.fixture(scope="session")
def npm_lock(tmp_path_factory: pytest.TempPathFactory) -> str:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder = tmp_path_factory.mktemp("lock")
    (folder / "package.json").write_text(PACKAGE)
    subprocess.run(["npm", "install", "--package-lock-only"], cwd=folder, check=True, capture_output=True, timeout=120)
    return (folder / "package-lock.json").read_text()


@pytest.fixture
def npm_project(tmp_path: Path, npm_lock: str) -> Path:
    files = {"package.json": PACKAGE, "package-lock.json": npm_lock, "test.js": TEST, ".gitignore": IGNORED}
    return make_repository(tmp_path / "repo", files)


def setups(settings: WorkspaceSettings = SETTINGS) -> SandboxedSetups:
    box("bubblewrap")
    return SandboxedSetups(sandbox_named("bubblewrap"), SandboxSettings(), settings)


def examine(scope: EpisodeScope, named: str = "") -> tuple[Setup | None, tuple[str, ...]]:
    GitWorkspaces().prepare(scope, take_over=lambda _: False)
    with GitWorkspaces().hold(scope) as tree:
        return setups().examine(scope, tree, tree.snapshot(), named)


def set_up(
    scope: EpisodeScope, named: str = "", settings: WorkspaceSettings = SETTINGS, decision: str = INSTALL
) -> SetUpResult:
    setup, notes = examine(scope, named)
    assert setup is not None, notes
    with GitWorkspaces().hold(scope) as tree:
        setup = setup.evolve(decision=setup.decision or decision)
        return setups(settings).set_up(scope, tree, tree.snapshot(), setup, cancelled=lambda: False)


def run(scope: EpisodeScope, command: str) -> CommandResult:
    runner = ProcessCheckRunner(sandbox_named("bubblewrap"), SandboxSettings())
    return runner.run(Check(run=command), root_of(scope), cancelled=lambda: False, started=lambda _pid: None)


def test_npm_project_gets_its_packages_once_and_every_worktree_mounts_them(npm_project: Path) -> None:
    scope = scope_of(npm_project, worktree=True)
    setup, _ = examine(scope)
    assert setup is not None
    assert (setup.command, setup.missing, setup.decision) == ("npm ci", ("node_modules",), "")
    done = set_up(scope)
    assert done.setup is None, done
    assert "installed now and mounted read-only" in done.notes[0]
    assert run(scope, "node test.js").exit_code == 0
    assert run(scope, "echo x > node_modules/is-number/index.js").exit_code != 0
    assert not (npm_project / "node_modules").exists()
    # The answer is remembered, and the packages are not installed again.
    other = scope_of(npm_project, "ep-2", worktree=True)
    setup, _ = examine(other)
    assert setup is not None
    assert setup.decision == INSTALL
    assert "reused from an earlier run" in set_up(other).notes[0]
    assert run(other, "node test.js").exit_code == 0


def test_python_project_gets_an_environment_that_works_at_the_path_of_the_workspace(tmp_path: Path) -> None:
    files = {"requirements.txt": "iniconfig==2.0.0\n", ".gitignore": IGNORED, "test.py": "import iniconfig\n"}
    scope = scope_of(make_repository(tmp_path / "repo", files), worktree=True)
    done = set_up(scope)
    assert done.setup is None, done
    result = run(scope, ".venv/bin/python test.py && .venv/bin/pip --version && python -c 'import iniconfig'")
    assert result.exit_code == 0, result


def test_check_that_writes_to_installed_packages_gets_a_copy_of_them(npm_project: Path) -> None:
    scope = scope_of(npm_project, worktree=True)
    set_up(scope)
    runner = ProcessCheckRunner(sandbox_named("bubblewrap"), SandboxSettings())
    command = "node test.js && mkdir node_modules/.cache && echo x > node_modules/.cache/x && ls node_modules/.cache"
    for _ in range(2):
        check = Check(run=command)
        result = runner.run(check, root_of(scope), cancelled=lambda: False, started=lambda _pid: None)
        assert result.exit_code == 0, result
        assert b"wrote to installed packages: " in result.output
        assert b"MB were copied" in result.output or b"overlay" in result.output
    assert not list((state_home() / CACHE).glob("*/tree/node_modules/.cache"))
    assert not list((state_home() / "scratch").glob("*"))


def test_check_cannot_replace_the_content_of_a_package(npm_project: Path) -> None:
    scope = scope_of(npm_project, worktree=True)
    set_up(scope)
    result = run(scope, "echo 'module.exports = () => true' > node_modules/is-number/index.js && node test.js")
    assert result.exit_code != 0
    assert b"the check changes is-number/index.js" in result.output
