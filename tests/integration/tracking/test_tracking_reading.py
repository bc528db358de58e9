"""What the tracker records of a change that could not be read whole, and that a person or a judge has to look at it."""

import os
import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from activities.tracking.activity import read_diff
from activities.workspace.scope import FileChange, TreeDiff
from tests.integration.tracking.test_course import Episode, plan
from tightloop.database.ledger import open_project
from tightloop.safety.rubric import Verdict

LARGE = "".join(f"a line of text, number {number}\n" for number in range(90_000))
"""Of 2.6 MB: more than a patch may have."""


@pytest.fixture
def episode(workspace: Path) -> Episode:
    (workspace / "app.py").write_text("".join(f"line_{number} = {number}\n" for number in range(200)))
    return Episode(workspace)


def test_a_file_that_is_too_large_for_the_patch_is_left_to_a_person(episode: Episode) -> None:
    tracking = episode.iterate({"data/big.txt": LARGE, "app.py": "a = 1\n"}, plan("add data"))
    (item,) = [finding for finding in episode.state.findings if finding.rule == "change_not_read"]
    assert (item.verdict, item.where) == (Verdict.ASK, "data/big.txt")
    assert item.evidence.startswith("201 of 90201 changed lines were checked: the patch contains 1 of 2 changed")
    assert "truncated at 2000000 bytes" in tracking.note
    events = open_project(episode.root).events("course")
    assert "truncated at 2000000 bytes" in events[-1].text


def test_without_a_patch_nothing_passes_as_read(episode: Episode) -> None:
    tracking = episode.iterate({"big.txt": LARGE}, plan("add data"))
    (item,) = episode.state.findings
    assert (item.rule, item.where) == ("change_not_read", "big.txt")
    assert item.evidence.startswith("0 of 90000 changed lines were checked: no patch")
    assert tracking.note.startswith("no patch")


def test_what_no_rule_reads_is_not_missed(episode: Episode) -> None:
    (episode.root / "picture.bin").write_bytes(bytes(range(256)) * 12_000)
    tracking = episode.iterate({"dist/bundle.css": LARGE}, plan("build it"))
    assert tracking.note
    assert episode.state.findings == ()


def test_files_beyond_the_list_are_missed_if_the_patch_lacks_them() -> None:
    diff = TreeDiff(
        files=(FileChange(path="a.py", added=2), FileChange(path="b.bin", binary=True)),
        files_changed=5,
        lines_added=30,
        lines_removed=12,
        note="the changed files could not be compared in time",
    )
    files, unread = read_diff(diff, "tree")
    assert files == ()
    assert (unread.paths, unread.files, unread.lines) == (("a.py",), 4, 42)


def test_an_ordinary_change_is_read_whole_and_has_no_note(episode: Episode) -> None:
    tracking = episode.iterate({"app.py": "a = 1\n"}, plan("shorten it"))
    assert (tracking.note, tracking.renames, tracking.files_renamed) == ("", (), 0)
    assert episode.state.findings == ()


def test_renamed_files_are_in_the_record(episode: Episode) -> None:
    (episode.root / "src").mkdir()
    (episode.root / "app.py").rename(episode.root / "src" / "main.py")
    tracking = episode.iterate({}, plan("move it"))
    assert (tracking.renames, tracking.files_renamed) == (("app.py => src/main.py",), 1)


def test_a_small_change_that_a_busy_machine_had_no_time_for_is_compared_once_more(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Too large to be compared without git.
    text = "".join(f"line_{number} = {number}\n" for number in range(15_000))
    (workspace / "app.py").write_text(text)
    episode = Episode(workspace, patience=timedelta(seconds=5))
    stall = f'case " $* " in *" -p "*) mkdir {tmp_path}/stalled 2>/dev/null && exec sleep 100;; esac'
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").write_text(f'#!/bin/sh\n{stall}\nexec {shutil.which("git")} "$@"\n')
    (tmp_path / "bin" / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    tracking = episode.iterate({"app.py": text + "a = 1\n"}, plan("lengthen it"))
    assert (tmp_path / "stalled").exists()
    assert (tracking.note, episode.state.findings) == ("", ())
