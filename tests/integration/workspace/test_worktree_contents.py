"""A worktree has what the workspace has: environments, private files, submodules, Git LFS files and a working git."""

import hashlib
import os
import stat
from pathlib import Path

import pytest

from activities.artifacts.stores import open_local_store
from activities.checks.activity import CommandResult
from activities.checks.runner import CheckRunner
from activities.coder.files import ToolError, read_file, relative
from activities.plan.children import Worktrees
from activities.plan.requests import PlanScope
from activities.proof.checkouts import LocalCheckouts
from activities.proof.runs import Runs
from activities.workspace.folders import root_of, state_folder_of
from activities.workspace.scope import EpisodeScope
from activities.workspace.user_repository import list_files
from activities.workspace.working_tree import Workspaces
from tests.support.git_sample import git, make_repository, on_disk, scope_of, user_state, write
from tests.support.sandboxes import box, sandbox_named
from tightloop.episode.check import Check
from tightloop.host.worktree import read_worktree
from tightloop.settings import SandboxSettings, WorkspaceSettings

IGNORED = ".env*\n.venv/\nnode_modules/\nbuild/\nsecrets/\n"


@pytest.fixture(params=["bubblewrap", "docker"])
def sandbox(request: pytest.FixtureRequest) -> str:
    box(request.param)
    return str(request.param)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = make_repository(tmp_path / "repo", {"a.txt": "one\n", ".gitignore": IGNORED})
    write(root, {".env": "TOKEN=abc\n", "web/.env.local": "X=1\n", "node_modules/x/index.js": "1\n"})
    write(root, {".venv/pyvenv.cfg": "", ".venv/bin/onlyhere": "#!/bin/sh\necho from the environment\n"})
    write(root, {"build/out.bin": "1", "build/keys/a.key": "k", "secrets/b.txt": "b"})
    (root / ".venv/bin/onlyhere").chmod(0o755)
    return root


def prepare(scope: EpisodeScope, settings: WorkspaceSettings = WorkspaceSettings()) -> tuple[str, ...]:
    return Workspaces(settings=settings).prepare(scope, take_over=lambda _: False)


def run(scope: EpisodeScope, command: str, sandbox: str = "bubblewrap") -> CommandResult:
    runner = CheckRunner(sandbox_named(sandbox), SandboxSettings())
    return runner.run(Check(run=command), root_of(scope), cancelled=lambda: False, started=lambda _pid: None)


def snapshot(scope: EpisodeScope) -> dict[bytes, bytes]:
    with Workspaces().hold(scope) as tree:
        return {path: tree.content(entry.id) for path, entry in tree.entries(tree.snapshot()).items()}


def test_worktree_appears_at_the_path_of_the_workspace(root: Path, sandbox: str) -> None:
    scope = scope_of(root, worktree=True)
    prepare(scope)
    result = run(scope, "pwd; cat .env; cat node_modules/x/index.js; onlyhere; echo two > a.txt", sandbox)
    assert result.exit_code == 0, result
    assert result.output.decode().splitlines() == [str(root), "TOKEN=abc", "1", "from the environment"]
    assert (root / "a.txt").read_text() == "one\n"
    assert (root_of(scope) / "a.txt").read_text() == "two\n"


def test_observers_tell_what_a_check_loads(tmp_path: Path, sandbox: str) -> None:
    files = {"calc.py": "def add(a, b):\n    return a + b\n", "check.py": "import calc\nassert calc.add(1, 1) == 2\n"}
    root = make_repository(tmp_path / "repo", files)
    scope, workspaces = scope_of(root, worktree=True), Workspaces()
    prepare(scope)
    runner = CheckRunner(sandbox_named(sandbox), SandboxSettings())
    with workspaces.hold(scope) as tree:
        runs = Runs(tree, open_local_store(root), runner, LocalCheckouts(), lambda: False, lambda _work: None)
        (checked,) = runs.run_in_place((Check(run="python3 check.py"),), tree.snapshot())
    assert checked.result.passed, checked.result.tail
    assert checked.observation.programs == ("check.py",)
    assert checked.observation.loads["calc.py"] == ("check.py",)


def test_environments_of_the_workspace_cannot_be_changed(root: Path, sandbox: str) -> None:
    scope = scope_of(root, worktree=True)
    prepare(scope)
    result = run(scope, "echo 2 > node_modules/x/index.js; echo 2 > .venv/bin/onlyhere", sandbox)
    assert result.exit_code != 0
    assert result.output.count(b"Read-only file system") == 2
    assert (root / "node_modules/x/index.js").read_text() == "1\n"


