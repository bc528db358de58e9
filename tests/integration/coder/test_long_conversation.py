"""Conversations of 200 turns: bounded prompts, and prefixes that providers find in their caches."""

import random
from pathlib import Path

import pytest

from activities.model.gateway.wire import Wire
from tests.support.coder_turns import Conversing, conversing
from tests.support.fake_model import FakeCoderModel, use
from tests.support.fake_model.script import Step
from tightloop.coder.model import Turn

TURNS = 200
SEED = 20261126
THOUGHT_BYTES = 600
"""150 tokens."""
WORDS = ("total", "tax", "price", "return", "assert", "def", "import", "value", "line", "error", "expected", "got")


def text(bytes_: int, source: random.Random) -> str:
    words: list[str] = []
    while sum(map(len, words)) + len(words) < bytes_:
        words.append(source.choice(WORDS))
    return " ".join(words)[:bytes_]


def step(number: int, source: random.Random) -> Step:
    call = ("read_file", {"path": f"src/module_{number}.py", "start": number})
    return use(*[call] * source.choice((1, 1, 1, 3)), text=text(THOUGHT_BYTES, source))


async def converse(session: Conversing, count: int, source: random.Random) -> list[Turn]:
    turns = [await session.turn()]
    while len(turns) < count:
        # Median 1 600 bytes, 95th percentile 8 300; the toolbox bounds results at 10 000.
        results = [text(min(int(source.lognormvariate(7.4, 1.0)), 10_000), source) for _ in turns[-1].calls]
        turns.append(await session.turn(*results))
    return turns


async def test_prompts_of_200_turns_stay_small_and_begin_as_the_ones_before(workspace: Path) -> None:
    source = random.Random(SEED)
    with FakeCoderModel(*[step(number, source) for number in range(TURNS)]) as model:
        turns = await converse(conversing(workspace, model), TURNS, source)
    assert len(model.prompts) == TURNS
    assert max(turn.prompt_tokens for turn in turns) <= 40_000
    # The size is a saw: what it comes to at its peaks is what grows or does not.
    assert max(turn.prompt_tokens for turn in turns[150:]) <= 1.3 * max(turn.prompt_tokens for turn in turns[:50])
    assert turns[199].prompt_tokens <= 1.3 * turns[49].prompt_tokens
    kept = [shared for turn, shared in zip(turns[1:], model.shared, strict=True) if not turn.compacted]
    assert min(kept) >= 0.9
    compacted = sum(turn.compacted for turn in turns)
    assert 1 <= compacted <= TURNS // 10


@pytest.mark.parametrize("wire", [Wire.CHAT, Wire.RESPONSES])
async def test_prefix_is_kept_at_both_apis(workspace: Path, wire: Wire) -> None:
    source = random.Random(SEED)
    with FakeCoderModel(*[step(number, source) for number in range(30)]) as model:
        turns = await converse(conversing(workspace, model, wire, context_tokens=12_000, keep_tokens=4_000), 30, source)
    shared = list(zip(turns[1:], model.shared, strict=True))
    assert any(turn.compacted for turn in turns)
    assert all(part >= 0.9 for turn, part in shared if not turn.compacted)


async def test_estimate_is_the_size_of_what_is_sent(workspace: Path) -> None:
    with FakeCoderModel(use(("read_file", {"path": "a", "start": None}))) as model:
        turn = await conversing(workspace, model).turn()
    [prompt] = model.prompts
    sent = sum(len(part.encode()) for part in prompt) / 4
    assert 0.8 * sent <= turn.prompt_tokens <= 1.2 * sent


async def test_older_result_is_named_so_that_it_can_be_read_again(workspace: Path) -> None:
    read = use(("read_file", {"path": "src/shop.py", "start": None}))
    with FakeCoderModel(*[read] * 12) as model:
        session = conversing(workspace, model, context_tokens=4_000, keep_tokens=1_000)
        await session.turn()
        first = session.put("first " * 400)
        await session.turn("first " * 400)
        while not (await session.turn("other " * 400)).compacted:
            pass
    task = model.requests[-1].body["messages"][1]["content"]
    assert f"read_file src/shop.py: {('first ' * 400)[:94].rstrip()}" in task
    assert f"(result:{first.sha256[:12]})" in task
