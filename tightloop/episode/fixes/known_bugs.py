"""Mechanical bugs that a ruff rule fixes, and the words in a check's output that point to them."""

import tomllib
from functools import cache
from importlib import resources
from typing import NamedTuple


class KnownBug(NamedTuple):
    """A ruff rule that fixes a bug, and what tests or type checkers print about it."""

    code: str
    cause: str
    words: str
    """Pattern that points to the bug."""
    unsafe: bool = False
    """Ruff marks every fix of the rule as unsafe."""


PROBES = ("F632", "F901", "B006", "E711", "UP035")
"""Rules that find bugs and can fix them, tried together when failing tests point to nothing."""


@cache
def known_bugs() -> tuple[KnownBug, ...]:
    """Return the rules whose bugs leave a trace in the output of tests and type checkers (`known_bugs.toml`)."""
    data = tomllib.loads((resources.files("tightloop.episode.fixes") / "known_bugs.toml").read_text("utf-8"))
    return tuple(KnownBug(**{**bug, "words": "".join(bug["words"])}) for bug in data["bugs"])
