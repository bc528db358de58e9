"""Drafting of hidden scenarios by a model before the work starts. It never talks to the planner or the executor."""

import asyncio
import secrets
from base64 import b64encode
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from activities.model.asking import PromptedAsker, UnusableAnswerError
from activities.model.client import ModelService
from activities.model.prompt import apply_privacy
from activities.planner.check_writer import COMMAND_CHARACTERS, CONTENT_CHARACTERS, with_files
from tightloop.episode.exit_status import masked_problem
from tightloop.episode.planning import Briefing
from tightloop.episode.scenarios import DRAFT_TIMEOUT_S, PRINTS_CHARACTERS, Scenario, ScenarioBundle
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
    """Drafted scenarios that have not been tried yet, or the reason why there are none."""

    bundle: ScenarioBundle | None
    reason: str = ""
    usage: Usage | None = None


class ScenarioWriter:
    """Asks a model for scenarios, and then asks it once more for the output of their programs."""

    def __init__(self, service: ModelService) -> None:
        self._drafts = PromptedAsker(service, PROMPTS / "draft", "scenarios")
        self._predictions = PromptedAsker(service, PROMPTS / "predict", "predictions")

    async def write(self, briefing: Briefing, root: Path, limit: int) -> DraftAnswer:
        """Draft at most `limit` scenarios for which both of the model's answers agree on the expected output.

        The second question contains the programs, but not the output that the first answer expects.

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
            return DraftAnswer(None, f"a second answer of the model agrees with none of {count}", usage)
        return DraftAnswer(_bundle_of(agreed), usage=usage)

    def _usable(self, drafts: Iterable[_Draft], root: Path) -> tuple[_Draft, ...]:
        """Return the drafts that have no errors, without duplicate paths.

        Raises:
            UnusableAnswerError: no draft is usable. The problems do not quote a draft, because they are logged.
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
            raise UnusableAnswerError(*(problems or ("`scenarios` is empty. Write at least one",)))
        return tuple(usable.values())


ScenarioWriters = Callable[[str], ScenarioWriter | None]
"""Returns the scenario writer for this kind of planner, or None if no model plans."""


def scenario_writers(service: ModelService) -> ScenarioWriters:
    """Return the factory of scenario writers, which looks them up by the kind of planner."""
    by_model = cache(lambda: ScenarioWriter(service))
    return lambda planner: by_model() if service.plans(planner) else None


def _problem_of(draft: _Draft, root: Path) -> str:
    path, run, prints = draft.path.strip(), draft.run.strip(), draft.prints.strip()
    if not run or len(run) > COMMAND_CHARACTERS or len(draft.content) > CONTENT_CHARACTERS:
        return f"`run` has 1 to {COMMAND_CHARACTERS} characters, and `content` at most {CONTENT_CHARACTERS}"
    if not prints or len(prints) > PRINTS_CHARACTERS or len(prints.splitlines()) > 1:
        return f"`prints` is one line with 1 to {PRINTS_CHARACTERS} characters"
    if bool(path) != bool(draft.content.strip()):
        return "`path` and `content` belong together. Give both, or leave both empty"
    if path and path not in run:
        return "`run` does not name `path`, so it would not run the program"
    if masked_problem(run) or find_violations(run):
        return "`run` is not a plain command. Give one such as python3 draft_1.py"
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
        raise UnusableAnswerError(f"`prints` has {len(prints)} texts. Give {count}, one for each program")
    return prints
