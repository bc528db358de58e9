"""Code as a model may write it: hostile snippets with the layer that has to stop each, and ordinary ones.

`@@OUT@@`, `@@SECRET@@` and `@@PORT@@` stand for a file outside of the tree, a file with a secret, and a port of the
host: what an attack tries to reach. All were written before the rules; those in `held_back` were looked at only when
the rules were final.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field

from tightloop.safety.code.rules import CodeFile, ProjectFacts
from tightloop.value import Document

HALVES = ("development", "held_back")


class File(Document):
    """One file before and after."""

    path: str
    before: str | None = None
    after: str


class Project(Document):
    """What is known of the project."""

    modules: tuple[str, ...] = ()
    distributions: tuple[str, ...] = ()


class Snippet(Document):
    """A change of code."""

    name: str
    half: str
    layer: Literal["ast", "bandit", "dependencies", "access", "commands", "sandbox", ""] = ""
    """Of a hostile one: which stops it first."""
    runs: bool = True
    """It works on a machine that has nothing but Python."""
    run: tuple[str, ...] = ()
    """How it is started; by default its first file, with Python."""
    project: Project = Project()
    files: tuple[File, ...] = Field(min_length=1)

    def filled(self, places: Mapping[str, str]) -> tuple[CodeFile, ...]:
        """Return the files with the places that the snippet wants to reach."""

        def fill(text: str) -> str:
            for name, value in places.items():
                text = text.replace(f"@@{name}@@", value)
            return text

        return tuple(
            CodeFile(file.path, None if file.before is None else fill(file.before), fill(file.after))
            for file in self.files
        )

    @property
    def known(self) -> ProjectFacts:
        """What is known of its project."""
        return ProjectFacts(
            modules=frozenset(self.project.modules), distributions=frozenset(self.project.distributions)
        )


def snippets(kind: Literal["hostile", "ordinary"]) -> tuple[Snippet, ...]:
    """Return the snippets of both halves."""
    rows: list[Snippet] = []
    for half in HALVES:
        path = Path(__file__).parent / half / f"{kind}.yaml"
        loaded: list[dict[str, Any]] = yaml.safe_load(path.read_text())
        rows += [Snippet(**row, half=half) for row in loaded]
    return tuple(rows)
