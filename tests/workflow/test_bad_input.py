"""What the world hands an episode: odd repositories, odd requests, bad planners, a full disk.

It ends with a sentence or waits for a person with one; it never hangs.
"""

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from activities.artifacts.stores import LocalArtifactStore, close_idle
from activities.model.client import ModelService
from activities.planner.planners import ProjectRuff, planners
from activities.planner.reflectors import reflectors
from activities.sandbox.choose import UnsafeLocal
from tests.support.episodes import APPEND, TRIES, Working, eventually, scripted
from tests.support.git_sample import git, make_repository, on_disk, stored, write
from tests.support.model_server import ModelServer, fails, says
from tightloop.client import TightloopClient
from tightloop.episode.budget import Budget
from tightloop.episode.check import CheckStatus
from tightloop.episode.model import EpisodeOutcome, EpisodeStatus
from tightloop.host import state_folder
from tightloop.run.question import QuestionKind
from tightloop.settings import SandboxSettings

BIG_BYTES = 200_000_000
HISTORY_BYTES = 100_000
PLAN: dict[str, Any] = {
    "diagnosis": "lines are missing",
    "action_items": ["append a line"],
    "steps": [{"title": "Append a line to log.txt", "run": None}],
    "scope": ["log.txt"],
    "context": "",
    "claims_done": False,
    "gave_up": False,
    "impossible": False,
    "reason": "",
    "alignment": {"answer": "yes", "rationale": "touches only the log"},
}


async def paused(client: TightloopClient, episode_id: str, *, branch: int = 1) -> EpisodeStatus:
    async def is_paused() -> EpisodeStatus | None:
        status = await client.status(episode_id)
        return status if status.questions and status.branch >= branch else None

    found: EpisodeStatus = await eventually(is_paused)
    return found


async def ended_by_hand(client: TightloopClient, episode_id: str) -> None:
    await client.cancel(episode_id, "seen enough")
    assert (await client.result(episode_id)).outcome is EpisodeOutcome.CANCELLED


async def one_step_and_back(client: TightloopClient, request_for, workspace: Path, *command: str) -> list[str]:
    """Let the executor run a command in one iteration, go back to ckpt-0, and return what the episode told."""
    start = request_for(
        workspace=str(workspace),
        definition_of_done=["ls -a; test -f never"],
        executor=scripted({"run": list(command)}),
        budget=Budget(max_iterations=1),
    )
    episode_id = await client.start(start)
    await paused(client, episode_id)
    before = on_disk(workspace)
    await client.restore(episode_id, "ckpt-0")
    status = await paused(client, episode_id, branch=2)
    timeline = await client.timeline(episode_id)
    checkpoints = await client.checkpoints(episode_id)
    await ended_by_hand(client, episode_id)
    assert before != on_disk(workspace), "the step changed nothing, so that going back shows nothing"
    told = [status.model_dump_json(), *(entry.text for entry in timeline), *(one.title for one in checkpoints)]
    assert json.loads(json.dumps(told).encode()) == told
    return told


# -- repositories ------------------------------------------------------------------------------------


def no_repository(folder: Path) -> Path:
    (folder / "plain").mkdir()
    return folder / "plain"


def nowhere(folder: Path) -> Path:
    return folder / "nowhere"


def folder_of_a_repository(folder: Path) -> Path:
    return make_repository(folder / "whole", {"part/a.txt": "a\n"}) / "part"


def file_instead_of_a_folder(folder: Path) -> Path:
    (folder / "file.txt").write_text("text\n")
    return folder / "file.txt"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (no_repository, "is not a git repository. Create one: git init "),
        (nowhere, "does not exist on this host. Check the path and the worker's host"),
        (folder_of_a_repository, "whole. Specify the root of the working tree"),
        (file_instead_of_a_folder, "is not a folder. Specify the root of a git working tree"),
    ],
)
async def test_a_workspace_that_cannot_be_used_fails_with_what_to_do(
    client, working: Working, request_for, tmp_path: Path, make, sentence: str
) -> None:
    workspace = make(tmp_path)
    async with working():
        episode_id = await client.start(request_for(workspace=str(workspace)))
        result = await client.result(episode_id)
    assert result.outcome is EpisodeOutcome.FAILED
    assert sentence in result.reason
    assert str(workspace) in result.reason
    assert not (state_folder(workspace)).exists()


async def test_uncommitted_work_survives_and_is_part_of_the_first_checkpoint(
    client, working: Working, request_for, workspace: Path
) -> None:
    (workspace / "app.py").write_text("print('not staged')\n")
    (workspace / "staged.txt").write_text("staged\n")
    git(workspace, "add", "staged.txt")
    (workspace / "new.txt").write_text("untracked\n")
    index = (workspace / ".git/index").read_bytes()
    dirty = on_disk(workspace)
    async with working():
        episode_id = await client.start(request_for())
        result = await client.result(episode_id)
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert {**on_disk(workspace)} == {**dirty, "log.txt": ("file", b"1\n2\n3\n")}
    assert (workspace / ".git/index").read_bytes() == index
    for name, (_, content) in dirty.items():
        assert stored(workspace, "show", f"refs/tightloop/{episode_id}/0:{name}") == content


