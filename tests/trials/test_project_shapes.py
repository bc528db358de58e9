"""Projects of the shapes that real ones have, repaired with their own checks: by one sentence and by a project plan."""

import hashlib
import json
import random
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.extent import draw_seed, part
from tests.support.git_sample import git, make_repository, write
from tests.support.loops import ended, planned
from tests.support.sandboxes import sandbox_named
from tightloop.client import EpisodeRequest, LoopRequest, TightloopClient
from tightloop.episode.model import EpisodeOutcome, EpisodeResult, EpisodeStatus, ExecutorChoice
from tightloop.loop.model import LoopResult, LoopState

pytestmark = pytest.mark.timeout(900)
IGNORED = ".venv/\nnode_modules/\n__pycache__/\n.env\n*.so\n_version.py\n"
RUN = "def price(items):\n    return sum(items){}\n"
TEST = "import unittest\n\n\nclass PriceTests(unittest.TestCase):\n    def test_sum(self):\n{}"
CALLS = "        from shop.prices import price\n        self.assertEqual(price([2, 3]), 5)\n"
UNRELATED = "    def test_sky(self):\n        self.assertEqual('blue', 'green')\n"
NODE = "module.exports.price = function price (items) { return items.reduce((a, b) => a + b, 0)%s }\n"
NODE_TEST = """const {price} = require('%s'); require('shown'); require('node:test')('adds up prices', () => {
  if (price([2, 3]) !== 5) throw new Error('sum is ' + price([2, 3]))
})
"""


@dataclass(frozen=True)
class Shape:
    """A project with a fault, and the place of the fault."""

    files: dict[str, str]
    file: str = "shop/prices.py"
    wrong: str = " + 1"
    finish: Callable[[Path], None] = lambda _root: None
    """Adds what git ignores or keeps elsewhere."""
    checks: tuple[str, ...] = ("python -m unittest",)
    """Commands that are found."""
    known: int = 0
    """Number of failed tests that may stay."""
    programs: tuple[str, ...] = field(default=())


def ci(*commands: str, folder: str = "") -> dict[str, str]:
    steps = [{"run": command, **({"working-directory": folder} if folder else {})} for command in commands]
    jobs = {"jobs": {"test": {"runs-on": "ubuntu-latest", "steps": steps}}, "on": ["push", "pull_request"]}
    return {".github/workflows/ci.yml": json.dumps(jobs)}


def python(extra: str = "", **files: str) -> dict[str, str]:
    return {
        "shop/__init__.py": "",
        "shop/prices.py": RUN.format(" + 1"),
        "tests/__init__.py": "",
        "tests/test_prices.py": TEST.format(CALLS) + extra,
        **files,
    }


def environment(folder: str = ".") -> Callable[[Path], None]:
    """Return a function that creates an environment with one module that the tests need."""

    def finish(root: Path) -> None:
        place = root / folder / ".venv"
        subprocess.run((sys.executable, "-m", "venv", "--without-pip", place), check=True, timeout=60)
        libraries = sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)})
        (Path(libraries) / "only_here.py").write_text("X = 1\n")

    return finish


def packages(folder: str = ".") -> Callable[[Path], None]:
    return lambda root: write(root / folder, {"node_modules/shown/index.js": "module.exports = 1\n"})


def with_submodule(root: Path) -> None:
    library = make_repository(root.parent / "library", {"rates.py": "RATE = 0\n"})
    git(root, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library), "vendor")
    git(root, "commit", "-qm", "Add the rates")


def with_large_file(root: Path) -> None:
    content = b"5\n" * 1_000
    digest = hashlib.sha256(content).hexdigest()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(content)}\n"
    write(root, {"tests/data.bin": pointer, ".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n"})
    git(root, "add", "-A")
    git(root, "commit", "-qm", "Add data")
    stored = root / ".git/lfs/objects" / digest[:2] / digest[2:4] / digest
    stored.parent.mkdir(parents=True)
    stored.write_bytes(content)
    (root / "tests/data.bin").write_bytes(content)


def with_compiled_module(root: Path) -> None:
    """Write a compiled module and a generated source, as an editable install does."""
    source = root.parent / "fast.c"
    source.write_text("int rate(void) { return 0; }\n")
    subprocess.run(("cc", "-shared", "-fPIC", "-o", root / "shop/fast.so", source), check=True, timeout=60)
    (root / "shop/_version.py").write_text("VERSION = '1'\n")


def needs(line: str) -> str:
    return TEST.format(f"        {line}\n{CALLS}")


