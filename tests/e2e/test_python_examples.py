"""The Python examples of README and docs: each is a whole program, typed, and runs with the built wheel alone."""

import asyncio
import os
import re
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from temporalio.client import Client

from tests.support.episodes import Git
from tests.support.git_sample import make_repository
from tests.support.installed import CLIENT, ROOT, built, installed
from tightloop.settings import Settings
from worker.build import build_adapters, build_workers

pytestmark = pytest.mark.timeout(400)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLES = {
    f"{page.relative_to(ROOT)}-{number}": text
    for page in PAGES
    for number, text in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")), 1)
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    return installed(folder / "env", built(folder, CLIENT))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder outside of the checkout with all examples as programs."""
    for name, text in EXAMPLES.items():
        (tmp_path / f"{re.sub(r'[^a-z0-9]+', '_', name.lower())}.py").write_text(text)
    return tmp_path


def run(*command: str, folder: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_examples_are_found() -> None:
    assert {name.rpartition("-")[0] for name in EXAMPLES} >= {
        "README.md",
        "docs/operate/telemetry.md",
        "docs/services.md",
    }


def test_the_wheel_says_that_it_is_typed_and_the_examples_pass_both_type_checkers(programs: Path, folder: Path) -> None:
    python, tools = str(programs / "python"), Path(sys.executable).parent
    run(str(tools / "mypy"), "--strict", "--python-executable", python, "--cache-dir", ".mypy", ".", folder=folder)
    run(str(tools / "pyright"), "--pythonpath", python, ".", folder=folder)
    slip = folder / "slip.py"
    slip.write_text("from tightloop.client import EpisodeRequest\n\nEpisodeRequest(goal=3)\n")
    found = subprocess.run(
        [str(tools / "mypy"), "--strict", "--python-executable", python, "slip.py"],
        cwd=folder, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert 'has incompatible type "int"' in found.stdout


async def test_the_examples_run(
    programs: Path, folder: Path, temporal_client: Client, settings: Settings, git: Git
) -> None:
    make_repository(folder / "project", {"test_ok.py": "def test_ok() -> None:\n    assert True\n"})
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment = {
        **clean,
        "HOME": str(folder),
        "TIGHTLOOP_TEMPORAL__ADDRESS": settings.temporal.address,
        "TIGHTLOOP_TEMPORAL__TASK_QUEUE": settings.temporal.task_queue,
    }
    said: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        adapters = build_adapters(temporal_client, settings)
        for worker in build_workers(temporal_client, settings, adapters=adapters):
            await stack.enter_async_context(worker)
        for file in sorted(folder.glob("*.py")):
            command = (str(programs / "python"), file.name)
            said[file.stem] = await asyncio.to_thread(run, *command, folder=folder, environment=environment)
    assert said["readme_md_1"].startswith("SUCCEEDED")
    services = [said[f"docs_services_md_{number}"].strip().splitlines() for number in range(1, 4)]
    followed, answered, planned = services
    assert [line.split()[2] for line in followed[:-1]] == ["opened", "iteration", "closed"]
    assert followed[-1].startswith("SUCCEEDED")
    assert answered == ["the answer is 'extend', so the episode continues", "SUCCEEDED"]
    assert [*map(str.strip, planned[1:3]), planned[-1]] == ["count completed", "report completed", "1 files"]
