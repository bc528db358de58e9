"""Whether the workers that are there can carry an episode: every role that it needs, on its task queue."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from tightloop.client.calls import Calls
from tightloop.client.installation.sealing import find_stranger
from tightloop.client.installation.staffing import Backlog, backlog_of, queues_with, workers_on
from tightloop.client.workers import Idle, Poller, explain_idle, is_live
from tightloop.host.identity import read_identity
from tightloop.settings import Settings


@dataclass(frozen=True)
class Topology:
    """The workers of an installation."""

    main_queue: str
    main: tuple[Poller, ...]
    """On the task queue of the episodes."""
    homes: tuple[str, ...]
    """Task queues of the hosts with a worker for workspaces."""
    here: tuple[str, ...]
    """Task queues of this host, its own first; none where no worker has ever run."""
    named: Mapping[str, tuple[Poller, ...]]
    """Workers on the task queues that the settings name, and on those of screens, by queue."""
    backlogs: Mapping[str, Backlog]
    """Steps that wait for a free slot, by queue; only where some do."""
    idle: Mapping[str, Idle]
    """Why no worker of a queue gets new work, by queue; only where workers are there."""
    stranger: str = ""
    """Which worker of the main queue encrypts with a key that is not here, as the start of a sentence."""

    @property
    def workflows(self) -> tuple[Poller, ...]:
        """The workers that run workflows."""
        return tuple(poller for poller in self.main if poller.runs_workflows)

    @property
    def missing(self) -> tuple[str, ...]:
        """What an episode would wait for, each as a sentence that says what to start."""
        said = []
        if not self.workflows:
            said.append(
                f"nobody runs workflows on task queue {self.main_queue!r}. Start a worker of role workflows or all"
            )
        if not self.homes:
            said.append("no worker opens workspaces. Start one of role workspace or all on the host that has them")
        said += [
            f"nobody works on task queue {queue!r}, which the settings name under queues. Start a worker for it, or "
            "leave it out"
            for queue, pollers in self.named.items()
            if not pollers
        ]
        return (*said, *map(str, self.idle.values()))


async def topology_of(calls: Calls, settings: Settings) -> Topology:
    """Return who works where."""
    main, identity = settings.temporal.task_queue, await asyncio.to_thread(read_identity, settings)
    here = identity.queues(settings) if identity else ()
    found = await queues_with(calls, f"{main}-workspace-")
    # A server that keeps no list of workers knows those of a task queue.
    found += tuple([home for home in here if home not in found and await workers_on(calls, home)])
    named_queues = (settings.queues.workspace, settings.queues.llm, settings.queues.executor)
    wanted = {queue for queue in named_queues if queue and queue != main}
    wanted |= set(await queues_with(calls, f"{main}-gui-"))
    by_queue = dict(await asyncio.gather(*(_live_on(calls, queue) for queue in (main, *found, *sorted(wanted)))))
    there, named = by_queue[main], {queue: by_queue[queue] for queue in sorted(wanted)}
    queues = dict.fromkeys((main, *found, *named))
    backlogs = {queue: backlog for queue in queues if (backlog := await backlog_of(calls, queue)).count}
    idle = {queue: why for queue, workers in by_queue.items() if (why := explain_idle(queue, workers))}
    return Topology(main, there, found, here, named, backlogs, idle, find_stranger(calls, there))


async def _live_on(calls: Calls, queue: str) -> tuple[str, tuple[Poller, ...]]:
    return queue, tuple(filter(is_live, await workers_on(calls, queue)))
