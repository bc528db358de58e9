"""Prompt rendering and prompt privacy."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import jinja2

from tightloop.episode.planning import Briefing, ReflectCause, ReflectionBriefing
from tightloop.errors import PlannerError
from tightloop.executor.message import Reflection
from tightloop.safety.drift import PromptPrivacy
from tightloop.value.scrub import scrub

SMALLEST_CONTEXT = 8_000
SHARED_OUT = 0.85
"""Share of the context that templates divide among their values. The rest is for their own text."""


class Prompts:
    """The prompt files in a folder.

    Templates limit the values they insert with the filters `start`, `end` and `items`. Each filter takes a share of the
    whole in percent, so that no prompt grows with the length of an episode. `all_items` has no limit. It is for
    messages of people, which are limited when they are sent.
    """

    def __init__(self, folder: Path, *, context_characters: int) -> None:
        """Load the prompt files from `folder`.

        A prompt has at most `context_characters` plus the messages of people. The limit is at least `SMALLEST_CONTEXT`.
        """
        self._characters = max(context_characters, SMALLEST_CONTEXT) * SHARED_OUT
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(folder),
            # A misspelt name in a template must fail in a test, not render as nothing.
            undefined=jinja2.StrictUndefined,
            # Prompts are Markdown, not HTML.
            autoescape=False,  # noqa: S701
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(start=self._start, end=self._end, items=self._items, all_items=_all_items)
        digest = hashlib.sha256()
        for path in sorted(path for path in folder.iterdir() if path.is_file()):
            content = path.read_bytes()
            # With name and length: text that moves from one file to the next must change the digest.
            digest.update(f"{path.name}\0{len(content)}\0".encode() + content)
        self.sha256 = digest.hexdigest()
        """SHA-256 of the prompt files, which identifies their version."""

    def render(self, name: str, **values: object) -> str:
        """Fill in a template and return the prompt. A missing value raises an error."""
        return self._environment.get_template(name).render(**values).strip() + "\n"

    def share(self, percent: float) -> int:
        """Return the number of characters that correspond to a percentage of the whole prompt."""
        return int(self._characters * percent / 100)

    def _start(self, text: str, percent: float) -> str:
        limit = self.share(percent)
        return text if len(text) <= limit else text[: max(limit - 6, 0)] + " [...]"

    def _end(self, text: str, percent: float) -> str:
        limit = self.share(percent)
        return text if len(text) <= limit else "[...] " + text[len(text) - max(limit - 6, 0) :]

    def _items(self, items: Sequence[str], percent: float) -> str:
        """Format the newest items that fit as a Markdown list, with the number of omitted items."""
        limit = self.share(percent)
        lines: list[str] = []
        used = 0
        for item in reversed(items):
            # Half the space at most, so that one long item does not displace all others.
            line = "- " + self._start(item, percent / 2).replace("\n", "\n  ")
            used += len(line) + 1
            if used > limit:
                lines.append(f"- [{len(items) - len(lines)} left out]")
                break
            lines.append(line)
        return "\n".join(reversed(lines))


def _all_items(items: Sequence[str]) -> str:
    return "\n".join("- " + item.replace("\n", "\n  ") for item in items)


WITHHELD = "[withheld: privacy.prompts is summary]"

B = TypeVar("B", Briefing, ReflectionBriefing)


def apply_privacy(briefing: B) -> B:
    """Reduce a briefing to what its prompt privacy allows.

    A summary keeps the goal, the definition of done, operator notes, the names and counts of checks, the names of
    changed files, the titles and outcomes of iterations, and reflections that were themselves based on a summary.
    """
    if briefing.prompt_privacy is PromptPrivacy.FULL:
        return briefing
    return scrub.model(_summarise(briefing) if briefing.prompt_privacy is PromptPrivacy.SUMMARY else briefing)


def redact_text(text: str, prompt_privacy: PromptPrivacy | None, *, strictest: PromptPrivacy) -> str:
    """Redact a part of a prompt to the given privacy level, which is None if unknown.

    Raises:
        PlannerError: a project here is at `summary`, and the text's level is unknown.
    """
    if prompt_privacy is None and strictest is PromptPrivacy.SUMMARY:
        raise PlannerError(
            "the prompt was not sent: its privacy level is unknown, and privacy.prompts is 'summary' for at least "
            "one project. Set privacy.prompts to 'redacted' or 'full', or turn off this use of a model"
        )
    return text if (prompt_privacy or strictest) is PromptPrivacy.FULL else scrub(text)


def _summarise(briefing: B) -> B:
    # Recollections quote outputs and changes.
    changes: dict[str, Any] = {"remembered": ()}
    if checks := briefing.checks:
        # Names and counts stay; the output of a check may quote any file.
        results = (result.evolve(tail=WITHHELD if result.tail else "", output=None) for result in checks.results)
        changes["checks"] = checks.evolve(results=tuple(results))
    if request := briefing.plan_request:
        changes["plan_request"] = request.evolve(
            report=WITHHELD if request.report else "",
            checks=tuple(line.partition("\n")[0] for line in request.checks),
            questions=(WITHHELD,) if request.questions else (),
            reflection=Reflection(),
        )
    if isinstance(briefing, Briefing):
        changes |= {"files": (), "excerpts": ()}
    if isinstance(briefing, ReflectionBriefing):
        changes["plan_change"] = WITHHELD if briefing.plan_change else ""
        if briefing.cause is ReflectCause.REPEATED_FAILURE:
            # Its detail may quote the failure.
            changes["detail"] = WITHHELD if briefing.detail else ""
    return briefing.evolve(**changes)
