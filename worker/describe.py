"""`python -m worker describe`: what the executors and the sandboxes of this host can do, as JSON."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from activities.executor.choose import ExecutorRegistry
from activities.executor.port import Availability
from activities.sandbox.choose import examine_sandboxes
from tightloop.errors import TightloopError
from tightloop.settings import Settings
from worker.build import surroundings
from worker.composition import host_executors, need_bucket

AT_ONCE = 4


def describe(settings: Settings) -> dict[str, list[dict[str, Any]]]:
    """Look for every executor, and try every sandbox and the remote store; within about half a minute."""
    registry = host_executors(settings, surroundings(settings))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        seen = list(pool.map(lambda name: _availability(registry, name), registry.names))
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
            {"name": name, **one.model_dump(mode="json")} for name, one in zip(registry.names, seen, strict=True)
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
