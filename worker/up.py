"""The processes that a person starts: `up`, `run` and `demo`."""

import asyncio
import contextlib
import gc
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path

from temporalio.client import Client

from activities.alerts.channels import make_alert_delivery
from activities.artifacts.stores import close_idle
from activities.executor.agent.program import sweep_homes
from activities.executor.gui.drivers import release_keys
from activities.sandbox.choose import choose_sandbox
from tightloop.client import TightloopClient
from tightloop.client.calls import Calls
from tightloop.client.keys import key_file, ring_of
from tightloop.client.setup import NotAllowedError, set_up
from tightloop.client.sign_in import has_sign_in, signed_in
from tightloop.database.ledger import close_ledgers
from tightloop.episode.check import Check
from tightloop.episode.model import EpisodeRequest, EpisodeStatus
from tightloop.errors import WorkspaceError
from tightloop.host.programs import find_trusted_program, own_environment, trusted_path
from tightloop.ledger.alert import episode_link
from tightloop.run.outcome import is_plain_success
from tightloop.settings import Settings
from tightloop.value import shorten
from tightloop.wording import budget_line
from worker.build import PRODUCTION_RUNNER, Role, agent_homes, build_adapters, build_workers
from worker.composition import load_early, need_bucket
from worker.connect import connect
from worker.health import Health, serving_health
from worker.hosting.startup import (
    build_id_of,
    give_memory_back,
    need_common_keys,
    need_workspaces,
    verify_search_attributes,
    warn_of_missing,
)
from worker.hosting.tenure import TenureShare, join_tenure
from worker.ledger.digests import send_digests
from worker.ledger.entries import enter_ends
from worker.ledger.stores import forwarding
from worker.retention import keep_schedule, watch_disk
from worker.server import embedded_server, gateway_up, is_own, owner_in, page_line
from worker.telemetry import Telemetry, observe_worker

logger = logging.getLogger("tightloop")

ROOT = Path(__file__).resolve().parents[1]
"""Folder that contains the server-side packages."""
LOOK_SECONDS = 10.0
"""Interval in seconds between checks for changed code. A check takes about 10 ms."""
YOUNG_OBJECTS = 20_000
"""GC threshold. With Python's default of 700, a worker traverses a large plan again and again. This takes 10 % of its
time, and a third of the time to open the plan."""
ROUNDS = 20


def stop_event() -> asyncio.Event:
    """Return an event that is set on SIGINT, SIGTERM or SIGHUP."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(sign, stopped.set)
    return stopped


@asynccontextmanager
async def working(
    client: Client, settings: Settings, role: Role, health: Health, tenure: str = ""
) -> AsyncIterator[None]:
    """Run a role's workers during the block. When the block ends, running activities are given time to finish."""
    # Agents only run where workspaces or screens are.
    if role not in (Role.WORKFLOWS, Role.LLM):
        await asyncio.to_thread(sweep_homes, agent_homes(), timedelta(days=settings.server.retention_days))
    async with AsyncExitStack() as stack:
        stack.callback(close_idle)
        stack.callback(close_ledgers)
        # Entered first, so that it exits after the workers and forwards their last rows.
        await stack.enter_async_context(forwarding(settings))
        adapters = build_adapters(client, settings)
        workers = build_workers(client, settings, role, adapters, runner=PRODUCTION_RUNNER, tenure=tenure)
        for worker in workers:
            await stack.enter_async_context(worker)
        health.begin(client, workers)
        build = f" of build {build_id_of(settings.worker)}" if settings.worker.deployment else ""
        looks = [warn_of_changed_code(), give_memory_back(), health.log_changes(f"{role.value!r}{build}")]
        if role in (Role.ALL, Role.WORKSPACE):
            await keep_schedule(client, settings)
            looks += [enter_ends(client), watch_disk(client, settings)]
            looks.append(asyncio.to_thread(load_early, settings, adapters.sandbox))
            if at := settings.alerts.digest_at:
                looks.append(send_digests(make_alert_delivery(settings, os.environ), at))
        tasks = [asyncio.create_task(coroutine) for coroutine in looks]
        try:
            yield
        finally:
            # First, so that a supervisor sees the draining while activities still finish.
            health.drain()
            for task in tasks:
                task.cancel()


