"""What a real episode leaves for the metrics: what people did, how long they took, what was found, what it cost."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from activities.model.gateway.wire import Wire
from tests.support.episodes import Working, eventually
from tests.support.fake_model.script import use
from tests.support.fake_model.turns import FakeCoderModel
from tightloop.client import TightloopClient
from tightloop.database.ledger import Ledger, local_ledger
from tightloop.episode.budget import Budget
from tightloop.episode.model import EpisodeOutcome
from tightloop.host import state_folder
from tightloop.ledger.metrics import Figures, MetricsFilter
from tightloop.settings import Settings


@pytest.fixture
def ledger(workspace: Path) -> Ledger:
    return local_ledger().limit_to([state_folder(workspace).name])


def figures(ledger: Ledger) -> Figures:
    now = datetime.now(UTC)
    return ledger.metrics(MetricsFilter(since=now - timedelta(hours=1), until=now + timedelta(hours=1))).figures


async def test_what_people_did_and_how_long_they_took_is_measured(
    client: TightloopClient, working: Working, request_for: Callable[..., Any], ledger: Ledger
) -> None:
    async def waits() -> bool:
        return len(ledger.inbox()) == 1

    async def goes_on() -> bool:
        return not ledger.inbox()

    async with working():
        key = await client.start(request_for(definition_of_done=["test -f never"], budget=Budget(max_iterations=1)))
        await eventually(waits)
        await client.top_up(key, iterations=1)
        await eventually(goes_on)
        await eventually(waits)
        await client.cancel(key)
        await client.result(key)
    found = figures(ledger)
    assert (found.success.n, found.success.count) == (1, 0)
    assert (found.interventions.n, found.interventions.total) == (1, 2)
    assert found.answer_s.n == 2
    assert found.answer_s.p90 is not None
    assert 0 <= found.answer_s.p90 < 60
    assert (found.safety_findings.n, found.safety_findings.total) == (1, 0)
    assert (found.cost_usd.n, found.cost_usd.total) == (1, 0.0), "no model was involved"
    assert found.worked_s.n == 1
    assert (found.bandit_findings.n, found.bandit_findings.unknown) == (0, 1)


async def test_a_question_that_nobody_answers_has_no_time(
    client: TightloopClient, working: Working, request_for: Callable[..., Any], ledger: Ledger
) -> None:
    wanted = request_for(
        definition_of_done=["test -f never"], budget=Budget(max_iterations=1), pause_timeout=timedelta(seconds=2)
    )
    async with working():
        key = await client.start(wanted)
        assert (await client.result(key)).outcome is EpisodeOutcome.FAILED
    found = figures(ledger)
    assert (found.answer_s.n, found.interventions.total) == (0, 0)


async def test_the_coder_tells_what_bandit_found(
    client: TightloopClient, working: Working, request_for: Callable[..., Any], ledger: Ledger, settings: Settings
) -> None:
    write = use(("create_file", {"path": "lines.py", "content": "import random\n", "overwrite": None}))
    with FakeCoderModel(write, use(("finish", {"summary": "written"}))) as fake:
        coder = settings.coder.evolve(base_url=fake.base_url(Wire.CHAT), models=("fake",), planning=False)
        async with working(under=settings.evolve(coder=coder)):
            wanted = request_for(
                executor="coder", definition_of_done=["test -f lines.py"], pause_timeout=timedelta(seconds=2)
            )
            await client.result(await client.start(wanted))
    found = figures(ledger)
    assert (found.bandit_findings.n, found.bandit_findings.total) == (1, 0)
