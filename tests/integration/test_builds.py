"""Builds of the workers on one Temporal: what a promotion asks first, and what it says."""

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from xml.etree import ElementTree

import pytest
from temporalio.client import Client

from tests.support.doubles import ScriptedPlanner
from tests.support.episodes import eventually
from tightloop.client import TightloopClient
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest
from tightloop.errors import InvalidRequestError, ServiceUnavailableError, SettingsError
from tightloop.host.identity import home_queue
from tightloop.settings import Settings
from worker import deployment
from worker.build import build_adapters, build_workers
from worker.connect import connect
from worker.deployment import Run, find_runs, format_outcomes, query_of, replay_runs, write_junit
from worker.health import Health
from worker.hosting.startup import build_id_of, deployment_config
from worker.replay import fetch_history, format_replay, read_history, replay
from worker.server import temporal_binary
from workflows.retention import RetentionWorkflow

ROOT = Path(__file__).parents[2]
BREAKING = """

_checks = Iteration._run_checks


async def _after_a_timer(self, *arguments, **named):
    await workflow.sleep(1)
    return await _checks(self, *arguments, **named)


Iteration._run_checks = _after_a_timer
"""
Build = Callable[..., AbstractAsyncContextManager[Settings]]


def of_build(settings: Settings, build_id: str) -> Settings:
    """Return the settings of a build; of workers without a version, where it is empty."""
    name = settings.temporal.task_queue if build_id else ""
    return settings.evolve(worker=settings.worker.evolve(deployment=name, build_id=build_id, heartbeat_interval_s=1.0))


@pytest.fixture
def build(settings: Settings) -> Build:
    """Run the workers of a build as long as a block."""

    @asynccontextmanager
    async def run(build_id: str, health: Health | None = None) -> AsyncIterator[Settings]:
        under = of_build(settings, build_id)
        client = await connect(under)
        adapters = replace(build_adapters(client, under), planners=lambda _kind: ScriptedPlanner())
        async with AsyncExitStack() as stack:
            workers = build_workers(client, under, adapters=adapters)
            for worker in workers:
                await stack.enter_async_context(worker)
            await eventually(lambda: _lives(client, under))
            if health:
                health.begin(client, workers)
            yield under

    return run


async def _lives(client: Client, settings: Settings) -> bool:
    if not settings.worker.deployment:
        return bool((await TightloopClient(client, settings).topology()).workflows)
    try:
        told = await deployment.status(client, settings)
    except InvalidRequestError:
        return False  # Temporal does not know the deployment yet
    rows = [line.split() for line in told.splitlines()]
    return any(row[0] == settings.worker.build_id and row[-1] != "0" for row in rows)


async def test_promotion_waits_for_workers_and_says_what_remains(
    build: Build, temporal_client: Client, client: TightloopClient, request_for: Callable[..., EpisodeRequest]
) -> None:
    async with build("A") as a:
        told = await deployment.promote(temporal_client, a, 1)
        assert "found no history to replay" in told
        assert "other builds have no open workflows" in told
        ended = await client.start(request_for())
        assert (await client.result(ended)).outcome is EpisodeOutcome.SUCCEEDED
        await client.pause(open_one := await client.start(request_for()))
        version = f"{a.worker.deployment}:A"
        query = f"TemporalWorkerDeploymentVersion = '{version}' AND ExecutionStatus = 'Running'"
        await eventually(lambda: _counts(temporal_client, query, 1))
        b = of_build(a, "B")
        with pytest.raises(InvalidRequestError, match=r"no worker of \S+:B is running on task queues 'test-"):
            await deployment.promote(temporal_client, b, 1)
        with pytest.raises(InvalidRequestError, match=r"no worker of \S+:B is running on"):
            await deployment.ramp(temporal_client, b, 10, 1)
    # Temporal remembers the workers of A for minutes, and would accept it.
    with pytest.raises(InvalidRequestError, match=r"no worker of \S+:A is running on"):
        await deployment.promote(temporal_client, a, 1)
    async with build("B") as b:
        assert "10 % of new workflows start on" in await deployment.ramp(temporal_client, b, 10, 1)
        told = await deployment.status(temporal_client, b)
        assert "1 workflow still open on A, which has no live workers. The workflows wait until a worker starts" in told
        rows = [line.split() for line in told.splitlines()]
        [command] = re.findall(r"move compatible workflows to this build: (.*build-id B.*)", told)
        assert rows[1:3] == [["A", "current", "1", "0"], ["B", "ramping", "at", "10", "%", "0", "1"]]
        told = await deployment.promote(temporal_client, b, 1)
        assert "the current code is compatible" in told
        assert "1 workflow still open on A, which has no live workers. The workflows wait until a worker starts" in told
        # What the older workers left goes on with the command that both print.
        assert f"  {command}" in told.splitlines()
        _, *words = shlex.split(command)
        subprocess.run([temporal_binary(), *words, "--address", b.temporal.address], check=True, capture_output=True)
        assert "no build is ramping" in await deployment.ramp(temporal_client, b, 0, 1)
        await client.cancel(open_one)
        assert (await client.result(open_one)).outcome is EpisodeOutcome.CANCELLED