async def warn_of_changed_code(every: float = LOOK_SECONDS, root: Path = ROOT) -> None:
    """Warn once if the code on disk has changed since this process started."""
    before = await asyncio.to_thread(_stamps, root)
    while True:
        await asyncio.sleep(every)
        now = await asyncio.to_thread(_stamps, root)
        changed = sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))
        if changed:
            names = ", ".join(str(path.relative_to(root)) for path in changed[:3])
            more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            logger.warning(
                "the code of this worker has changed since the worker started: %s%s. Until you restart the worker, "
                "it runs the old code and may fail to answer requests about closed episodes. First check that the "
                "new code is compatible with the open episodes: tightloop replay ID. Then restart the worker: "
                "tightloop up",
                names,
                more,
            )
            return


def _stamps(root: Path) -> dict[Path, int]:
    """Return the modification time of each source file."""
    stamps: dict[Path, int] = {}
    for package in ("workflows", "activities", "tightloop", "worker"):
        for path in (root / package).rglob("*.py"):
            # An update may remove files while they are being listed.
            with contextlib.suppress(FileNotFoundError):
                stamps[path] = path.stat().st_mtime_ns
    return stamps


async def _ready(settings: Settings, telemetry: Telemetry, role: Role) -> tuple[Client, TenureShare]:
    """Wait until everything that a role requires is available.

    Return the connection and the lease on this host's name.
    """
    client = await connect(settings, telemetry, wait_s=settings.worker.start_wait_s)
    # Before anything creates a key: a new one here would make the workers of other hosts strangers.
    await need_common_keys(client, settings)
    if role in (Role.ALL, Role.WORKFLOWS):
        await verify_search_attributes(client)
    if role in (Role.ALL, Role.WORKSPACE):
        await asyncio.to_thread(need_bucket, settings)
    if role in (Role.LLM, Role.GUI):
        await need_workspaces(client, settings, role.value)
    return client, await join_tenure(client, settings)


async def _release_keys(settings: Settings, role: Role) -> None:
    """Release keyboard keys that a previous worker left pressed.

    This is done first, because a pressed key keeps repeating.
    """
    if role in (Role.ALL, Role.GUI):
        await asyncio.to_thread(release_keys, settings.window)


async def run_worker(settings: Settings, role: Role) -> None:
    """Run workers against an existing server until stopped."""
    stopped = stop_event()
    await _release_keys(settings, role)
    async with observe_worker(settings) as telemetry, serving_health(settings) as health:
        starting = asyncio.ensure_future(_ready(settings, telemetry, role))
        stopping = asyncio.ensure_future(stopped.wait())
        # A signal must also stop it while it waits for a server.
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not starting.done():
            starting.cancel()
            return
        client, lease = starting.result()
        async with lease.watch_lease(client), working(client, settings, role, health, lease.tenure.id):
            await warn_of_missing(client, settings)
            await stopped.wait()


async def prepare(client: Client, retention: timedelta | None) -> None:
    """Set up the Temporal namespace, including its retention time, as far as permissions allow."""
    try:
        await set_up(Calls(client), retention=retention)
    except NotAllowedError as error:
        logger.warning("%s", error.message)


@asynccontextmanager
async def stack_up(
    settings: Settings, folder: Path, role: Role = Role.ALL, *, settings_file: Path | None = None
) -> AsyncIterator[Client]:
    """Run the embedded server, the gateway and a role's workers.

    The embedded server is not started if another server responds.
    """
    async with embedded_server(settings, folder, settings_file) as started, observe_worker(settings) as telemetry:
        client = await connect(settings, telemetry)
        await need_common_keys(client, settings)
        await asyncio.to_thread(need_bucket, settings)
        # The retention of a server that others started is not ours to change.
        await prepare(client, timedelta(days=settings.server.retention_days) if started else None)
        lease = await join_tenure(client, settings)
        async with (
            serving_health(settings) as health,
            gateway_up(settings, settings_file),
            lease.watch_lease(client),
            working(client, settings, role, health, lease.tenure.id),
        ):
            yield client


async def run_up(settings: Settings, folder: Path, role: Role, *, settings_file: Path | None = None) -> None:
    """Run the server, the Web UI, the web page and the workers until stopped."""
    stopped = stop_event()
    await _release_keys(settings, role)
    async with stack_up(settings, folder, role, settings_file=settings_file):
        print(greeting(settings, folder), flush=True)
        # A lost lease cancels this wait; `watch_lease` then raises the reason.
        with contextlib.suppress(asyncio.CancelledError):
            await stopped.wait()
        print("stopping ...", flush=True)