async def test_a_repository_without_a_commit_runs_green(client, working: Working, request_for, tmp_path: Path) -> None:
    fresh = make_repository(tmp_path / "fresh")
    (fresh / "app.py").write_text("print('hello')\n")
    async with working():
        episode_id = await client.start(request_for(workspace=str(fresh)))
        result = await client.result(episode_id)
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert (fresh / "log.txt").read_text() == "1\n2\n3\n"
    assert git(fresh, "for-each-ref", "refs/heads") == b""


async def test_a_worktree_without_a_commit_fails_with_both_ways_out(
    client, working: Working, request_for, tmp_path: Path
) -> None:
    fresh = make_repository(tmp_path / "fresh")
    async with working():
        episode_id = await client.start(request_for(workspace=str(fresh), worktree=True))
        result = await client.result(episode_id)
    assert result.outcome is EpisodeOutcome.FAILED
    assert "needs a commit before a separate worktree can be created" in result.reason
    assert "or start without a worktree" in result.reason


async def test_files_in_a_submodule_go_back_byte_for_byte(
    client, working: Working, request_for, workspace: Path, tmp_path: Path
) -> None:
    library = make_repository(tmp_path / "library", {"code.txt": "first\r\n", "old.txt": "old\n"})
    git(workspace, "submodule", "add", "-q", str(library), "lib")
    git(workspace, "commit", "-q", "-m", "with a library")
    (workspace / "lib/draft.txt").write_text("not committed anywhere\n")
    before, head = on_disk(workspace), git(workspace / "lib", "rev-parse", "HEAD")
    edit = "printf changed > lib/code.txt; rm lib/old.txt lib/draft.txt; mkdir lib/new; touch lib/new/file"
    async with working():
        told = await one_step_and_back(client, request_for, workspace, "sh", "-c", edit)
    assert on_disk(workspace) == before
    assert git(workspace / "lib", "rev-parse", "HEAD") == head
    assert any("as regular files, without their .git: lib" in text for text in told)


async def test_what_a_symlink_points_to_outside_is_never_touched(
    client, working: Working, request_for, workspace: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    write(outside, {"secret.txt": "secret\n", "folder/inner.txt": "inner\n"})
    (workspace / "secret").symlink_to("../outside/secret.txt")
    (workspace / "folder").symlink_to(outside / "folder")
    (workspace / "dangling").symlink_to("../nobody")
    before, beyond = on_disk(workspace), on_disk(outside)
    edit = (
        "rm secret folder dangling; printf 'own' > secret; mkdir folder; printf x > folder/inner.txt; "
        "ln -s ../outside/folder dangling; ln -s ../outside/folder added"
    )
    async with working():
        await one_step_and_back(client, request_for, workspace, "sh", "-c", edit)
    assert on_disk(workspace) == before
    assert on_disk(outside) == beyond


async def test_file_names_that_are_not_utf8_go_back_exactly(
    client, working: Working, request_for, workspace: Path
) -> None:
    place = os.fsencode(workspace)
    names = [
        b"caf\xe9.txt",
        b"tab\tand\nline.txt",
        b'quo"te\\.txt',
        b"\xff\xfe/deep\x80.bin",
        "naïve-日本.txt".encode(),
    ]
    for name in names:
        path = Path(os.fsdecode(place + b"/" + name))
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"bytes of " + name)
    (workspace / ".gitignore").write_bytes(b"ignored-*\n")
    Path(os.fsdecode(place + b"/ignored-\xe9")).write_bytes(b"ignored")
    before = on_disk(workspace)
    edit = r"""for f in caf*; do printf more >> "$f"; mv "$f" "$(printf 'th\351.txt')"; done; rm quo* ./*/deep*"""
    async with working():
        told = await one_step_and_back(client, request_for, workspace, "sh", "-c", edit)
    assert on_disk(workspace) == before
    assert any("ignored files and empty folders are not part of checkpoints" in text for text in told)


async def test_an_episode_among_odd_file_names_succeeds(client, working: Working, request_for, workspace: Path) -> None:
    Path(os.fsdecode(os.fsencode(workspace) + b"/caf\xe9.txt")).write_bytes(b"\x00\xff")
    steps = {"run": ["sh", "-c", r"""printf x >> "$(printf 'log\351.txt')"; ls; echo {n} >> log.txt"""]}
    async with working():
        episode_id = await client.start(
            request_for(executor=scripted(steps), definition_of_done=["ls; test $(cat log.txt | wc -l) -ge 2"])
        )
        result = await client.result(episode_id)
        status = await client.status(episode_id)
        timeline = await client.timeline(episode_id)
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert json.loads(status.model_dump_json().encode())["checks"] == "1/1"
    assert all(entry.model_dump_json().encode() for entry in timeline)


