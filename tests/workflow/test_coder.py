"""The built-in coder within an episode: the real client of the SDK, a fake model on the other side of the wire."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from activities.model.gateway.port import Wire
from tests.support.episodes import Git, Working, asked
from tests.support.fake_model.script import Step, use
from tests.support.fake_model.turns import FakeCoderModel
from tightloop.client import TightloopClient
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest
from tightloop.question import Answer
from tightloop.settings import Settings

BUGGY = "def total(prices):\n    return sum(prices[1:])\n"
TEST = "from shop import total\n\nassert total([1, 2, 3]) == 6\n"
CHECK = "python3 check_shop.py"


@pytest.fixture
def shop(workspace: Path, git: Git) -> Path:
    (workspace / "shop.py").write_text(BUGGY)
    (workspace / "check_shop.py").write_text(TEST)
    git(workspace, "add", "-A")
    git(workspace, "commit", "-qm", "a shop")
    return workspace


@pytest.fixture
def coding(settings: Settings) -> Callable[..., Any]:
    """Settings with the coder alone, at a fake model."""

    def build(fake: FakeCoderModel, **changes: Any) -> Settings:
        coder = settings.coder.evolve(
            base_url=fake.base_url(Wire.CHAT), models=("fake",), planning=False, testing=False, **changes
        )
        return settings.evolve(coder=coder)

    return build


READ = use(("read_file", {"path": "shop.py", "start": None, "end": None}))
FIX = use(("edit_file", {"path": "shop.py", "old": "sum(prices[1:])", "new": "sum(prices)"}))
TESTS = use(("run_tests", {"tests": None}))
FINISH = use(("finish", {"summary": "the first price was left out"}))


async def test_coder_fixes_a_program(
    working: Working, client: TightloopClient, request_for: Callable[..., EpisodeRequest], shop: Path, coding: Any
) -> None:
    with FakeCoderModel(READ, FIX, TESTS, FINISH) as fake:
        async with working(under=coding(fake)):
            started = await client.start(request_for(executor="coder", definition_of_done=[CHECK]))
            result = await client.result(started)
    assert result.outcome is EpisodeOutcome.SUCCEEDED, result.reason
    assert (shop / "shop.py").read_text() == BUGGY.replace("[1:]", "")
    assert fake.paid == (1, 1, 1, 1)
