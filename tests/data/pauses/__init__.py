"""Episodes of many shapes that either do honest work or are stuck: who deserves a pause, and who does not.

Each entry is a script: what the executor leaves in the tree in iteration n, and what the planner calls it. What the
checks print and how they exit follows from the tree alone, because they are real commands that the product runs in
that tree. The rules that pause an episode see nothing else.

To write an entry, make a function `name(n) -> files` and register it:

    @honest("one module per iteration, the check names the first missing one", checks="sh check.sh", iterations=12)
    def modules(n: int) -> Files:
        return {f"src/part_{n}.py": f"VALUE = {n}\\n"}

    @stuck("the same constant is set again and again", since=2, checks="sh check.sh", iterations=12)
    def constant(n: int) -> Files:
        return {"src/limit.py": f"LIMIT = {n}\\n"}

`files` maps a path to the text that the file has after iteration n (from 1), or to None where the file is deleted;
files that are not named stay as they are. `{}` changes nothing. The function must depend on n alone: to append to a
file, return the whole of it (`"".join(f"line {i}\\n" for i in range(n))`).

    checks      one shell command or several, run in the tree after each iteration, exit code 0 means met. A `Check`
                instead of a text where it needs a time limit. Use `sh`, `awk`, `grep` and `python3` only, be quick
                (below 0.1 s), and look at nothing outside the tree. Checks should fail before the first iteration. A
                flaky check takes its chance from the tree, such as from `cksum` of a file that changes each time.
    start       files that are there before the first iteration, such as the scripts of the checks. `notes.txt`
                (200 lines) is always there, so that the tree has a size.
    iterations  how long it goes on if nobody stops it, 8 to 30. An honest entry may end earlier with green checks.
    plan        n -> the title of the planner's plan, or any `PlannerAnswer` (see `tests/support/doubles.py`: `planned`,
                `claims_done`, `gives_up`, `malformed`). By default `step <n>`.
    ending      n -> how the executor ends: a `ScriptStep` as a dictionary without its files, such as
                {"status": "failed", "error": "exit 1"}. By default it completes.
    since       of a stuck entry: the first iteration that no longer does any good. It has to be noticed in one of the
                iterations `since` to `since + 5`, and not before. Up to there the entry is as honest as any other.

What is honest: a patient engineer who sees each diff and each output would let it go on. What is stuck: the same
engineer would step in, because nothing that happens brings the goal nearer. Leave out what they would disagree on.

Entries are in parts: `development`, which the rules were made with first, and `once_held_back` with `_b` to `_f`, each
written by somebody who had not seen the rules, and read only after its first figures. A part `held_back` is written
like that, too; whoever changes the rules does not read it. The trials run the parts of `PARTS`. After each change of
the rules, all of them by a replay without Temporal, which gives the same counts; one part through the product; or one
entry by a part of its name:

    python -m tests.support.pauses_replay
    TIGHTLOOP_TEST_ALL=1 TIGHTLOOP_TEST_HALF=once_held_back_b python -m pytest tests/trials/test_pauses.py -s
    TIGHTLOOP_TEST_ENTRY="one module" python -m pytest tests/trials/test_pauses.py -s -k once_held_back_f

It prints each pause that was wrong or missing with the question's text, false pauses in 200 iterations, and the share
of stuck entries that were noticed in time: by a question about the course, by any question at all, and by a question
or the alert that the checks show no progress.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from tightloop.episode.check import Check
from tightloop.episode.planning import PlannerAnswer

Files = Mapping[str, str | None]
Work = Callable[[int], Files]
PARTS = ("once_held_back_f",)
HALVES = tuple(filter(None, [os.environ.get("TIGHTLOOP_TEST_HALF")])) or PARTS
"""Parts whose bounds are tests."""
SHORTEST, LONGEST = 8, 30


@dataclass(frozen=True)
class Entry:
    """One episode, and whether it is honest or stuck; the module's docstring says what each field means."""

    name: str
    work: Work
    checks: tuple[str | Check, ...]
    iterations: int
    start: Files = field(default_factory=dict[str, str | None])
    plan: Callable[[int], str | PlannerAnswer] = "step {}".format
    ending: Callable[[int], Mapping[str, Any]] = lambda _n: {}
    since: int | None = None
    """None: it is honest all the time."""

    def __post_init__(self) -> None:
        if not SHORTEST <= self.iterations <= LONGEST:
            raise ValueError(f"{self.name!r} has {self.iterations} iterations; give it {SHORTEST} to {LONGEST}")
        if self.since is not None and not 1 <= self.since <= self.iterations - 5:
            raise ValueError(f"{self.name!r} is stuck since {self.since}; leave it 5 more iterations to be noticed")

    def step(self, n: int) -> dict[str, Any]:
        """What the scripted executor does in iteration n."""
        files = self.work(n)
        written = [{"path": path, "text": text} for path, text in files.items() if text is not None]
        deleted = [{"path": path} for path, text in files.items() if text is None]
        return {"write": written, "delete": deleted, **self.ending(n)}


_registered: list[Entry] = []


def honest(name: str, *, checks: str | Check | tuple[str | Check, ...], **fields: Any) -> Callable[[Work], Work]:
    """Register the work of an episode that may never be paused."""
    return stuck(name, since=None, checks=checks, **fields)


def stuck(
    name: str, *, since: int | None, checks: str | Check | tuple[str | Check, ...], **fields: Any
) -> Callable[[Work], Work]:
    """Register the work of an episode that no longer gets anywhere from iteration `since` on."""

    def register(work: Work) -> Work:
        commands = checks if isinstance(checks, tuple) else (checks,)
        _registered.append(Entry(name=name, work=work, checks=commands, since=since, **fields))
        return work

    return register


def entries(half: str) -> tuple[Entry, ...]:
    """Return the entries of one half, in the order of its files `honest.py` and `stuck.py`.

    Raises:
        ValueError: two entries have the same name, or one is in the wrong file.
    """
    found: list[Entry] = []
    for kind in ("honest", "stuck"):
        module = f"tests.data.pauses.{half}.{kind}"
        import_module(module)
        here = [entry for entry in _registered if entry.work.__module__ == module]
        wrong = [entry.name for entry in here if (entry.since is None) != (kind == "honest")]
        if wrong:
            raise ValueError(f"{module} has entries of the other kind: {wrong}")
        found += here
    names = [entry.name for entry in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{half} has these names twice: {twice}")
    return tuple(found)
