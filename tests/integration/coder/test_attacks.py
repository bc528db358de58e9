"""Hostile paths and files: no tool writes or reads outside of the tree, or into git, and none hangs."""

import contextlib
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from activities.coder.files import read_file, write_change
from activities.coder.port import FileChange, ToolError
from tests.support.coder_tools import Bench, bench
from tests.support.git_sample import git
from tightloop.errors import InvalidRequestError

SECRET = "what lies outside"
WRITES = ("create_file", "edit_file", "delete_file")
HUGE_BYTES = 100 * 1024 * 1024
ROUNDS = 400


@pytest.fixture
def made(tmp_path: Path) -> Bench:
    return hostile(tmp_path)


def hostile(folder: Path) -> Bench:
    """A project with links that lead out of it, and around in it."""
    outside = folder / "outside"
    outside.mkdir(parents=True)
    (outside / "secret.txt").write_text(SECRET)
    found = bench(folder, {"a.txt": "inside\n", "sub/b.txt": "inside\n"})
    root = found.root
    (root / "out").symlink_to(outside)
    (root / "up").symlink_to("..")
    (root / "leak.txt").symlink_to(outside / "secret.txt")
    (root / "in").symlink_to("sub")
    (root / "loop").symlink_to("loop")
    (root / "gone").symlink_to("nowhere")
    (root / "gitlink").symlink_to(".git")
    return found


def inside(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def written(tool: str, path: str) -> dict[str, Any]:
    match tool:
        case "create_file":
            return {"path": path, "content": "bad", "overwrite": True}
        case "edit_file":
            return {"path": path, "old": "i", "new": "bad"}
        case _:
            return {"path": path}


PARTS = st.sampled_from(
    ["..", ".", "", "a.txt", "sub", "b.txt", "out", "secret.txt", "up", "outside", "leak.txt", "in", "loop", "gone",
     ".git", ".GIT", ".Git", "config", "hooks", "gitlink", "~", "$HOME", "\n", "new", "a\nb", "\\", "..\\", "\ufeff"]
)  # fmt: skip
PATHS = st.lists(PARTS, min_size=1, max_size=5).map("/".join) | st.text(max_size=12)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=PATHS, tool=st.sampled_from((*WRITES, "read_file")), absolute=st.sampled_from(["", "/", "ROOT/", "OUT/"]))
def test_no_path_leads_out_of_the_tree_or_into_git(
    tmp_path_factory: pytest.TempPathFactory, path: str, tool: str, absolute: str
) -> None:
    folder = tmp_path_factory.mktemp("hostile")
    made = hostile(folder)
    path = absolute.replace("ROOT", str(made.root)).replace("OUT", str(folder / "outside")) + path
    before = {name: (made.root / ".git" / name).read_bytes() for name in ("config", "HEAD", "index")}
    names = inside(made.root / ".git"), inside(folder)

    said = made.text(made.use(tool, written(tool, path)))

    assert SECRET not in said
    assert {p.name: p.read_text() for p in (folder / "outside").iterdir()} == {"secret.txt": SECRET}
    assert before == {name: (made.root / ".git" / name).read_bytes() for name in before}
    assert inside(made.root / ".git") == names[0]
    assert inside(folder) == names[1] | {"state"}


@pytest.mark.parametrize("tool", [*WRITES, "read_file"])
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("../outside/secret.txt", "not a relative path inside the tree"),
        ("/etc/passwd", "not a relative path inside the tree"),
        ("out/secret.txt", "goes through the symbolic link out"),
        ("up/outside/secret.txt", "goes through the symbolic link up"),
        ("in/b.txt", "goes through the symbolic link in"),
        ("leak.txt", "is a symbolic link"),
        ("loop", "is a symbolic link"),
        ("gone", "is a symbolic link"),
        (".git/config", ".git"),
        (".GIT/hooks/pre-commit", ".GIT"),
        ("sub/.git", "must not access (.git)"),
        ("sub", "is a folder"),
        ("a.txt/b", "a.txt is a file"),
        ("", "not a relative path inside the tree"),
        ("x\0y", "not a relative path inside the tree"),
        ("x" * 300, "too long"),
        ("fifo", "is a named pipe"),
        ("socket", "is a socket"),
    ],
)
def test_what_is_no_file_of_the_tree_is_told(made: Bench, tool: str, path: str, said: str) -> None:
    os.mkfifo(made.root / "fifo")
    with socket.socket(socket.AF_UNIX) as server, working_in(made.root):
        server.bind("socket")
    names = inside(made.root)
    assert said in made.failed(tool, **written(tool, path))
    assert inside(made.root) == names
    assert git(made.root, "diff", "--stat") == b""


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """The path of a socket has to be short."""
    here = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(here)


