"""Docker sandbox. Each command runs in its own container, using the tools from an image."""

import csv
import io
import json
import os
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

from activities.process import Callbacks, ProcessResult, Reason, run_process
from activities.sandbox.control_group import OPEN_FILES, ResourceUsage, request_of, require_program, result_of
from activities.sandbox.port import (
    GIT_INSIDE,
    GIT_SETTINGS,
    MEBIBYTE,
    Enforcement,
    Limit,
    SandboxResult,
    SandboxSpec,
    SandboxUnavailableError,
    Scratch,
    is_alive,
    open_scratch,
    this_host,
    this_process,
)
from activities.sandbox.proxy import INSIDE, PROXY_VARIABLES, EgressProxy, open_proxy
from activities.sandbox.visible import at_workspace, git_folders, project_python, state_within
from tightloop.host import state_home
from tightloop.host.programs import own_environment, trusted_path

NAME = "docker"
PROGRAM = "docker"
CONTROL_S = 20.0
"""Timeout for client calls that do not run a command."""
# Measured: 0.4 s on a quiet machine, 1.4 s on a busy one.
START_S = 60.0
"""Time allowed for starting a container, in addition to the command's time limit."""
STOP_S = 2
OWNER_LABEL = "tightloop.owner"
HOST_LABEL = "tightloop.host"
CLIENT_VARIABLES = (
    "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY", "HOME",
    "XDG_RUNTIME_DIR", "SSH_AUTH_SOCK",
)  # fmt: skip
"""Variables that the client uses to find its engine. They are not passed to the container."""
HOW_TO_GET = "Start a Docker engine that the worker's user can access, and set sandbox.image to an image in this engine"

_CLIENT_OWN = frozenset({"PATH", *CLIENT_VARIABLES, *PROXY_VARIABLES}) | {
    "DOCKER_API_VERSION", "DOCKER_CONTENT_TRUST", "DOCKER_CONTENT_TRUST_SERVER", "DOCKER_CUSTOM_HEADERS",
    "DOCKER_DEFAULT_PLATFORM", "DOCKER_TLS", "GODEBUG", "SSL_CERT_DIR", "SSL_CERT_FILE",
}  # fmt: skip
_NOTHING = ("/bin/sh", "-c", ":")
_NOT_STARTED = (125, 126, 127)
_INIT_FAILED = "[FATAL tini ("
"""Start of the message that the container's init process prints if it cannot execute the command."""
# PATH of an image that sets none, as in Docker itself.
_IMAGE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class _Ending:
    """The final state of a container, as reported by the Docker engine."""

    began: bool = False
    exit_code: int | None = None
    out_of_memory: bool = False
    error: str = ""


