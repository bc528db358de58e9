"""The real Agent S in an environment of its own, with a model server on loopback; skipped where it is not installed."""

import base64
import random
import string
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from activities.executor.gui.agent_s import WHAT, AgentS
from activities.executor.gui.port import DriverError, Frame
from tests.support.gui.agent_s import agent_s_python
from tests.support.gui.pictures import png
from tests.support.model_server import ModelServer, Reply, fails, hangs, says
from tightloop.settings import AgentSSettings

FRAME = Frame(x=100, y=50, width=400, height=300)
PICTURE = png(800, 600)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


def agent_s(server: ModelServer, *, grid: tuple[int, int] | None = None, model_s: float = 40.0) -> AgentS:
    settings = AgentSSettings(python=agent_s_python(), model="ui-tars-1.5-7b", base_url=server.url, grid=grid)
    return AgentS(settings, {"OPENAI_API_KEY": "sk-grounding"}, model_s=model_s)


@pytest.mark.parametrize(
    ("answer", "grid", "point"),
    [
        ("<|box_start|>(620,560)<|box_end|>", None, (410, 330)),
        ("Action: click(start_box='(500,900)')", (1000, 1000), (300, 320)),
        ("[400, 300]", None, (300, 200)),
    ],
)
def test_point_comes_from_one_question_with_the_picture(
    server: ModelServer, answer: str, grid: tuple[int, int] | None, point: tuple[int, int]
) -> None:
    server.queue(says(answer))
    there = agent_s(server, grid=grid)
    assert there.problem() == ""
    assert there.locate(PICTURE, FRAME) == point
    (asked,) = server.requests
    assert (asked.path, asked.body["model"]) == ("/v1/chat/completions", "ui-tars-1.5-7b")
    assert asked.headers["authorization"] == "Bearer sk-grounding"
    assert "tools" not in asked.body
    assert WHAT in asked.text
    assert base64.b64encode(PICTURE).decode() in str(asked.body["messages"])


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (says("(900, 100)"), "outside the window"),
        (says("I see 2 boxes: one at (10, 20)"), "instead of a single point"),
        (says("(0.5, 0.9)"), "instead of a single point"),
        (says("There is no chat box."), "instead of a single point"),
        (says(""), "instead of a single point"),
        (fails(500), "did not respond"),
        (fails(429), "did not respond"),
        (fails(404, code="model_not_found"), "did not respond"),
    ],
)
def test_everything_else_is_refused_after_one_question(server: ModelServer, reply: Reply, words: str) -> None:
    server.queue(reply)
    with pytest.raises(DriverError, match=words):
        agent_s(server).locate(PICTURE, FRAME)
    assert len(server.requests) == 1


def test_code_in_an_answer_is_not_run(server: ModelServer) -> None:
    # Without a digit: two numbers are a point.
    owned = Path(tempfile.gettempdir()) / f"owned-{''.join(random.choices(string.ascii_lowercase, k=12))}"
    server.queue(says(f"agent.click(open({str(owned)!r}, 'w'))\n```python\nopen({str(owned)!r}, 'w')\n``` (10, 20)"))
    assert agent_s(server).locate(PICTURE, FRAME) == (105, 60)
    assert not owned.exists()


def test_model_that_hangs_is_given_up(server: ModelServer) -> None:
    server.queue(hangs(60))
    with pytest.raises(DriverError, match="did not respond: APITimeoutError"):
        agent_s(server, model_s=2.0).locate(PICTURE, FRAME)
    assert len(server.requests) == 1
