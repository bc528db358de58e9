"""What reads texts of others: each target takes any bytes, and raises nothing but what its reader documents."""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from activities.executor.agent.acp.client import PipeTransport
from activities.executor.agent.acp.events import Turn, mode_among, option_for, permission_of, usage_of
from activities.executor.agent.codex import CodexReader
from activities.executor.agent.cursor import CursorReader
from activities.executor.agent.host import Ending, EventReader
from activities.executor.port import OutboxEntry
from activities.model.gateway.meter import AnswerReader
from activities.model.repair import read_object
from activities.process.output import EventLines
from tests.support.orders import order
from tightloop.errors import ExpressionError, InvalidRequestError, MessageError, PlanError, SettingsError
from tightloop.executor.limit import detect
from tightloop.executor.message import (
    PlanMessage,
    PlannedStep,
    PlanRequestMessage,
    parse_alignment,
    parse_plan,
    parse_plan_request,
    parse_reflection,
    render_plan,
    render_plan_request,
)
from tightloop.executor.model import WorkOrder
from tightloop.plan.commands import judge_command, judge_url
from tightloop.plan.document import Policy
from tightloop.plan.expression import parse_expression
from tightloop.plan.guard import judge_changes
from tightloop.plan.text.reading import read_plan
from tightloop.plan.text.writing import write_plan
from tightloop.plan.validation import validate
from tightloop.safety.rubric import Verdict
from tightloop.settings import parse_settings

ROOT = Path(__file__).parents[2]
DATA, EXAMPLES = ROOT / "tests" / "data", ROOT / "examples" / "plans"
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Target:
    """A reader, and texts that it reads."""

    read: Callable[[bytes], object]
    errors: tuple[type[Exception], ...] = ()
    """What it raises for a text that is wrong."""
    seeds: Callable[[], list[bytes]]

    def try_one(self, data: bytes) -> None:
        """Read; what the reader does not document goes on to the caller."""
        with suppress(*self.errors):
            self.read(data)


def texts(*paths: Path) -> Callable[[], list[bytes]]:
    return lambda: [path.read_bytes() for path in paths]


def as_text(data: bytes) -> str:
    # Escapes become surrogates, which a text of JSON or YAML may hold.
    return data.decode("utf-8", "surrogateescape")


def any_plan(data: bytes) -> None:
    read = read_plan(as_text(data), name="fuzz.yaml")
    validate(read)
    for form in ("yaml", "json"):
        assert read_plan(write_plan(read.plan, form)).plan == read.plan


def message(data: bytes) -> None:
    text = as_text(data)
    for parse in (parse_reflection, parse_alignment, parse_plan, parse_plan_request):
        with suppress(MessageError):
            parse(text)


def answer(data: bytes) -> None:
    read_object(as_text(data), ("plan", "rationale", "keep"))
    for kind in ("application/json", "text/event-stream"):
        reader = AnswerReader({"content-type": kind})
        for at in range(0, len(data), 997):
            reader.feed(data[at : at + 997])
        reader.end()
        reader.tokens(len(data))


def work_order(data: bytes) -> None:
    for model in (WorkOrder, OutboxEntry):
        with suppress(ValidationError):
            again = model.model_validate_json(data)
            assert model.model_validate_json(again.model_dump_json()) == again


def command_line(data: bytes) -> None:
    """Lines of agents with a command line."""
    readers: list[EventReader] = [CodexReader(resumed=False, now=lambda: NOW), CursorReader(now=lambda: NOW)]
    lines = EventLines(5_000)
    found = [line for at in range(0, len(data), 997) for line in lines.feed(data[at : at + 997])] + [lines.rest()]
    for reader in readers:
        for line in found:
            reader.feed(line)
        reader.read_outcome(Ending(exit_code=len(data) % 3, output_end=as_text(data)[-2_000:]))


def acp(data: bytes) -> None:
    """Lines of agents over the Agent Client Protocol."""
    asyncio.run(_acp(data))


async def _acp(data: bytes) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    turn, came = Turn(), list[dict[str, Any]]()
    see = {"came": lambda message: bool(came.append(message)), "line": lambda _arrow, _text: None}
    transport = PipeTransport(reader, None, source=None, **see)  # type: ignore[arg-type]
    while await transport.receive() is not None:
        pass
    for one in came:
        params = one.get("params")
        inner = params if isinstance(params, dict) else {}
        update, result = inner.get("update"), one.get("result")
        if isinstance(update, dict):
            turn.read(update)
        request = permission_of(inner)
        assert json.loads(request.model_dump_json())["command"] == request.command
        option_for(Verdict.ALLOW, inner.get("options"))
        if isinstance(result, dict):
            usage_of(result)
            mode_among(result, "plan")
    turn.flush()