@pytest.mark.parametrize("repository", ["plain", "linked", "borrowing"])
def test_git_works_inside_and_leaves_the_repository_alone(root: Path, tmp_path: Path, repository: str) -> None:
    box("bubblewrap")
    git(root, "tag", "-a", "-m", "one", "v1")
    if repository == "linked":
        git(root, "worktree", "add", "-q", "-b", "other", str(tmp_path / "linked"))
        root = tmp_path / "linked"
    elif repository == "borrowing":
        git(tmp_path, "clone", "-q", "--shared", str(root), str(tmp_path / "clone"))
        root = tmp_path / "clone"
    before = user_state(root)
    scope = scope_of(root, worktree=True)
    prepare(scope)
    result = run(
        scope,
        "set -e; git status --porcelain; git describe; echo two > a.txt; git diff --stat | tail -1; "
        "git commit -qam second; git log --format='%an: %s'; git stash list; git branch mine; git fsck 2>&1",
    )
    assert result.exit_code == 0, result.output.decode()
    lines = result.output.decode().splitlines()
    assert lines == ["v1", " 1 file changed, 1 insertion(+), 1 deletion(-)", "tightloop run: second", "Sam: start"]
    assert user_state(root) == before
    assert git(root, "branch", "--list", "mine") == b""
    assert git(root_of(scope), "status", "--porcelain") == b" M a.txt\n", "outside it is the last commit that counts"


@pytest.mark.parametrize("repository", ["plain", "borrowing", "shallow"])
def test_later_commits_are_hidden_on_request(root: Path, tmp_path: Path, repository: str) -> None:
    """Also those that no branch or tag refers to any more."""
    box("bubblewrap")
    git(root, "tag", "-a", "-m", "one", "v1")
    write(root, {"a.txt": "middle\n"})
    git(root, "commit", "-q", "-a", "-m", "middle")
    for branch, where in (("later", "main"), ("other", "v1")):
        git(root, "checkout", "-q", "-b", branch, where)
        write(root, {"a.txt": f"solved {branch}\n"})
        git(root, "commit", "-q", "-a", "-m", branch)
        git(root, "tag", f"tag-{branch}")
    git(root, "checkout", "-q", "main")
    write(root, {"a.txt": "dropped\n"})
    git(root, "commit", "-q", "-a", "-m", "dropped")
    hidden = [git(root, "rev-parse", name).decode().strip() for name in ("main", "later", "other", "main:a.txt")]
    git(root, "reset", "-q", "--hard", "HEAD^")
    if repository != "plain":
        how = "--shared" if repository == "borrowing" else "--no-local"
        depth = [] if repository == "borrowing" else ["--depth", "1", "--no-single-branch"]
        git(tmp_path, "clone", "-q", how, *depth, f"file://{root}" if depth else str(root), str(tmp_path / "clone"))
        root = tmp_path / "clone"
    shown, past = scope_of(root, "shown", worktree=True), scope_of(root, "past", worktree=True)
    prepare(shown)
    prepare(past, WorkspaceSettings(history="past"))
    look = "set -e; git fsck 2>&1; git status --porcelain; git log --all --format=%s"
    subjects = run(shown, look).output.decode().splitlines()
    assert {"later", "other"} <= set(subjects)
    result = run(past, f"{look}; git describe --always >&2; git cat-file --batch-check --batch-all-objects")
    assert result.exit_code == 0, result.output.decode()
    text = result.output.decode()
    assert text.splitlines()[0] == "middle"
    assert not [name for name in (*hidden, "later", "other") if name in text]
    assert run(past, "echo two > a.txt; git commit -qam second && git log --format=%s | head -1").output == b"second\n"


def test_hooks_and_settings_that_a_command_plants_do_not_run_outside(root: Path, tmp_path: Path) -> None:
    box("bubblewrap")
    scope = scope_of(root, worktree=True)
    prepare(scope)
    planted = run(scope, f"git config core.fsmonitor 'touch {tmp_path}/planted' && echo two > a.txt")
    assert planted.exit_code == 0
    git(root_of(scope), "status")
    snapshot(scope)
    assert not (tmp_path / "planted").exists()
    assert b"Read-only" in run(scope, "echo 'gitdir: /tmp/other' > .git").output