class DockerSandbox:
    """Runs each command with `docker run`. The working tree has the same path inside the container."""

    def __init__(self, image: str) -> None:
        self._image = image
        self._path = ""

    name = NAME

    def probe(self) -> str:
        """Run an empty command in the image. Containers of dead workers on this host are deleted first."""
        if not self._image:
            return f"no image is set. {HOW_TO_GET}"
        answer = _docker("image", "inspect", "--format", "{{json .Config.Env}}", self._image)
        if answer.returncode != 0:
            return f"{answer.stderr.strip()[-300:] or 'the Docker client did not respond'}. {HOW_TO_GET}"
        variables = json.loads(answer.stdout) or []
        self._path = next((line.removeprefix("PATH=") for line in variables if line.startswith("PATH=")), _IMAGE_PATH)
        # Here and not after a command: a killed worker cannot clean up after itself.
        filters = ("--filter", f"label={OWNER_LABEL}", "--filter", f"label={HOST_LABEL}={this_host()}")
        listed = _docker("ps", "--all", *filters, "--format", f'{{{{.ID}}}} {{{{.Label "{OWNER_LABEL}"}}}}')
        for line in listed.stdout.splitlines():
            container, _, owner = line.partition(" ")
            if not is_alive(owner):
                _docker("rm", "--force", "--volumes", container)
        result = _docker("run", "--rm", *_isolation(), self._image, *_NOTHING, timeout_s=START_S)
        return (
            "" if result.returncode == 0 else f"cannot start containers: {result.stderr.strip()[-300:]}. {HOW_TO_GET}"
        )

    def run(self, spec: SandboxSpec, **callbacks: Unpack[Callbacks]) -> SandboxResult:
        spec = at_workspace(spec)
        missing = [path for path in (spec.root, *spec.readable, *spec.writable) if not path.exists()]
        if missing or not spec.argv:
            what = f"{missing[0]} does not exist" if missing else "the command is empty"
            return SandboxResult(reason=Reason.NOT_STARTED, message=what, backend=NAME)
        proxying = open_proxy(spec.network) if spec.network else nullcontext()
        with open_scratch(spec) as scratch, proxying as proxy:
            result = self._run(spec, scratch, proxy, **callbacks)
            return replace(result, scratch=scratch.note, changed_package=scratch.find_change())

    def _run(
        self, spec: SandboxSpec, scratch: Scratch, proxy: EgressProxy | None, **callbacks: Unpack[Callbacks]
    ) -> SandboxResult:
        name = f"tightloop-{uuid.uuid4().hex}"
        venv_bin, path = spec.root / ".venv" / "bin", self._path or _IMAGE_PATH
        inside = {
            **{variable: value for variable in ("LANG", "TZ") if (value := os.environ.get(variable))},
            "HOME": "/tmp",  # noqa: S108
            "TERM": "dumb",
            "PYTHONDONTWRITEBYTECODE": "1",
            **(
                {"PATH": f"{venv_bin}:{path}", "VIRTUAL_ENV": str(venv_bin.parent)}
                if venv_bin.is_dir()
                else {"PATH": path}
            ),
            **spec.environment,
            **spec.secrets,
            **({} if proxy is None else proxy.environment),
        }
        client = {key: value for key in CLIENT_VARIABLES if (value := os.environ.get(key))}
        passed = {key: value for key, value in inside.items() if not _is_clients(key) and key not in spec.secrets}
        arguments = tuple(_run_line(spec, scratch, name, self._image, inside, proxy))
        # Variables of the client come last: a command must not choose the engine.
        request = request_of(spec, require_program(PROGRAM), arguments, {**passed, **client})
        # A command's secret must not choose the client's engine, plugins or libraries either.
        secrets = {key: value for key, value in spec.secrets.items() if not _is_clients(key)}
        # These limits apply to the container, so they must not kill its client.
        request = replace(
            request, secrets=secrets, memory_limit_bytes=None, process_limit=None, resources={}, cores=None
        )
        try:
            result = run_process(request, **callbacks)
            # Killing the client does not stop its container, so the container is always inspected and removed.
            ending = _end(name)
        except BaseException:
            _docker("rm", "--force", name)
            raise
        limits = dict.fromkeys(Limit, Enforcement.HARD)
        # The engine enforces none of these; they are sampled.
        limits |= dict.fromkeys((Limit.OUTPUT, Limit.WALL_TIME, Limit.GROWTH), Enforcement.SOFT)
        if (spec.root / ".git").is_symlink():
            limits[Limit.GIT] = Enforcement.MISSING
        return replace(_result(result, ending, spec, limits), backend=NAME)


def _run_line(
    spec: SandboxSpec, scratch: Scratch, name: str, image: str, inside: Mapping[str, str], proxy: EgressProxy | None
) -> Iterator[str]:
    yield from ("run", "--name", name, *_isolation(), "--workdir", str(spec.root))
    yield from ("--label", f"{OWNER_LABEL}={this_process()}", "--label", f"{HOST_LABEL}={this_host()}")
    yield from ("--cpus", f"{spec.cores:g}", "--pids-limit", str(spec.processes))
    # Same limit with swap as without: no swap.
    yield from ("--memory", f"{spec.memory_bytes}b", "--memory-swap", f"{spec.memory_bytes}b")
    yield from ("--tmpfs", f"/tmp:rw,exec,nosuid,nodev,mode=1777,size={spec.temporary_bytes}")  # noqa: S108
    yield from ("--shm-size", f"{min(64 * MEBIBYTE, spec.temporary_bytes)}b")
    yield from ("--ulimit", f"nofile={OPEN_FILES}:{OPEN_FILES}", "--ulimit", f"fsize={spec.file_bytes}")
    for folder in sorted({spec.root, *spec.writable}):
        content = spec.content if folder == spec.root else None
        yield from _bind(content or folder, folder, writable=True)
        for git in git_folders(folder, tree=folder == spec.root, mounts=spec.mounts):
            yield from _bind(git, git, writable=False)
    yield from _bind(GIT_SETTINGS, Path("/etc/gitconfig"), writable=False)
    if spec.git is not None:
        yield from _bind(spec.git, GIT_INSIDE, writable=True)
    for path in dict.fromkeys((*project_python(spec.root), *spec.readable)):
        yield from _bind(path, path, writable=False)
    for source, path in spec.mounts:
        _, folder = scratch.folders.get(path, (source, source))
        yield from _bind(folder, path, writable=path in scratch.folders)
    home, visible = os.path.realpath(state_home()), (spec.root, *spec.writable, *spec.readable)
    for state in {state for entry in visible for state in state_within(home, entry)}:
        yield from ("--mount", _comma("type=tmpfs", f"target={state}", "tmpfs-size=1048576"))
    if proxy is not None:
        yield from ("--mount", _comma("type=bind", f"source={proxy.folder}", f"target={INSIDE}", "readonly"))
    # By name only: the client reads the values from its own environment, so no process list shows them.
    for variable in sorted(inside):
        yield from ("--env", f"{variable}={inside[variable]}" if _is_clients(variable) else variable)
    yield from (("--interactive",) if spec.stdin else ())
    # An image without Python has no network access.
    yield from (image, *(() if proxy is None else proxy.command("python3")), *spec.argv)


