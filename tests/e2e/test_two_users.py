"""Two people on one host: nothing that one keeps is readable by the other, whatever the umask is."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_up import first_line, stopped
from tests.support.episodes import APPEND, scripted
from tests.support.git_sample import make_repository
from tests.support.sandboxes import open_folder
from tests.support.stack.stack import ROOT
from tightloop.client import TightloopClient
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest
from tightloop.host import state_folder
from tightloop.settings import parse_settings
from worker.server import free_port

OTHER = 12_345
"""User id of the neighbour; it needs no entry anywhere."""
LOOK = """
import json, os, sys
read = []
for path in json.loads(sys.stdin.read()):
    try:
        os.listdir(path) if os.path.isdir(path) else open(path, "rb").close()
        read.append(path)
    except OSError:
        pass
print(json.dumps(read))
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """Not pytest's own folder, which is closed to other users."""
    with open_folder() as folder:
        yield folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")
@pytest.mark.parametrize("encrypt", [False, True], ids=["plain", "encrypted"])
async def test_nothing_that_one_user_keeps_is_readable_by_another(
    place: Path, monkeypatch: pytest.MonkeyPatch, encrypt: bool
) -> None:
    workspace = make_repository(place / "project", {"app.py": "print('hello')\n"})
    variables = {
        "TIGHTLOOP_HOME": str(place / "home"),
        "XDG_CONFIG_HOME": str(place / "config"),
        "TIGHTLOOP_TEMPORAL__ADDRESS": f"127.0.0.1:{free_port()}",
        "TIGHTLOOP_TEMPORAL__UI_URL": f"http://127.0.0.1:{free_port()}",
        "TIGHTLOOP_CODEC__LISTEN": f"127.0.0.1:{free_port()}",
        "TIGHTLOOP_SANDBOX__UNSAFE_LOCAL": "true",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-m", "worker", "up", *(["--encrypt"] if encrypt else [])]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, umask=0) as up:
        try:
            assert any("tightloop is up" in first_line(up) for _ in range(5))
            settings = parse_settings(f"privacy: {{encrypt: {json.dumps(encrypt)}}}\n", os.environ)
            client = await TightloopClient.connect(settings)
            request = EpisodeRequest(
                goal="write a line",
                workspace=str(workspace),
                definition_of_done=["test -s log.txt"],
                executor=scripted(APPEND),
                worktree=True,
            )
            episode_id = await client.start(request)
            assert (await client.result(episode_id)).outcome is EpisodeOutcome.SUCCEEDED
            kept = sorted(str(path) for path in (place / "home", *(place / "home").rglob("*")))
            neighbour = subprocess.run(
                (sys.executable, "-I", "-c", LOOK),
                cwd="/", input=json.dumps([*kept, str(place)]), user=OTHER, group=OTHER, extra_groups=[],
                env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=True, timeout=60,
            )  # fmt: skip
        finally:
            stopped(up)
    assert json.loads(neighbour.stdout) == [str(place)], "the neighbour can look at all, but into nothing of ours"
    ours = state_folder(workspace)
    assert ours.is_relative_to(place / "home")
    assert {"ledger.db", "outbox.db", "artifacts", "worktrees"} <= {path.name for path in ours.iterdir()}
    # Behind a closed door, too; but modes of a checkout and of git's own files are git's.
    theirs = (ours / "worktrees" / episode_id, ours / "trees")
    open_to_others = [
        f"{path} {stat.S_IMODE(path.lstat().st_mode):o}"
        for path in (place / "home").rglob("*")
        if not path.is_symlink()
        and path.lstat().st_mode & 0o077
        and not any(path != folder and path.is_relative_to(folder) for folder in theirs)
        and path not in theirs[:1]
    ]
    assert open_to_others == []
