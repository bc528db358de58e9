"""Git steps on real repositories: branch, commit, pull request, checkpoint."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.git_sample import git, make_repository, stored, write
from tests.support.plan.stage import PLAN_ID, stage
from tightloop.host import state_folder
from tightloop.plan.child import StepStatus


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repo", {"a.txt": "one\n", "b.txt": "two\n"})


def said(root: Path, *arguments: str) -> str:
    return git(root, *arguments).decode().strip()


def step(name: str, **action: Any) -> dict[str, Any]:
    return {"id": name, "title": f"Step {name}", "kind": "implement", "git": action}


def test_branch_and_commit_have_the_template_and_the_identity_of_the_user(root: Path) -> None:
    git(root, "config", "user.name", "Kim")
    git(root, "config", "user.email", "kim@example.org")
    work = {"id": "work", "shell": {"run": "echo more >> a.txt; echo new > c.txt"}}
    plan = stage(root, step("branch", branch="feat/x"), work, step("commit", commit="feat(plan): ${title} [${step}]"))
    before = said(root, "rev-parse", "main")
    plan.check_done("branch")
    plan.check_done("work")
    plan.check_done("commit")
    assert said(root, "rev-parse", "--abbrev-ref", "HEAD") == "feat/x"
    assert said(root, "log", "-1", "--format=%s|%an|%ae") == "feat(plan): Step commit [commit]|Kim|kim@example.org"
    assert f"Tightloop-Step: {PLAN_ID}/commit" in said(root, "log", "-1", "--format=%B")
    assert said(root, "status", "--porcelain") == ""
    assert said(root, "rev-parse", "main") == before
    assert plan.record("commit").outputs["commit"] == said(root, "rev-parse", "HEAD")


def test_commit_without_an_identity_has_the_fallback(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    write(root, {"a.txt": "changed\n"})
    plan = stage(root, step("commit", commit="fix: it"))
    plan.check_done("commit")
    assert said(root, "log", "-1", "--format=%an <%ae>") == "tightloop <tightloop@localhost>"


def test_only_the_named_paths_are_committed(root: Path) -> None:
    write(root, {"a.txt": "changed\n", "b.txt": "changed\n"})
    plan = stage(root, step("commit", commit="fix: a", paths=["a.txt"]))
    plan.check_done("commit")
    assert said(root, "show", "--name-only", "--format=", "HEAD") == "a.txt"
    assert said(root, "status", "--porcelain") == "M b.txt"


def test_nothing_to_commit_is_fine(root: Path) -> None:
    head = said(root, "rev-parse", "HEAD")
    plan = stage(root, step("commit", commit="fix: nothing"))
    assert "nothing to commit" in plan.check_done("commit").summary
    assert said(root, "rev-parse", "HEAD") == head


def test_activity_that_is_tried_again_without_a_record_commits_once(root: Path) -> None:
    write(root, {"a.txt": "changed\n"})
    plan = stage(root, step("commit", commit="fix: once"))
    plan.check_done("commit")
    head = said(root, "rev-parse", "HEAD")
    for record in (state_folder(root) / "plans" / PLAN_ID / "steps" / "commit").iterdir():
        record.unlink()
    assert plan.check_done("commit").reused is False
    assert said(root, "rev-parse", "HEAD") == head


def test_second_run_checks_its_branch_out_again(root: Path) -> None:
    steps = (step("branch", branch="feat/x"), {**step("commit", commit="fix: a"), "needs": ["branch"]})
    stage(root, *steps).check_done("branch")
    git(root, "switch", "-q", "main")
    main = said(root, "rev-parse", "main")
    again = stage(root, *steps, run_id="run-2")
    again.check_done("branch")
    write(root, {"a.txt": "changed\n"})
    again.check_done("commit", expected_tree="")
    assert said(root, "rev-parse", "main") == main
    assert said(root, "log", "-1", "--format=%s", "feat/x") == "fix: a"


def test_hooks_of_the_user_are_not_run(root: Path) -> None:
    hook = root / ".git" / "hooks" / "pre-commit"
    hook.write_text("#!/bin/sh\ntouch hooked\nexit 1\n")
    hook.chmod(0o755)
    write(root, {"a.txt": "changed\n"})
    stage(root, step("commit", commit="fix: a")).check_done("commit")
    assert not (root / "hooked").exists()


def test_branch_that_is_there_is_checked_out(root: Path) -> None:
    git(root, "branch", "other")
    plan = stage(root, step("branch", branch="other"))
    plan.check_done("branch")
    plan.check_done("branch", attempt=2)
    assert plan.record("branch").outputs["branch"] == "other"


@pytest.mark.parametrize("name", ["-D", "a..b", "x y", "../up", "HEAD~1"])
def test_bad_branch_name_is_a_failure(root: Path, name: str) -> None:
    plan = stage(root, step("branch", branch=name))
    assert plan.run("branch").status is StepStatus.FAILED
    assert said(root, "rev-parse", "--abbrev-ref", "HEAD") == "main"


def test_pull_request_tells_what_the_steps_did(root: Path) -> None:
    work = {"id": "work", "title": "Say more", "shell": {"run": "echo more >> a.txt"}}
    plan = stage(
        root,
        work,
        {**step("pr", pull_request="Say more in $${p}"), "needs": ["work"]},
        plan={"description": "The file was too short.", "risks": ["it grows"], "definition_of_done": ["test -s a.txt"]},
    )
    plan.check_done("work")
    plan.check_done("pr")
    text = str(plan.record("pr").outputs["pull_request"])
    assert text.startswith("# Say more in ${p}\n\n**Not proven yet**: ")
    assert f"`tightloop status {PLAN_ID}`\n\nThe file was too short." in text
    assert "- Say more: exit code 0" in text
    assert "- `test -s a.txt`" in text
    assert "- `a.txt`" in text
    assert "- it grows" in text


def test_checkpoint_keeps_the_tree_under_its_name(root: Path) -> None:
    plan = stage(
        root, {"id": "work", "shell": {"run": "echo x > x.txt"}}, {"id": "save", "checkpoint": {"name": "mid"}}
    )
    plan.check_done("work")
    plan.check_done("save")
    kept = stored(root, "rev-parse", f"refs/tightloop/{PLAN_ID}/mid").decode().strip()
    assert kept == plan.tree == plan.record("save").outputs["tree"]
    assert stored(root, "show", f"{kept}:x.txt") == b"x\n"


def test_name_that_is_no_reference_is_a_failure(root: Path) -> None:
    plan = stage(root, {"id": "save", "checkpoint": {"name": "../../heads/main"}})
    assert "is not a valid checkpoint name" in plan.failed("save")