def _isolation() -> Iterator[str]:
    # `--init` reaps orphans and passes signals on; a pull would run an image that nobody has checked.
    yield from ("--init", "--pull", "never", "--network", "none", "--read-only", "--cap-drop", "ALL")
    yield from ("--security-opt", "no-new-privileges", "--ulimit", "core=0", "--log-driver", "none")
    yield from ("--stop-timeout", str(STOP_S), "--user", f"{os.getuid()}:{os.getgid()}", "--ipc", "private")


def _bind(source: Path, target: Path, *, writable: bool) -> tuple[str, str]:
    access = () if writable else ("readonly",)
    return "--mount", _comma("type=bind", f"source={source}", f"target={target}", *access)


def _comma(*parts: str) -> str:
    """Join the parts as a line of CSV.

    The Docker client expects this format, because a path may contain a comma.
    """
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(parts)
    return line.getvalue()


def _end(name: str) -> _Ending:
    """Kill and remove the container, and return its final state."""
    # Before the inspection, so that the state is final.
    _docker("kill", name)
    inspected = _docker("inspect", "--format", "{{json .State}}", name)
    removed = _docker("rm", "--force", "--volumes", name)
    if inspected.returncode != 0:
        return _Ending(error="" if "No such" in inspected.stderr else inspected.stderr.strip()[-300:])
    state = json.loads(inspected.stdout)
    left = (
        ""
        if removed.returncode == 0
        else f"could not remove container {name}. Remove the container: docker rm --force {name}"
    )
    return _Ending(
        # Go's zero time: the container never started.
        began=not state["StartedAt"].startswith("0001-"),
        exit_code=state["ExitCode"],
        out_of_memory=state["OOMKilled"],
        error=state["Error"] or left,
    )


def _result(
    result: ProcessResult, ending: _Ending, spec: SandboxSpec, limits: Mapping[Limit, Enforcement]
) -> SandboxResult:
    output = result.output.decode("utf-8", "replace").strip()[-300:]
    began = ending.began and _INIT_FAILED not in output
    # The client uses these exit codes too, so the container's state has to confirm them.
    if result.reason is Reason.EXITED and not began and result.exit_code in _NOT_STARTED:
        why = ending.error or output
        missing = "executable file not found" in why or "no such file or directory" in why.lower()
        message = (
            f"program {spec.argv[0]!r} was not found in the image" if missing else f"no container was started: {why}"
        )
        return SandboxResult(reason=Reason.NOT_STARTED, message=message, limits=limits)
    # The measurements are the client's, not the command's.
    measured = replace(result, message=result.message or ending.error, cpu_s=None, peak_memory_bytes=None)
    return result_of(measured, spec, ResourceUsage(oom_kills=int(ending.out_of_memory)), limits)


def _docker(*arguments: str, timeout_s: float = CONTROL_S) -> subprocess.CompletedProcess[str]:
    """Run the Docker client. The return code is non-zero if the client is missing or does not respond."""
    environment = {**own_environment(), "PATH": trusted_path()}
    try:
        argv = require_program(PROGRAM).command(*arguments)
        return subprocess.run(
            argv, cwd="/", env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except SandboxUnavailableError as error:
        return subprocess.CompletedProcess(arguments, 127, "", error.message)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(arguments, 124, "", str(error))


def _is_clients(variable: str) -> bool:
    """Return whether an environment variable affects the Docker client.

    Such a variable selects the Docker engine, or code that the client runs or loads.
    """
    return variable in _CLIENT_OWN or variable.startswith(("LD_", "DYLD_"))
