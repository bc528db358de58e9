"""`make run`: everything up, and one real episode on a sample repository that is made for it."""

import asyncio
import shutil
import subprocess
import sys
import time
from pathlib import Path

from activities.sandbox.choose import choose_sandbox
from tightloop.client import TightloopClient
from tightloop.client.sign_in import signed_in
from tightloop.episode.check import Check
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest, EpisodeStatus
from tightloop.errors import WorkspaceError
from tightloop.host.programs import find_trusted, own_environment, trusted_path
from tightloop.ledger.alert import episode_link
from tightloop.settings import Settings
from tightloop.value import shorten
from tightloop.wording import budget_line
from worker.server import page_line
from worker.up import stack_up, stop_event

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
    """Copy the sample package to a new folder and make it a git repository with one commit."""
    target = folder / "samples" / time.strftime("orders-%Y%m%d-%H%M%S")
    shutil.copytree(SAMPLE, target, ignore=shutil.ignore_patterns("__pycache__", ".ruff_cache", ".pytest_cache"))
    identity = ("-c", "user.name=tightloop", "-c", "user.email=tightloop@localhost", "-c", "commit.gpgsign=false")
    for command in (("init", "--quiet"), ("add", "--all"), (*identity, "commit", "--quiet", "-m", "As found")):
        done = _git(target, *command)
        if done.returncode != 0:
            raise WorkspaceError(f"git {command[-1]} failed in {target}: {done.stderr.strip()}")
    return target


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = find_trusted("git")
    if program is None:
        raise WorkspaceError("git is not installed on this host. Install git 2.30 or newer")
    program.refuse_within((folder,))
    command, environment = program.command(*arguments), {**own_environment(), "PATH": trusted_path(folder)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


def with_sandbox_or_none(settings: Settings) -> Settings:
    """Return the settings for the sample, whose code is ours: where no sandbox works it runs without one."""
    problem = choose_sandbox(settings.sandbox).probe()
    if not problem:
        return settings
    print(f"No sandbox works here, so the sample runs without one (yours would be refused): {shorten(problem, 160)}")
    return settings.evolve(sandbox=settings.sandbox.evolve(unsafe_local=True))


async def run_demo(settings: Settings, folder: Path, *, settings_file: Path | None = None) -> int:
    """Bring everything up, run the episode, tell what happened; returns 0 if it ended green."""
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
            print("Stopped. The episode continues when you start again with: tightloop up")
            return 130
        status = await client.status(episode_id)
        assert isinstance(status, EpisodeStatus)
        if not status.questions:
            # The files are done before Temporal has closed the workflow.
            async with asyncio.timeout(CLOSING_S):
                await client.result(episode_id)
            status = await client.status(episode_id)
        assert isinstance(status, EpisodeStatus)
        green = status.outcome is EpisodeOutcome.SUCCEEDED
        stat = _git(workspace, "diff", "--stat", "HEAD")
        print(f"\nWhat changed in {workspace}:\n{stat.stdout.rstrip()}")
        spent = budget_line(status.spent, status.budget)
        print(f"\n{'GREEN' if green else 'NOT GREEN'}: checks {status.checks}. Spent: {spent}")
        if sys.stdin.isatty():
            print(f"\nTry next, from another terminal:\n{_next_steps(episode_id)}\n\n{STAY_HINT}", flush=True)
            print(page_line(settings, private=sys.stdout.isatty()), flush=True)
            await waiting
        else:
            print(f"\nTry next, after `make up`:\n{_next_steps(episode_id)}", flush=True)
            print(f"\n{page_line(settings, private=False)}", flush=True)
        waiting.cancel()
        return 0 if green else 1


async def _watch(client: TightloopClient, episode_id: str) -> None:
    """Print what happens until the episode ends or waits for a person."""
    cursor = ""
    async for status in client.watch(episode_id):
        for event in await client.timeline(episode_id, after=cursor):
            print(f"  {event.at:%H:%M:%S}  {event.kind:<10} {event.text}", flush=True)
            cursor = event.cursor
        if status.questions:
            question = status.questions[0]
            print(f"  It waits for a person: {question.title}\n  Options: {', '.join(question.names)}", flush=True)
            return


def _next_steps(episode_id: str) -> str:
    command = Path(sys.executable).with_name("tightloop")
    command = command.relative_to(Path.cwd()) if command.is_relative_to(Path.cwd()) else command
    steps = ("proof {0}", "checkpoints {0}", "diff {0} ckpt-0 ckpt-2", "fork {0} ckpt-2", "restore {0} ckpt-2")
    return "\n".join(f"  {command} {step.format(episode_id)}" for step in (*steps, "replay {0}"))
