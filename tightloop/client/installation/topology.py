"""Whether the workers that are there can carry an episode: every role that it needs, on its task queue."""

from collections.abc import Mapping
from dataclasses import dataclass

from tightloop.client.calls import Calls
from tightloop.client.installation.sealing import find_stranger
from tightloop.client.installation.staffing import Backlog, Poller, backlog_of, queues_with, workers_on
from tightloop.host import home_queue
from tightloop.settings import Settings


@dataclass(frozen=True)
class Topology:
    """The workers of an installation."""

    main_queue: str
    main: tuple[Poller, ...]
    """On the task queue of the episodes."""
    homes: tuple[str, ...]
    """Task queues of the hosts with a worker for workspaces."""
    home: str
    """Task queue of this host and state home."""
    named: Mapping[str, tuple[Poller, ...]]
    """Workers on the task queues that the settings name, and on those of screens, by queue."""
    backlogs: Mapping[str, Backlog]
    """Steps that wait for a free slot, by queue; only where some do."""
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
        return tuple(said)


async def topology_of(calls: Calls, settings: Settings) -> Topology:
    """Return who works where."""
    main, home = settings.temporal.task_queue, home_queue(settings)
    found = await queues_with(calls, f"{main}-workspace-")
    # A server that keeps no list of workers knows those of a task queue.
    if home not in found and await workers_on(calls, home):
        found = (*found, home)
    named_queues = (settings.queues.workspace, settings.queues.llm, settings.queues.executor)
    wanted = {queue for queue in named_queues if queue and queue != main}
    wanted |= set(await queues_with(calls, f"{main}-gui-"))
    named = {queue: await workers_on(calls, queue) for queue in sorted(wanted)}
    there = await workers_on(calls, main)
    queues = dict.fromkeys((main, *found, *named))
    backlogs = {queue: backlog for queue in queues if (backlog := await backlog_of(calls, queue)).count}
    return Topology(main, there, found, home, named, backlogs, find_stranger(calls, there))
