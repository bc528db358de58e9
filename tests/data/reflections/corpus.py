"""Reads the corpus: handwritten.txt and generated.jsonl.

A handwritten case begins with `%%% <name>`, then comes the answer as it is, then `%%= ` with the truth: the object,
`unusable` or `truncated`.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from tests.data.reflections.mutate import FILE
from tightloop.executor.message import Reflection

HANDWRITTEN = Path(__file__).parent / "handwritten.txt"


class Case(NamedTuple):
    """An answer and what it means."""

    name: str
    text: str
    truth: Any
    handwritten: bool

    @property
    def reflection(self) -> Reflection | None:
        """The reflection to be read from it; None where there is none."""
        if not isinstance(self.truth, dict):
            return None
        return Reflection(diagnosis=self.truth["diagnosis"], action_items=tuple(self.truth["action_items"]))


def cases() -> list[Case]:
    """Return the whole corpus."""
    found: list[Case] = []
    for block in HANDWRITTEN.read_text(encoding="utf-8").split("%%% ")[1:]:
        name, _, rest = block.partition("\n")
        text, _, truth = rest.rpartition("\n%%= ")
        meant = truth.strip()
        found.append(Case(name, text, json.loads(meant) if meant.startswith("{") else meant, True))
    for line in FILE.read_text(encoding="utf-8").splitlines():
        made = json.loads(line)
        found.append(Case(made["name"], made["text"], made["truth"], False))
    return found
