"""Walls by a Docker engine: each command in a container of its own, with the tools of an image."""

import csv
import io
import json
import os
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from activities.process import ProcessRequest, ProcessResult, run_process
from activities.sandbox.bounds import FLOOD, OPEN_FILES, WATCHED, exceeded
from activities.sandbox.owner import lives, this_host, this_process
from activities.sandbox.port import Enforcement, ExitReason, Limit, Network, SandboxResult, SandboxSpec
from activities.sandbox.visible import STATE_FOLDER, git_folders, project_python

NAME = "docker"
PROGRAM = "docker"
CONTROL_S = 20.0
"""For one call of the client that runs nothing itself."""
START_S = 60.0
"""A container may take so long to start, beyond the time limit of its command."""
STOP_S = 2
OWNER_LABEL = "tightloop.owner"
HOST_LABEL = "tightloop.host"
CLIENT_VARIABLES = (
    "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY", "HOME",
    "XDG_RUNTIME_DIR", "SSH_AUTH_SOCK",
)  # fmt: skip
"""What the client needs to find its engine; the container gets none of it."""
HOW_TO_GET = "Start a Docker engine that the worker's user may use, and set sandbox.image to an image that it has"

_CLIENT_OWN = frozenset({"PATH", *CLIENT_VARIABLES})
_NOTHING = ("/bin/sh", "-c", ":")
_NOT_STARTED = (125, 126, 127)
_INIT_FAILED = "[FATAL tini ("
"""Says the first process of the container where it cannot execute the command."""
_IMAGE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class _Ending:
    """What the engine knows of a container that ended."""

    began: bool = False
    exit_code: int | None = None
    out_of_memory: bool = False
    error: str = ""


class DockerSandbox:
    """Runs each command by `docker run`; the working tree has the same path inside as outside."""

    def __init__(self, image: str) -> None:
        """Take the name of an image that the engine has."""
        self._image = image
        self._path = ""

    @property
    def name(self) -> str:
        """`docker`."""
        return NAME

    def probe(self) -> str:
        """Run nothing by a shell of the image; what dead workers left behind is removed then."""
        if not self._image:
            return f"no image is set. {HOW_TO_GET}"
        answer = _docker("image", "inspect", "--format", "{{json .Config.Env}}", self._image)
        if answer.returncode != 0:
            return f"{answer.stderr.strip()[-300:] or 'the client did not answer'}. {HOW_TO_GET}"
        self._path = _path_of(answer.stdout)
        _sweep()
        done = _docker("run", "--rm", *_walls(Network.NONE), self._image, *_NOTHING, timeout_s=START_S)
        return "" if done.returncode == 0 else f"no container runs: {done.stderr.strip()[-300:]}. {HOW_TO_GET}"

    def run(
        self,
        spec: SandboxSpec,
        *,
        cancelled: Callable[[], bool],
        started: Callable[[int], None],
        on_output: Callable[[bytes], None] | None = None,
    ) -> SandboxResult:
        """Run a command; see the port."""
        gone = [place for place in (spec.root, *spec.readable, *spec.writable) if not place.exists()]
        if gone or not spec.argv:
            what = f"{gone[0]} is not there" if gone else "there is no program in the command"
            return SandboxResult(reason=ExitReason.NOT_STARTED, message=what, backend=NAME)
        name = f"tightloop-{uuid.uuid4().hex}"
        inside = self._environment(spec)
        request = _request(spec, (PROGRAM, *_run_line(spec, name, self._image, inside)), inside)
        try:
            result = run_process(request, cancelled=cancelled, started=started, on_output=on_output)
            ending = _end(name)
        except BaseException:
            _docker("rm", "--force", name)
            raise
        return replace(_result(result, ending, spec), backend=NAME, limits=_limits(spec))

    def _environment(self, spec: SandboxSpec) -> dict[str, str]:
        passed = {name: value for name in ("LANG", "TZ") if (value := os.environ.get(name))}
        path = self._path or _IMAGE_PATH
        own = spec.root / ".venv" / "bin"
        tree = {"PATH": f"{own}:{path}", "VIRTUAL_ENV": str(own.parent)} if own.is_dir() else {"PATH": path}
        fixed = {"HOME": "/tmp", "TERM": "dumb", "PYTHONDONTWRITEBYTECODE": "1"}  # noqa: S108
        return {**passed, **fixed, **tree, **spec.environment, **spec.secrets}


