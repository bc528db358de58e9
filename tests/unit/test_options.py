"""Every option of a command that starts or steers a run reaches the request, or is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from pydantic import BaseModel

from tightloop.cli.commands import ANSWER, START, STEER, Group
from tightloop.cli.main import app
from tightloop.cli.session import Session
from tightloop.episode.model import EpisodeStatus
from tightloop.errors import InvalidRequestError
from tightloop.executor.model import AgentMode, ExecutorChoice
from tightloop.executor.options import OPTIONS
from tightloop.loop.model import LoopRequest
from tightloop.plan.request import PlanRequest
from tightloop.run.question import Question, QuestionKind
from tightloop.safety.rubric import Verdict

SHOWS = {"as_json", "detach", "wait", "watch"}
"""Options that change only what is printed after the start."""
READS = {"plan validate", "plan graph", "plan show", "loop show"}
VALUES: dict[str, tuple[str, str]] = {
    "allow": ("tests_changed", "no_report"),
    "cost_usd": ("0.5", "1.5"),
    "check_timeout": ("5", "6"),
    "episode": ("ep-1", "ep-2"),
    "executor": ("codex", "claude"),
    "executor_option": ("max_turns=1", "max_turns=2"),
    "options": ("max_turns=1", "max_turns=2"),
    "fallback": ("coder", "opencode"),
    "mode": ("read_only", "full"),
    "on_crash": ("ask", "verify"),
    "packet": ("pkt_0123456789abcdef", "pkt_0123456789abcde0"),
    "permissions": ("ask", "deny"),
    "planner": ("heuristic", "openai"),
    "result": ("branch", "tree"),
    "until": ("2099-01-01T07:00", "2099-01-01T08:00"),
    "scenarios": ("../hidden1.yaml", "../hidden2.yaml"),
    "values": ("one=1", "one=2"),
    "wall_minutes": ("1", "2"),
}
PLAN = "id: p\ntitle: g\ninputs: {one: 0}\nsteps:\n- {id: a, shell: {run: 'true ${plan.one}'}, access: none}\n"


class Recorded(click.exceptions.Exit):
    """Ends a command at its first request."""


class RecordingClient:
    """Keeps the first request instead of sending it."""

    def __init__(self) -> None:
        self.sent: Any = None

    async def resolve(self, reference: str, **_: Any) -> str:
        return reference

    async def status(self, key: str) -> EpisodeStatus:
        return EpisodeStatus(
            episode_id=key,
            questions=(Question.model_construct(id="q-1", kind=QuestionKind.GATE, step="x", role="a", default=""),),
        )

    async def request(self, _key: str) -> PlanRequest:
        return PlanRequest(workspace="/before", goal="before")

    def __getattr__(self, name: str) -> Any:
        async def send(*arguments: Any, **named: Any) -> None:
            self.sent = (name, plain(arguments), plain(named))
            raise Recorded(0)

        return send


def plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def commands(group: Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for command in group.commands.values():
        name = f"{path}{command.name}"
        if isinstance(command, Group):
            if command.panel == START:
                yield from commands(command, f"{name} ")
        elif name not in READS and (path or getattr(command, "panel", "") in {START, ANSWER, STEER}):
            yield name, command


PARAMETERS = [
    pytest.param(name, parameter.name, id=f"{name} {parameter.name}")
    for name, command in commands(app)
    for parameter in command.get_params(click.Context(command))
    if parameter.name not in {"_click_default_help", *SHOWS}
]


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command with one parameter and return what it would send, or the refusal."""
    for name, goal in (("one.yaml", "g"), ("two.yaml", "h")):
        (tmp_path / name).write_text(PLAN.replace("title: g", f"title: {goal}"))
    (tmp_path / "one.json").write_text('{"pause_after": 2}')
    (tmp_path / "two.json").write_text('{"pause_after": 3}')
    for number in (1, 2):
        (tmp_path / f"hidden{number}.yaml").write_text(f"scenarios: ['test {number} = 1']")
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "home"))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")

    def run(name: str, parameter: str, value: str | None) -> Any:
        command = dict(commands(app))[name]
        client = RecordingClient()

        def record(_session: Session, work: Any, **_: Any) -> Any:
            import asyncio

            return asyncio.run(work(client))

        monkeypatch.setattr(Session, "run", record)
        arguments = tokens(name, command, parameter, value)
        result = CliRunner().invoke(app, [*name.split(), *arguments])
        if client.sent is None:
            assert result.exit_code == 2, (arguments, result.output, result.exception)
            return ("refused", result.stderr)
        return client.sent

    return run


