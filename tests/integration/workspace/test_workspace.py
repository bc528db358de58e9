"""Workspaces are checked, claimed, held by one attempt at a time, and usable after any crash."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from activities.workspace.folders import root_of
from activities.workspace.scope import EpisodeScope
from activities.workspace.working_tree import Workspaces
from tests.support.git_sample import git, make_repository, on_disk, scope_of, user_state, write
from tightloop.errors import GitError, NotARepositoryError, WorkspaceBusyError, WorkspaceError, WorkspaceLockedError
from tightloop.host import state_folder
from tightloop.host.worktree import data_folder

PROJECT = Path(__file__).parents[3]
IMPATIENT = Workspaces(lock_wait=timedelta(milliseconds=200))
HOLDER = """
import subprocess, sys, time
from activities.workspace.scope import EpisodeScope
from activities.workspace.working_tree import Workspaces
with Workspaces().hold(EpisodeScope(episode_id="ep-1", workspace=sys.argv[1])) as tree:
{work}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repo", {"a.txt": "one\n"})


def prepare(scope: EpisodeScope, *, ended: bool = False) -> tuple[str, ...]:
    return Workspaces().prepare(scope, take_over=lambda _: ended)


def start_holder(root: Path, *lines: str) -> "subprocess.Popen[str]":
    """Start another process that holds the tree and does `lines`; its first output is awaited by the caller."""
    code = HOLDER.format(work="\n".join(f"    {line}" for line in lines))
    return subprocess.Popen([sys.executable, "-c", code, str(root)], cwd=PROJECT, stdout=subprocess.PIPE, text=True)