def said_limit(data: bytes) -> None:
    detect(as_text(data), now=NOW)


def command(data: bytes) -> None:
    judge_command(as_text(data), ())


def url(data: bytes) -> None:
    judge_url(as_text(data), ("example.org", "*.example.org", "127.0.0.1:80"))


def pattern(data: bytes) -> None:
    """A policy of patterns, and paths, a line each."""
    globs, _, paths = as_text(data).partition("\n\n")
    judge_changes(Policy(write=tuple(globs.splitlines()[:50]), protect=("**/.env",)), paths.splitlines()[:50])


def expression(data: bytes) -> None:
    parse_expression(as_text(data)).holds(lambda name: {"a.text": "aaaa", "a.n": 3, "a.all": [1, 2]}[name])


def messages() -> list[bytes]:
    plan = PlanMessage(goal="tidy up", steps=(PlannedStep(title="a step", run=("ruff", "check", "a b")),))
    request = PlanRequestMessage(goal="tidy up", outcome="completed", report="ruff: 1 fixed", changes=("a.py (+1 -1)",))
    reflections = (DATA / "reflections" / "handwritten.txt").read_bytes()
    return [render_plan(plan).encode(), render_plan_request(request).encode(), *reflections.split(b"\n\n")[:40]]


def an_order() -> list[bytes]:
    return [order(Path("/w"), options={"argv": ["true"]}).model_dump_json().encode()]


def lines(*events: dict[str, Any]) -> Callable[[], list[bytes]]:
    return lambda: ["\n".join(json.dumps(event) for event in events).encode()]


TARGETS: dict[str, Target] = {
    "plan-yaml": Target(
        read=any_plan,
        errors=(PlanError,),
        seeds=lambda: [path.read_bytes() for path in sorted((*EXAMPLES.glob("*.yaml"), *DATA.glob("plans/*.yaml")))],
    ),
    "plan-json": Target(
        read=any_plan,
        errors=(PlanError,),
        seeds=texts(DATA / "plans" / "build-search.json", EXAMPLES / "plan-build-search.json"),
    ),
    "plan-text": Target(
        read=any_plan,
        errors=(PlanError,),
        seeds=texts(DATA / "plans" / "text-form.plan", EXAMPLES / "tidy.plan"),
    ),
    "message": Target(read=message, seeds=messages),
    "answer": Target(read=answer, seeds=texts(DATA / "reflections" / "handwritten.txt")),
    "settings": Target(
        read=lambda data: parse_settings(as_text(data), {}).as_yaml(),
        errors=(SettingsError,),
        seeds=lambda: [parse_settings("", {}).as_yaml().encode()],
    ),
    "order": Target(read=work_order, seeds=an_order),
    "lines": Target(
        read=command_line,
        seeds=texts(DATA / "agents" / "cursor_completed.jsonl", DATA / "agents" / "cursor_rejected.jsonl"),
    ),
    "acp": Target(
        read=acp,
        seeds=lines(
            {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": {
                "sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "completed", "kind": "edit",
                "content": [{"type": "diff", "path": "a", "oldText": "x", "newText": "y"}],
                "rawOutput": {"exitCode": 1},
            }}},
            {"jsonrpc": "2.0", "id": 1, "method": "session/request_permission", "params": {
                "toolCall": {"kind": "execute", "title": "ls", "rawInput": {"command": ["ls"]}},
                "options": [{"optionId": "a", "kind": "allow_once"}],
            }},
            {"jsonrpc": "2.0", "id": 2, "result": {"usage": {"inputTokens": 3}, "stopReason": "end_turn"}},
        ),
    ),
    "limit": Target(read=said_limit, seeds=texts(DATA / "limits.yaml")),
    "command": Target(
        read=command,
        seeds=lambda: [
            b"cd x && FOO=1 git -C a diff --output=b | tee -a c > d 2>&1",
            b"sh -c 'rm -rf \"$(ls)\"' <<E\nx\nE",
        ],
    ),
    "url": Target(read=url, seeds=lambda: [b"https://user@[64:ff9b::7f00:1]:80/a?b#c", b"http://example.org:443/"]),
    "pattern": Target(read=pattern, seeds=lambda: [b"**/*a**/*b\nsrc/{a,b}?.py\n\nsrc/a.py\na/b/c"]),
    "expression": Target(
        read=expression,
        errors=(ExpressionError, InvalidRequestError, KeyError),
        seeds=lambda: [b"matches(${a.text}, '(a+)+$') and len(${a.all}) > 1 or number('3') ** 2 in [1, 9]"],
    ),
}  # fmt: skip
