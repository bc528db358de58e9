"""A long conversation of the coder: what a turn costs the history, and what its prompt costs."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.model.gateway.wire import Wire
from tests.support.episodes import Git, Working
from tests.support.fake_model.script import Step, use
from tests.support.fake_model.turns import FakeCoderModel
from tightloop.client import TightloopClient
from tightloop.episode.model import EpisodeRequest
from tightloop.plan.child import child_id
from tightloop.settings import Settings

TURNS = 200
SHARED = 0.9


def reading(number: int) -> tuple[str, dict[str, Any]]:
    """A read of a range that no other turn reads, so that nothing looks like a circle."""
    return "read_file", {"path": f"part{number % 40}.txt", "start": 1 + number // 40, "end": None}


def steps(calls_a_turn: int, turns: int) -> Sequence[Step]:
    made = [
        use(*(reading(turn * calls_a_turn + n) for n in range(calls_a_turn)), text="I look. " * 40)
        for turn in range(turns)
    ]
    return [
        *made,
        use(("create_file", {"path": "done.txt", "content": "done\n", "overwrite": None})),
        use(("finish", {"summary": "ok"})),
    ]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("calls", "turns", "events", "bytes_a_turn"), [(1, TURNS, 8, 3_000), (3, 40, 10, 5_000)])
async def test_turn_costs_few_events_and_bytes(
    calls: int,
    turns: int,
    events: int,
    bytes_a_turn: int,
    working: Working,
    plans: TightloopClient,
    temporal_client: Client,
    settings: Settings,
    request_for: Callable[..., EpisodeRequest],
    workspace: Path,
    git: Git,
) -> None:
    sizes = random.Random(7)
    for number in range(40):
        lines = int(sizes.lognormvariate(2.5, 0.8)) + 8
        (workspace / f"part{number}.txt").write_text("".join(f"{number} {n} {'x' * 40}\n" for n in range(lines)))
    git(workspace, "add", "-A")
    git(workspace, "commit", "-qm", "parts")
    with FakeCoderModel(*steps(calls, turns)) as fake:
        coder = settings.coder.evolve(
            base_url=fake.base_url(Wire.CHAT),
            models=("fake",),
            planning=False,
            testing=False,
            max_turns=turns + 10,
            roles={"coder": {"max_turns": turns + 10}},
        )
        async with working(under=settings.evolve(coder=type(coder).model_validate(dict(coder)))):
            started = await plans.start(request_for(executor="coder", definition_of_done=["test -f done.txt"]))
            await plans.result(started)
            history = await temporal_client.get_workflow_handle(child_id(started, "coder", 1, "1")).fetch_history()
    size = sum(event.ByteSize() for event in history.events)
    print(f"{calls} calls: {len(history.events) / turns:.2f} events and {size / turns:.0f} bytes a turn")
    assert len(history.events) / turns <= events
    assert size / turns <= bytes_a_turn
    shared, sent = fake.shared, [sum(map(len, prompt)) for prompt in fake.prompts]
    compactions = sum(part < SHARED for part in shared)
    at_50, at_end = sent[min(50, turns)], sent[-1]
    print(
        f"prompts: {compactions} of {len(shared)} share less than {SHARED}; turn 50 {at_50}, last {at_end} characters"
    )
    assert compactions <= len(shared) / 20
    assert at_end <= 1.3 * max(sent[: min(50, turns)])
