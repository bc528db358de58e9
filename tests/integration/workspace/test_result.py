"""A result is committed on a new branch; nothing else of the user's repository changes."""

import hashlib
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from activities.workspace.folders import root_of
from activities.workspace.port import ResultPart, result_message
from activities.workspace.result import CommittedResult, commit_result
from activities.workspace.scope import EpisodeScope
from activities.workspace.working_tree import Workspaces
from tests.support.git_sample import git, make_repository, scope_of, user_state, write
from tightloop.errors import WorkspaceError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repo", {"a.txt": "one\n", "b.txt": "b\n", "tool.sh": "echo\n"})


def work(scope: EpisodeScope, files: Mapping[str, str | None], message: str = "Change it") -> ResultPart:
    """Open the tree, change files as an executor would, and return the change."""
    Workspaces().prepare(scope, take_over=lambda _: False)
    with Workspaces().hold(scope) as tree:
        before = tree.snapshot()
        for path, text in files.items():
            if text is None:
                (root_of(scope) / path).unlink()
            else:
                write(root_of(scope), {path: text})
        return ResultPart(before, tree.snapshot(), message)


def without_branch(state: object) -> list[str]:
    return [line for line in str(state).split(",") if "refs/heads/tightloop" not in line]


@pytest.mark.parametrize("worktree", [True, False])
def test_result_is_one_commit_of_the_user_on_a_new_branch(root: Path, worktree: bool) -> None:
    git(root, "config", "user.name", "Ada")
    git(root, "config", "user.email", "ada@example.org")
    write(root, {".git/hooks/reference-transaction": "#!/bin/sh\nexit 1\n"})
    (root / ".git/hooks/reference-transaction").chmod(0o755)
    scope = scope_of(root, "fix-it", worktree=worktree)
    part = work(scope, {"a.txt": "two\n", "b.txt": None, "new/c.txt": "c\n"})
    (root_of(scope) / "tool.sh").chmod(0o755)
    with Workspaces().hold(scope) as tree:
        part = part._replace(after=tree.snapshot())
    head, status = git(root, "rev-parse", "HEAD"), git(root, "status", "--porcelain")
    index = (root / ".git/index").read_bytes()
    result = commit_result(scope, (part,))
    assert (result.branch, result.commits, result.files, result.has_moved) == ("tightloop/fix-it", 1, 4, False)
    shown = git(root, "show", "--format=%an <%ae>%n%B", "--summary", "--name-status", result.branch).decode()
    assert shown.startswith("Ada <ada@example.org>\nChange it\n\nTightloop-Run: fix-it\n")
    assert git(root, "diff", "--name-status", "main", result.branch).split() == (
        b"M a.txt D b.txt A new/c.txt M tool.sh".split()
    )
    assert git(root, "ls-tree", result.branch, "tool.sh").startswith(b"100755")
    assert (git(root, "rev-parse", "HEAD"), git(root, "status", "--porcelain")) == (head, status)
    assert (root / ".git/index").read_bytes() == index
    assert git(root, "rev-parse", f"{result.branch}^") == head


def test_committing_again_finds_the_branch_and_another_result_gets_another_one(root: Path) -> None:
    scope = scope_of(root, "fix-it", worktree=True)
    part = work(scope, {"a.txt": "two\n"})
    first = commit_result(scope, (part,))
    assert commit_result(scope, (part,)) == first
    more = work(scope, {"a.txt": "three\n"})
    assert commit_result(scope, (part, more)).branch == "tightloop/fix-it-2"
    assert git(root, "show", "tightloop/fix-it:a.txt") == b"two\n"


def test_each_part_is_a_commit(root: Path) -> None:
    scope = scope_of(root, "plan", worktree=True)
    parts = [work(scope, {"a.txt": "two\n"}, "First"), work(scope, {"c.txt": "c\n"}, "Second")]
    result = commit_result(scope, parts)
    assert result.commits == 2
    assert git(root, "log", "--format=%s", f"main..{result.branch}").decode().split() == ["Second", "First"]


def test_result_of_a_run_in_the_workspace_names_a_command_that_git_accepts(root: Path) -> None:
    scope = scope_of(root, "fix-it")
    result = commit_result(scope, (work(scope, {"a.txt": "two\n", "c.txt": "c\n"}),))
    assert result.is_in_workspace
    command = result.describe().partition("Add the commits to your branch: ")[2]
    write(root, {"b.txt": "later\n"})
    subprocess.run(command, shell=True, cwd=root, check=True, capture_output=True)
    assert git(root, "rev-parse", "main") == git(root, "rev-parse", result.branch)
    assert git(root, "status", "--porcelain") == b" M b.txt\n"
    git(root, "commit", "-qam", "mine")
    refused = subprocess.run(command, shell=True, cwd=root, capture_output=True)
    assert (refused.returncode, git(root, "log", "-1", "--format=%s")) == (1, b"mine\n")


def test_files_that_were_put_back_or_changed_after_the_run_are_not_said_to_contain_the_changes(root: Path) -> None:
    scope = scope_of(root, "fix-it")
    part = work(scope, {"a.txt": "two\n", "b.txt": None})
    assert commit_result(scope, (part,)).is_in_workspace
    write(root, {"b.txt": "b\n"})
    assert not commit_result(scope, (part,)).is_in_workspace
    git(root, "checkout", "-q", ".")
    assert f"git merge {commit_result(scope, (part,)).branch}" in commit_result(scope, (part,)).describe()


