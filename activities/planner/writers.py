"""Has a model write hidden scenarios, and a failing check if every check passes before any work is done."""

import asyncio
import re
import secrets
from base64 import b64encode
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from activities.model.asking import PromptedAsker, UnusableAnswerError, apply_privacy
from activities.model.client import ModelService
from activities.workspace.user_repository import list_files
from tightloop.episode.check import Check
from tightloop.episode.exit_status import masked_problem
from tightloop.episode.planning import Briefing, ProposedCheck
from tightloop.episode.scenarios import DRAFT_TIMEOUT_S, PRINTS_CHARACTERS, Scenario, ScenarioBundle
from tightloop.errors import TightloopError
from tightloop.executor.model import Usage, total
from tightloop.safety.commands.rules import find_violations
from tightloop.value import Value, format_count

PROMPTS = Path(__file__).parent / "scenario_prompts"


class _Draft(Value):
    """A scenario in the model's response; the schema is `scenario_prompts/draft/answer.json`."""

    path: str = ""
    content: str = ""
    run: str = ""
    prints: str = ""
    keep: bool = False


class _Drafts(Value):
    scenarios: tuple[_Draft, ...] = ()


class _Predictions(Value):
    prints: tuple[str, ...] = ()


class _Material(Value):
    """Values used in both prompts."""

    goal: str
    definition_of_done: tuple[str, ...]
    files: tuple[str, ...] = Field(default=())
    excerpts: tuple[str, ...] = ()
    limit: int = 0
    scenarios: tuple[_Draft, ...] = ()
    """Drafts without the lines that they are expected to print."""


class DraftAnswer(NamedTuple):
    """A list of drafted scenarios that have not been tried yet, or the reason why there are none."""

    bundle: ScenarioBundle | None
    reason: str = ""
    usage: Usage | None = None


class ScenarioWriter:
    """Asks a model for scenarios, then asks again for the output of their programs."""

    def __init__(self, service: ModelService) -> None:
        self._drafts = PromptedAsker(service, PROMPTS / "draft", "scenarios")
        self._predictions = PromptedAsker(service, PROMPTS / "predict", "predictions")

    async def write(self, briefing: Briefing, root: Path, limit: int) -> DraftAnswer:
        """Draft at most `limit` scenarios. The model's two answers must agree on the expected output.

        The second question contains the programs, but not the expected output from the first answer.

        Raises:
            PlannerError: the service rejects the request; not retryable.
            PlannerUnavailableError: the service is busy or down; retryable.
        """
        shown = apply_privacy(await asyncio.to_thread(with_files, briefing, root))
        material = _Material(
            goal=shown.goal,
            definition_of_done=shown.definition_of_done,
            files=shown.files,
            excerpts=shown.excerpts,
            limit=limit,
        )
        privacy = briefing.prompt_privacy

        def read(value: dict[str, Any]) -> tuple[_Draft, ...]:
            return self._usable(_Drafts.model_validate(value).scenarios, root)[:limit]

        drafted = await self._drafts.ask("draft.md", material, privacy, read)
        if drafted.value is None:
            return DraftAnswer(None, drafted.failure, drafted.usage)
        drafts = drafted.value
        programs = material.evolve(scenarios=tuple(draft.evolve(prints="") for draft in drafts))
        predicted = await self._predictions.ask(
            "predict.md", programs, privacy, lambda value: _read_predictions(value, len(drafts))
        )
        usage = total([drafted.usage, predicted.usage])
        if predicted.value is None:
            return DraftAnswer(None, predicted.failure, usage)
        agreed = [
            draft
            for draft, line in zip(drafts, predicted.value, strict=True)
            if line.strip() and line.strip() == draft.prints.strip()
        ]
        if not agreed:
            count = format_count(len(drafts), "draft")
            return DraftAnswer(None, f"the model's second answer does not match any of the {count}", usage)
        return DraftAnswer(_bundle_of(agreed), usage=usage)

    def _usable(self, drafts: Iterable[_Draft], root: Path) -> tuple[_Draft, ...]:
        """Return the drafts without errors, omitting duplicate paths.

        Raises:
            UnusableAnswerError: no draft is usable. The problems do not quote a draft, because they are
                logged.
        """
        usable: dict[str, _Draft] = {}
        problems: list[str] = []
        examples = {example["content"] for example in self._drafts.example["scenarios"]}
        for number, draft in enumerate(drafts, start=1):
            problem = _problem_of(draft, root) or ("it repeats the example" if draft.content in examples else "")
            if problem:
                problems.append(f"scenario {number}: {problem}")
            else:
                usable.setdefault(draft.path.strip() or draft.run, draft)
        if not usable:
            raise UnusableAnswerError(*(problems or ("`scenarios` is empty. Write at least one scenario",)))
        return tuple(usable.values())


