"""What episodes left, made older than it is."""

import os
import sqlite3
import subprocess
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from tests.support.ledger import backdate
from tightloop.value import PACKED


def aged(folder: Path, days: int) -> None:
    """Let every file look as if it had been written so long ago."""
    then = datetime.now(UTC).timestamp() - days * 86_400
    for path in [*(folder / "artifacts").rglob("*"), *(folder / "trees").rglob("*")]:
        os.utime(path, (then, then))
    with closing(sqlite3.connect(folder / "artifacts" / PACKED)) as artifacts, artifacts:
        artifacts.execute("UPDATE artifact SET stored = ?", (then,))


def trees(folder: Path) -> set[str]:
    done = subprocess.run(
        ["git", "--git-dir", str(folder / "trees"), "for-each-ref", "--format=%(refname)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {line.split("/")[2] for line in done.stdout.split()}


def last_active(folder: Path, episode_id: str, at: datetime) -> None:
    """Let an episode have done its last thing then."""
    backdate(folder.parent.parent, episode_id, at)
    with sqlite3.connect(folder / "outbox.db") as outbox:
        outbox.execute("UPDATE delivery SET queued_at = ? WHERE episode_id = ?", (at.timestamp(), episode_id))