SHAPES: dict[str, Shape] = {
    "plain": Shape(python(UNRELATED, **ci("python -m unittest -v")), checks=("python -m unittest -v",), known=1),
    "environment": Shape(
        {**python(), **ci("python -m unittest"), "tests/test_prices.py": needs("import only_here")},
        finish=environment(),
    ),
    "node": Shape(
        {
            "package.json": json.dumps({"name": "shop", "scripts": {"test": "node --test"}}),
            "lib/prices.js": NODE % " + 1",
            "test/prices.test.js": NODE_TEST % "../lib/prices",
        },
        "lib/prices.js",
        finish=packages(),
        checks=("npm test",),
        programs=("node", "npm"),
    ),
    "monorepo": Shape(
        {
            **{f"libs/shop/{path}": text for path, text in python().items()},
            **ci("python -m unittest", folder="libs/shop"),
            "libs/shop/tests/test_prices.py": needs("import only_here"),
            "libs/shop/setup.py": "",
        },
        "libs/shop/shop/prices.py",
        finish=environment("libs/shop"),
        checks=("cd libs/shop && python -m unittest",),
    ),
    "submodule": Shape(
        {**python(), **ci("python -m unittest"), "tests/test_prices.py": needs("from vendor import rates; rates.RATE")},
        finish=with_submodule,
    ),
    "large files": Shape(
        {
            **python(),
            **ci("python -m unittest"),
            "tests/test_prices.py": needs("self.assertEqual(len(open('tests/data.bin').read()), 2_000)"),
        },
        finish=with_large_file,
    ),
    "compiled": Shape(
        {
            **python(),
            **ci("python -m unittest"),
            "tests/test_prices.py": needs("import ctypes, shop._version; ctypes.CDLL('shop/fast.so').rate()"),
        },
        finish=with_compiled_module,
        programs=("cc",),
    ),
    "secrets": Shape(
        {
            **python(),
            **ci("make test"),
            "Makefile": "test:\n\t. ./.env && python -m unittest\n",
            "tests/test_prices.py": needs("import os; os.environ['TOKEN']"),
        },
        finish=lambda root: write(root, {".env": "export TOKEN=secret\n"}),
        checks=("make test",),
        programs=("make",),
    ),
}
TAKEN = random.Random(draw_seed()).sample(sorted(SHAPES), part(2, of=len(SHAPES)))
GOAL = "Fix price: it is one too high"


@pytest.fixture
def project(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Shape, Path]:
    shape = SHAPES[request.param]
    if missing := [program for program in shape.programs if shutil.which(program) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    if problem := sandbox_named("bubblewrap").probe():
        pytest.skip(f"bubblewrap does not work here: {problem}")
    root = make_repository(tmp_path / "project", {".gitignore": IGNORED, **shape.files})
    shape.finish(root)
    return shape, root


def repairing(shape: Shape, folder: Path) -> ExecutorChoice:
    """Return an agent that repairs the fault at its second attempt."""
    script = folder / "repair.py"
    script.write_text(
        "import pathlib, sys\n"
        f"path = pathlib.Path(sys.argv[1], {shape.file!r})\n"
        f"good, bad = path.read_text().replace({shape.wrong!r}, '').replace(' + 2', ''), ' + 2'\n"
        f"path.write_text(good if sys.argv[2] != '1' else path.read_text().replace({shape.wrong!r}, bad))\n"
    )
    argv = [sys.executable, str(script), "{workspace}", "{iteration}"]
    return ExecutorChoice(name="command", options={"argv": argv, "read": [str(script.parent)]})


def state_of(root: Path) -> dict[str, str]:
    """Return the state that a run must not change."""
    commands = {"refs": ("for-each-ref",), "worktrees": ("worktree", "list"), "head": ("rev-parse", "HEAD")}
    return {name: git(root, *words).decode() for name, words in commands.items()}


@pytest.mark.parametrize("project", TAKEN, indirect=True)
async def test_one_sentence_is_enough(
    client: TightloopClient, working: Any, project: tuple[Shape, Path], tmp_path: Path
) -> None:
    shape, root = project
    before = state_of(root)
    agent = repairing(shape, make_folder(tmp_path))
    async with working():
        started = await client.start(EpisodeRequest(goal=GOAL, workspace=str(root), executor=agent))
        result = await client.result(started)
        status = await client.status(started)
    assert isinstance(result, EpisodeResult)
    assert isinstance(status, EpisodeStatus)
    sentences = " ".join(status.chosen_checks)
    assert (result.outcome, result.qualifier) == (EpisodeOutcome.SUCCEEDED, ""), f"{result.reason}: {sentences}"
    for check in shape.checks:
        assert check in sentences, sentences
    assert ("may keep failing" in sentences) is bool(shape.known), sentences
    assert shape.wrong not in (root / shape.file).read_text()
    assert state_of(root) == before


@pytest.mark.parametrize("project", TAKEN, indirect=True)
async def test_project_plan_works_in_worktrees_like_in_the_workspace(
    client: TightloopClient, working: Any, project: tuple[Shape, Path], tmp_path: Path
) -> None:
    shape, root = project
    before = state_of(root)
    agent = repairing(shape, make_folder(tmp_path))
    async with working():
        plan_id = await planned(client, LoopRequest(workspace=str(root), goal=GOAL, executor=agent, result="branch"))
        await client.dispatch(plan_id)
        await ended(client, plan_id)
        await client.verify(plan_id)
        result = await client.result(plan_id)
    assert isinstance(result, LoopResult)
    assert result.outcome is LoopState.VERIFIED, result.reason
    after = state_of(root)
    assert f"refs/heads/tightloop/{plan_id}" in after["refs"]
    assert (after["worktrees"], after["head"]) == (before["worktrees"], before["head"])
    assert shape.wrong not in git(root, "show", f"tightloop/{plan_id}:{shape.file}").decode()


def make_folder(above: Path) -> Path:
    folder = above / "agent"
    folder.mkdir()
    return folder
