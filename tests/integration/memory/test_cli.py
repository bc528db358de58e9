"""The commands about the memory, as an operator types them."""

import contextlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.support.memory.rows import START, learn, pattern
from tightloop.cli.main import app
from tightloop.database.memory.store import MemoryStore, open_memory
from tightloop.episode.failure import signature
from tightloop.host import state_folder
from tightloop.memory import Fact, HashingEmbedder
from tightloop.settings import Settings

FAILURE = "KeyError: 'customer_id'"
SOLUTION = pattern("Add the id", "python", "mend.py")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("TIGHTLOOP_HOME", str(folder))
    return folder


@pytest.fixture
def workspace(tmp_path: Path, home: Path) -> Path:
    folder = tmp_path / "shop"
    (folder / "deep").mkdir(parents=True)
    return folder


@pytest.fixture
def kept(workspace: Path) -> MemoryStore:
    memory = open_memory(Settings(), HashingEmbedder())
    learn(memory, state_folder(workspace).name, FAILURE, SOLUTION)
    memory.remember(state_folder(workspace).name, Fact(key="database", text="tests run on SQLite", at=START))
    return memory


def tightloop(folder: Path, *arguments: str) -> Result:
    with contextlib.chdir(folder):
        return CliRunner().invoke(app, ["memory", *arguments])


def answer(folder: Path, *arguments: str) -> object:
    done = tightloop(folder, *arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_failure_is_found_with_what_solved_it_from_anywhere_in_the_project(kept: MemoryStore, workspace: Path) -> None:
    [found] = answer(workspace / "deep", "search", "KeyError: 'customer_name'")
    assert found["pattern"]["commands"] == [["python", "mend.py"]]
    shown = tightloop(workspace, "search", "KeyError: 'customer_name'").stdout
    assert "a similar failure" in shown
    assert "python mend.py" in shown
    [fact] = answer(workspace, "search", "which database", "--kind", "fact")
    assert fact["text"] == "tests run on SQLite"


def test_entries_are_listed_shown_and_forgotten(kept: MemoryStore, workspace: Path) -> None:
    listed = answer(workspace, "list")
    assert {one["kind"] for one in listed} == {"failure", "pattern", "fact"}
    assert "KeyError" in tightloop(workspace, "list", "--kind", "failure").stdout
    shown = tightloop(workspace, "show", signature(FAILURE)).stdout
    assert "check: pytest -q" in shown
    assert "worked 1 out of 1 time" in shown
    assert answer(workspace, "forget", signature(FAILURE))["forgotten"] == 1
    gone = tightloop(workspace, "forget", signature(FAILURE))
    assert gone.exit_code != 0
    assert "tightloop memory list" in gone.stderr
    assert answer(workspace, "forget", "--all")["forgotten"] == 1
    assert "the memory contains no project for" in tightloop(workspace, "list").stderr


def test_everything_is_exported_one_entry_a_line(kept: MemoryStore, workspace: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in tightloop(workspace, "export").stdout.splitlines()]
    assert [line["kind"] for line in lines] == ["failure", "pattern", "use", "fact"]
    file = tmp_path / "memory.jsonl"
    assert tightloop(workspace, "export", "--out", str(file)).exit_code == 0
    assert len(file.read_text().splitlines()) == 4
    again = tightloop(workspace, "export", "--out", str(file))
    assert "Choose a different file" in again.stderr


def test_use_of_the_memory_is_counted(kept: MemoryStore, workspace: Path) -> None:
    found = answer(workspace, "stats")
    assert (found["failures"], found["solved"], found["tried"], found["worked"]) == (1, 1, 1, 1)
    assert "1, 1 worked" in tightloop(workspace, "stats").stdout


def test_project_can_be_named_and_an_unknown_one_is_refused_with_the_known_ones(
    kept: MemoryStore, workspace: Path, tmp_path: Path
) -> None:
    name = state_folder(workspace).name
    assert answer(tmp_path, "stats", "--project", name[:6])["project"] == name
    for unknown in (("stats",), ("stats", "--project", "nobody")):
        refused = tightloop(tmp_path, *unknown)
        assert refused.exit_code == 2
        assert name in refused.stderr


def test_ids_and_all_are_not_both_taken(kept: MemoryStore, workspace: Path) -> None:
    for wrong in (("forget",), ("forget", "a", "--all")):
        assert "not both" in tightloop(workspace, *wrong).stderr