def greeting(settings: Settings, folder: Path) -> str:
    """Return the greeting for the terminal, with addresses and next steps."""
    page = [page_line(settings, private=sys.stdout.isatty())] if settings.gateway.enabled else []
    if not is_own(settings, folder):
        return _format_foreign_greeting(settings, page)
    ui, hint = settings.temporal.ui_url, ""
    if has_sign_in(settings):
        # Others may read a log, and a link signs in anyone who has it.
        hint = "   (single-use link, new link: tightloop ui)" if sys.stdout.isatty() else "   (sign in: tightloop ui)"
        ui = signed_in(settings, ui) if sys.stdout.isatty() else ui
    lines = [
        f"tightloop is up.  Histories: {folder / 'temporal.db'}",
        *page,
        f"Temporal Web UI: {ui}{hint}",
        _NEXT,
    ]
    if settings.seals_payloads:
        lines.insert(
            2 + len(page),
            'Temporal CLI: run eval "$(tightloop env)" to read payloads and send messages that the workers accept',
        )
        privacy, current = settings.privacy, ring_of(settings).current
        where = f"the variable {privacy.keys_env}" if privacy.keys_env else f"{key_file(privacy)} (keep a copy)"
        lines.insert(2 + len(page), f"Payloads are encrypted with key {current} in {where}")
    noted = owner_in(folder)
    if noted is not None and noted.owner.pid != os.getpid():
        more = f"The server was already running. It belongs to process {noted.owner.pid} and stops with it. "
        lines.insert(1, f"{more}This process is an additional worker")
    return "\n".join(lines)


def _format_foreign_greeting(settings: Settings, page: list[str]) -> str:
    """Return the greeting for a server that was not started from this state home."""
    at = settings.temporal
    lines = [
        f"tightloop is up and uses the Temporal server already running at {at.address} (namespace {at.namespace}).",
        "The server was not started from this state home, so it decides where and how long histories are stored.",
    ]
    if at.loopback:
        host, _, port = at.address.rpartition(":")
        other = f"TIGHTLOOP_TEMPORAL__ADDRESS={host}:{int(port) + 100} "
        other += f"TIGHTLOOP_TEMPORAL__UI_URL=http://{host}:{at.ui_port + 100}"
        lines.append(f"To run a separate server, stop this process and use other ports: {other} tightloop up")
        lines.append(
            "Clients need the same address. To set the address for workers and clients, use temporal.address in "
            "the settings file"
        )
    return "\n".join([*lines, *page, _NEXT])


_NEXT = "Start an episode from another terminal: tightloop start GOAL --done COMMAND   (Ctrl-C stops)"