def first_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def kill(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate()


def ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def content(path: Path) -> str:
    """What stands in a file; empty where git just puts it in place."""
    with suppress(FileNotFoundError):
        return path.read_text()
    return ""


def eventually(condition: Callable[[], bool], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.002)
    return condition()


class TestPrepare:
    def test_missing_path_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(WorkspaceError, match="does not exist on this host"):
            prepare(scope_of(tmp_path / "nowhere"))

    def test_relative_path_is_refused(self) -> None:
        with pytest.raises(WorkspaceError, match="not an absolute path"):
            prepare(scope_of(Path("repo")))

    def test_file_is_refused(self, root: Path) -> None:
        with pytest.raises(WorkspaceError, match="is not a folder"):
            prepare(scope_of(root / "a.txt"))

    def test_folder_without_repository_is_refused_with_the_command_that_makes_one(self, tmp_path: Path) -> None:
        with pytest.raises(NotARepositoryError, match=f"Create one: git init {tmp_path}"):
            prepare(scope_of(tmp_path))

    def test_folder_inside_a_repository_is_refused_with_the_name_of_the_top(self, root: Path) -> None:
        (root / "sub").mkdir()
        with pytest.raises(
            NotARepositoryError,
            match=f"sub is inside the git working tree {root}. Specify the root of the working tree as the workspace",
        ):
            prepare(scope_of(root / "sub"))
        assert not state_folder(root / "sub").exists()

    def test_git_folder_is_refused(self, root: Path) -> None:
        with pytest.raises(NotARepositoryError, match="Specify the root of the working tree"):
            prepare(scope_of(root / ".git"))

    def test_bare_repository_is_refused(self, tmp_path: Path) -> None:
        git(tmp_path, "init", "-q", "--bare", "bare.git")
        with pytest.raises(NotARepositoryError, match="is a bare git repository"):
            prepare(scope_of(tmp_path / "bare.git"))

    def test_repository_of_another_user_is_refused_with_the_way_out(self, root: Path) -> None:
        if os.getuid() != 0:
            pytest.skip("only root can give a folder away")
        for folder in (root, root / ".git"):
            os.chown(folder, 12345, 12345)
        with pytest.raises(WorkspaceError, match=r"git config --global --add safe.directory"):
            prepare(scope_of(root))

    def test_place_for_our_files_that_is_taken_is_refused(self, root: Path) -> None:
        place = state_folder(root)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("a file\n")
        with pytest.raises(WorkspaceError, match="cannot write"):
            prepare(scope_of(root))

    def test_nothing_of_ours_is_put_into_the_workspace(self, root: Path) -> None:
        before, names = user_state(root), sorted(path.name for path in root.iterdir())
        write(root, {".git/info/exclude": "*.mine"})
        prepare(scope_of(root))
        prepare(scope_of(root))
        assert user_state(root) == before
        assert sorted(path.name for path in root.iterdir()) == names
        assert (root / ".git/info/exclude").read_text() == "*.mine"
        assert (state_folder(root) / "workspace").read_text() == f"{root}\n"

    def test_state_home_in_the_workspace_is_refused(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for place in (root, root / "deep" / "state"):
            monkeypatch.setenv("TIGHTLOOP_HOME", str(place))
            with pytest.raises(WorkspaceError, match=r"is inside the workspace .* export TIGHTLOOP_HOME="):
                prepare(scope_of(root))
        assert not (root / "deep").exists()

    def test_clean_repository_needs_no_notes(self, root: Path) -> None:
        assert prepare(scope_of(root)) == ()

    def test_notes_name_what_a_person_should_know(self, root: Path) -> None:
        write(root, {".gitignore": ".venv/\n*.log\n", ".venv/x": "", "t.log": ""})
        make_repository(root / "nested", {"n": "n\n"})
        with (root / "big.bin").open("wb") as file:
            file.truncate(60_000_000)
        ignored, big, nested = prepare(scope_of(root))
        assert ignored == "ignored files and empty folders are not part of checkpoints: .venv/, t.log"
        assert big.startswith("files over 50 MB")
        assert big.endswith(": big.bin")
        assert nested.endswith("without their .git: nested")


class TestClaims:
    def test_second_episode_is_refused_and_told_how_to_end_the_first(self, root: Path) -> None:
        prepare(scope_of(root, "first"))
        with pytest.raises(WorkspaceBusyError, match="tightloop cancel first"):
            prepare(scope_of(root, "second"))

    def test_claim_of_an_ended_episode_is_taken_over(self, root: Path) -> None:
        prepare(scope_of(root, "first"))
        prepare(scope_of(root, "second"), ended=True)
        with pytest.raises(WorkspaceBusyError, match="tightloop cancel second"):
            prepare(scope_of(root, "first"))

    def test_episode_may_prepare_again(self, root: Path) -> None:
        prepare(scope_of(root, "first"))
        prepare(scope_of(root, "first"))
        with pytest.raises(WorkspaceBusyError, match="tightloop cancel first"):
            prepare(scope_of(root, "second"))

    def test_released_workspace_is_free(self, root: Path) -> None:
        prepare(scope_of(root, "first"))
        Workspaces().release(scope_of(root, "first"))
        Workspaces().release(scope_of(root, "first"))
        prepare(scope_of(root, "second"))
        with pytest.raises(WorkspaceBusyError, match="tightloop cancel second"):
            prepare(scope_of(root, "first"))

    def test_release_does_not_free_the_claim_of_another_episode(self, root: Path) -> None:
        prepare(scope_of(root, "first"))
        Workspaces().release(scope_of(root, "second"))
        with pytest.raises(WorkspaceBusyError):
            prepare(scope_of(root, "second"))

    def test_episode_within_a_plan_works_under_the_claim_of_the_plan_and_leaves_it(self, root: Path) -> None:
        plan, child = scope_of(root, "plan"), scope_of(root, "child").evolve(within="plan")
        prepare(plan)
        prepare(child)
        Workspaces().release(child)
        with pytest.raises(WorkspaceBusyError, match="plan is using"):
            prepare(scope_of(root, "other"))
        Workspaces().release(plan)
        prepare(scope_of(root, "other"))

    def test_episode_within_another_plan_is_refused(self, root: Path) -> None:
        prepare(scope_of(root, "plan"))
        with pytest.raises(WorkspaceBusyError):
            prepare(scope_of(root, "child").evolve(within="stranger"))

    def test_only_one_of_many_gets_the_claim(self, root: Path) -> None:
        won: list[str] = []
        together = threading.Barrier(8)

        def compete(episode: str) -> None:
            together.wait()
            try:
                prepare(scope_of(root, episode))
            except WorkspaceBusyError:
                return
            won.append(episode)

        threads = [threading.Thread(target=compete, args=(f"ep-{number}",)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1


class TestWorktree:
    def test_episode_within_a_plan_works_in_the_worktree_of_the_plan(self, root: Path) -> None:
        plan = scope_of(root, "plan", worktree=True)
        child = scope_of(root, "child", worktree=True).evolve(within="plan")
        prepare(plan)
        prepare(child)
        assert root_of(child) == root_of(plan)
        assert not (state_folder(root) / "worktrees/child").exists()
        with Workspaces().hold(child) as tree:
            write(root_of(child), {"made.txt": "by the child\n"})
            made = tree.snapshot()
        with Workspaces().hold(plan) as tree:
            assert tree.snapshot() == made

    def test_episode_works_in_a_tree_of_its_own(self, root: Path) -> None:
        write(root, {"a.txt": "not committed\n"})
        before = user_state(root)
        scope = scope_of(root, worktree=True)
        notes = prepare(scope)
        assert on_disk(root_of(scope)) == {"a.txt": ("file", b"one\n")}
        with Workspaces().hold(scope) as tree:
            start = tree.snapshot()
            write(root_of(scope), {"a.txt": "two\n", "b": "b\n"})
            tree.keep("1", tree.snapshot())
            tree.restore(start)
        assert on_disk(root_of(scope)) == {"a.txt": ("file", b"one\n")}
        assert user_state(root) == before
        assert any("does not contain uncommitted changes: a.txt" in note for note in notes)

    def test_preparing_again_keeps_the_work(self, root: Path) -> None:
        scope = scope_of(root, worktree=True)
        prepare(scope)
        write(root_of(scope), {"a.txt": "work\n"})
        prepare(scope)
        Workspaces().release(scope)
        assert (root_of(scope) / "a.txt").read_text() == "work\n"

    def test_half_made_worktree_is_made_anew(self, root: Path) -> None:
        scope = scope_of(root, worktree=True)
        prepare(scope)
        (root_of(scope) / "a.txt").unlink()
        (data_folder(root_of(scope)) / "record.json").unlink()
        write(root, {".git/worktrees/ep-1/locked": "initializing"})
        prepare(scope)
        assert on_disk(root_of(scope)) == {"a.txt": ("file", b"one\n")}

    def test_worktree_that_was_deleted_is_made_anew(self, root: Path) -> None:
        scope = scope_of(root, worktree=True)
        prepare(scope)
        subprocess.run(["rm", "-rf", str(root_of(scope))], check=True)
        prepare(scope)
        assert on_disk(root_of(scope)) == {"a.txt": ("file", b"one\n")}

    def test_two_episodes_with_worktrees_do_not_meet(self, root: Path) -> None:
        one, two = scope_of(root, "one", worktree=True), scope_of(root, "two", worktree=True)
        prepare(one)
        prepare(two)
        with Workspaces().hold(one) as first, IMPATIENT.hold(two) as second:
            write(root_of(one), {"a.txt": "1\n"})
            assert first.snapshot() != second.snapshot()

    def test_repository_without_commit_is_refused_with_both_ways_out(self, tmp_path: Path) -> None:
        fresh = make_repository(tmp_path / "fresh")
        prepare(scope_of(fresh))
        with pytest.raises(WorkspaceError, match=r"needs a commit.*git .*commit.*or start without a worktree"):
            prepare(scope_of(fresh, worktree=True))


class TestHold:
    def test_second_holder_in_the_same_process_is_refused(self, root: Path) -> None:
        with (
            IMPATIENT.hold(scope_of(root)),
            pytest.raises(WorkspaceLockedError, match=f"process {os.getpid()}"),
            IMPATIENT.hold(scope_of(root)),
        ):
            pass

    def test_second_holder_waits_for_the_first(self, root: Path) -> None:
        order: list[str] = []
        held = threading.Event()

        def first() -> None:
            with Workspaces().hold(scope_of(root)):
                held.set()
                time.sleep(0.3)
                order.append("first")

        thread = threading.Thread(target=first)
        thread.start()
        held.wait()
        with Workspaces().hold(scope_of(root)):
            order.append("second")
        thread.join()
        assert order == ["first", "second"]

    def test_holder_in_another_process_excludes_us_until_it_is_killed(self, root: Path) -> None:
        other = start_holder(root, "print('held', flush=True)", "time.sleep(300)")
        try:
            assert first_line(other) == "held"
            with pytest.raises(WorkspaceLockedError, match=f"process {other.pid}"), IMPATIENT.hold(scope_of(root)):
                pass
        finally:
            kill(other)
        with IMPATIENT.hold(scope_of(root)) as tree:
            assert tree.snapshot()

    def test_lock_file_that_was_removed_excludes_nobody_twice(self, root: Path) -> None:
        with IMPATIENT.hold(scope_of(root)):
            (lock,) = (state_folder(root) / "locks").glob("*.lock")
            lock.unlink()
        with IMPATIENT.hold(scope_of(root)), pytest.raises(WorkspaceLockedError), IMPATIENT.hold(scope_of(root)):
            pass

    def test_processes_of_a_dead_holder_are_ended(self, root: Path) -> None:
        agent = "trap '' TERM INT HUP; sleep 301 & echo $$ $!; wait"
        other = start_holder(
            root,
            f"agent = subprocess.Popen(['sh', '-c', {agent!r}], start_new_session=True, stdout=-1, text=True)",
            "tree.own_process(agent.pid)",
            "print(agent.stdout.readline().strip(), flush=True)",
            "time.sleep(300)",
        )
        leader, child = (int(pid) for pid in first_line(other).split())
        kill(other)
        assert not ended(leader)
        with Workspaces().hold(scope_of(root)):
            assert ended(leader)
            assert ended(child)

    def test_session_whose_leader_is_gone_is_ended(self, root: Path) -> None:
        other = start_holder(
            root,
            "agent = subprocess.Popen(['sh', '-c', 'sleep 303 & echo $!; read wait'], start_new_session=True,"
            " stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)",
            "tree.own_process(agent.pid)",
            "print(agent.stdout.readline().strip(), flush=True)",
            "agent.stdin.close(); agent.wait()",
            "print('leader gone', flush=True)",
            "time.sleep(300)",
        )
        orphan = int(first_line(other))
        assert first_line(other) == "leader gone"
        kill(other)
        assert not ended(orphan)
        with Workspaces().hold(scope_of(root)):
            assert ended(orphan)

    def test_process_that_took_over_a_noted_id_is_not_ended(self, root: Path) -> None:
        bystander = subprocess.Popen(["sleep", "304"], start_new_session=True)
        try:
            with Workspaces().hold(scope_of(root)) as tree:
                tree.own_process(bystander.pid)
            (notes,) = (state_folder(root) / "locks").glob("*.processes.json")
            started = psutil.Process(bystander.pid).create_time()
            notes.write_text(notes.read_text().replace(str(started), str(started - 60)))
            with Workspaces().hold(scope_of(root)):
                assert not ended(bystander.pid)
        finally:
            bystander.kill()
            bystander.wait()

    @pytest.mark.parametrize("also_git", [False, True], ids=["worker", "worker and git"])
    def test_restore_after_a_kill_in_the_middle_of_a_restore_is_exact(self, root: Path, also_git: bool) -> None:
        many = {f"f/{number:04}": f"{number}\n" * 20 for number in range(3000)}
        write(root, many)
        with Workspaces().hold(scope_of(root)) as tree:
            start = tree.snapshot()
            expected = on_disk(root)
            write(root, dict.fromkeys(many, "changed\n") | {f"g/{name}": "new\n" for name in many})
        other = start_holder(root, "print('go', flush=True)", f"tree.restore({start!r})")
        first_line(other)
        # Whichever git writes first has the new content of the first file; the last one is then still old.
        assert eventually(lambda: content(root / "f/0000") not in ("", "changed\n"))
        children = psutil.Process(other.pid).children(recursive=True)
        kill(other)
        for child in children if also_git else ():
            with suppress(psutil.NoSuchProcess):
                child.send_signal(signal.SIGKILL)
        with Workspaces().hold(scope_of(root)) as tree:
            tree.restore(start)
            assert on_disk(root) == expected
            assert tree.snapshot() == start

    def test_git_that_takes_too_long_is_ended_and_reported(self, root: Path) -> None:
        impatient = Workspaces(timeout=timedelta(microseconds=1))
        with pytest.raises(GitError, match="took longer than"):
            impatient.prepare(scope_of(root), take_over=lambda _: False)
