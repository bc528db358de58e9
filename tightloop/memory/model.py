"""Models of the memory."""

import hashlib
import json
import math
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import Field

from tightloop.value import Value, counted

Z = 1.96
"""Of the normal distribution, for a 95 % interval."""
LEAST_TRIES = 3
LEAST_RATE = 0.1
"""One success of three is 0.06, one of two 0.09, two of five 0.12."""


def wilson(worked: int, tried: int) -> float:
    """Return the lower bound of the success rate (Wilson 1927, 95 %): 1 of 1 is 0.21, 9 of 10 are 0.60."""
    if tried <= 0:
        return 0.0
    rate, square = worked / tried, Z * Z
    spread = Z * math.sqrt((rate * (1 - rate) + square / (4 * tried)) / tried)
    return max((rate + square / (2 * tried) - spread) / (1 + square / tried), 0.0)


class Evidence(Value):
    """Counts of tries and successes."""

    worked: int = 0
    tried: int = 0

    @property
    def rate(self) -> float:
        """The success rate that it has at least."""
        return wilson(self.worked, self.tried)

    @property
    def retired(self) -> bool:
        """True if it failed too often to be shown again."""
        return self.tried >= LEAST_TRIES and self.rate < LEAST_RATE

    def __str__(self) -> str:
        """Return the evidence in words."""
        return f"worked {self.worked} of {counted(self.tried, 'time')}" if self.tried else "not tried"


CONTEXT_CHARACTERS = 1_200
"""As many as travel of a check's output."""
TEMPLATE_CHARACTERS = 2_000
"""Of a diff: the rest of a longer one is in the checkpoint that it came from."""
LINE_CHARACTERS = 300
TITLE_CHARACTERS = 200
STEPS_LIMIT = 10
FACT_CHARACTERS = 2_000
KEY_CHARACTERS = 120


class Kind(StrEnum):
    """Kind of an entry."""

    FAILURE = "failure"
    PATTERN = "pattern"
    FACT = "fact"


class SeenFailure(Value):
    """A failure of a check, as it appeared."""

    signature: str
    """Equal for equal causes."""
    type: str = ""
    """An exception, a lint rule, or the tool that failed."""
    check: str = ""
    """The command that failed."""
    line: str
    """The line that says most, without what changes from run to run: what is searched."""
    context: str = ""
    """End of the output, at most `CONTEXT_CHARACTERS`."""
    workflow_id: str = ""
    """The episode that saw it."""
    iteration: int = 0
    at: datetime


class Pattern(Value):
    """A repeatable solution of failures."""

    problem_type: str = ""
    title: str = ""
    steps: tuple[str, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()
    """Programs and arguments, where the steps were commands."""
    code_template: str = ""
    """The change of the code, at most `TEMPLATE_CHARACTERS` of its diff."""
    test_template: str = ""
    """The change of the tests."""
    workflow_id: str = ""
    """The episode that found it."""
    iteration: int = 0

    @property
    def titles(self) -> tuple[str, ...]:
        """A title for each command."""
        return self.steps if len(self.steps) == len(self.commands) else (self.title,) * len(self.commands)

    @property
    def id(self) -> str:
        """Id within a project, 16 hexadecimal digits: the same commands are the same pattern, whoever plans them."""
        said: Any = self.commands or (self.steps, self.code_template, self.test_template)
        return hashlib.sha256(json.dumps(said).encode("utf-8", "replace")).hexdigest()[:16]


class Outcome(Value):
    """One use of a pattern against a failure, and whether its check turned green."""

    signature: str
    pattern: str
    """Its id."""
    worked: bool
    key: str
    """Of the use: entered twice it counts once."""
    at: datetime


class Fact(Value):
    """Something about a project, under a name."""

    key: str
    text: str
    source: str = ""
    """Who says so: an episode, or a person."""
    at: datetime | None = None


class Query(Value):
    """A question to the memory."""

    text: str
    """An output, its last line, or words."""
    signature: str = ""
    """Of the failure, where it is known: what fits exactly comes first."""
    limit: int = 3
    solved: bool = True
    """Only what was solved before."""
    in_words: bool = False
    """Asked by a person or a model in their own words, not by an output: what is less alike counts, too."""


class Match(StrEnum):
    """Why something was found."""

    SIGNATURE = "signature"
    SIMILAR = "similar"


class Recollection(Value):
    """A failure of earlier, what solved it, and how often."""

    failure: str
    """Its signature."""
    type: str = ""
    line: str
    match: Match
    score: float
    """1 for the same signature, else how similar the failures are, from 0 on."""
    pattern: Pattern | None = None
    """What solved it, the best first; None: nothing did yet."""
    evidence: Evidence = Evidence.model_construct()
    """How often it was tried against this failure, and worked."""
    check: str = ""
    """The failing command that it was looked up for."""

    @property
    def shown(self) -> str:
        """The evidence in words."""
        seen = "the same failure" if self.match is Match.SIGNATURE else f"a similar failure ({self.score:.2f})"
        return f"{seen}; {self.evidence}" if self.pattern else f"{seen}; never solved"


class Entry(Value):
    """One line of a list."""

    id: str
    kind: Kind
    type: str = ""
    text: str
    times: int = 1
    """How often a failure was seen, or a pattern used."""
    evidence: Evidence = Evidence.model_construct()
    at: datetime | None = None


class Details(Value):
    """Everything about one entry."""

    entry: Entry
    check: str = ""
    context: str = ""
    pattern: Pattern | None = None
    related: tuple[Entry, ...] = ()
    """What solved the failure, or which failures the pattern solved."""
    embedder: str = ""
    """The model of its vector; empty: it has none."""
    dimension: int = 0


class MemoryStats(Value):
    """Size and usefulness of the memory of a project."""

    project: str
    failures: int = 0
    solved: int = 0
    patterns: int = 0
    facts: int = 0
    tried: int = 0
    worked: int = 0
    embedders: Mapping[str, int] = Field(default_factory=dict)
    """Rows by model of their vectors."""
