"""Creates the sample project with its history: `python3 examples/plans/sample/create.py FOLDER`.

Twelve commits with fixed dates, so that their ids are always the same. At the tag v1.0, `1h30m` is parsed correctly;
a later commit breaks that, and no test notices.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE / "project"
RELEASED = "Test durations"
BROKEN_BY = "Read durations with one pattern"
COMMITS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Begin with durations", (".gitignore", "relay/__init__.py", "tests/__init__.py")),
    (RELEASED, ("tests/test_duration.py",)),
    ("Say what is asked and answered", ("relay/message.py",)),
    ("Send requests", ("relay/client.py", "tests/test_client.py")),
    ("Lend connections", ("relay/pool.py",)),
    ("Count answers", ("relay/tally.py",)),
    (BROKEN_BY, ("relay/duration.py",)),
    ("Answer requests", ("relay/service.py", "tests/test_service.py")),
    ("Report to people", ("relay/text.py", "relay/report.py", "relay/notice.py", "tests/test_report.py")),
    ("Put load on the service", ("tools/load.py", "tools/claims.py")),
    ("Write down what is known", ("docs/notes/methods.md", "docs/notes/waiting.md", "docs/open-questions.md")),
    ("Introduce the project", ("README.md",)),
)


def main() -> None:
    """Create the repository."""
    if len(sys.argv) != 2:
        sys.exit("usage: create.py FOLDER")
    folder = Path(sys.argv[1])
    if folder.exists() and any(folder.iterdir()):
        sys.exit(f"{folder} is not empty. Name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    for number, (message, files) in enumerate(COMMITS):
        if number == 0:
            copy(HERE / "history/duration.py", folder / "relay/duration.py")
        for file in files:
            copy(PROJECT / file, folder / file)
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", message, hour=number)
        if message == RELEASED:
            git(folder, "tag", "v1.0")
    print(f"{folder}: {len(COMMITS)} commits")


def copy(source: Path, target: Path) -> None:
    """Copy a file, creating the folder of the target if needed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def git(folder: Path, *arguments: str, hour: int = 0) -> None:
    """Run git with a fixed identity and date, so that commit ids are reproducible."""
    date = f"2025-01-01T{hour:02}:00:00Z"
    who = {"NAME": "sample", "EMAIL": "sample@localhost", "DATE": date}
    own = {f"GIT_{role}_{field}": value for role in ("AUTHOR", "COMMITTER") for field, value in who.items()}
    command = ("git", "-c", "commit.gpgsign=false", "-c", "core.autocrlf=false", *arguments)
    subprocess.run(command, cwd=folder, env={**os.environ, **own}, check=True)


if __name__ == "__main__":
    main()
