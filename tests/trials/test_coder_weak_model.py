"""A real model that is far too weak: nothing that it says breaks the coder, and what it says in vain is bounded."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from activities.coder.model import OpenAIModel
from activities.coder.turns import TurnTaker
from activities.model.client import ModelService
from tests.support.coder_turns import SPECS, Conversing, settings_for
from tests.support.extent import part
from tests.support.weak_model.install import model_folder
from tests.support.weak_model.server import weak_model
from tightloop.coder import course
from tightloop.coder.model import CallResult, ConversationState

TURNS = part(10, of=20)
TASK = "Read src/shop.py."
SHOP = "1: def total(prices, tax):\n2:     net = sum(prices) * (1 + tax)\n3:     return net * (1 + tax)\n"


@pytest.mark.timeout(900)
async def test_every_turn_of_a_weak_model_is_a_call_a_bounded_correction_or_an_honest_stop(workspace: Path) -> None:
    schemas = {spec.name: dict(spec.parameters) for spec in SPECS}
    coder = {"temperature": 0.3, "max_output_tokens": 80, "tools": [spec.name for spec in SPECS]}
    ended: list[str] = []
    with weak_model(model_folder()) as served:
        service = ModelService(base_url=served.base_url, api_key=served.key, models=("smollm2",), timeout_s=180)
        settings = settings_for(roles={"coder": coder}, context_tokens=4_000, keep_tokens=1_500)
        session = Conversing(workspace, OpenAIModel(service), settings, task=TASK)
        talk = ConversationState()
        while len(ended) < TURNS:
            results = tuple(SHOP for _ in talk.turn.calls) if talk.turn else ()
            turn = await session.turn(*results, correction=talk.correction)
            assert bool(turn.calls) != bool(turn.problem)
            assert turn.usage.known
            for call in TurnTaker.read(session.folder, turn.number).calls:
                Draft202012Validator(schemas[call.tool]).validate(json.loads(call.arguments))
            talk = course.after_turn(talk, turn)
            assert talk.silent <= course.SILENT_STOP
            if turn.calls:
                shown = session.put(SHOP)
                talk = course.after_results(talk, [CallResult(result=shown, mark=str(turn.calls)) for _ in turn.calls])
            if stop := course.why_stuck(talk):
                ended.append(f"stop: {stop}")
                session.node, talk = None, ConversationState()
            else:
                ended.append("call" if turn.calls else f"correction: {turn.problem}")
    kinds = {kind: sum(line.startswith(kind) for line in ended) for kind in ("call", "correction", "stop")}
    assert sum(kinds.values()) == TURNS
    assert kinds["call"] > 0
    print(kinds, *ended, sep="\n")