def _run_line(spec: SandboxSpec, name: str, image: str, inside: Mapping[str, str]) -> Iterator[str]:
    megabyte = 1024 * 1024
    yield from ("run", "--name", name, *_walls(spec.network), "--workdir", str(spec.root))
    yield from ("--label", f"{OWNER_LABEL}={this_process()}", "--label", f"{HOST_LABEL}={this_host()}")
    yield from ("--cpus", f"{spec.cores:g}", "--pids-limit", str(spec.processes))
    yield from ("--memory", f"{spec.memory_bytes}b", "--memory-swap", f"{spec.memory_bytes}b")
    yield from ("--tmpfs", f"/tmp:rw,exec,nosuid,nodev,mode=1777,size={spec.temporary_bytes}")  # noqa: S108
    yield from ("--shm-size", f"{min(64 * megabyte, spec.temporary_bytes)}b")
    yield from ("--ulimit", f"nofile={OPEN_FILES}:{OPEN_FILES}", "--ulimit", f"fsize={spec.file_bytes}")
    yield from _mounts(spec)
    # By name alone: the client takes the values from its own environment, and no process list shows them.
    for variable in sorted(inside):
        yield from ("--env", f"{variable}={inside[variable]}" if variable in _CLIENT_OWN else variable)
    yield from (("--interactive",) if spec.stdin else ())
    yield from (image, *spec.argv)


def _walls(network: Network) -> Iterator[str]:
    yield from ("--init", "--pull", "never", "--network", network.value, "--read-only", "--cap-drop", "ALL")
    yield from ("--security-opt", "no-new-privileges", "--ulimit", "core=0", "--log-driver", "none")
    yield from ("--stop-timeout", str(STOP_S), "--user", f"{os.getuid()}:{os.getgid()}", "--ipc", "private")


def _mounts(spec: SandboxSpec) -> Iterator[str]:
    for folder in sorted({spec.root, *spec.writable}):
        yield from _bind(folder, writable=True)
        for git in git_folders(folder, tree=folder == spec.root):
            yield from _bind(git, writable=False)
        if (state := folder / STATE_FOLDER).is_dir() and not state.is_symlink():
            yield from ("--mount", _comma("type=tmpfs", f"target={state}", "tmpfs-size=1048576"))
    for place in dict.fromkeys((*project_python(spec.root), *spec.readable)):
        yield from _bind(place, writable=False)


def _bind(place: Path, *, writable: bool) -> tuple[str, str]:
    access = () if writable else ("readonly",)
    return "--mount", _comma("type=bind", f"source={place}", f"target={place}", *access)