ScenarioWriters = Callable[[str], ScenarioWriter | None]
"""Returns the scenario writer for this kind of planner, or None if no model plans."""


def scenario_writers(service: ModelService) -> ScenarioWriters:
    """Return a factory that takes a kind of planner and returns the scenario writer for it."""
    by_model = cache(lambda: ScenarioWriter(service))
    return lambda planner: by_model() if service.plans(planner) else None


def _problem_of(draft: _Draft, root: Path) -> str:
    path, run, prints = draft.path.strip(), draft.run.strip(), draft.prints.strip()
    if not run or len(run) > COMMAND_CHARACTERS or len(draft.content) > CONTENT_CHARACTERS:
        return f"`run` must have 1 to {COMMAND_CHARACTERS} characters, and `content` at most {CONTENT_CHARACTERS}"
    if not prints or len(prints) > PRINTS_CHARACTERS or len(prints.splitlines()) > 1:
        return f"`prints` must be one line with 1 to {PRINTS_CHARACTERS} characters"
    if bool(path) != bool(draft.content.strip()):
        return "`path` and `content` belong together. Specify both, or leave both empty"
    if path and path not in run:
        return "`run` does not name `path`, so it would not run the program"
    if masked_problem(run) or find_violations(run):
        return "`run` is not a plain command. Use a command such as python3 draft_1.py"
    try:
        if path and (root / path).exists():
            return "`path` already exists. Choose the path of a new file"
        _bundle_of([draft])
    except (ValueError, OSError):
        return "`path` or `run` is not valid. Example: draft_1.py and python3 draft_1.py"
    return ""


def _bundle_of(drafts: Iterable[_Draft]) -> ScenarioBundle:
    drafts = tuple(drafts)
    return ScenarioBundle(
        scenarios=tuple(
            Scenario(run=draft.run.strip(), prints=draft.prints.strip(), keep=draft.keep, timeout_s=DRAFT_TIMEOUT_S)
            for draft in drafts
        ),
        files={
            draft.path.strip(): b64encode(draft.content.encode("utf-8", "replace")).decode()
            for draft in drafts
            if draft.path.strip()
        },
        salt=secrets.token_hex(16),
    )


def _read_predictions(value: dict[str, Any], count: int) -> tuple[str, ...]:
    prints = _Predictions.model_validate(value).prints
    if len(prints) != count:
        raise UnusableAnswerError(f"`prints` must have {count} entries, one for each program, but has {len(prints)}")
    return prints


CHECK_PROMPTS = Path(__file__).parent / "check_prompts"
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
    """A check, or the reason why none is proposed."""

    check: ProposedCheck | None
    reason: str = ""
    usage: Usage | None = None


class CheckWriter:
    """Asks a model for a check that fails now and passes once the goal is reached."""

    def __init__(self, service: ModelService) -> None:
        self._asker = PromptedAsker(service, CHECK_PROMPTS, "check")

    async def write(self, briefing: Briefing, root: Path) -> CheckAnswer:
        """Ask the model to write a check. The check has not been run yet.

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
            problems.append("`reason` is empty. State in one sentence why no command can check the goal")
        if problems:
            raise UnusableAnswerError(*problems)
        if answer.run == self._asker.example["run"] and answer.content == self._asker.example["content"]:
            raise UnusableAnswerError("the answer repeats the example. Write a check for the goal in the briefing")
        return answer


def _problems_of(answer: _Answer) -> Iterable[str]:
    if not answer.run.strip():
        yield "`run` is empty. Specify the command that runs the check"
    for name, text, limit in (("run", answer.run, COMMAND_CHARACTERS), ("content", answer.content, CONTENT_CHARACTERS)):
        if len(text) > limit:
            yield f"`{name}` has {len(text)} characters, but the limit is {limit}"
    if bool(answer.path.strip()) != bool(answer.content.strip()):
        yield "`path` and `content` belong together. Specify both, or leave both empty"
    if answer.path.strip() and answer.path.strip() not in answer.run:
        yield "`run` does not name `path`, so it would not run the new test"
    if problem := masked_problem(answer.run) or Check(run=answer.run).problem:
        yield problem
    yield from (f"`run`: {violation.suggestion}" for violation in find_violations(answer.run))


CheckWriters = Callable[[str], CheckWriter | None]
"""Returns the check writer for this kind of planner, or None if no model plans."""


def check_writers(service: ModelService) -> CheckWriters:
    """Return a factory that takes a kind of planner and returns the check writer for it."""
    by_model = cache(lambda: CheckWriter(service))
    return lambda planner: by_model() if service.plans(planner) else None


def with_files(briefing: Briefing, root: Path) -> Briefing:
    """Add file names and excerpts of files below `root` to a briefing.

    The excerpts come from the files that are most similar to the goal. If the folder cannot be read, the
    briefing is returned unchanged.
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
