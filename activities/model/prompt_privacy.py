"""Reduces prompts to what the prompt privacy of a project allows.

A briefing is reduced field by field before a prompt is made of it (`cleared`), and every text is scrubbed once more
where it is sent (`passed`), which also covers what a model's own answer quotes when it is sent back.
"""

from typing import Any, TypeVar

from tightloop.episode.planning import Briefing, ReflectCause, ReflectionBriefing
from tightloop.errors import PlannerError
from tightloop.executor.messages.message import Reflection
from tightloop.safety.prompt_privacy import PromptPrivacy
from tightloop.value.scrub import scrub

WITHHELD = "[withheld: privacy.prompts is summary]"

B = TypeVar("B", Briefing, ReflectionBriefing)


def cleared(briefing: B) -> B:
    """Return what may be put into a prompt, by the level that the briefing names.

    In a summary stay: goal, definition of done, notes of the operator, names and counts of checks, names of
    changed files, titles and outcomes of iterations, and reflections that were themselves made from a summary.
    """
    if briefing.prompt_privacy is PromptPrivacy.FULL:
        return briefing
    return scrub.model(_summarised(briefing) if briefing.prompt_privacy is PromptPrivacy.SUMMARY else briefing)


def passed(text: str, prompt_privacy: PromptPrivacy | None, *, strictest: PromptPrivacy) -> str:
    """Return a part of a prompt as it may be sent, by the level that its author kept (None: not known).

    Raises:
        PlannerError: a project here is at `summary`, and nobody vouches that this text is one.
    """
    if prompt_privacy is None and strictest is PromptPrivacy.SUMMARY:
        raise PlannerError(
            "a prompt was not sent: privacy.prompts is 'summary' for a project here, and what made the prompt does not "
            "say which level it keeps. Set privacy.prompts to 'redacted' or 'full', or leave this use of a model out"
        )
    return text if (prompt_privacy or strictest) is PromptPrivacy.FULL else scrub(text)


def _summarised(briefing: B) -> B:
    # What was remembered quotes outputs and changes.
    changes: dict[str, Any] = {"remembered": ()}
    if checks := briefing.checks:
        # Names and counts stay; what a check printed may quote any file.
        kept = (result.evolve(tail=WITHHELD if result.tail else "", output=None) for result in checks.results)
        changes["checks"] = checks.evolve(results=tuple(kept))
    if request := briefing.plan_request:
        changes["plan_request"] = request.evolve(
            report=WITHHELD if request.report else "",
            checks=tuple(line.partition("\n")[0] for line in request.checks),
            questions=(WITHHELD,) if request.questions else (),
            reflection=Reflection(),
        )
    if isinstance(briefing, ReflectionBriefing):
        changes["plan_change"] = WITHHELD if briefing.plan_change else ""
        if briefing.cause is ReflectCause.REPEATED_FAILURE:
            # Its detail may quote the failure.
            changes["detail"] = WITHHELD if briefing.detail else ""
    return briefing.evolve(**changes)
