"""Setup commands install real packages in the sandbox, which are cached and mounted into worktrees."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from activities.checks.activity import CheckView, CommandResult
from activities.checks.runner import CheckRunner
from activities.checks.setup import CACHE, SandboxedSetups, free_cache
from activities.workspace.folders import root_of
from activities.workspace.port import SetUpResult
from activities.workspace.scope import EpisodeScope
from activities.workspace.user_repository import UserRepository
from activities.workspace.working_tree import Workspaces
from activities.workspace.worktree import remove_worktree
from tests.support.git_sample import git, make_repository, scope_of
from tests.support.sandboxes import box, sandbox_named
from tightloop.checks.setup import INSTALL, SKIP, Setup
from tightloop.episode.check import Check
from tightloop.errors import WorkspaceError
from tightloop.host import state_home
from tightloop.host.worktree import mounted_environments, path_inside, read_worktree
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
    Workspaces().prepare(scope, take_over=lambda _: False)
    with Workspaces().hold(scope) as tree:
        return setups().examine(scope, tree, tree.snapshot(), named)


def set_up(
    scope: EpisodeScope, named: str = "", settings: WorkspaceSettings = SETTINGS, decision: str = INSTALL
) -> SetUpResult:
    setup, notes = examine(scope, named)
    assert setup is not None, notes
    with Workspaces().hold(scope) as tree:
        setup = setup.evolve(decision=setup.decision or decision)
        return setups(settings).set_up(scope, tree, tree.snapshot(), setup, cancelled=lambda: False)


def run(scope: EpisodeScope, command: str) -> CommandResult:
    runner = CheckRunner(sandbox_named("bubblewrap"), SandboxSettings())
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


def test_check_that_writes_to_installed_packages_gets_a_copy_of_them(npm_project: Path, tmp_path: Path) -> None:
    scope = scope_of(npm_project, worktree=True)
    set_up(scope)
    runner = CheckRunner(sandbox_named("bubblewrap"), SandboxSettings())
    command = "node test.js && mkdir node_modules/.cache && echo x > node_modules/.cache/x && ls node_modules/.cache"
    for _ in range(2):
        check = Check(run=command)
        result = runner.run(check, root_of(scope), cancelled=lambda: False, started=lambda _pid: None)
        assert result.exit_code == 0, result
        assert b"wrote to installed packages: " in result.output
        assert b"MB were copied" in result.output or b"overlay" in result.output
    # A proof puts an empty folder in the place of a cache that is there already.
    (tmp_path / "empty").mkdir()
    (tmp_path / "packages/.cache").mkdir(parents=True)
    inside = path_inside("bubblewrap", root_of(scope)) / "packages"
    mounts = ((tmp_path / "packages", inside), (tmp_path / "empty", inside / ".cache"))
    hidden = Check(run="mkdir packages/.cache/nyc && echo x > packages/.cache/nyc/x")
    result = runner.run(
        hidden, root_of(scope), cancelled=lambda: False, started=lambda _pid: None, view=CheckView(mounts=mounts)
    )
    assert result.exit_code == 0, result
    assert not any((tmp_path / "empty").iterdir())
    assert not list((state_home() / CACHE).glob("*/tree/node_modules/.cache"))
    assert not list((state_home() / "scratch").glob("*"))


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("echo 'module.exports = () => true' > node_modules/is-number/index.js", "is-number/index.js"),
        ("mkdir node_modules/other && echo 1 > node_modules/other/index.js", "other/index.js"),
        ("ln -s /tmp node_modules/other", "other"),
        ("rm node_modules/is-number/README.md", "is-number/README.md"),
    ],
)
def test_check_cannot_change_packages_before_its_tests_run(npm_project: Path, command: str, path: str) -> None:
    scope = scope_of(npm_project, worktree=True)
    set_up(scope)
    result = run(scope, f"{command} && true")
    assert result.exit_code != 0
    assert f"the check changes {path}".encode() in result.output


def project(tmp_path: Path, **files: str) -> EpisodeScope:
    written = {name.replace("_", "."): content for name, content in files.items()}
    return scope_of(
        make_repository(tmp_path / "repo", {"a.txt": "one\n", ".gitignore": IGNORED, **written}), worktree=True
    )


MAKE = "mkdir -p node_modules/x && echo 1 > node_modules/x/index.js"


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("echo two > a.txt", "changed tracked files: a.txt"),
        ("rm a.txt", "changed tracked files: a.txt"),
        ("ln -sf /etc/passwd a.txt", "changed tracked files: a.txt"),
        ("chmod +x a.txt", "changed tracked files: a.txt"),
        ("echo the reason; exit 3", "failed with exit code 3\nthe reason"),
        ("curl -sSf http://example.org", "failed with exit code"),
    ],
)
def test_setup_that_does_more_or_fails_is_discarded(tmp_path: Path, command: str, problem: str) -> None:
    scope = project(tmp_path)
    done = set_up(scope, f"{MAKE} && {command}")
    assert done.setup is not None
    assert done.setup.decision == ""
    assert done.setup.problem.startswith(problem)
    assert read_worktree(root_of(scope)).environments == ()  # type: ignore[union-attr]
    assert (root_of(scope) / "a.txt").read_text() == "one\n"


def test_setup_sees_neither_private_files_nor_the_settings_of_the_repository(tmp_path: Path) -> None:
    scope = project(tmp_path)
    workspace = Path(scope.workspace)
    (workspace / ".env").write_text("TOKEN=abc\n")
    git(workspace, "config", "remote.origin.url", "https://me:password@example.org/x.git")
    leak = "cat .env .git/config ~/.npmrc /root/.bashrc; env; git log -1"
    done = set_up(scope, f"{MAKE}; ({leak}) > node_modules/x/leak 2>/dev/null; true")
    assert done.setup is None, done
    leaked = run(scope, "cat node_modules/x/leak").output
    assert b"abc" not in leaked
    assert b"password" not in leaked
    assert b"Author" in leaked


def test_setup_is_stopped_at_its_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.checks.setup.SETUP_S", 2.0)
    done = set_up(project(tmp_path), "sleep 100 & sleep 100")
    assert done.setup is not None
    assert done.setup.problem.startswith("did not finish within")
    assert not list((state_home() / CACHE / ".building").iterdir())


def test_lock_file_that_changed_is_not_installed_without_another_answer(npm_project: Path) -> None:
    scope = scope_of(npm_project, worktree=True)
    set_up(scope)
    lock = npm_project / "package-lock.json"
    lock.write_text(lock.read_text().replace("sha512-", "sha512-x"))
    git(npm_project, "commit", "-qam", "another")
    setup, _ = examine(scope_of(npm_project, "ep-2", worktree=True))
    assert setup is not None
    assert setup.decision == ""
    # Nor does an answer about the earlier lock file count, if the agent changes it in the meantime.
    third = scope_of(npm_project, "ep-3", worktree=True)
    asked, _ = examine(third)
    assert asked is not None
    with (root_of(third) / "package-lock.json").open("a") as file:
        file.write("\n")
    with Workspaces().hold(third) as tree:
        decided = asked.evolve(decision=INSTALL)
        done = setups().set_up(third, tree, tree.snapshot(), decided, cancelled=lambda: False)
    assert done.setup is not None
    assert done.setup.decision == ""


def test_lock_file_that_git_does_not_track_is_not_proposed(tmp_path: Path, npm_lock: str) -> None:
    scope = project(tmp_path, package_json=PACKAGE)
    (Path(scope.workspace) / "package-lock.json").write_text(npm_lock)
    plain = scope.model_copy(update={"worktree": False})
    assert examine(plain) == (None, ())


def test_refused_setup_is_remembered_and_said(npm_project: Path) -> None:
    done = set_up(scope_of(npm_project, worktree=True), decision=SKIP)
    assert done.notes == ("the work starts without node_modules",)
    setup, notes = examine(scope_of(npm_project, "ep-2", worktree=True))
    assert setup is None
    assert notes == (
        'node_modules is not in the worktree. Run `npm ci` in the workspace, or start with: --setup "npm ci"',
    )


def test_packages_are_copied_into_a_workspace_without_a_worktree(tmp_path: Path) -> None:
    scope = project(tmp_path).model_copy(update={"worktree": False})
    done = set_up(scope, MAKE)
    assert "copied into" in done.notes[0]
    workspace = Path(scope.workspace)
    assert (workspace / "node_modules/x/index.js").read_text() == "1\n"
    assert sorted(path.name for path in workspace.iterdir()) == [".git", ".gitignore", "a.txt", "node_modules"]
    (workspace / ".gitignore").write_text("")
    shutil.rmtree(workspace / "node_modules")
    with pytest.raises(WorkspaceError, match=r"git does not ignore node_modules\. Add node_modules to \.gitignore"):
        set_up(scope, MAKE)
    assert not (workspace / "node_modules").exists()


def test_unused_packages_are_removed_when_the_cache_is_full(tmp_path: Path) -> None:
    scopes = [project(tmp_path / name) for name in ("first", "second")]
    for scope in scopes:
        set_up(scope, f"{MAKE} && head -c 1000000 /dev/zero > node_modules/x/big")
    cached = [Path(mounted_environments(root_of(scope))["node_modules"]).parents[1] for scope in scopes]
    assert free_cache(0, dry_run=True)[1] == 0
    for folder in cached:
        os.utime(folder, (1, 1))
    # Both are mounted into worktrees.
    free_cache(0)
    assert all(folder.exists() for folder in cached)
    remove_worktree(UserRepository(Path(scopes[0].workspace)), root_of(scopes[0]))
    assert free_cache(0)[1] >= 1_000_000
    assert [folder.exists() for folder in cached] == [False, True]


def test_setup_that_installs_more_than_fits_is_discarded(tmp_path: Path) -> None:
    small = SETTINGS.model_copy(update={"cached_environments_mb": 0})
    done = set_up(project(tmp_path), f"{MAKE} && head -c 1000000 /dev/zero > node_modules/x/big", settings=small)
    assert done.setup is not None
    assert (
        "the installation takes up 1 MB, but workspace.cached_environments_mb is limited to 0 MB" in done.setup.problem
    )


KILLED = """
import os, sys, threading, time
from pathlib import Path
from tests.integration.workspace.test_setup import MAKE, set_up
from tests.support.git_sample import scope_of

threading.Thread(target=lambda: (time.sleep(4), os._exit(9))).start()
set_up(scope_of(Path(sys.argv[1]), worktree=True), MAKE + "; echo $$; sleep 300")
"""


def test_setup_starts_again_after_the_worker_was_killed(tmp_path: Path) -> None:
    scope = project(tmp_path)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, scope.workspace], cwd=Path.cwd(), check=False, capture_output=True, timeout=60
    )
    assert killed.returncode == 9, killed.stderr
    assert list((state_home() / CACHE / ".building").iterdir())
    time.sleep(3)
    done = set_up(scope, MAKE)
    assert done.setup is None, done
    assert run(scope, "cat node_modules/x/index.js").output == b"1\n"
    assert not list((state_home() / CACHE / ".building").iterdir())
