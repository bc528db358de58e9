"""Edit steps: all or nothing, idempotent, and never outside of the tree."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.git_sample import git, make_repository, on_disk
from tests.support.plan.stage import Stage, stage
from tightloop.errors import PlanError
from tightloop.plan.child import StepStatus

BINARY = bytes(range(256))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = make_repository(tmp_path / "repo")
    (root / "a.py").write_bytes(b"def f():\n    return 1\n\n\ndef g():\n    return 1\n")
    (root / "dos.txt").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    (root / "bare.txt").write_bytes(b"no end")
    (root / "data.bin").write_bytes(BINARY)
    (root / "run.sh").write_bytes(b"#!/bin/sh\necho old\n")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("a.py")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "start")
    return root


def edit(*files: dict[str, Any], diff: str = "") -> dict[str, Any]:
    return {"id": "edit", "edit": {"files": list(files), **({"diff": diff} if diff else {})}}


def replacing(path: str, search: str, replace: str = "") -> dict[str, Any]:
    return {"path": path, "search": search, "replace": replace}


def opened(root: Path, *files: dict[str, Any], diff: str = "", **plan: Any) -> Stage:
    return stage(root, edit(*files, diff=diff), plan=plan)


class TestFiles:
    def test_several_edits_are_made_together(self, root: Path) -> None:
        plan = opened(
            root,
            replacing("a.py", "def f():\n    return 1", "def f():\n    return 2"),
            replacing("a.py", "return 2", "return 3"),
            {"path": "new/deep/c.txt", "content": "fresh\n"},
            {"path": "bare.txt", "delete": True},
        )
        plan.check_done("edit")
        assert (root / "a.py").read_text() == "def f():\n    return 3\n\n\ndef g():\n    return 1\n"
        assert (root / "new/deep/c.txt").read_text() == "fresh\n"
        assert not (root / "bare.txt").exists()
        assert plan.record("edit").outputs["paths"] == ["a.py", "bare.txt", "new/deep/c.txt"]

    @pytest.mark.parametrize(
        ("search", "why"), [("return 1", "2 times"), ("return 9", "0 times"), ("def f():\n  return", "0 times")]
    )
    def test_text_that_is_not_there_exactly_once_stops_all_edits(self, root: Path, search: str, why: str) -> None:
        files = on_disk(root)
        plan = opened(root, {"path": "b.txt", "content": "x"}, replacing("a.py", search, "other"))
        assert f"contains the search text {why}" in plan.failed("edit")
        assert on_disk(root) == files

    def test_edit_that_was_made_already_changes_nothing(self, root: Path) -> None:
        changes = (
            replacing("a.py", "def f():", "def f():  # first"),
            replacing("run.sh", "echo old", "echo old && echo old"),
            {"path": "c.txt", "content": "c"},
            {"path": "bare.txt", "delete": True},
        )
        plan = stage(root, {**edit(*changes), "cache": False})
        plan.check_done("edit")
        files = on_disk(root)
        assert "nothing to do" in plan.check_done("edit", attempt=2).summary
        assert on_disk(root) == files

    def test_mode_of_a_file_stays(self, root: Path) -> None:
        opened(root, replacing("run.sh", "old", "new")).check_done("edit")
        assert on_disk(root)["run.sh"] == ("executable", b"#!/bin/sh\necho new\n")

    def test_line_ends_of_a_file_stay(self, root: Path) -> None:
        opened(root, replacing("dos.txt", "one\ntwo\n", "one\nmore\ntwo\n")).check_done("edit")
        assert (root / "dos.txt").read_bytes() == b"one\r\nmore\r\ntwo\r\nthree\r\n"

    def test_file_without_a_line_end_stays_without(self, root: Path) -> None:
        opened(root, replacing("bare.txt", "no", "still no")).check_done("edit")
        assert (root / "bare.txt").read_bytes() == b"still no end"

    def test_binary_file_is_refused(self, root: Path) -> None:
        assert "is a binary file" in opened(root, replacing("data.bin", "A", "B")).failed("edit")

    @pytest.mark.parametrize(
        "path", ["../out.txt", "/etc/out.txt", "x/../../out", ".git/config", "sub/.GIT/config", ""]
    )
    def test_path_outside_of_the_tree_is_refused(self, root: Path, path: str) -> None:
        outside = set((root.parent).iterdir())
        # Behind a reference it is seen when the step runs; written out, when the plan is opened.
        step = edit({"path": "ok.txt", "content": "x"}, {"path": "${inputs.path}", "content": "x"})
        plan = stage(root, {**step, "inputs": {"path": path}})
        assert plan.run("edit").status is StepStatus.FAILED
        assert not (root / "ok.txt").exists()
        assert set(root.parent.iterdir()) == outside

    @pytest.mark.parametrize("path", ["../out.txt", "/etc/out.txt", "sub/.GIT/config", ""])
    def test_written_out_it_is_refused_when_the_plan_is_opened(self, root: Path, path: str) -> None:
        with pytest.raises(PlanError):
            opened(root, {"path": path, "content": "x"})

    def test_edit_through_a_link_is_refused(self, root: Path, tmp_path: Path) -> None:
        (tmp_path / "outside").mkdir()
        (root / "out").symlink_to(tmp_path / "outside")
        assert "through the symbolic link out" in opened(root, {"path": "out/x.txt", "content": "x"}).failed("edit")
        assert not list((tmp_path / "outside").iterdir())

    def test_link_itself_is_not_edited(self, root: Path) -> None:
        assert "is a link" in opened(root, {"path": "link", "content": "x"}).failed("edit")
        assert (root / "link").is_symlink()

    def test_two_ways_at_once_are_refused(self, root: Path) -> None:
        with pytest.raises(PlanError, match="must use exactly one of"):
            opened(root, {"path": "a.py", "content": "x", "delete": True})

    def test_diff_may_be_the_output_of_a_step(self, root: Path) -> None:
        make = {
            "id": "make",
            "shell": {"run": "sed -i s/no/an/ bare.txt; git diff; git status >&2; sed -i s/an/no/ bare.txt"},
        }
        plan = stage(root, make, {"id": "edit", "needs": ["make"], "edit": {"diff": "${make.stdout}"}})
        plan.check_done("make")
        plan.check_done("edit")
        assert (root / "bare.txt").read_bytes() == b"an end"

    def test_values_of_references_are_written(self, root: Path) -> None:
        plan = opened(root, {"path": "v.txt", "content": "${plan.v} $${literal}"}, inputs={"v": "7"})
        plan.check_done("edit")
        assert (root / "v.txt").read_text() == "7 ${literal}"

    def test_preview_is_the_diff(self, root: Path) -> None:
        files = on_disk(root)
        plan = opened(root, replacing("bare.txt", "no", "some"))
        plan.check_done("edit", dry_run=True)
        shown = str(plan.record("edit").outputs["preview"])
        assert shown.splitlines()[:5] == ["--- a/bare.txt", "+++ b/bare.txt", "@@ -1 +1 @@", "-no end",
                                          "\\ No newline at end of file"]  # fmt: skip
        assert on_disk(root) == files


class TestDiff:
    def diff_of(self, root: Path) -> str:
        """Return the diff of what is on disk, and put the files back."""
        git(root, "add", "-A")
        text = git(root, "diff", "--cached", "--binary", "HEAD").decode()
        git(root, "reset", "-q", "--hard", "HEAD")
        return text

    def test_diff_of_git_gives_the_same_files_byte_for_byte(self, root: Path) -> None:
        (root / "a.py").write_bytes(b"def f():\n    return 5\n\n\ndef g():\n    return 1")
        (root / "dos.txt").write_bytes(b"one\r\n2\r\nthree\r\n")
        (root / "bare.txt").write_bytes(b"now with end\n")
        (root / "data.bin").write_bytes(BINARY[::-1])
        (root / "run.sh").chmod(0o644)
        (root / "new").mkdir()
        (root / "new" / "n.txt").write_bytes(b"n\n")
        wanted = on_disk(root)
        diff = self.diff_of(root)
        plan = opened(root, diff=diff)
        plan.check_done("edit")
        assert on_disk(root) == wanted
        assert set(plan.record("edit").outputs["paths"]) == {"a.py", "dos.txt", "bare.txt", "data.bin", "run.sh",
                                                             "new/n.txt"}  # fmt: skip

    def test_diff_that_was_applied_already_changes_nothing(self, root: Path) -> None:
        (root / "a.py").write_bytes(b"def f():\n    return 5\n\n\ndef g():\n    return 1\n")
        diff = self.diff_of(root)
        plan = stage(root, {**edit(diff=diff), "cache": False})
        plan.check_done("edit")
        files = on_disk(root)
        assert "nothing to do" in plan.check_done("edit", attempt=2).summary
        assert on_disk(root) == files

    def test_diff_that_does_not_fit_changes_nothing(self, root: Path) -> None:
        (root / "a.py").write_bytes(b"def f():\n    return 5\n\n\ndef g():\n    return 1\n")
        (root / "bare.txt").write_bytes(b"other\n")
        diff = self.diff_of(root)
        (root / "a.py").write_bytes(b"something else\n")
        files = on_disk(root)
        assert "does not apply, so no files were changed" in opened(root, diff=diff).failed("edit")
        assert on_disk(root) == files

    @pytest.mark.parametrize("path", ["../out.txt", ".git/config", "link/x"])
    def test_diff_of_a_path_that_no_step_may_touch_is_refused(self, root: Path, path: str) -> None:
        files = on_disk(root)
        diff = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n"
        assert opened(root, diff=diff).run("edit").status is StepStatus.FAILED
        assert on_disk(root) == files
        assert not (root.parent / "out.txt").exists()

    def test_renamed_file_out_of_a_closed_folder_is_refused(self, root: Path) -> None:
        diff = "diff --git a/.git/config b/c.txt\nsimilarity index 100%\nrename from .git/config\nrename to c.txt\n"
        assert opened(root, diff=diff).run("edit").status is StepStatus.FAILED
        assert (root / ".git" / "config").exists()

    def test_text_that_is_no_diff_is_told(self, root: Path) -> None:
        assert "cannot parse the diff" in opened(root, diff="please change the file").failed("edit")

    def test_braces_in_a_diff_are_text(self, root: Path) -> None:
        (root / "bare.txt").write_bytes(b"cost: ${price}\n")
        diff = self.diff_of(root)
        opened(root, diff=diff).check_done("edit")
        assert (root / "bare.txt").read_bytes() == b"cost: ${price}\n"
