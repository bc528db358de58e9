"""Labelled plans and changes: what a careful person would stop, and what only looks like it.

The labels and their reasons were written before the rules were run, but for the last change, a false alarm of a test.
`@@openai@@` and the like stand for keys that are put together here, so that no scanner takes this folder for a leak.
"""

import difflib
import hashlib
import json
from pathlib import Path
from typing import Literal

import yaml

from tightloop.executor.message import Alignment, PlanMessage, PlannedStep
from tightloop.value import Document

_ALPHABET = "abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"


def _letters(seed: str, count: int, alphabet: str = _ALPHABET) -> str:
    digest = hashlib.sha512(seed.encode()).digest() * 4
    return "".join(alphabet[byte % len(alphabet)] for byte in digest[:count])


KEYS = {
    "openai": "sk-" + "proj-" + _letters("openai", 48),
    "github": "ghp" + "_" + _letters("github", 36),
    "aws": "AKIA" + _letters("aws", 16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"),
    "stripe": "sk" + "_live_" + _letters("stripe", 24),
    "password": _letters("password", 18),
    "lines": "".join(f"line {n} of src/big.py\n" for n in range(800)),
    "pem": "-----BEGIN " + "RSA PRIVATE KEY-----\n" + "\n".join(_letters(f"pem{n}", 64) for n in range(6)),
}


class File(Document):
    """One file before and after."""

    path: str
    was: str = ""
    before: str | None = None
    after: str | None = None
    lines: int = 0
    """So many made-up lines, in place of `before`; the file is deleted where there is no `after`."""


class Case(Document):
    """A plan or a change, and whether a careful person would stop it."""

    name: str
    label: Literal["stop", "go"]
    why: str
    goal: str = "make the tests pass"
    scope: tuple[str, ...] = ()
    steps: tuple[str | list[str], ...] = ()
    files: tuple[File, ...] = ()
    copies: int = 1
    """So many of the first file, with a number in the place of `{n}`."""
    lines_before: int = 4_000

    @property
    def plan(self) -> PlanMessage:
        """The plan of a case that has steps."""
        return PlanMessage(
            project="shop",
            goal=self.goal,
            scope=self.scope,
            steps=tuple(
                PlannedStep(title=step) if isinstance(step, str) else PlannedStep(title="run it", run=tuple(step))
                for step in self.steps
            ),
            alignment=Alignment(answer="yes", rationale="harmless"),
        )

    @property
    def patch(self) -> str:
        """The change as git would show it."""
        first, *others = self.files
        copies = [first.evolve(path=first.path.format(n=n)) for n in range(self.copies)]
        return "".join(_patch(file) for file in ([*copies, *others] if self.copies > 1 else self.files))


def cases(kind: Literal["plans", "changes"]) -> tuple[Case, ...]:
    """Return all cases of a kind, keys filled in."""
    text = (Path(__file__).parent / f"{kind}.yaml").read_text(encoding="utf-8")
    for name, key in KEYS.items():
        text = text.replace(f"@@{name}@@", json.dumps(key)[1:-1])
    return tuple(Case.model_validate(entry) for entry in yaml.safe_load(text))


def _patch(file: File) -> str:
    before = "".join(f"line {n} of {file.path}\n" for n in range(file.lines)) if file.lines else file.before
    old = file.was or file.path
    head = [f"diff --git a/{old} b/{file.path}\n"]
    head += ["new file mode 100644\n"] if before is None else []
    head += ["deleted file mode 100644\n"] if file.after is None else []
    head += [f"similarity index 90%\nrename from {file.was}\nrename to {file.path}\n"] if file.was else []
    names = ("/dev/null" if before is None else f"a/{old}", "/dev/null" if file.after is None else f"b/{file.path}")
    diff = difflib.unified_diff(
        (before or "").splitlines(keepends=True), (file.after or "").splitlines(keepends=True), *names
    )
    return "".join(
        (*head, *(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in diff))
    )
