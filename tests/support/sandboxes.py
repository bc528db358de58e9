"""Every sandbox that works on this machine, each as a test sees it; and one as a worker that is not root.

Run as a program it is that worker: it takes a command as JSON on its standard input and tells what came of it.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from activities.process import Reason
from activities.sandbox.bubblewrap import BubblewrapSandbox
from activities.sandbox.choose import UnsafeLocal
from activities.sandbox.docker import DockerSandbox
from activities.sandbox.port import Enforcement, Limit, Sandbox, SandboxResult, SandboxSpec

REPOSITORY = Path(__file__).parents[2]
ORDINARY = 31_415
"""User id of the worker that is not root; it needs no entry anywhere."""
WALLED = ("bubblewrap", "bubblewrap-user", "docker")
HERE = {"bubblewrap": shutil.which("bwrap"), "bubblewrap-user": shutil.which("bwrap") and shutil.which("setpriv")}
BACKENDS = (*(name for name in WALLED if HERE.get(name, os.environ.get("TIGHTLOOP_TEST_IMAGE"))), "unsafe-local")
"""Those that may work; the others are skipped by one test, so that one line tells of each."""


@dataclass(frozen=True)
class Box:
    """A sandbox, and how a command is run in it."""

    name: str
    run_spec: Callable[[SandboxSpec], SandboxResult]

    @property
    def walled(self) -> bool:
        return self.name in WALLED

    @property
    def ordinary(self) -> bool:
        """Whether the kernel treats its worker as an ordinary user."""
        return self.name == "bubblewrap-user" or os.geteuid() != 0

    def run(self, root: Path, *argv: str, **changes: Any) -> SandboxResult:
        return self.run_spec(
            SandboxSpec(**{"argv": argv, "root": root, "wall_limit_s": 30.0, "grace_s": 0.5, **changes})
        )

    def python(self, root: Path, code: str, *arguments: str, **changes: Any) -> SandboxResult:
        return self.run(root, "python3", "-c", code, *arguments, **changes)


def box(name: str) -> Box:
    """Return a sandbox that works here, or skip the test with the reason."""
    if name == "bubblewrap-user":
        return Box(name, _as_ordinary_user())
    sandbox = sandbox_named(name)
    if problem := sandbox.probe():
        pytest.skip(f"{name} does not work here: {problem}")
    return Box(name, lambda spec: run(sandbox, spec))


def sandbox_named(name: str) -> Sandbox:
    if name == "docker":
        return DockerSandbox(os.environ.get("TIGHTLOOP_TEST_IMAGE", ""))
    return BubblewrapSandbox() if name == "bubblewrap" else UnsafeLocal()


def run(sandbox: Sandbox, spec: SandboxSpec) -> SandboxResult:
    return sandbox.run(spec, cancelled=lambda: False, started=lambda _pid: None)


def _as_ordinary_user() -> Callable[[SandboxSpec], SandboxResult]:
    """Return how a command is run by a worker of another user: with the system's Python, as homes are closed."""
    if os.geteuid() != 0:
        pytest.skip("the tests run as an ordinary user already: `bubblewrap` is that case")
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv of util-linux is missing, so there is no ordinary user to become")
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    paths = os.pathsep.join((str(REPOSITORY), packages))
    python = ("/usr/bin/python3", "-c", "import activities.sandbox.bubblewrap")
    start = ("setpriv", f"--reuid={ORDINARY}", f"--regid={ORDINARY}", "--clear-groups", *python[:1])
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": paths, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    tried = subprocess.run((*start, *python[1:]), cwd="/", env=environment, capture_output=True, timeout=60)
    if tried.returncode != 0:
        pytest.skip(f"an ordinary user cannot run the worker's code here: {tried.stderr.decode()[-200:]}")

    def run_as_other(spec: SandboxSpec) -> SandboxResult:
        for place in (spec.root, *spec.writable):
            give(place, ORDINARY)
        order = {name: _plain(value) for name, value in vars(spec).items() if value is not None}
        done = subprocess.run(
            (*start, "-m", "tests.support.sandboxes"),
            cwd="/", env={**os.environ, **environment}, input=json.dumps(order), capture_output=True, text=True,
            timeout=120,
        )  # fmt: skip
        if "unavailable" in done.stderr:
            pytest.skip(f"bubblewrap does not work for an ordinary user here: {done.stderr[-300:]}")
        assert done.returncode == 0, done.stderr
        return _result(json.loads(done.stdout))

    return run_as_other


@contextmanager
def open_folder() -> Iterator[Path]:
    """Make a folder that other users reach, for as long as it is needed."""
    with tempfile.TemporaryDirectory(prefix="tightloop-sandbox-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder).resolve()


def give(place: Path, user: int) -> None:
    """Make a user the owner of a tree."""
    for path in (place, *place.rglob("*")):
        os.chown(path, user, user, follow_symlinks=False)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [str(item) for item in value]
    return str(value) if isinstance(value, Path) else dict(value) if hasattr(value, "items") else value


def _result(fields: dict[str, Any]) -> SandboxResult:
    limits = {Limit(name): Enforcement(held) for name, held in fields.pop("limits").items()}
    output, reason = fields.pop("output").encode("latin-1"), Reason(fields.pop("reason"))
    del fields["errors"]
    return SandboxResult(**fields, limits=limits, output=output, reason=reason)


def main() -> None:
    """Run one command as whoever this process is."""
    order = json.loads(sys.stdin.read())
    paths = {name: tuple(Path(place) for place in order.pop(name, ())) for name in ("readable", "writable")}
    spec = SandboxSpec(
        **{**order, **paths, "argv": tuple(order["argv"]), "root": Path(order["root"])}
        | {"network": tuple(order["network"])}
        | ({"stdin": Path(order["stdin"])} if "stdin" in order else {})
    )
    sandbox = BubblewrapSandbox()
    if problem := sandbox.probe():
        sys.exit(f"unavailable: {problem}")
    result = run(sandbox, spec)
    fields = {**vars(result), "output": result.output.decode("latin-1"), "errors": "", "limits": dict(result.limits)}
    print(json.dumps(fields))


if __name__ == "__main__":
    main()
