"""Rows of the memory, and the values that they stand for. Everything is scrubbed here, before it is written."""

import json
from array import array
from typing import Any

from sqlalchemy import RowMapping

from tightloop.memory.model import (
    CONTEXT_CHARACTERS,
    FACT_CHARACTERS,
    KEY_CHARACTERS,
    LINE_CHARACTERS,
    STEPS_LIMIT,
    TEMPLATE_CHARACTERS,
    TITLE_CHARACTERS,
    Fact,
    Pattern,
    SeenFailure,
)
from tightloop.value import clip, shorten
from tightloop.value.scrub import scrub

COMMAND_WORDS = 60


class Vectored:
    """A text with its vector, where there is one."""

    def __init__(self, text: str, vector: "array[float] | None" = None, model: str = "") -> None:
        """Take the vector and the model that made it."""
        self.text, self.vector, self.model = text, vector, model

    @property
    def columns(self) -> dict[str, Any]:
        """The columns of the vector."""
        if self.vector is None:
            return {"embedding": None, "model": "", "dimension": 0}
        return {"embedding": self.vector, "model": self.model, "dimension": len(self.vector)}


def clean_failure(failure: SeenFailure) -> SeenFailure:
    """Return a failure without secrets, within its bounds."""
    return failure.evolve(
        type=shorten(scrub(failure.type), TITLE_CHARACTERS),
        check=shorten(scrub(failure.check), LINE_CHARACTERS),
        line=shorten(scrub(failure.line), LINE_CHARACTERS),
        context=clip(scrub(failure.context), CONTEXT_CHARACTERS),
    )


def clean_pattern(pattern: Pattern) -> Pattern:
    """Return a pattern without secrets, within its bounds.

    A command that holds a secret is left out: without it, it does something else.
    """
    kept = tuple(one for one in pattern.commands if scrub(" ".join(one)) == " ".join(one) and len(one) <= COMMAND_WORDS)
    return pattern.evolve(
        problem_type=shorten(scrub(pattern.problem_type), TITLE_CHARACTERS),
        title=shorten(scrub(pattern.title), TITLE_CHARACTERS),
        steps=tuple(shorten(scrub(step), LINE_CHARACTERS) for step in pattern.steps[:STEPS_LIMIT]),
        # A part of the commands is not the solution.
        commands=kept if len(kept) == len(pattern.commands) <= STEPS_LIMIT else (),
        code_template=shorten(scrub(pattern.code_template), TEMPLATE_CHARACTERS),
        test_template=shorten(scrub(pattern.test_template), TEMPLATE_CHARACTERS),
    )


def clean_fact(fact: Fact) -> Fact:
    """Return a fact without secrets, within its bounds."""
    return fact.evolve(
        key=shorten(" ".join(scrub(fact.key).split()), KEY_CHARACTERS),
        text=shorten(scrub(fact.text), FACT_CHARACTERS),
        source=shorten(scrub(fact.source), KEY_CHARACTERS),
    )


def pattern_row(project: str, pattern: Pattern, vectored: Vectored) -> dict[str, Any]:
    """Return the row of a pattern, but for its time."""
    fields = pattern.model_dump(exclude={"steps", "commands"})
    lists = {"steps": json.dumps(pattern.steps), "commands": json.dumps(pattern.commands)}
    return {"project": project, "id": pattern.id, **fields, **lists, **vectored.columns}


def read_pattern(row: RowMapping) -> Pattern:
    """Return the pattern of a row."""
    fields = {name: row[name] for name in Pattern.model_fields if name not in ("steps", "commands")}
    return Pattern(
        **fields, steps=tuple(json.loads(row["steps"])), commands=tuple(map(tuple, json.loads(row["commands"])))
    )