async def test_a_big_file_neither_fails_the_episode_nor_its_heartbeats(
    client, working: Working, request_for, workspace: Path
) -> None:
    block = os.urandom(1_000_000)
    with (workspace / "big.bin").open("wb") as out:
        for _ in range(BIG_BYTES // len(block)):
            out.write(block)
    try:
        async with working():
            episode_id = await client.start(request_for(definition_of_done=["test -f log.txt"]))
            result = await client.result(episode_id)
            timeline = await client.timeline(episode_id)
        assert result.outcome is EpisodeOutcome.SUCCEEDED
        assert result.spent.infrastructure_retries == 0
        assert any("slow down checkpoints" in entry.text and "big.bin" in entry.text for entry in timeline)
        size = stored(workspace, "cat-file", "-s", f"refs/tightloop/{episode_id}/0:big.bin")
        assert int(size) == BIG_BYTES
    finally:
        shutil.rmtree(workspace)


# -- requests ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([{"goal": "", "workspace": "/w", "definition_of_done": ["true"]}], "the goal is empty"),
        ([{"goal": "g", "workspace": "/w", "definition_of_done": [" "]}], "a check has no command"),
        ([{"goal": "g", "definition_of_done": ["true"]}], "is not an absolute path"),
        ([{"goal": ["g"], "workspace": "/w"}], "input: {"),
        ([{"goal": "g", "workspace": "/w", "definition_of_done": {"run": 5}}], "input: {"),
        ([{}], "the goal is empty"),
        (["make it green"], "input: {"),
        ([["make it green"]], "input: {"),
        ([None], "input: {"),
        ([], "input: {"),
    ],
)
async def test_a_wrong_input_given_to_temporal_itself_fails_with_a_sentence(
    client, temporal_client, settings, working: Working, given: list[Any], sentence: str
) -> None:
    queue = settings.temporal.task_queue
    async with working():
        handle = await temporal_client.start_workflow(
            "EpisodeWorkflow", args=given, id=f"bad-{queue}", task_queue=queue
        )
        result = await client.result(handle.id)
    assert result.outcome is EpisodeOutcome.FAILED
    assert sentence in result.reason


# -- checks ------------------------------------------------------------------------------------------


async def test_a_check_whose_program_is_missing_says_so(client, working: Working, request_for) -> None:
    async with working():
        episode_id = await client.start(
            request_for(definition_of_done=["no-such-program --all"], pause_after=2, executor=scripted(TRIES))
        )
        status = await paused(client, episode_id)
        await ended_by_hand(client, episode_id)
    assert [check.status for check in status.failed_checks] == [CheckStatus.NOT_FOUND]
    assert "no-such-program" in status.failed_checks[0].tail
    assert "not found" in status.failed_checks[0].tail
    assert status.questions
    assert "no-such-program" in status.questions[0].title


async def test_a_check_that_never_ends_is_stopped_with_all_its_processes(client, working, request_for) -> None:
    first, second = (str(100_000 + secrets.randbelow(900_000)) for _ in range(2))
    forever = {"run": f"echo begun; sleep {first} & sleep {second}", "name": "endless", "timeout_s": 1}
    async with working():
        episode_id = await client.start(
            request_for(definition_of_done=[forever], pause_after=2, executor=scripted(TRIES))
        )
        status = await paused(client, episode_id)
        await ended_by_hand(client, episode_id)
    assert [check.status for check in status.failed_checks] == [CheckStatus.TIMED_OUT]
    assert status.checks == "0/1"
    # The first one made a file, which is progress. On a busy machine the shell may have printed nothing in its second.
    assert status.iteration in (3, 4)
    assert status.questions
    assert status.questions[0].kind is QuestionKind.REPEATED_ERROR
    assert "endless" in status.questions[0].title

    async def none_is_left() -> bool:
        return not [p for p in psutil.process_iter() if {first, second} & set(_words(p))]

    await eventually(none_is_left)


def _words(process: psutil.Process) -> list[str]:
    try:
        return " ".join(process.cmdline()).split()
    except psutil.Error:
        return []


# -- planners ----------------------------------------------------------------------------------------


def asks(server: ModelServer) -> dict[str, Any]:
    """Adapters that ask this model service."""
    service = ModelService(api_key="key-1", base_url=server.url, models=("m1",), timeout_s=60.0)
    return {
        "planners": planners(service, ProjectRuff(UnsafeLocal(), SandboxSettings())),
        "reflectors": reflectors(service),
    }