def test_named_branch_is_never_overwritten(root: Path) -> None:
    scope = scope_of(root, worktree=True)
    part = work(scope, {"a.txt": "two\n"})
    git(root, "branch", "mine")
    before = user_state(root)
    with pytest.raises(WorkspaceError, match="mine already exists, and existing branches are never overwritten"):
        commit_result(scope, (part,), "mine")
    for name in ("-x", "a b", "../x", ""):
        if name:
            with pytest.raises(WorkspaceError, match="not a valid branch name"):
                commit_result(scope, (part,), name)
    assert user_state(root) == before


def test_branch_called_tightloop_is_no_obstacle(root: Path) -> None:
    git(root, "branch", "tightloop")
    scope = scope_of(root, "fix", worktree=True)
    assert commit_result(scope, (work(scope, {"a.txt": "two\n"}),)).branch == "tightloop-fix"


def test_moved_base_is_reported_with_the_rebase(root: Path) -> None:
    scope = scope_of(root, "fix", worktree=True)
    part = work(scope, {"a.txt": "two\n"})
    write(root, {"b.txt": "moved\n"})
    git(root, "commit", "-qam", "meanwhile")
    result = commit_result(scope, (part,))
    assert result.has_moved
    assert "main has moved since the run started. Rebase first: git rebase main tightloop/fix" in result.describe()
    git(root, "rebase", "-q", "main", "tightloop/fix")
    assert (root / "a.txt").read_text() + (root / "b.txt").read_text() == "two\nmoved\n"


def test_uncommitted_content_is_never_committed_unasked(root: Path) -> None:
    write(root, {"a.txt": "the user's own\n"})
    scope = scope_of(root)
    part = work(scope, {"a.txt": "the user's own, repaired\n"})
    with pytest.raises(WorkspaceError, match=r"a\.txt: the run started with uncommitted changes"):
        commit_result(scope, (part,))
    assert git(root, "branch", "--list", "tightloop/*") == b""
    assert Workspaces().deliver(scope, (part,)).startswith("the result was not committed. a.txt")


def test_no_change_makes_no_branch(root: Path) -> None:
    scope = scope_of(root, worktree=True)
    result = commit_result(scope, (work(scope, {}),))
    assert result == CommittedResult()
    assert result.describe() == "nothing was committed, because no file of the repository changed"


def test_line_endings_are_stored_as_the_repository_wants_them(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "repo", {"a.txt": "one\n", ".gitattributes": "*.txt text eol=crlf\n"})
    scope = scope_of(root, worktree=True)
    part = work(scope, {"a.txt": "one\r\ntwo\r\n"})
    result = commit_result(scope, (part,))
    assert git(root, "show", f"{result.branch}:a.txt") == b"one\ntwo\n"


def test_large_files_are_committed_as_pointers(tmp_path: Path) -> None:
    old, new = b"old\n" * 100, b"new\n" * 100
    digest = hashlib.sha256(old).hexdigest()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(old)}\n"
    attributes = "*.bin filter=lfs diff=lfs merge=lfs -text\n*.crypt filter=crypt\n"
    root = make_repository(tmp_path / "repo", {"a.bin": pointer, "same.bin": pointer, ".gitattributes": attributes})
    stored = root / ".git/lfs/objects" / digest[:2] / digest[2:4] / digest
    stored.parent.mkdir(parents=True)
    stored.write_bytes(old)
    scope = scope_of(root, worktree=True)
    part = work(scope, {"a.bin": new.decode(), "note.txt": "n\n"})
    result = commit_result(scope, (part,))
    assert result.files == 2
    wanted = hashlib.sha256(new).hexdigest()
    assert f"oid sha256:{wanted}\n".encode() in git(root, "show", f"{result.branch}:a.bin")
    assert (root / ".git/lfs/objects" / wanted[:2] / wanted[2:4] / wanted).read_bytes() == new
    refused = work(scope, {"x.crypt": "secret\n"})
    with pytest.raises(WorkspaceError, match=r"x\.crypt: .*filter program.*--patch"):
        commit_result(scope, (refused,))


def test_files_of_submodules_are_left_out_and_named(tmp_path: Path) -> None:
    library = make_repository(tmp_path / "library", {"lib.py": "X = 1\n"})
    root = make_repository(tmp_path / "repo", {"a.txt": "1\n"})
    git(root, "submodule", "add", "-q", str(library), "vendor/lib")
    git(root, "commit", "-qm", "library")
    scope = scope_of(root, worktree=True)
    result = commit_result(scope, (work(scope, {"a.txt": "2\n", "vendor/lib/lib.py": "X = 2\n"}),))
    assert (result.files, result.left_out) == (1, ("vendor/lib/lib.py",))
    assert git(root, "diff", "--name-only", "main", result.branch) == b"a.txt\n"


def test_message_has_the_goal_as_its_subject() -> None:
    assert result_message("Fix it", "succeeded", "", "2/2 pass") == "Fix it\n\nSUCCEEDED: 2/2 pass"
    long = "Fix the alignment of decimal columns, which are one character off since the last release of it"
    subject, outcome, body = result_message(long, "completed", "", "done").split("\n\n")
    assert len(subject) <= 72
    assert (outcome, body) == ("COMPLETED: done", long)


@pytest.mark.parametrize(
    ("status", "qualifier", "short"),
    [
        ("succeeded", "not proven: 0 files changed", "not proven"),
        (
            "completed",
            "1 of 2 steps skipped: build; not proven: no definition of done",
            "1 of 2 steps skipped, not proven",
        ),
        ("verified", "not proven: no proof of ptask_1", "not proven"),
    ],
)
def test_message_of_a_qualified_success_begins_with_what_is_missing(status: str, qualifier: str, short: str) -> None:
    subject, outcome = result_message("Fix it", status, qualifier, "2/2 pass").split("\n\n")
    assert subject == f"[{short}] Fix it"
    assert outcome == f"{status.upper()}, {qualifier} (2/2 pass)"
