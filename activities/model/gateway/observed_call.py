"""Observes the model calls of agents, which make them themselves."""

import json
import re
from contextlib import AbstractContextManager
from http import HTTPStatus

from activities.model.gateway.answer_reader import AnswerReader
from activities.model.gateway.exchange import Call
from activities.model.gateway.port import Wire
from activities.model.observed import OBSERVER, Operation, operation
from tightloop.telemetry import genai

PROVIDERS = {
    Wire.RESPONSES: "openai",
    Wire.CHAT: "openai",
    Wire.MESSAGES: "anthropic",
    Wire.GEMINI: "gcp.gemini",
}
"""The conventions' names of the services whose formats these are."""
UNKNOWN = "unknown"
_IN_PATH = re.compile(r"/models/([^/:?]+)")


def observed_call(wire: Wire, call: Call) -> AbstractContextManager[Operation]:
    """Observe a model call until the block ends."""
    model = _model(call) if OBSERVER.get() is not None else UNKNOWN
    return operation(genai.CHAT, model, {genai.PROVIDER: PROVIDERS[wire], genai.REQUEST_MODEL: model})


def note_answer(made: Operation, status: int, reader: AnswerReader | None) -> None:
    """Add what an answer tells of itself, and the status of a bad one."""
    if reader is not None:
        made.answered(
            reader.usage(), model=reader.model, response_id=reader.response_id, finish_reason=reader.finish_reason
        )
    if status >= HTTPStatus.BAD_REQUEST or (reader is not None and reader.error is not None):
        made.note({genai.ERROR: str(status)})


def _model(call: Call) -> str:
    """Return which model is asked: it stands in the body, at Gemini in the path."""
    if found := _IN_PATH.search(call.target):
        return found[1]
    try:
        body = json.loads(call.body)
    except (ValueError, RecursionError):
        return UNKNOWN
    return str(body.get("model") or UNKNOWN) if isinstance(body, dict) else UNKNOWN
