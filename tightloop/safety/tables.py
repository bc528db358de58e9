"""Reads what the rules look for and what they report from the file `rules.toml` beside them."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tightloop.safety.rubric import Topic, Violation
from tightloop.safety.verdict import Verdict


class Tables(NamedTuple):
    """The tables of one file, each by name."""

    patterns: dict[str, re.Pattern[str]]
    words: dict[str, tuple[str, ...]]
    violations: dict[str, Violation]


def read_tables(data: Mapping[str, Any]) -> Tables:
    """Return the tables of a file; a violation has the name of its rule unless it says another."""
    violations = {
        name: Violation(**{"rule": name, **row, "topic": Topic(row["topic"]), "verdict": Verdict(row["verdict"])})
        for name, row in data["violations"].items()
    }
    # Verbose, so that a long pattern can stand on several lines: space counts only where it is escaped.
    patterns = {name: re.compile(text, re.VERBOSE) for name, text in data["patterns"].items()}
    return Tables(patterns, {name: tuple(row) for name, row in data["words"].items()}, violations)