def test_private_files_are_copied_and_never_part_of_a_snapshot(root: Path) -> None:
    write(root, {".worktreeinclude": "# keys\nsecrets/\n/build/keys/*.key\n"})
    scope = scope_of(root, worktree=True)
    notes = prepare(scope)
    copied = {".env", "web/.env.local", "secrets/b.txt", "build/keys/a.key"}
    for path in copied:
        assert stat.S_IMODE((root_of(scope) / path).stat().st_mode) == 0o600
    assert not (root_of(scope) / "build/out.bin").exists()
    # Without the rules that ignored them.
    (root_of(scope) / ".gitignore").write_text("!.env\n")
    assert copied.isdisjoint(map(os.fsdecode, snapshot(scope)))
    assert copied.isdisjoint(list_files(root_of(scope)))
    assert any(note.startswith("copied from the workspace: .env, build/keys/a.key, secrets/b.txt") for note in notes)
    assert any("mounted read-only from the workspace: .venv, node_modules" in note for note in notes)


def test_settings_choose_what_is_copied(root: Path) -> None:
    scope = scope_of(root, worktree=True)
    prepare(scope, WorkspaceSettings(env_files=False, include=("build/keys/",)))
    assert not (root_of(scope) / ".env").exists()
    assert (root_of(scope) / "build/keys/a.key").read_text() == "k"


def test_environment_that_checks_change_is_copied_on_request(root: Path) -> None:
    box("bubblewrap")
    mounted, copied, small = (scope_of(root, name, worktree=True) for name in ("one", "two", "three"))
    prepare(mounted)
    advice = run(mounted, "echo 2 > node_modules/x/index.js").output.decode()
    assert ".venv, node_modules of the workspace cannot be changed (the check changes x/index.js)" in advice
    assert "set workspace.environments to copy" in advice
    notes = prepare(copied, WorkspaceSettings(environments="copy"))
    assert any("copied from the workspace: " in note and "node_modules (0 MB)" in note for note in notes)
    assert run(copied, "onlyhere && echo 2 > node_modules/x/index.js").exit_code == 0
    assert (root / "node_modules/x/index.js").read_text() == "1\n"
    prepare(small, WorkspaceSettings(environments="copy", environments_mb=0))
    assert run(small, "echo 2 > node_modules/x/index.js").exit_code != 0
    assert b"0 MB were copied for the check" in run(small, "touch node_modules/.cache").output


def test_coder_finds_files_by_the_paths_that_commands_print_and_cannot_read_private_ones(root: Path) -> None:
    scope = scope_of(root, worktree=True)
    prepare(scope)
    tree = root_of(scope)
    assert relative(tree, f"{root}/a.txt") == relative(tree, f"{tree}/a.txt") == "a.txt"
    assert read_file(tree, "a.txt") == b"one\n"
    with pytest.raises(ToolError, match=r"\.env is a private file"):
        read_file(tree, ".env")


def test_links_and_large_files_are_not_copied(root: Path, tmp_path: Path) -> None:
    write(tmp_path, {"outside": "private\n"})
    (root / ".env.link").symlink_to(tmp_path / "outside")
    (root / ".env.large").write_bytes(bytes(1_000_001))
    scope = scope_of(root, worktree=True)
    notes = prepare(scope)
    assert not (root_of(scope) / ".env.link").exists()
    assert not (root_of(scope) / ".env.large").exists()
    assert any("too large to be copied" in note and ".env.large" in note for note in notes)


def test_ignored_folders_that_are_left_out_are_reported(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "repo", {"a.txt": "1\n", ".gitignore": "build/\n"})
    write(root, {"build/o": "1"})
    notes = prepare(scope_of(root, worktree=True))
    assert any("not in the worktree. List small files" in note and note.endswith(": build/") for note in notes)


def test_submodules_come_from_the_local_objects(tmp_path: Path) -> None:
    inner = make_repository(tmp_path / "inner", {"deep.txt": "deep\n"})
    library = make_repository(tmp_path / "library", {"lib.py": "X = 1\n"})
    git(library, "submodule", "add", "-q", str(inner), "inner")
    git(library, "commit", "-qm", "inner")
    root = make_repository(tmp_path / "repo", {"a.txt": "1\n"})
    git(root, "submodule", "add", "-q", str(library), "vendor/lib")
    git(root, "submodule", "update", "-q", "--init", "--recursive")
    git(root, "commit", "-qm", "library")
    before = user_state(root)
    scope = scope_of(root, worktree=True)
    assert not any("submodules are not" in note for note in prepare(scope))
    assert (root_of(scope) / "vendor/lib/lib.py").read_text() == "X = 1\n"
    assert snapshot(scope)[b"vendor/lib/inner/deep.txt"] == b"deep\n"
    assert snapshot(scope) == snapshot(scope_of(root, "other"))
    assert user_state(root) == before
    if os.path.exists("/usr/bin/bwrap"):  # noqa: PTH110
        assert run(scope, "git status --porcelain").output == b""


