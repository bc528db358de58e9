"""Run a server-side process: `python -m worker COMMAND`, e.g. `up`, `run`, `replay` or `hooks`."""

import argparse
import asyncio
import json
import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

from activities.executor.choose import ExecutorRegistry
from activities.executor.port import Availability
from activities.sandbox.choose import examine_sandboxes
from activities.workspace.result import TakeRequest, take_result
from activities.workspace.working_tree import Workspaces
from tightloop.client.encryption import data_converter
from tightloop.database.ledger import open_ledger
from tightloop.database.memory.store import memory_database
from tightloop.errors import TightloopError
from tightloop.host import load_settings, name_user, open_state_home, state_home
from tightloop.host.log import set_up
from tightloop.host.programs import find_startup_programs
from tightloop.settings import Settings
from tightloop.value import format_count
from tightloop.value.scrub import scrub
from worker import deployment
from worker.build import Role, build_executor_dependencies, model_service
from worker.composition import host_executors, need_bucket, print_recollections
from worker.connect import connect, turn_on
from worker.deployment import failed_outcomes, find_runs, format_outcomes, query_of, replay_runs, write_junit
from worker.ledger.stores import rebuild
from worker.replay import fetch_history, format_replay, read_history, replay
from worker.rerun import print_reproduction, print_rerun
from worker.retention import forget_failures, free, free_packages
from worker.retention import format_freed_items as freed_account
from worker.up import collect_less_often, run_demo, run_up, run_worker

AT_ONCE = 4


def describe(settings: Settings) -> dict[str, list[dict[str, Any]]]:
    """Probe all executors, all sandboxes and the remote store. This can take half a minute."""
    registry = host_executors(settings, build_executor_dependencies(settings))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        availabilities = list(pool.map(lambda name: _availability(registry, name), registry.names))
    buckets = []
    if settings.remote.bucket:
        try:
            need_bucket(settings)
            problem = ""
        except TightloopError as error:
            problem = error.message
        buckets.append({"name": settings.remote.bucket, "problem": problem})
    return {
        "executors": [
            {"name": name, **availability.model_dump(mode="json")}
            for name, availability in zip(registry.names, availabilities, strict=True)
        ],
        "sandboxes": [vars(probed) for probed in examine_sandboxes(settings.sandbox)],
        "buckets": buckets,
    }


def _availability(registry: ExecutorRegistry, name: str) -> Availability:
    try:
        return registry(name).availability()
    except TightloopError as error:
        return Availability(usable=False, reason=error.message)


def print_description(settings: Settings) -> None:
    print(json.dumps(describe(settings), indent=1))