async def _counts(client: Client, query: str, count: int) -> bool:
    return (await client.count_workflows(query)).count == count


async def test_build_that_breaks_determinism_is_stopped(
    build: Build, temporal_client: Client, client: TightloopClient, request_for: Callable[..., EpisodeRequest],
    tmp_path: Path,
) -> None:  # fmt: skip
    broken = tmp_path / "broken"
    for package in ("workflows", "activities", "tightloop", "worker"):
        shutil.copytree(ROOT / package, broken / package, ignore=shutil.ignore_patterns("__pycache__"))
    with (broken / "workflows" / "episode" / "iteration.py").open("a") as code:
        code.write(BREAKING)
    async with build("A") as settings:
        await deployment.promote(temporal_client, settings, 1)
        episode = await client.start(request_for())
        assert (await client.result(episode)).outcome is EpisodeOutcome.SUCCEEDED
        query = query_of(settings, days=1)
        [run] = await eventually(lambda: find_runs(temporal_client, query))

        # This code fits, in a process beside.
        outcomes = await asyncio.to_thread(replay_runs, settings, [run])
        assert "replayed 1 history of" in format_outcomes(outcomes)
        assert not outcomes[0].failure
        write_junit(outcomes, tmp_path / "good.xml")
        assert ElementTree.parse(tmp_path / "good.xml").getroot().get("failures") == "0"

        file = tmp_path / "settings.yaml"
        file.write_text(settings.as_yaml())
        report = tmp_path / "report.xml"
        code, told = await run_in(broken, file, "replay", "--query", f"WorkflowId = '{episode}'", "--junit", report)
        assert code == 1, told
        suite = ElementTree.parse(report).getroot()
        assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
        case = suite[0]
        assert (case.get("classname"), case.get("name")) == ("EpisodeWorkflow", f"{episode} (run {run.run_id})")
        assert "code wants" in (case[0].text or "")

        code, told = await run_in(broken, file, "deploy", "promote", "--days", "1")
        assert code == 1
        assert f"cannot route new workflows to {settings.worker.deployment}:A" in told
        assert f"EpisodeWorkflow {episode}" in told
        assert "on the build that recorded" in told


async def test_replay_and_promotion_take_retention_runs_and_skip_foreign_types_by_name(
    build: Build, temporal_client: Client, tmp_path: Path
) -> None:
    async with build("A") as settings:
        await deployment.promote(temporal_client, settings, 1)
        collected = f"{settings.temporal.task_queue}-gc"
        await temporal_client.execute_workflow(RetentionWorkflow.run, id=collected, task_queue=home_queue(settings))
        foreign = await temporal_client.start_workflow(
            "BillingWorkflow", id=f"{collected}-billing", task_queue=settings.temporal.task_queue
        )
        await foreign.terminate()

        async def both() -> list[Run]:
            runs = await find_runs(temporal_client, query_of(settings, days=1))
            return runs if len(runs) == 2 else []

        outcomes = await asyncio.to_thread(replay_runs, settings, await eventually(both))
        skipped = "skipped 1 history: no worker of this installation runs workflows of type BillingWorkflow"
        [first, second] = format_outcomes(outcomes).splitlines()
        assert first == skipped
        assert re.fullmatch(r"replayed 1 history of \d+ events: the current code is compatible", second)
        write_junit(outcomes, tmp_path / "report.xml")
        suite = ElementTree.parse(tmp_path / "report.xml").getroot()
        assert [suite.get(name) for name in ("tests", "failures", "skipped")] == ["2", "0", "1"]

        history = await fetch_history(temporal_client, collected)
        assert "the current code is compatible with the history" in format_replay(
            await replay(history, namespace=settings.temporal.namespace)
        )
        (tmp_path / "collected.json").write_text(history.to_json())
        read_again = read_history(tmp_path / "collected.json")
        assert (await replay(read_again, namespace=settings.temporal.namespace)).failure == ""
        with pytest.raises(InvalidRequestError, match=r"cannot replay .*: no worker of .* type BillingWorkflow"):
            await fetch_history(temporal_client, foreign.id)

        told = await deployment.promote(temporal_client, settings, 1)
        assert told.startswith(f"{skipped}\nreplayed 1 history of ")