def test_missing_submodule_is_reported(tmp_path: Path) -> None:
    library = make_repository(tmp_path / "library", {"lib.py": "X = 1\n"})
    root = make_repository(tmp_path / "repo", {"a.txt": "1\n"})
    git(root, "submodule", "add", "-q", str(library), "vendor/lib")
    git(root, "commit", "-qm", "library")
    git(root, "submodule", "deinit", "-q", "-f", "vendor/lib")
    notes = prepare(scope_of(root, worktree=True))
    assert any("git submodule update --init" in note and note.endswith(": vendor/lib") for note in notes)


def test_large_files_come_from_the_local_store(tmp_path: Path) -> None:
    content, missing = b"large\n" * 1000, "b" * 64
    digest = hashlib.sha256(content).hexdigest()
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize {}\n"
    files = {"big.bin": pointer.format(digest, len(content)), "gone.bin": pointer.format(missing, 5)}
    attributes = "*.bin filter=lfs diff=lfs merge=lfs -text\n*.crypt filter=crypt\n"
    root = make_repository(
        tmp_path / "repo", {**files, ".gitattributes": attributes, "x.crypt": "sealed\n", "empty.bin": ""}
    )
    stored = root / ".git/lfs/objects" / digest[:2] / digest[2:4] / digest
    stored.parent.mkdir(parents=True)
    stored.write_bytes(content)
    scope = scope_of(root, worktree=True)
    notes = prepare(scope)
    assert (root_of(scope) / "big.bin").read_bytes() == content
    assert (root_of(scope) / "gone.bin").read_text() == files["gone.bin"]
    assert any("git lfs fetch" in note and note.endswith(": gone.bin") for note in notes)
    assert any("filter programs do not run" in note and note.endswith(": x.crypt") for note in notes)


def test_generated_sources_and_compiled_modules_are_copied_from_between_the_sources(tmp_path: Path) -> None:
    files = {".gitignore": "_version.py\n*.so\nbuild/\n*.log\n", "shop/__init__.py": "", "shop/a.py": "X = 1\n"}
    root = make_repository(tmp_path / "repo", files)
    write(root, {"shop/_version.py": "V = 1\n", "shop/fast.so": "x" * 2_000_000, "shop/a.log": "1\n", "build/b.py": ""})
    scope = scope_of(root, worktree=True)
    notes = prepare(scope)
    assert (root_of(scope) / "shop/_version.py").read_text() == "V = 1\n"
    assert (root_of(scope) / "shop/fast.so").stat().st_size == 2_000_000
    assert any("git ignores these" in note and note.endswith(": build/, shop/a.log") for note in notes)


def test_damaged_large_file_is_not_used(tmp_path: Path) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'c' * 64}\nsize 5\n"
    root = make_repository(tmp_path / "repo", {"big.bin": pointer, ".gitattributes": "*.bin filter=lfs -text\n"})
    write(root, {f".git/lfs/objects/cc/cc/{'c' * 64}": "other"})
    scope = scope_of(root, worktree=True)
    prepare(scope)
    assert on_disk(root_of(scope))["big.bin"][1] == pointer.encode()


def test_nothing_is_left_when_a_worktree_is_removed(root: Path) -> None:
    scope = PlanScope(episode_id="plan.step.1", workspace=str(root), worktree=True)
    prepare(scope)
    assert read_worktree(root_of(scope)) is not None
    Worktrees(Workspaces()).remove(scope)
    left = [path for path in state_folder_of(scope).rglob("*") if ".env" in path.name or "plan.step.1" in path.name]
    assert left == []
    assert not (root / ".git/worktrees").exists()


def test_record_elsewhere_is_not_believed(root: Path, tmp_path: Path) -> None:
    scope = scope_of(root, worktree=True)
    prepare(scope)
    record = read_worktree(root_of(scope))
    assert record is not None
    write(tmp_path, {"worktree-data/x/record.json": record.model_dump_json(), "worktrees/x/a": ""})
    assert read_worktree(tmp_path / "worktrees/x") is None