def collect_less_often() -> None:
    """Exclude imported objects from garbage collection and raise the GC threshold. Call this once at process start."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, ROUNDS, ROUNDS)


SAMPLE = Path(__file__).parent.parent / "examples" / "sample"
GOAL = "Get the orders package green: its tests, its linter and its formatter."
CHECKS = (
    Check(run="ruff check --no-cache .", name="lint"),
    Check(run="ruff format --no-cache --check .", name="format"),
    Check(run=f"{sys.executable} -m pytest -q -p no:cacheprovider", name="tests"),
)
CLOSING_S = 60
STAY_HINT = "The server keeps running so that you can look around. Press Ctrl-C to stop it."


def make_sample(folder: Path) -> Path:
    """Copy the sample package to a new folder and commit it to a new git repository there."""
    target = folder / "samples" / time.strftime("orders-%Y%m%d-%H%M%S")
    shutil.copytree(SAMPLE, target, ignore=shutil.ignore_patterns("__pycache__", ".ruff_cache", ".pytest_cache"))
    # The person's git configuration may demand signed commits, and a passphrase nobody could type here.
    identity = ("-c", "user.name=tightloop", "-c", "user.email=tightloop@localhost", "-c", "commit.gpgsign=false")
    for command in (("init", "--quiet"), ("add", "--all"), (*identity, "commit", "--quiet", "-m", "As found")):
        result = _git(target, *command)
        if result.returncode != 0:
            raise WorkspaceError(f"git {command[-1]} failed in {target}: {result.stderr.strip()}")
    return target


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = find_trusted_program("git")
    if program is None:
        raise WorkspaceError("git is not installed on this host. Install git 2.30 or newer")
    program.refuse_within((folder,))
    command, environment = program.command(*arguments), {**own_environment(), "PATH": trusted_path(folder)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


def with_sandbox_or_none(settings: Settings) -> Settings:
    """Return the settings for running the trusted sample.

    If no sandbox works on this host, the settings allow the sample to run without one.
    """
    problem = choose_sandbox(settings.sandbox).probe()
    if not problem:
        return settings
    print(
        "No sandbox works on this host, so the sample runs without one (your own episodes would be rejected): "
        f"{shorten(problem, 160)}"
    )
    return settings.evolve(sandbox=settings.sandbox.evolve(unsafe_local=True))


async def run_demo(settings: Settings, folder: Path, *, settings_file: Path | None = None) -> int:
    """Run the demo episode and everything that it needs. Return 0 if its checks passed."""
    stopped = stop_event()
    settings = with_sandbox_or_none(settings)
    print("Starting Temporal and a worker ...", flush=True)
    async with stack_up(settings, folder, settings_file=settings_file) as temporal:
        workspace = make_sample(folder)
        client = TightloopClient(temporal, settings)
        request = EpisodeRequest(goal=GOAL, workspace=str(workspace), definition_of_done=CHECKS)
        episode_id = await client.start(request)
        ui = episode_link(settings.temporal.ui_url, settings.temporal.namespace, episode_id)
        print(f"Temporal Web UI   {signed_in(settings, ui) if sys.stdout.isatty() else ui}")
        print(f"Sample repository {workspace}")
        print(f"Episode           {episode_id}: {GOAL}\n", flush=True)
        watching = asyncio.create_task(_watch(client, episode_id))
        waiting = asyncio.create_task(stopped.wait())
        await asyncio.wait((watching, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not watching.done():
            watching.cancel()
            print("Stopped. The episode will continue when you restart with: tightloop up")
            return 130
        status = await client.status(episode_id)
        assert isinstance(status, EpisodeStatus)
        if not status.questions:
            # The files are final before Temporal has closed the workflow.
            async with asyncio.timeout(CLOSING_S):
                await client.result(episode_id)
            status = await client.status(episode_id)
        assert isinstance(status, EpisodeStatus)
        green = is_plain_success(status.status, status.qualifier)
        stat = _git(workspace, "diff", "--stat", "HEAD")
        print(f"\nWhat changed in {workspace}:\n{stat.stdout.rstrip()}")
        spent = budget_line(status.spent, status.budget)
        print(f"\n{'GREEN' if green else 'NOT GREEN'}: checks {status.checks}. Spent: {spent}")
        if sys.stdin.isatty():
            print(f"\nTry next, from another terminal:\n{_next_steps(episode_id)}\n\n{STAY_HINT}", flush=True)
            print(page_line(settings, private=sys.stdout.isatty()), flush=True)
            await waiting
        else:
            print(
                f"\nEverything is stopped again. To look around, run `make up`, and try:\n{_next_steps(episode_id)}",
                flush=True,
            )
        waiting.cancel()
        return 0 if green else 1


async def _watch(client: TightloopClient, episode_id: str) -> None:
    """Print the episode's events until it ends or waits for a person."""
    cursor = ""
    async for status in client.watch(episode_id):
        for event in await client.timeline(episode_id, after=cursor):
            print(f"  {event.at:%H:%M:%S}  {event.kind:<10} {event.text}", flush=True)
            cursor = event.cursor
        if status.questions:
            question = status.questions[0]
            print(f"  Waiting for a person: {question.title}\n  Options: {', '.join(question.names)}", flush=True)
            return


def _next_steps(episode_id: str) -> str:
    command = Path(sys.executable).with_name("tightloop")
    command = command.relative_to(Path.cwd()) if command.is_relative_to(Path.cwd()) else command
    steps = ("proof {0}", "checkpoints {0}", "diff {0} ckpt-0 ckpt-2", "fork {0} ckpt-2", "restore {0} ckpt-2")
    return "\n".join(f"  {command} {step.format(episode_id)}" for step in (*steps, "replay {0}"))
