"""Walls on macOS: a Seatbelt profile for `sandbox-exec`. Memory, processes and time are watched only."""

import functools
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from activities.process import ProcessRequest, run_process, search_path
from activities.sandbox.bounds import WATCHED, request_of, run_bounded
from activities.sandbox.port import Enforcement, ExitReason, Limit, Network, SandboxResult, SandboxSpec
from activities.sandbox.visible import (
    STATE_FOLDER,
    git_folders,
    path_folders,
    program_folders,
    project_python,
    python_folders,
)

NAME = "sandbox-exec"
PROGRAM = "/usr/bin/sandbox-exec"
PROBE_S = 10.0
HOW_TO_GET = "It is part of macOS; a process that is itself in a sandbox cannot start another one"
SYSTEM = (
    "/bin", "/sbin", "/usr", "/System", "/Library/Apple", "/Library/Developer/CommandLineTools", "/Library/Frameworks",
    "/Applications/Xcode.app/Contents/Developer", "/private/etc/hosts", "/private/etc/passwd", "/private/etc/group",
    "/private/etc/services", "/private/etc/protocols", "/private/etc/localtime", "/private/etc/ssl",
    "/private/etc/resolv.conf", "/private/var/db/timezone", "/private/var/db/dyld", "/private/var/select",
    "/private/var/run/resolv.conf", "/dev",
)  # fmt: skip

_FIXED = """(version 1)
(deny default)
(allow process-fork)
(allow process-exec)
(allow process-info* (target same-sandbox))
(allow signal (target same-sandbox))
(allow sysctl-read)
(allow mach-lookup
  (global-name "com.apple.system.opendirectoryd.libinfo")
  (global-name "com.apple.system.notification_center")
  (global-name "com.apple.system.logger")
  (global-name "com.apple.trustd.agent"))
(allow ipc-posix-sem)
(allow pseudo-tty)
(allow file-ioctl (subpath "/dev"))
(allow file-read-metadata)
(allow file-read* (literal "/"))
(allow file-write* (literal "/dev/null") (literal "/dev/zero") (literal "/dev/dtracehelper") (literal "/dev/tty"))
"""
"""Metadata of files may be read everywhere: a program that resolves its own path needs that of all parents."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What a command may touch."""

    root: Path
    path: str
    program: str
    writable: tuple[Path, ...]
    readable: tuple[Path, ...]
    network: Network

    def text(self) -> str:
        """Return the profile. The last rule that matches wins."""
        seen = dict.fromkeys(
            (
                *map(Path, SYSTEM),
                *python_folders(),
                *project_python(self.root),
                *path_folders(self.path, self.root),
                *program_folders(self.program, self.path, self.root),
                *git_folders(self.root, tree=True),
            )
        )
        hidden = [folder / STATE_FOLDER for folder in self.writable]
        rules = (
            *_rules("(allow file-read*", seen),
            *_rules("(allow file-read* file-write*", self.writable),
            *_rules("(deny file-write*", (git for folder in self.writable for git in self._git(folder))),
            *_rules("(deny file-read* file-write*", hidden),
            *_rules("(allow file-read* file-write*", _within(self.writable, hidden)),
            *_rules("(allow file-read*", self.readable),
        )
        network = (
            ("(allow network*)", "(allow system-socket)") if self.network is Network.HOST else ("(deny network*)",)
        )
        return "\n".join((_FIXED.rstrip(), *rules, *network)) + "\n"

    def _git(self, folder: Path) -> Iterator[Path]:
        """Yield what may be read only; on macOS a rule also holds for what is not there yet."""
        yield folder / ".git"
        yield from git_folders(folder, tree=folder == self.root)


def _within(places: Iterable[Path], folders: Iterable[Path]) -> list[Path]:
    outer = list(folders)
    return [place for place in places if any(place.is_relative_to(folder) for folder in outer)]


def _rules(start: str, places: Iterable[Path]) -> Iterator[str]:
    """Yield one rule for each place; Seatbelt compares with real paths, /private/tmp and not /tmp."""
    for place in dict.fromkeys(Path(os.path.realpath(place)) for place in places):
        yield f"{start} (subpath {_quoted(str(place))}))"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class SeatbeltSandbox:
    """Runs each command behind a profile. Apple calls the program deprecated; agents of others rely on it, too."""

    @property
    def name(self) -> str:
        """`sandbox-exec`."""
        return NAME

    def probe(self) -> str:
        """Run `true` behind the profile."""
        if not Path(PROGRAM).exists():
            return f"{PROGRAM} is not there: only macOS has it"
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            profile = Profile(
                root=root, path="/usr/bin", program="true", writable=(root,), readable=(), network=Network.NONE
            )
            try:
                done = subprocess.run(
                    (PROGRAM, "-p", profile.text(), "/usr/bin/true"),
                    cwd=root, capture_output=True, text=True, timeout=PROBE_S, check=False,
                )  # fmt: skip
            except (OSError, subprocess.TimeoutExpired) as error:
                return f"{PROGRAM} does not work here: {error}. {HOW_TO_GET}"
        return "" if done.returncode == 0 else f"{PROGRAM} does not work here: {done.stderr.strip()}. {HOW_TO_GET}"

    def run(
        self,
        spec: SandboxSpec,
        *,
        cancelled: Callable[[], bool],
        started: Callable[[int], None],
        on_output: Callable[[bytes], None] | None = None,
    ) -> SandboxResult:
        """Run a command with a temporary folder of its own; see the port."""
        run = functools.partial(run_process, cancelled=cancelled, started=started, on_output=on_output)
        with tempfile.TemporaryDirectory(prefix="tightloop-") as temporary:
            inside = {"HOME": temporary, "TMPDIR": temporary}
            environment = {**search_path(spec.root), **inside, **spec.environment}
            if not spec.argv:
                message = "there is no program in the command"
                return SandboxResult(reason=ExitReason.NOT_STARTED, message=message, backend=NAME)
            profile = Profile(
                root=spec.root,
                path=environment["PATH"],
                program=spec.argv[0],
                writable=(spec.root, Path(temporary), *spec.writable),
                readable=spec.readable,
                network=spec.network,
            )
            request = request_of(spec, (PROGRAM, "-p", profile.text(), *spec.argv), environment)
            return replace(run_bounded(request, spec, _limits(spec), run=run, grouped=False), backend=NAME)


class SeatbeltFence:
    """The same walls for an agent that lives long and needs the network."""

    @property
    def name(self) -> str:
        """`sandbox-exec`."""
        return NAME

    def around(
        self, request: ProcessRequest, *, writable: tuple[Path, ...], readable: tuple[Path, ...] = ()
    ) -> ProcessRequest:
        """Return the request for the same program behind the fence; see the port."""
        profile = Profile(
            root=request.cwd,
            path=request.environment.get("PATH") or os.environ.get("PATH", os.defpath),
            program=request.argv[0],
            writable=writable,
            readable=readable,
            network=Network.HOST,
        )
        # The user's own temporary folder holds what other programs left there.
        temporary = {"TMPDIR": str(writable[-1])} if writable else {}
        argv = (PROGRAM, "-p", profile.text(), *request.argv)
        return replace(request, argv=argv, environment={**temporary, **request.environment})


def _limits(spec: SandboxSpec) -> dict[Limit, Enforcement]:
    hard = Enforcement.HARD
    walls = {Limit.WRITES: hard, Limit.READS: hard, Limit.GIT: hard, Limit.NAMESPACES: hard}
    network = {Limit.NETWORK: hard} if spec.network is Network.NONE else {}
    return {**WATCHED, **walls, **network}