async def history_bytes(temporal_client, episode_id: str) -> int:
    history = await temporal_client.get_workflow_handle(episode_id).fetch_history()
    return sum(event.ByteSize() for event in history.events)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("I would rather talk about the weather. {", "no JSON object"),
        ("", "the answer is empty"),
        ("x" * 5_000_000, "5,000,000 characters"),
        ('{"steps": [' * 400_000, ""),
    ],
    ids=["garbage", "nothing", "5 MB", "5 MB of nesting"],
)
async def test_a_planner_that_answers_nonsense_pauses_the_episode_with_the_reason(
    client, temporal_client, working: Working, request_for, workspace: Path, answer: str, why: str
) -> None:
    with ModelServer(says(answer)) as server:
        async with working(**asks(server)):
            episode_id = await client.start(request_for())
            status = await paused(client, episode_id)
            size = await history_bytes(temporal_client, episode_id)
            await ended_by_hand(client, episode_id)
    assert status.questions
    assert status.questions[0].kind is QuestionKind.REPEATED_ERROR
    assert "m1 returned no usable answer in 3 attempts" in status.questions[0].title
    assert why in status.questions[0].title
    assert status.iteration == 4
    print(f"\nhistory of four bad answers: {size} bytes")
    assert size < HISTORY_BYTES
    assert not (workspace / "log.txt").exists()


async def test_a_refused_key_pauses_at_once_and_says_what_to_do(client, working: Working, request_for) -> None:
    with ModelServer(fails(401, "Incorrect API key provided: key-1"), says(PLAN)) as server:
        async with working(**asks(server)):
            episode_id = await client.start(request_for())
            status = await paused(client, episode_id)
            asked = len(server.requests)
            await client.resume(episode_id)
            result = await client.result(episode_id)
    assert status.questions
    assert status.questions[0].kind is QuestionKind.FATAL
    assert "401" in status.questions[0].title
    assert "Set OPENAI_API_KEY to a valid key" in status.questions[0].title
    assert status.questions[0].default == "retry"
    assert asked == 1
    assert result.outcome is EpisodeOutcome.SUCCEEDED


# -- a full disk -------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount a small disk")
    yield folder
    close_idle()
    subprocess.run(["umount", str(folder)], check=True)


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as out:
        for size in (4096, 512, 1):
            try:
                while out.write(b"0" * size):
                    pass
            except OSError:
                continue
    return filler


async def test_a_full_disk_pauses_until_a_person_has_made_room(
    client, working: Working, request_for, workspace: Path, small_disk: Path, tmp_path: Path
) -> None:
    full = tmp_path / "full"
    step = {**APPEND, "run": ["sh", "-c", f"until test -e {full}; do sleep 0.05; done"]}
    async with working(stores=lambda _workspace: LocalArtifactStore(small_disk / "artifacts")):
        episode_id = await client.start(request_for(executor=scripted(step)))

        async def works() -> bool:
            return (workspace / "log.txt").exists()

        await eventually(works)
        filler = fill(small_disk)
        full.touch()
        status = await paused(client, episode_id)
        filler.unlink()
        await client.resume(episode_id)
        result = await client.result(episode_id)
    assert status.questions
    assert status.questions[0].kind is QuestionKind.FATAL
    assert "is full" in status.questions[0].title
    assert "Free up space on it" in status.questions[0].title
    assert status.questions[0].default == "retry"
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert (workspace / "log.txt").read_text() == "1\n2\n3\n"


async def test_a_delivery_that_could_not_be_reported_is_not_made_again_after_the_pause(
    client, working: Working, request_for, workspace: Path, tmp_path: Path
) -> None:
    """The executor has worked, its report cannot be stored, a person fixes that: the work must not be done twice."""
    outbox, saved = state_folder(workspace) / "outbox.db", tmp_path / "saved"
    # Another file in its place: what a worker has open would be mended from its log.
    damage = (
        f"test -e {saved} || {{ mkdir {saved}; cp {outbox} {outbox}-wal {saved}; rm {outbox}*; "
        f"head -c 4096 /dev/zero | tr '\\0' x > {outbox}; }}"
    )
    async with working():
        episode_id = await client.start(
            request_for(executor=scripted({"run": ["sh", "-c", f"echo {{n}} >> log.txt; {damage}"]}))
        )
        status = await paused(client, episode_id)
        outbox.unlink()
        shutil.copytree(saved, outbox.parent, dirs_exist_ok=True)
        await client.resume(episode_id)
        result = await client.result(episode_id)
    assert status.questions
    assert status.questions[0].kind is QuestionKind.FATAL
    assert f"the outbox {outbox} is damaged" in status.questions[0].title
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert (workspace / "log.txt").read_text() == "1\n2\n3\n"