async def test_workers_that_get_nothing_are_not_ready_and_a_command_leads_back_to_those_without_a_version(
    build: Build, temporal_client: Client, client: TightloopClient, request_for: Callable[..., EpisodeRequest],
    cli: Callable[..., Awaitable[tuple[int, str]]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    async with build("A") as a:
        await deployment.promote(temporal_client, a, 1)
    queue, version = a.temporal.task_queue, f"{a.worker.deployment}:A"
    monkeypatch.setenv("TIGHTLOOP_TEMPORAL__TASK_QUEUE", queue)
    health = Health()
    async with build("", health) as plain:
        elsewhere = f"Temporal sends new work on task queue '{queue}' to workers of {version}"
        back = "send new work to workers without a version: tightloop deploy promote --unversioned"
        nothing = f"{elsewhere}, not to workers without a version. Either start workers of {version}, or {back}"
        assert await health.problem_of_work() == nothing
        caplog.set_level("INFO", "tightloop")
        logging = asyncio.create_task(health.log_changes("'all'", every=0.2))
        code, told = await cli("doctor", "--json")
        rows = {row["name"]: row for row in json.loads(told)}
        assert (code, rows[f"new work on {queue}"]["ok"]) == (1, False)
        assert back in rows[f"new work on {queue}"]["fix"]
        assert "(gets no new work)" in rows[f"workers on {queue}"]["found"]
        told = await deployment.status(temporal_client, plain)
        assert [line.split()[:2] for line in told.splitlines()[1:3]] == [["A", "current"], ["unversioned", "not"]]
        assert (
            "New workflows do not start on these workers. To start new workflows on them: tightloop deploy promote "
            "--unversioned" in told
        )
        with pytest.raises(SettingsError, match=r"worker\.deployment is not set"):
            await deployment.promote(temporal_client, plain, 1)

        episode = await client.start(request_for())
        impatient = TightloopClient(temporal_client, plain, query_timeout=timedelta(seconds=1))
        with pytest.raises(ServiceUnavailableError) as silent:
            await impatient.status(episode)
        assert silent.value.message == f"no worker is responding on task queue '{queue}' for {episode}. {nothing}"

        # Once it is over, the retention of this host and state home goes on as well.
        told = await deployment.promote(temporal_client, plain, 1, unversioned=True)
        assert "new workflows start on workers without a version again" in told
        assert (await client.result(episode)).outcome is EpisodeOutcome.SUCCEEDED
        await eventually(lambda: _is_ready(health))
        await eventually(lambda: _has_logged(caplog, "worker 'all' is ready"))
        logging.cancel()
        assert f"worker 'all' is not ready: {nothing}" in caplog.messages
        assert (await client.topology()).missing == ()

        # The other way round: versions that Temporal sends nothing.
        late = Health()
        async with build("A", late):
            told = await late.problem_of_work()
            assert f"to workers without a version, not to workers of {version}" in told


async def _is_ready(health: Health) -> bool:
    return not await health.problem_of_work()


async def _has_logged(caplog: pytest.LogCaptureFixture, message: str) -> bool:
    return message in caplog.messages


async def test_a_worker_of_an_older_build_is_ready_while_something_is_open_on_it(
    build: Build, temporal_client: Client, client: TightloopClient, request_for: Callable[..., EpisodeRequest]
) -> None:
    old, new = Health(), Health()
    async with build("A", old) as a:
        await deployment.promote(temporal_client, a, 1)
        assert await old.problem_of_work() == ""
        await client.pause(open_one := await client.start(request_for()))
        query = f"TemporalWorkerDeploymentVersion = '{a.worker.deployment}:A' AND ExecutionStatus = 'Running'"
        await eventually(lambda: _counts(temporal_client, query, 1))
        async with build("B", new) as b:
            assert "tightloop deploy promote" in await new.problem_of_work()
            await deployment.promote(temporal_client, b, 1)
            await eventually(lambda: _is_ready(new))
            assert await old.problem_of_work() == ""
            await client.cancel(open_one)
            await client.result(open_one)
            version = f"{b.worker.deployment}:B"

            async def has_nothing_left() -> bool:
                return f"to workers of {version}, not to workers of" in await old.problem_of_work()

            await eventually(has_nothing_left)


async def run_in(folder: Path, settings_file: Path, *arguments: object) -> tuple[int, str]:
    """Run the worker's command with the code of a folder."""
    command = [sys.executable, "-m", "worker", "--settings", str(settings_file), *map(str, arguments)]
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=folder, env=dict(os.environ), capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout + done.stderr


async def test_replay_says_which_query_temporal_does_not_understand(temporal_client: Client) -> None:
    with pytest.raises(InvalidRequestError, match="rejected the query 'Nothing ~ 3'"):
        await find_runs(temporal_client, "Nothing ~ 3")


async def test_workers_have_no_version_without_a_deployment(temporal_client: Client, settings: Settings) -> None:
    assert deployment_config(settings.worker) is None
    with pytest.raises(SettingsError, match=r"worker\.deployment is not set"):
        await deployment.status(temporal_client, settings)


def test_build_id_follows_the_installed_code(settings: Settings) -> None:
    made = build_id_of(settings.worker.evolve(deployment="tl"))
    assert made == build_id_of(settings.worker.evolve(deployment="tl"))
    assert re.fullmatch(r"[\w.]+-[0-9a-f]{12}", made)
    assert build_id_of(settings.worker.evolve(build_id="green-7")) == "green-7"
