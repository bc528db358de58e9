"""Review of a proven change by a model. If the model has doubts, a person is asked; its approval changes nothing."""

import asyncio
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from activities.model.asking import PromptedAsker, UnusableAnswerError
from activities.model.client import ModelService
from activities.planner.writers import with_files
from activities.proof.port import ReviewAnswer
from tightloop.episode.planning import Briefing
from tightloop.episode.proof import Review
from tightloop.errors import PlannerError, PlannerUnavailableError
from tightloop.executor.model import Usage
from tightloop.safety.change.patch import FilePatch, find_quoted_line, limit_patch, read_patch
from tightloop.safety.drift import PromptPrivacy
from tightloop.value import Value, shorten
from tightloop.value.scrub import scrub

PROMPTS = Path(__file__).parent / "review_prompts"
DIFF_SHARE = 60.0
"""Percentage of the prompt for the diff, as in the template."""
QUOTES_LIMIT = 5
QUOTE_CHARACTERS = 200
DOUBT_CHARACTERS = 300
LONGEST_S = 300.0
"""Time limit for all attempts together, in seconds."""


class _Quote(Value):
    path: str
    line: str


class _Answer(Value):
    """The model's response; its schema is `review_prompts/answer.json`."""

    doubts: bool
    reason: str = ""
    quotes: tuple[_Quote, ...] = ()


class _Material(Value):
    """Values used in the prompt."""

    goal: str
    definition_of_done: tuple[str, ...]
    excerpts: tuple[str, ...]
    diff: str
    files: int
    unread: int


class _Doubt(NamedTuple):
    reason: str = ""
    quotes: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


class Reviewer:
    """Asks a model whether a change achieves the goal overall."""

    def __init__(self, service: ModelService) -> None:
        self._asker = PromptedAsker(service, PROMPTS, "review")

    async def review(self, briefing: Briefing, patch: str, root: Path) -> ReviewAnswer:
        """Ask a model to review a change. Never raises, even if the model service fails.

        A doubt must quote lines that the change adds or removes. Other quotations are dropped. A doubt
        without a valid quotation is sent back to the model.

        Args:
            briefing: the goal, the checks and the prompt privacy.
            patch: git patch of the change.
            root: folder with the changed files. Files that are similar to the goal and the change are
                included in the prompt.
        """
        # In a thread: a change of 2 MB would block the event loop.
        material, shown = await asyncio.to_thread(self._prepare, briefing, patch, root)
        try:
            async with asyncio.timeout(LONGEST_S):
                exchange = await self._asker.ask(
                    "review.md", material, briefing.prompt_privacy, lambda value: _read(value, shown)
                )
        except TimeoutError:
            return ReviewAnswer(None, f"no answer within {LONGEST_S:g} s", Usage())
        except PlannerUnavailableError as error:
            # The call may have been charged: usage is unknown, not zero.
            return ReviewAnswer(None, error.message, Usage())
        except PlannerError as error:
            return ReviewAnswer(None, error.message)
        if exchange.value is None:
            return ReviewAnswer(None, exchange.failure, exchange.usage, exchange.transcript)
        doubt = exchange.value
        review = Review(
            model=exchange.model,
            doubt=doubt.reason,
            quotes=doubt.quotes,
            paths=doubt.paths,
            files=material.files,
            unread=material.unread,
            prompt_sha256=self._asker.sha256,
        )
        return ReviewAnswer(review, usage=exchange.usage, transcript=exchange.transcript)

    def _prepare(self, briefing: Briefing, patch: str, root: Path) -> tuple[_Material, tuple[FilePatch, ...]]:
        """Return the values for the prompt, and the files whose diff the prompt contains.

        The model can only quote these files.
        """
        files = read_patch(patch)
        # The tests of a changed module name it.
        named = briefing.evolve(goal="\n".join((briefing.goal, *(file.path for file in files))))
        changed = {f"# {file.path}" for file in files}
        excerpts = with_files(named, root).excerpts
        diff, unread = limit_patch(patch, self._asker.share(DIFF_SHARE))
        material = _Material(
            goal=briefing.goal,
            definition_of_done=briefing.definition_of_done,
            # Changed files last, because the diff shows the part that matters.
            excerpts=tuple(sorted(excerpts, key=lambda text: text.partition("\n")[0] in changed)),
            diff=diff,
            files=len(files),
            unread=unread,
        )
        if briefing.prompt_privacy is not PromptPrivacy.FULL:
            material = scrub.model(material)
        return material, read_patch(material.diff)


def _read(value: dict[str, Any], shown: tuple[FilePatch, ...]) -> _Doubt:
    answer = _Answer.model_validate(value)
    if not answer.doubts:
        return _Doubt()
    reason = shorten(scrub(" ".join(answer.reason.split())), DOUBT_CHARACTERS)
    if not reason:
        raise UnusableAnswerError(
            "`reason` is empty. Name an input that produces a wrong result, or set `doubts` to false"
        )
    quoted = [find_quoted_line(shown, quote.path.strip(), quote.line) for quote in answer.quotes]
    lines = list(dict.fromkeys(filter(None, quoted)))[:QUOTES_LIMIT]
    if not lines:
        raise UnusableAnswerError(
            "`quotes` contains no line that the diff adds or removes. Copy whole lines exactly, each with the path of "
            "its file, or set `doubts` to false"
        )
    quotes = tuple(shorten(scrub(line), QUOTE_CHARACTERS) for _, line in lines)
    return _Doubt(reason, quotes, tuple(dict.fromkeys(path for path, _ in lines)))


Reviewers = Callable[[str], Reviewer | None]
"""Returns the reviewer for this kind of planner, or None if no model plans."""


def reviewers(service: ModelService) -> Reviewers:
    """Return a factory that takes a kind of planner and returns the reviewer for it."""
    by_model = cache(lambda: Reviewer(service))
    return lambda planner: by_model() if service.plans(planner) else None
