"""What a worker needs at its start: search attributes, and the workers without which its role can do nothing."""

import asyncio
import logging

from temporalio.client import Client

from tightloop.client.calls import Calls
from tightloop.client.execution import SEALS, registration_command, setup_command
from tightloop.client.installation.sealing import find_stranger
from tightloop.client.installation.setup import NotAllowedError, wrong_search_attributes
from tightloop.client.installation.staffing import workers_on
from tightloop.client.installation.topology import topology_of
from tightloop.errors import ServiceUnavailableError, SettingsError
from tightloop.host import state_home
from tightloop.host.identity import home_queue
from tightloop.settings import Settings

logger = logging.getLogger("tightloop")

LOOK_SECONDS = 1.0


async def verify_search_attributes(client: Client) -> None:
    """Look whether the namespace knows our search attributes; where that is not permitted, warn and go on.

    Raises:
        SettingsError: it does not; without them no workflow could start.
    """
    calls = Calls(client)
    where = (calls.address, client.namespace)
    try:
        wrong = await wrong_search_attributes(calls)
    except NotAllowedError as error:
        logger.warning("whether the search attributes are there cannot be seen: %s", error.message)
        return
    if wrong:
        raise SettingsError(
            f"the namespace {client.namespace!r} lacks the search attributes {', '.join(wrong)}, or has them with "
            f"another type. Set it up once: {setup_command(*where)}; or by hand: {registration_command(*where, wrong)}"
        )


async def need_common_keys(client: Client, settings: Settings) -> None:
    """Refuse to work beside workers that cannot read what this one writes, or the other way round.

    They would take each other's tasks, and fail the episodes.

    Raises:
        SettingsError: another worker on the task queue encrypts with a key that is not here, or only one of them does.
    """
    calls, queue = Calls(client), settings.temporal.task_queue
    others = await workers_on(calls, queue)
    found = find_stranger(calls, others)
    unlike = [one.process for one in others if (SEALS in one.identity) is calls.is_plain]
    if unlike:
        found = f"worker {unlike[0]} {'encrypts' if calls.is_plain else 'does not encrypt'}"
    if found:
        raise SettingsError(
            f"{found}, and works on task queue {queue!r}, too: each would fail the episodes of the "
            "other. Copy its key file (keys.json) and use its settings (temporal.authenticate, privacy), give this one "
            "a queue of its own (temporal.task_queue) or a server of its own (temporal.address), or stop the other "
            "one; Temporal may list it for a minute after it was killed"
        )


async def need_workspaces(client: Client, settings: Settings, role: str) -> None:
    """Wait until a worker for workspaces shares this host and state home, as long as the settings allow.

    Planners and executors read and write what lies in the state home.

    Raises:
        ServiceUnavailableError: there is none.
    """
    home, limit = home_queue(settings), settings.worker.start_wait_s
    try:
        async with asyncio.timeout(limit):
            waits = False
            while not await workers_on(Calls(client), home):
                if not waits:
                    logger.info("role '%s' waits up to %g s for a worker on task queue %s", role, limit, home)
                waits = True
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        raise ServiceUnavailableError(
            f"role {role!r} can do nothing alone: it reads prompts, plans and work in the state home of the worker "
            f"that has the workspaces, and none with this one ({state_home()}) is on this host. Start a worker of role "
            "workspace or all here with the same TIGHTLOOP_HOME, or this one on the host that has it. A model on "
            "another host needs no worker there: planner.base_url"
        ) from None


async def warn_of_missing(client: Client, settings: Settings, *, without: str = "") -> None:
    """Say which workers an episode would wait for beside this one."""
    for sentence in (await topology_of(Calls(client), settings)).missing:
        if not without or without not in sentence:
            logger.warning("episodes will wait: %s", sentence)
