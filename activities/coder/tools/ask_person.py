"""The tool `ask_person`."""

import hashlib
from collections.abc import Mapping
from typing import Any

from activities.coder.calls.arguments import optional, schema
from activities.coder.calls.equipment import Equipment
from activities.coder.port import ToolContext, ToolResult, ToolSpec
from tightloop.executor.asking import clarifying_question
from tightloop.question import TEXT_CHARACTERS, TITLE_CHARACTERS

FINGERPRINT_DIGITS = 16


class AskPerson:
    """Asks a person something that only a person can know."""

    spec = ToolSpec(
        "ask_person",
        "Ask a person what neither the files nor the task tell. The work waits for the answer: ask seldom.",
        schema(
            question={"type": "string", "description": "One line", "minLength": 1, "maxLength": TITLE_CHARACTERS},
            detail=optional("string", "What a person has to know for the answer", maxLength=TEXT_CHARACTERS),
        ),
    )
    reads = False
    runs = False

    def use(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Return the answer, or the question where nobody has answered it yet; see the port."""
        question = " ".join(arguments["question"].split())
        fingerprint = hashlib.sha256(question.encode()).hexdigest()[:FINGERPRINT_DIGITS]
        for grant in context.grants:
            if grant.fingerprint == fingerprint:
                return ToolResult(_answer(grant.text, allowed=grant.allowed))
        asked = clarifying_question(question, arguments["detail"] or "", fingerprint)
        return ToolResult(f"waits for a person: {question}", question=asked)


def _answer(text: str, *, allowed: bool) -> str:
    if not allowed:
        return f"the person leaves it to you{f': {text}' if text else ''}"
    return f"the person answers: {text}" if text else "the person has answered without a text: decide by yourself"


def make(_equipment: Equipment) -> AskPerson:
    """Return the tool."""
    return AskPerson()
