"""What a repository ships as `.tightloop` is its own content: nothing of ours is read from a workspace.

And ids from outside lead nowhere but into our own folders.
"""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowFailureError

from activities.sandbox.bubblewrap import BubblewrapSandbox
from activities.sandbox.port import SandboxSpec
from activities.workspace.folders import store_folder_of
from activities.workspace.ownership import OwnedProcesses, tree_key
from activities.workspace.working_tree import Workspaces
from tests.support.episodes import APPEND, Working, scripted
from tests.support.git_sample import git, on_disk, scope_of, write
from tightloop.client import TightloopClient
from tightloop.episode.model import EpisodeOutcome
from tightloop.errors import WorkspaceError
from tightloop.host import state_folder
from tightloop.settings import Settings

EVIL = {"evil/HEAD": "ref: refs/heads/none\n", "evil/objects/keep": "", "evil/refs/keep": ""}
"""A git folder whose configuration runs a program at every snapshot."""


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the same user, which nobody may end."""
    process = subprocess.Popen(["sleep", "300"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def plant(workspace: Path, marker: Path, files: dict[str, str]) -> None:
    """Commit files, and a git folder `evil` that makes the file `marker` when it is used."""
    config = (
        f'[core]\n\tbare = false\n\tfsmonitor = "touch {marker} #"\n[filter "x"]\n\tclean = "touch {marker}; cat"\n'
    )
    write(workspace, {**EVIL, "evil/config": config, "evil/info/attributes": "* filter=x\n", **files})
    git(workspace, "add", "--all", "--force")
    git(workspace, "commit", "--quiet", "-m", "hostile")


async def test_a_tracked_git_folder_of_ours_runs_nothing(
    client: TightloopClient, working: Working, request_for, workspace: Path, tmp_path: Path
) -> None:
    files = {".tightloop/git/HEAD": "ref: refs/heads/none\n", ".tightloop/git/commondir": "../../evil\n"}
    plant(workspace, tmp_path / "ran", files)
    before = on_disk(workspace)
    async with working():
        episode_id = await client.start(request_for())
        result = await client.result(episode_id)
    assert result.outcome is EpisodeOutcome.SUCCEEDED, result.reason
    assert not (tmp_path / "ran").exists()
    assert {name: entry for name, entry in on_disk(workspace).items() if name != "log.txt"} == before


async def test_a_tracked_link_that_a_check_fills_runs_nothing(
    client: TightloopClient, working: Working, request_for, workspace: Path, tmp_path: Path
) -> None:
    (workspace / ".tightloop").symlink_to("x")
    plant(workspace, tmp_path / "ran", {"x/keep": ""})
    fill = "mkdir -p x/git && echo ../../evil > x/git/commondir"
    request = request_for(definition_of_done=[f"{fill} && test $(cat log.txt | wc -l) -ge 3"])
    async with working():
        episode_id = await client.start(request)
        result = await client.result(episode_id)
    assert result.outcome is EpisodeOutcome.SUCCEEDED, result.reason
    assert not (tmp_path / "ran").exists()
    assert {path.name for path in (workspace / "x").iterdir()} <= {"git", "keep"}, "something of ours lies there"


async def test_a_tracked_link_out_of_the_tree_changes_nothing_behind_it(
    client: TightloopClient, working: Working, request_for, workspace: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    write(outside, {"git/config": "theirs\n", "git/HEAD": "theirs\n", "locks/keep": "theirs\n"})
    (workspace / ".tightloop").symlink_to(outside)
    git(workspace, "add", "--all", "--force")
    git(workspace, "commit", "--quiet", "-m", "hostile")
    before = on_disk(outside)
    async with working():
        result = await client.result(await client.start(request_for()))
    assert result.outcome is EpisodeOutcome.SUCCEEDED, result.reason
    assert on_disk(outside) == before


async def test_a_workspace_that_is_deleted_takes_no_checkpoint_along(
    client: TightloopClient, working: Working, request_for, workspace: Path, tmp_path: Path
) -> None:
    async with working():
        result = await client.result(await client.start(request_for()))
    store = store_folder_of(scope_of(workspace))
    shutil.rmtree(workspace)
    files = git(store, "--git-dir", str(store), "ls-tree", "-r", "--name-only", result.tree).decode().split()
    assert {"app.py", "log.txt", "notes.txt"} <= set(files)


def test_a_check_that_writes_the_configuration_of_git_runs_nothing(workspace: Path, tmp_path: Path) -> None:
    """The `.git` file points into the tree, where a check may write."""
    sandbox = BubblewrapSandbox()
    if problem := sandbox.probe():
        pytest.skip(problem)
    write(workspace, {".gitattributes": "* filter=x\n", ".gitignore": "store/\n"})
    git(workspace, "add", "--all")
    git(workspace, "commit", "--quiet", "-m", "attributes")
    (workspace / ".git").rename(workspace / "store")
    (workspace / ".git").write_text(f"gitdir: {workspace}/store\n")
    marker = tmp_path / "ran"
    evil = f'[filter "x"]\\n\\tclean = touch {marker}; cat\\n\\tsmudge = touch {marker}; cat\\n'
    script = f"printf '{evil}[core]\\n\\tfsmonitor = touch {marker} #\\n' >> store/config"
    spec = SandboxSpec(argv=("sh", "-c", script), root=workspace)
    sandbox.run(spec, cancelled=lambda: False, started=lambda _pid: None)
    workspaces = Workspaces()
    for number, worktree in enumerate((False, True)):
        scope = scope_of(workspace, f"episode-{number}", worktree=worktree)
        with suppress(WorkspaceError):
            workspaces.prepare(scope, take_over=lambda _: True)
            with workspaces.hold(scope) as tree:
                tree.keep("0", tree.snapshot())
    assert not marker.exists()


async def test_shipped_process_notes_end_nobody(
    client: TightloopClient,
    working: Working,
    request_for,
    workspace: Path,
    bystander: subprocess.Popen[bytes],
) -> None:
    notes = f'[{{"pid": {bystander.pid}, "started": NaN, "leads_session": true}}]'
    write(workspace, {f".tightloop/locks/{tree_key(workspace)}.processes.json": notes})
    async with working():
        episode_id = await client.start(request_for(executor=scripted(APPEND)))
        assert (await client.result(episode_id)).outcome is EpisodeOutcome.SUCCEEDED
    assert bystander.poll() is None


@pytest.mark.parametrize(
    "note",
    [
        '{"pid": PID, "started": NaN, "leads_session": true}',
        '{"pid": PID, "started": Infinity, "leads_session": true}',
        '{"pid": PID, "started": 1e999, "leads_session": true}',
        '{"pid": PID, "started": "NaN", "leads_session": true}',
        '{"pid": "PID", "started": 1.0, "leads_session": true}',
        '{"pid": PID, "leads_session": true}',
        '{"pid": -1, "started": 1.0, "leads_session": true}',
        '{"pid": PID, "started": STARTED, "leads_session": true, "more": 1}',
        "[PID]",
        "null",
    ],
)
def test_damaged_process_notes_end_nobody(tmp_path: Path, bystander: subprocess.Popen[bytes], note: str) -> None:
    noted = tmp_path / "processes.json"
    OwnedProcesses(noted).note(bystander.pid)
    started = noted.read_text().partition('"started":')[2].partition(",")[0]
    noted.write_text(f"[{note.replace('PID', str(bystander.pid)).replace('STARTED', started)}]")
    OwnedProcesses(noted).end_all()
    assert bystander.poll() is None


IDS = (
    "../../victim",
    "../../../victim",
    "../../../../victim",
    "a/../../../victim",
    "..",
    ".",
    "/tmp/victim",
    "x\0y",
    "",
)


@pytest.mark.parametrize("identity", IDS)
def test_an_id_that_leads_out_of_our_folder_makes_and_removes_nothing(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, identity: str
) -> None:
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "deep" / "home"))
    ours = state_folder(workspace)
    victims = (workspace, ours, ours.parent, ours.parent.parent, ours.parent.parent.parent)
    write(tmp_path, {str((place / "victim" / "kept").relative_to(tmp_path)): "kept" for place in victims})
    before, hold = on_disk(tmp_path), Workspaces().hold(scope_of(workspace, identity, worktree=True))
    with pytest.raises(WorkspaceError, match="is not a valid worktree name"):
        Workspaces().prepare(scope_of(workspace, identity, worktree=True), take_over=lambda _: True)
    with pytest.raises(WorkspaceError, match="is not a valid worktree name"), hold:
        pass
    assert {name: entry for name, entry in on_disk(tmp_path).items() if name in before} == before


async def test_a_raw_start_under_such_an_id_removes_nothing(
    temporal_client: Client, settings: Settings, working: Working, request_for, workspace: Path, tmp_path: Path
) -> None:
    """A neighbour does not go through our client, which refuses the id."""
    ours = state_folder(workspace)
    places = [folder / "victim" for folder in (workspace, tmp_path, ours, ours.parent, ours.parent.parent)]
    for place in places:
        write(place, {"kept": "kept"})
    async with working():
        for identity in ("../../victim", "../../../victim"):
            handle = await temporal_client.start_workflow(
                "EpisodeWorkflow",
                request_for(worktree=True),
                id=identity,
                task_queue=settings.temporal.task_queue,
            )
            try:
                await handle.result()
            except WorkflowFailureError:
                continue
    assert [(place / "kept").read_text() for place in places] == ["kept"] * len(places)
    assert [path.name for place in places for path in place.iterdir()] == ["kept"] * len(places)