def test_an_absolute_path_below_the_root_is_taken(made: Bench) -> None:
    made.done("edit_file", path=f"{made.root}/a.txt", old="inside", new="changed")
    assert (made.root / "a.txt").read_text() == "changed\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_a_device_is_neither_read_nor_replaced(made: Bench) -> None:
    try:
        os.mknod(made.root / "zero", 0o600 | 0o020000, os.makedev(1, 5))
    except PermissionError as error:
        pytest.skip(f"no devices can be made here: {error}")
    for tool in (*WRITES, "read_file"):
        assert "is a device" in made.failed(tool, **written(tool, "zero"))


def test_a_hard_link_is_cut_and_what_it_shared_stays(made: Bench) -> None:
    outside = made.root.parent / "outside" / "secret.txt"
    os.link(outside, made.root / "hard.txt")
    made.done("edit_file", path="hard.txt", old="outside", new="inside")
    assert (outside.read_text(), (made.root / "hard.txt").read_text()) == (SECRET, "what lies inside")


@pytest.mark.parametrize("name", [".env", "sub/.env", "key.pem", "id_rsa", ".ENV"])
@pytest.mark.parametrize("tool", WRITES)
def test_protected_files_are_not_changed(made: Bench, tool: str, name: str) -> None:
    (made.root / name).write_text("inside")
    assert "is protected" in made.failed(tool, **written(tool, name))
    assert (made.root / name).read_text() == "inside"


@pytest.mark.parametrize("make", [True, False])
def test_a_folder_that_turns_into_a_link_at_any_moment_lets_nothing_out(tmp_path: Path, make: bool) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "a" / "b").mkdir(parents=True)
    outside.mkdir()
    (outside / "f.txt").write_text(SECRET)
    ended = threading.Event()

    def swap() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError):
                (root / "a/b").rename(root / "away")
                (root / "a/b").symlink_to(outside)
            with contextlib.suppress(OSError):
                (root / "a/b").unlink()
                (root / "away").rename(root / "a/b")
            shutil.rmtree(root / "away", ignore_errors=True)

    swapping = threading.Thread(target=swap)
    swapping.start()
    outcomes = set[str]()
    try:
        for number in range(ROUNDS):
            try:
                before = read_file(root, "a/b/f.txt")
                assert before != SECRET.encode()
                after = f"{number}".encode() if make or number % 2 else None
                change = FileChange(path="a/b/f.txt", before=before, after=after, text="")
                write_change(root, change, f".new-{number}")
                outcomes.add("written")
            except (ToolError, InvalidRequestError, OSError) as error:
                outcomes.add(type(error).__name__)
    finally:
        ended.set()
        swapping.join()
    assert "written" in outcomes
    assert len(outcomes) > 1, "nothing was ever in the way: the race was not met"
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"f.txt": SECRET}


def test_a_file_that_turns_into_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside.txt"
    root.mkdir()
    outside.write_text(SECRET)
    ended = threading.Event()

    def swap() -> None:
        while not ended.is_set():
            (root / "new").symlink_to(outside)
            (root / "new").rename(root / "f.txt")
            (root / "new").write_text("plain")
            (root / "new").rename(root / "f.txt")

    swapping = threading.Thread(target=swap)
    swapping.start()
    written = 0
    try:
        # Some rounds more on a busy machine: one write at least has to come through.
        for number in range(100 * ROUNDS):
            if written and number >= ROUNDS:
                break
            try:
                before = read_file(root, "f.txt")
                assert before != SECRET.encode()
                write_change(root, FileChange(path="f.txt", before=before, after=b"x", text=""), f".t-{number}")
                written += 1
            except (ToolError, OSError):
                pass
    finally:
        ended.set()
        swapping.join()
    assert written
    assert outside.read_text() == SECRET


def test_names_with_line_breaks_are_listed_quoted_and_can_be_named(made: Bench) -> None:
    name = "two\nlines.txt"
    made.done("create_file", path=name, content="found me\n")
    assert "'two\\nlines.txt'" in made.done("list_files").split("\n")
    assert "'two\\nlines.txt':1:found me" in made.done("search", pattern="found me")
    assert "1\tfound me" in made.done("read_file", path=name)
    made.done("delete_file", path=name)
    assert not (made.root / name).exists()


