"""Projects of `tests/data/gate`, and the gate that judges tests of their changes."""

import shutil
import sysconfig
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from activities.proof.checkouts import LocalCheckouts
from activities.sandbox.choose import choose_sandbox
from activities.testing import SandboxedTestGate
from activities.workspace.working_tree import WorkingTree, Workspaces
from tests.support.git_sample import make_repository, scope_of, write
from tightloop.settings import SandboxSettings
from tightloop.testing import GateReport

DATA = Path(__file__).parents[1] / "data" / "gate"
IGNORE = "__pycache__/\n.venv/\n"
TIME_LIMIT_S = 120.0
PACKAGES = frozenset(
    {"pytest", "_pytest", "py.py", "pluggy", "iniconfig", "packaging", "pygments", "hypothesis", "sortedcontainers"}
)


@dataclass(frozen=True)
class Judged:
    """A workspace before and after a change, and its gate."""

    tree: WorkingTree
    before: str
    after: str
    gate: SandboxedTestGate
    pids: list[int] = field(default_factory=list)

    def judge(
        self,
        *tests: str,
        cancelled: Callable[[], bool] = lambda: False,
        time_limit_s: float = TIME_LIMIT_S,
    ) -> GateReport:
        return self.gate.judge(
            self.tree,
            self.before,
            self.after,
            tests,
            cancelled=cancelled,
            started=self.pids.append,
            time_limit_s=time_limit_s,
        )


def make_lean_environment(folder: Path) -> Path:
    """Make a `.venv` with pytest and hypothesis and none of the plugins of the tests' own Python."""
    venv.create(folder, symlinks=True, with_pip=False)
    [site] = folder.glob("lib/python3.*/site-packages")
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if package.name.split("-")[0] in PACKAGES or package.name.startswith("_hypothesis"):
            (site / package.name).symlink_to(package)
    return folder


@contextmanager
def changed(
    folder: Path, before: Mapping[str, str], after: Mapping[str, str], environment: Path | None = None
) -> Iterator[Judged]:
    """Make a workspace that goes from one set of files to another."""
    root = make_repository(folder, {".gitignore": IGNORE, **before})
    if environment is not None:
        shutil.copytree(environment, root / ".venv", symlinks=True)
    workspaces = Workspaces(lock_wait=timedelta(seconds=10))
    workspaces.prepare(scope_of(root), take_over=lambda _episode: True)
    settings = SandboxSettings()
    gate = SandboxedTestGate(choose_sandbox(settings), settings, LocalCheckouts())
    with workspaces.hold(scope_of(root)) as tree:
        begun = tree.snapshot()
        for gone in before.keys() - after.keys():
            (root / gone).unlink()
        write(root, dict(after))
        yield Judged(tree, begun, tree.snapshot(), gate)


def files_of(folder: Path) -> dict[str, str]:
    """Return the files below a folder."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_text() for path in found}


def prepared(half: str, kind: str) -> dict[str, dict[str, str]]:
    """Return the prepared tests by project: path to source. Their files are called PROJECT_WHAT.py."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted((DATA / half / kind).glob("*.py")):
        project = path.name.partition("_")[0]
        found.setdefault(project, {})[f"tests/test_{kind}_{path.name}"] = path.read_text()
    return found


def judge_prepared(
    folder: Path, half: str, environment: Path, kinds: Sequence[str] = ("real", "empty")
) -> dict[str, GateReport]:
    """Judge the prepared tests of each project, as an agent would hand them in: all of a change at once."""
    reports = {}
    tests = [prepared(half, kind) for kind in kinds]
    for project in sorted({name for one in tests for name in one}):
        mine = {path: text for one in tests for path, text in one.get(project, {}).items()}
        place = DATA / "projects" / project
        after = {**files_of(place / "after"), **mine}
        with changed(folder / half / project, files_of(place / "before"), after, environment) as one:
            reports[project] = one.judge(*sorted(mine))
    return reports