NEEDS: dict[tuple[str, str], list[str]] = {
    ("start", "replace"): ["--id", "ep-9"],
    ("loop plan", "scenarios"): ["--gate", "true"],
    **{("start", name): ["--executor", "claude"] for name in ("executor_option", "mode", "model", "permissions")},
    **{(name, "check_timeout"): ["--done", "true"] for name in ("start", "code")},
    **{("loop plan", name): ["--executor", "claude"] for name in ("executor_option", "executor_model")},
    ("plan run", "executor_option"): ["--executor", "claude"],
}
"""Options that a command needs beside the asked one."""
GIVEN = {"start": {"goal": "g"}, "code": {"goal": "g"}, "loop plan": {"goal": "g"}, "plan run": {"file": "../one.yaml"}}
CHANGES = {"amend": ("goal", "g"), "top-up": ("tokens", "1")}
"""Commands that refuse to change nothing."""


def tokens(name: str, command: click.Command, asked: str, value: str | None) -> list[str]:
    defaults = {} if (name, asked) in {("plan run", "goal"), ("plan run", "again")} else GIVEN.get(name, {})
    options, positional = [*NEEDS.get((name, asked), [])], []
    if name in CHANGES and asked != CHANGES[name][0]:
        options += [f"--{CHANGES[name][0]}", CHANGES[name][1]]
    for parameter in command.get_params(click.Context(command)):
        if isinstance(parameter, click.Argument):
            item = value if parameter.name == asked else defaults.get(str(parameter.name))
            item = "x" if item is None and parameter.required else item
            positional += [] if item is None else [item]
        elif parameter.name == asked and value is not None:
            options += [parameter.opts[0]] if getattr(parameter, "is_flag", False) else [parameter.opts[0], value]
        elif parameter.required:
            options += [parameter.opts[0], "x"]
    return [*positional, *options]


def pair(name: str, parameter: click.Parameter) -> tuple[str | None, str | None]:
    if getattr(parameter, "is_flag", False):
        return None, ""
    if parameter.name in {"source", "file"}:
        kind = "json" if name == "start" else "yaml"
        return f"../one.{kind}", f"../two.{kind}"
    if isinstance(parameter.type, click.types.IntParamType | click.types.FloatParamType):
        return VALUES.get(str(parameter.name), ("2", "3"))
    return VALUES.get(str(parameter.name), ("a", "b"))


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS)
def test_two_values_of_an_option_give_two_requests(ask: Any, name: str, parameter: str) -> None:
    command = dict(commands(app))[name]
    found = next(each for each in command.get_params(click.Context(command)) if each.name == parameter)
    one, two = (ask(name, parameter, value) for value in pair(name, found))
    assert one != two
    # The gate of the recording client asks for the role "a".
    assert [one[0], two[0]].count("refused") == ((name, parameter) == ("approve", "role"))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("start", "g", "--check-timeout", "5"), "only applies to checks from"),
        (("start", "g", "--done", "true", "--no-wait"), "only have an effect with --watch"),
        (("plan", "run", "../one.yaml", "--detach", "--wait"), "cannot be combined with --wait"),
        (("start", "g", "--done", "true", "--executor", "scripted", "--model", "m"), "cannot select a model"),
        (("start", "g", "--done", "true", "--executor", "coder", "--mode", "read_only"), "only agents such as"),
        (("start", "g", "--done", "true", "--replace"), "--replace requires the id"),
        (("plan", "run", "../one.yaml", "--goal", "g"), "cannot be used together"),
    ],
)
def test_option_that_would_have_no_effect_is_refused(ask: Any, arguments: tuple[str, ...], reason: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert reason in result.stderr


@pytest.mark.parametrize("name", ["command", "coder", "person", "scripted", "cursor-gui"])
@pytest.mark.parametrize(
    "field",
    [{"mode": AgentMode.READ_ONLY}, {"mode": AgentMode.FULL}, {"permissions": Verdict.DENY}, {"max_model_calls": 3}],
)
def test_executor_of_our_own_refuses_what_only_agents_do(name: str, field: dict[str, Any]) -> None:
    for choice in (ExecutorChoice(name=name, **field), ExecutorChoice(name="codex", fallback=(name,), **field)):
        with pytest.raises(InvalidRequestError, match=f"the executor {name} would ignore"):
            LoopRequest(workspace="/w", executor=choice).check()
        with pytest.raises(InvalidRequestError, match=f"the executor {name} would ignore"):
            PlanRequest(workspace="/w", source="x", executor=choice).check()


def test_every_executor_is_either_an_agent_or_refuses_a_mode() -> None:
    agents = {"acp", "claude", "codex", "codex-acp", "copilot", "cursor", "cursor-acp", "gemini", "opencode"}
    taken = set()
    for name in OPTIONS:
        try:
            LoopRequest(workspace="/w", executor=ExecutorChoice(name=name, mode=AgentMode.READ_ONLY)).check()
        except InvalidRequestError:
            continue
        taken.add(name)
    assert taken == agents