def _comma(*parts: str) -> str:
    """Join as the client reads it: one line of comma-separated values, where a path may hold a comma."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(parts)
    return line.getvalue()


def _request(spec: SandboxSpec, argv: tuple[str, ...], inside: Mapping[str, str]) -> ProcessRequest:
    client = {name: value for name in CLIENT_VARIABLES if (value := os.environ.get(name))}
    passed = {name: value for name, value in inside.items() if name not in _CLIENT_OWN and name not in spec.secrets}
    return ProcessRequest(
        argv=argv,
        cwd=spec.root,
        environment={**passed, **client},
        secrets=spec.secrets,
        inherit=False,
        stdin=spec.stdin,
        wall_limit_s=spec.wall_limit_s,
        idle_limit_s=spec.idle_limit_s,
        grace_s=spec.grace_s,
        output_bytes=spec.output_bytes,
        output_limit_bytes=FLOOD * spec.output_bytes,
    )


def _end(name: str) -> _Ending:
    """Kill what still runs in the container, remove it and return how it ended."""
    _docker("kill", name)
    inspected = _docker("inspect", "--format", "{{json .State}}", name)
    removed = _docker("rm", "--force", "--volumes", name)
    if inspected.returncode != 0:
        return _Ending(error="" if "No such" in inspected.stderr else inspected.stderr.strip()[-300:])
    state = json.loads(inspected.stdout)
    left = "" if removed.returncode == 0 else f"container {name} could not be removed: remove it by hand"
    return _Ending(
        began=not state["StartedAt"].startswith("0001-"),
        exit_code=state["ExitCode"],
        out_of_memory=state["OOMKilled"],
        error=state["Error"] or left,
    )


def _result(result: ProcessResult, ending: _Ending, spec: SandboxSpec) -> SandboxResult:
    reason, exit_code, message = ExitReason(result.reason.value), result.exit_code, result.message or ending.error
    said = result.output.decode("utf-8", "replace").strip()[-300:]
    began = ending.began and _INIT_FAILED not in said
    if reason is ExitReason.EXITED and not began and exit_code in _NOT_STARTED:
        return SandboxResult(reason=ExitReason.NOT_STARTED, message=_not_started(spec, ending.error or said))
    if ending.out_of_memory and reason in (ExitReason.EXITED, ExitReason.WALL_LIMIT):
        reason = ExitReason.MEMORY_LIMIT
    return SandboxResult(
        reason=reason,
        exit_code=exit_code if reason is ExitReason.EXITED else None,
        output=result.output,
        cut=result.cut,
        duration_s=result.duration_s,
        survivors_ended=result.survivors_ended,
        message=exceeded(reason, spec) or message,
    )


def _not_started(spec: SandboxSpec, why: str) -> str:
    missing = "executable file not found" in why or "no such file or directory" in why.lower()
    return f"program {spec.argv[0]!r} was not found in the image" if missing else f"no container was started: {why}"


def _limits(spec: SandboxSpec) -> dict[Limit, Enforcement]:
    limits = dict.fromkeys(Limit, Enforcement.HARD)
    watched = (Limit.OUTPUT, Limit.WALL_TIME)
    limits |= {limit: WATCHED[limit] for limit in watched}
    if spec.network is Network.HOST:
        limits[Limit.NETWORK] = Enforcement.MISSING
    if (spec.root / ".git").is_symlink():
        limits[Limit.GIT] = Enforcement.MISSING
    return limits


def _path_of(inspected: str) -> str:
    """Return the PATH of an image out of the JSON list of its variables."""
    variables = json.loads(inspected) or []
    return next((line.removeprefix("PATH=") for line in variables if line.startswith("PATH=")), _IMAGE_PATH)


def _sweep() -> None:
    """Remove the containers of workers of this host that are gone."""
    filters = ("--filter", f"label={OWNER_LABEL}", "--filter", f"label={HOST_LABEL}={this_host()}")
    listed = _docker("ps", "--all", *filters, "--format", f'{{{{.ID}}}} {{{{.Label "{OWNER_LABEL}"}}}}')
    for line in listed.stdout.splitlines():
        container, _, owner = line.partition(" ")
        if not lives(owner):
            _docker("rm", "--force", "--volumes", container)


def _docker(*arguments: str, timeout_s: float = CONTROL_S) -> subprocess.CompletedProcess[str]:
    """Run the client; a client that is missing or does not answer is a return code other than 0."""
    argv = (PROGRAM, *arguments)
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False)
    except FileNotFoundError:
        return subprocess.CompletedProcess(argv, 127, "", f"program {PROGRAM!r} was not found")
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(argv, 124, "", str(error))