def test_names_that_are_not_utf_8_are_shown_escaped(made: Bench) -> None:
    try:
        (Path(os.fsdecode(os.fsencode(made.root) + b"/\xff.txt"))).write_text("x here\n")
    except OSError as error:
        pytest.skip(f"this file system takes only UTF-8: {error}")
    assert "\\xff.txt" in made.done("list_files")
    assert "\\xff.txt:1:x here" in made.done("search", pattern="x here")


def test_a_hundred_megabytes_are_refused_by_a_sentence(made: Bench) -> None:
    with (made.root / "huge.txt").open("wb") as file:
        file.truncate(HUGE_BYTES)
    for tool in (*WRITES, "read_file"):
        assert "is 104,857,600 bytes long, but the limit is 8,388,608 bytes" in made.failed(
            tool, **written(tool, "huge.txt")
        )
    assert made.done("search", pattern="inside", path="huge.txt") == "no match"


def test_a_binary_file_is_told(made: Bench) -> None:
    (made.root / "b.bin").write_bytes(b"\x89PNG\0\0inside")
    assert "is a binary file (12 bytes)" in made.failed("read_file", path="b.bin")
    assert "cannot be edited as text" in made.failed("edit_file", path="b.bin", old="inside", new="x")


def test_bytes_that_are_not_utf_8_come_through_an_edit_unchanged(made: Bench) -> None:
    (made.root / "latin.txt").write_bytes(b"caf\xe9\r\nline two\r\n\xff\xfe")
    assert "caf\ufffd" in made.done("read_file", path="latin.txt")
    made.done("edit_file", path="latin.txt", old="line two\n", new="line 2\n")
    assert (made.root / "latin.txt").read_bytes() == b"caf\xe9\r\nline 2\r\n\xff\xfe"


def test_a_placeholder_of_a_secret_is_never_written_into_a_file(made: Bench) -> None:
    key = "ghp_" + "aB3dE5gH7j" * 3 + "kL9mN1"
    (made.root / "conf.py").write_text(f"TOKEN = '{key}'\nDEBUG = 1\n")
    shown = made.done("read_file", path="conf.py")
    assert key not in shown
    assert "[secret:" in shown
    line = next(line for line in shown.split("\n") if "TOKEN" in line).partition("\t")[2]
    assert "Omit lines with such text" in made.failed("edit_file", path="conf.py", old=f"{line}\nDEBUG = 1", new="x")
    assert "hidden from you" in made.failed(
        "create_file", path="conf.py", content=f"{line}\nDEBUG = 0\n", overwrite=True
    )
    made.done("edit_file", path="conf.py", old="DEBUG = 1", new="DEBUG = 0")
    assert (made.root / "conf.py").read_text() == f"TOKEN = '{key}'\nDEBUG = 0\n"


def test_a_file_that_is_there_is_not_replaced_by_accident(made: Bench) -> None:
    assert "already exists and has 1 line" in made.failed("create_file", path="a.txt", content="x")
    (made.root / "dos.txt").write_bytes(b"\xef\xbb\xbfa\r\nb\r\n")
    made.done("create_file", path="dos.txt", content="c\nd\n", overwrite=True)
    assert (made.root / "dos.txt").read_bytes() == b"\xef\xbb\xbfc\r\nd\r\n"


def test_modes_are_kept_and_scripts_can_be_run(made: Bench) -> None:
    (made.root / "a.txt").chmod(0o640)
    made.done("edit_file", path="a.txt", old="inside", new="x")
    made.done("create_file", path="s.sh", content="#!/bin/sh\n")
    assert (made.root / "a.txt").stat().st_mode & 0o777 == 0o640
    assert os.access(made.root / "s.sh", os.X_OK)
    assert git(made.root, "status", "--porcelain").decode().count("s.sh") == 1


def test_results_of_other_sessions_are_not_found(made: Bench) -> None:
    stored = made.context.store.put(SECRET.encode(), name="of another project")
    result = made.use("read_file", {"path": "a.txt"})
    assert "inside" in made.done("read_file", path=f"result:{result.result.sha256[:12]}")
    assert "is not a result in this session" in made.failed("read_file", path=f"result:{stored.sha256}")
    assert "is not a result in this session" in made.failed("read_file", path=f"result:{result.result.sha256[:8]}")
    assert "is not a result in this session" in made.failed("read_file", path="result:../../x")
