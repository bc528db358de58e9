"""Records the histories of scenarios: `python -m tests.replay.record <name> ...`, or `all`.

Before the first release a history may be recorded again. What identifies the machine that recorded it is replaced.
"""

import argparse
import asyncio
import base64
import getpass
import json
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowHistory
from temporalio.testing import WorkflowEnvironment

from tests.replay.scenarios import SCENARIOS, Scenario, Stage, sample_workspace
from worker.connect import DATA_CONVERTER
from worker.server import temporal_binary, tuning_arguments

HISTORIES = Path(__file__).parent / "histories"
PROJECT = Path(__file__).parents[2]
IDENTITY = "worker@sample"
STICKY = "TASK_QUEUE_KIND_STICKY"


def neutral(value: Any, key: str = "") -> Any:
    """Return a history without who and where: identities, sticky queues, worker keys, paths in stack traces."""
    if isinstance(value, dict):
        named = {name: neutral(item, name) for name, item in value.items()}
        if value.get("kind") == STICKY:
            named["name"] = f"{IDENTITY}-sticky"
        return named
    if isinstance(value, list):
        return [neutral(item) for item in value]
    if key in ("identity", "workerInstanceKey", "workerControlTaskQueue"):
        return IDENTITY
    if key == "stackTrace":
        return re.sub(r'File "[^"]*/(?=(?:tightloop|activities|workflows|worker|temporalio|asyncio)/)', 'File "', value)
    return value


def texts(value: Any) -> Iterator[str]:
    """Yield every text of a history, payloads decoded."""
    if isinstance(value, dict):
        if isinstance(value.get("data"), str):
            yield base64.b64decode(value["data"]).decode("utf-8", "replace")
        for item in value.values():
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)
    elif isinstance(value, str):
        yield value


def leaks(document: Any) -> list[str]:
    """Return the texts that tell of this machine: its name, its user, its folders."""
    names = "|".join(re.escape(name) for name in (socket.gethostname(), getpass.getuser()))
    places = "|".join(
        re.escape(str(place)) for place in (PROJECT, Path.home(), Path(sys.prefix), Path(sys.base_prefix))
    )
    tell_tale = re.compile(rf"(?<![\w-])(?:{names})(?![\w-])|(?:{places})(?![\w-])|/home/|/Users/|pytest-of|\d+@\w")
    return [text[:300] for text in texts(document) if tell_tale.search(text)]


async def runs_of(client: Client, episode_id: str) -> list[WorkflowHistory]:
    """Return the histories of an episode, one for each run, oldest first."""
    history = await client.get_workflow_handle(episode_id).fetch_history()
    found = [history]
    while before := history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id:
        history = await client.get_workflow_handle(episode_id, run_id=before).fetch_history()
        found.insert(0, history)
    return found


async def record(name: str, scenario: Scenario) -> None:
    """Play a scenario and write its histories."""
    environment = await WorkflowEnvironment.start_local(
        data_converter=DATA_CONVERTER,
        identity=IDENTITY,
        dev_server_existing_path=str(temporal_binary()),
        dev_server_extra_args=tuning_arguments(),
    )
    async with environment:
        with sample_workspace(name) as workspace:
            stage = Stage(environment.client, workspace, f"sample-{name.replace('_', '-')}")
            episode_id = await scenario.play(stage)
        histories = await runs_of(environment.client, episode_id)
    if len(histories) != len(scenario.histories):
        sys.exit(f"{name} has {len(histories)} runs, expected {len(scenario.histories)}: nothing was written")
    documents = [neutral(history.to_json_dict()) for history in histories]
    if found := [leak for document in documents for leak in leaks(document)]:
        sys.exit(f"{name} tells of this machine, nothing was written: {found}")
    for file, document in zip(scenario.histories, documents, strict=True):
        with path_of(file).open("w") as out:
            json.dump(document, out, indent=1)
            out.write("\n")
        print(f"{path_of(file).relative_to(PROJECT)}: {len(document['events'])} events")


def path_of(file: str) -> Path:
    """Return where a history is kept."""
    return HISTORIES / f"{file}.json"


def main() -> None:
    """Record the scenarios that are named."""
    parser = argparse.ArgumentParser(prog="python -m tests.replay.record", description=__doc__)
    parser.add_argument("names", nargs="+", choices=[*SCENARIOS, "all"], metavar="name", help=", ".join(SCENARIOS))
    asked = parser.parse_args().names
    names = list(SCENARIOS) if "all" in asked else asked
    for variable in [name for name in os.environ if name.startswith(("TIGHTLOOP_", "OPENAI_"))]:
        del os.environ[variable]
    # Questions name files in it, and its usual place tells who recorded.
    state = Path(tempfile.gettempdir()) / "tightloop-sample-state"
    os.environ["TIGHTLOOP_HOME"] = str(state)
    shutil.rmtree(state, ignore_errors=True)  # an earlier recording has checkpoints of the same episodes there
    HISTORIES.mkdir(exist_ok=True)
    for name in names:
        asyncio.run(record(name, SCENARIOS[name]))


if __name__ == "__main__":
    main()
