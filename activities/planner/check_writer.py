"""Writing of a check that fails, by a model, if every check passes before any work."""

import asyncio
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from activities.model.asking import PromptedAsker, UnusableAnswerError
from activities.model.client import ModelService
from activities.model.prompt import apply_privacy
from activities.workspace.user_repository import list_files
from tightloop.episode.check import Check
from tightloop.episode.exit_status import masked_problem
from tightloop.episode.planning import Briefing, ProposedCheck
from tightloop.errors import TightloopError
from tightloop.executor.model import Usage
from tightloop.safety.commands.rules import find_violations
from tightloop.value import Value

PROMPTS = Path(__file__).parent / "check_prompts"
COMMAND_CHARACTERS = 1_000
CONTENT_CHARACTERS = 20_000
LISTED_FILES = 400
READ_FILES = 2_000
SOURCE_BYTES = 40_000
"""Maximum size of a file in bytes. Larger ones are not read, because they are mostly generated."""
EXCERPTS = 6
_WORD = re.compile(r"[a-z]{4,}")


class _Answer(Value):
    """The model's response; its schema is `check_prompts/answer.json`."""

    run: str = ""
    path: str = ""
    content: str = ""
    cannot: bool = False
    reason: str = ""


class CheckAnswer(NamedTuple):
    """A check, or the reason for not proposing one."""

    check: ProposedCheck | None
    reason: str = ""
    usage: Usage | None = None


class CheckWriter:
    """Asks a model for a check that fails now and passes once the goal is reached."""

    def __init__(self, service: ModelService) -> None:
        self._asker = PromptedAsker(service, PROMPTS, "check")

    async def write(self, briefing: Briefing, root: Path) -> CheckAnswer:
        """Have the model write a check. The check has not been tried yet.

        The prompt shows the files below `root` that are most similar to the goal.

        Raises:
            PlannerError: the service rejects the request; not retryable.
            PlannerUnavailableError: the service is busy or down; retryable.
        """
        briefing = await asyncio.to_thread(with_files, briefing, root)
        exchange = await self._asker.ask("check.md", apply_privacy(briefing), briefing.prompt_privacy, self._read)
        answer = exchange.value
        if answer is None:
            return CheckAnswer(None, exchange.failure, exchange.usage)
        if answer.cannot:
            return CheckAnswer(None, answer.reason, exchange.usage)
        proposed = ProposedCheck(run=answer.run.strip(), path=answer.path.strip(), content=answer.content)
        return CheckAnswer(proposed, usage=exchange.usage)

    def _read(self, value: dict[str, Any]) -> _Answer:
        answer = _Answer.model_validate(value)
        problems = [] if answer.cannot else list(_problems_of(answer))
        if answer.cannot and not answer.reason.strip():
            problems.append("`reason` is empty. State in one sentence why no command can observe the goal")
        if problems:
            raise UnusableAnswerError(*problems)
        if answer.run == self._asker.example["run"] and answer.content == self._asker.example["content"]:
            raise UnusableAnswerError("the answer repeats the example. Write a check for the goal of the briefing")
        return answer


def _problems_of(answer: _Answer) -> Iterable[str]:
    if not answer.run.strip():
        yield "`run` is empty. Give the command that runs the check"
    for name, text, limit in (("run", answer.run, COMMAND_CHARACTERS), ("content", answer.content, CONTENT_CHARACTERS)):
        if len(text) > limit:
            yield f"`{name}` has {len(text)} characters, but the limit is {limit}"
    if bool(answer.path.strip()) != bool(answer.content.strip()):
        yield "`path` and `content` belong together. Give both, or leave both empty"
    if answer.path.strip() and answer.path.strip() not in answer.run:
        yield "`run` does not name `path`, so it would not run the new test"
    if problem := masked_problem(answer.run) or Check(run=answer.run).problem:
        yield problem
    yield from (f"`run`: {violation.suggestion}" for violation in find_violations(answer.run))


CheckWriters = Callable[[str], CheckWriter | None]
"""Returns the check writer for this kind of planner, or None if no model plans."""


def check_writers(service: ModelService) -> CheckWriters:
    """Return the factory of check writers, which looks them up by the kind of planner."""
    by_model = cache(lambda: CheckWriter(service))
    return lambda planner: by_model() if service.plans(planner) else None


def with_files(briefing: Briefing, root: Path) -> Briefing:
    """Extend a briefing with the names of the files below `root`, and excerpts of those most similar to the goal.

    If the folder cannot be accessed, the briefing stays unchanged.
    """
    try:
        names = sorted(list_files(root))
    except (TightloopError, OSError):
        return briefing
    words, scored = set(_WORD.findall(briefing.goal.lower())), list[tuple[int, str, str]]()
    for name in names[:READ_FILES]:
        text = _read_source(root, name)
        if common := len(words & set(_WORD.findall(f"{name}\n{text}".lower()))) if text else 0:
            scored.append((-common, name, text))
    excerpts = tuple(f"# {name}\n{text}" for _, name, text in sorted(scored)[:EXCERPTS])
    shown = tuple(name.encode("utf-8", "replace").decode() for name in names[:LISTED_FILES])
    return briefing.evolve(files=shown, excerpts=excerpts)


def _read_source(root: Path, name: str) -> str:
    """Read a small regular file below `root`. Return "" for any other file."""
    path = root / name
    try:
        # A link may lead to files outside of the project, which no prompt may quote.
        if path.resolve() != root.resolve() / name or not path.is_file() or path.stat().st_size > SOURCE_BYTES:
            return ""
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        return ""