def main() -> int:
    """Run one command and return its exit code.

    If there is a tightloop error, it is printed as one sentence and the exit code is 1.
    """
    set_up(logging.INFO, content=True)
    logging.getLogger("temporalio").setLevel(logging.WARNING)
    # Failures of activities are logged in one line by the interceptor.
    logging.getLogger("temporalio.activity").setLevel(logging.ERROR)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    arguments = _parser().parse_args()
    try:
        name_user()
        settings = load_settings(arguments.settings)
        if arguments.command == "up" and arguments.encrypt:
            settings = turn_on(settings, arguments.settings)
        if arguments.command == "hooks":
            print(_hooks(arguments.what))
            return 0
        # Again, because the settings are known now: with `privacy.encrypt` the log must not contain content.
        set_up(logging.INFO, content=not settings.privacy.encrypt)
        collect_less_often()
        return asyncio.run(_dispatch(arguments, settings))
    except TightloopError as error:
        print(f"error: {scrub(error.message)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


async def _dispatch(arguments: argparse.Namespace, settings: Settings) -> int:
    folder: Path = arguments.state_folder or state_home()
    if arguments.command in ("up", "run", "demo"):
        # `--state-folder` moves histories and logs only; keys and stores stay in the state home.
        for home in {folder, state_home()}:
            open_state_home(home)
        # Before any command of an agent runs, because one could plant a program of the same name.
        find_startup_programs()
    if arguments.command == "up":
        await run_up(settings, folder, Role(arguments.role), settings_file=arguments.settings)
    elif arguments.command == "run":
        await run_worker(settings, Role(arguments.role))
    elif arguments.command == "describe":
        await asyncio.to_thread(print_description, settings)
    elif arguments.command in ("rerun", "reproduce", "recall", "take"):
        return await asyncio.to_thread(_answer, arguments.command, settings)
    elif arguments.command == "gc":
        await _collect(arguments, settings)
    elif arguments.command == "ledger":
        await _ledger(arguments.what, settings)
    elif arguments.command == "demo":
        return await run_demo(settings, folder, settings_file=arguments.settings)
    else:
        return await (_replay if arguments.command == "replay" else _deploy)(arguments, settings)
    return 0


async def _deploy(arguments: argparse.Namespace, settings: Settings) -> int:
    client = await connect(settings)
    if arguments.what == "status":
        report = await deployment.status(client, settings)
    elif arguments.what == "promote":
        report = await deployment.promote(client, settings, arguments.days, unversioned=arguments.unversioned)
    else:
        report = await deployment.ramp(client, settings, arguments.percent, arguments.days)
    print(report)
    return 0


async def _collect(arguments: argparse.Namespace, settings: Settings) -> None:
    days = settings.server.retention_days if arguments.older_than is None else arguments.older_than
    older_than = timedelta(days=days)
    freed_projects = await free(await connect(settings), settings, older_than, dry_run=arguments.dry_run)
    print(*freed_account(freed_projects, older_than, dry_run=arguments.dry_run), sep="\n")
    if not arguments.dry_run and (forgotten := forget_failures(settings, [entry.project for entry in freed_projects])):
        print(f"forgot {format_count(forgotten, 'failure')} that did not recur")
    if packages_bytes := free_packages(settings, dry_run=arguments.dry_run):
        verb = "would be freed" if arguments.dry_run else "freed"
        print(f"{verb}: {packages_bytes / 1000000:.0f} MB of packages installed by setup commands")


def _answer(command: str, settings: Settings) -> int:
    """Read a JSON request from standard input and handle it."""
    if command == "rerun":
        return 0 if print_rerun(settings) else 1
    if command == "reproduce":
        print_reproduction(settings)
        return 0
    if command == "take":
        request = TakeRequest.model_validate_json(sys.stdin.buffer.read())
        print(json.dumps([{"result": take_result(Workspaces(settings=settings.workspace), request)}]))
        return 0
    print_recollections(settings, model_service(settings.planner, os.environ, settings.privacy.strictest))
    return 0


async def _replay(arguments: argparse.Namespace, settings: Settings) -> int:
    what = arguments.what
    if not what:
        runs = await find_runs(await connect(settings), query_of(settings, arguments.query or "", arguments.days))
        outcomes = await asyncio.to_thread(replay_runs, settings, runs)
        if arguments.junit:
            write_junit(outcomes, arguments.junit)
        print(format_outcomes(outcomes))
        return 1 if failed_outcomes(outcomes) else 0
    path = Path(what)
    # A folder without a history is no export; its name only happens to equal the episode id.
    if path.is_file() or (path / "history.json").is_file() or path.suffix == ".json":
        history = read_history(path)
    else:
        history = await fetch_history(await connect(settings), what)
    result = await replay(history, data_converter(settings), namespace=settings.temporal.namespace)
    print(format_replay(result))
    return 1 if result.failure else 0


async def _ledger(what: str, settings: Settings) -> None:
    if what == "rebuild":
        open_state_home(state_home())
        print(await rebuild(await connect(settings), settings))
        return
    databases = {"ledger": open_ledger(settings).database}
    if settings.memory.enabled:
        databases["memory"] = memory_database(settings)
    for name, database in databases.items():
        before = await asyncio.to_thread(database.upgrade)
        was = f", was at {before}" if before not in ("", database.head) else ""
        print(f"{name} in {database}: at migration {database.head}{was}")


def _hooks(what: str) -> str:
    from activities.executor.gui.cursor import hooks_file, hooks_problem, install, render_hooks

    if what == "show":
        return f"{hooks_file()} would contain:\n{render_hooks()}{hooks_problem() or 'The hooks are installed.'}"
    open_state_home(state_home())
    backup = install(remove=what == "remove")
    backup_note = f". The previous content was saved to {backup}" if backup else ""
    return f"{hooks_file()}: {'installed' if what == 'install' else 'removed'}{backup_note}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m worker", description=__doc__)
    parser.add_argument("--settings", type=Path, help="settings file")
    parser.add_argument("--state-folder", type=Path, help="folder for histories and logs")
    commands = parser.add_subparsers(dest="command", required=True)
    roles = [role.value for role in Role]
    up = commands.add_parser("up", help="start an embedded Temporal server and workers")
    up.add_argument("--role", choices=roles, default=Role.ALL.value)
    up.add_argument("--encrypt", action="store_true", help="turn on privacy.encrypt, which keeps content out of logs")
    run = commands.add_parser("run", help="start workers for an existing server")
    run.add_argument("--role", choices=roles, default=Role.ALL.value)
    collect = commands.add_parser("gc", help="free the space that closed episodes use on this host")
    collect.add_argument(
        "--older-than", type=float, help="minimum days since a workflow ended (default: server.retention_days)"
    )
    collect.add_argument("--dry-run", action="store_true", help="only list what would be freed")
    ledger = commands.add_parser("ledger", help="rebuild the ledger, or upgrade its database")
    ledger.add_argument("what", choices=("rebuild", "upgrade"))
    hooks = commands.add_parser("hooks", help="show, install or remove the Cursor hooks that report deliveries")
    hooks.add_argument("what", choices=("show", "install", "remove"))
    commands.add_parser("rerun", help="run commands in a checkout (reads JSON from standard input)")
    commands.add_parser("reproduce", help="repeat a proof (reads JSON from standard input)")
    commands.add_parser("take", help="receive the result of a run (reads JSON from standard input)")
    commands.add_parser("recall", help="search the memory of a project (reads JSON from standard input)")
    commands.add_parser("demo", help="start everything and run one real episode on a sample repository")
    commands.add_parser("describe", help="print what the executors and sandboxes on this host can do, as JSON")
    again = commands.add_parser("replay", help="replay a history file or an episode against the current code")
    again.add_argument("what", nargs="?", default="", help="a history file or the id of an episode")
    again.add_argument(
        "--query",
        help="replay the workflows that match this Temporal query (default: all workflows of this installation)",
    )
    again.add_argument("--days", type=int, help="only workflows that are open or that ended in the last DAYS days")
    again.add_argument("--junit", type=Path, help="write a JUnit report to this file")
    deploy = commands.add_parser("deploy", help="list worker builds, or choose which build gets new workflows")
    deploy.add_argument("what", choices=("status", "promote", "ramp"))
    deploy.add_argument("--unversioned", action="store_true", help="promote workers without a version")
    deploy.add_argument("--percent", type=float, default=0.0, help="percentage of new workflows (0 ends a ramp)")
    deploy.add_argument(
        "--days", type=int, default=7, help="replay workflows that are open or ended in the last DAYS days"
    )
    return parser


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # The SDK's native threads can abort the interpreter during finalization: exit code -6 after all work was done.
    os._exit(code)
