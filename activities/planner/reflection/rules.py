"""A reflector without a model: it reads the reasons of the class, the failing checks and the cause."""

import re

from tightloop.episode.check import CheckReport, CheckStatus
from tightloop.episode.fixes.fix import last_error
from tightloop.episode.planning import ReflectCause, ReflectionBriefing, ReflectorAnswer
from tightloop.executor.messages.message import Reflection
from tightloop.value import shorten

CHECKS_NAMED = 3
DETAIL_CHARACTERS = 300


_BY_REASON = {
    "newly.failing": "first undo or fix what broke the checks that passed before",
    "outside the plan|out_of_scope": "keep to the announced files, or announce the others with a reason",
    "back and forth|alternation": "stop alternating: choose one of the two states and say why the other is wrong",
    "exactly like this before|same_tree_again": (
        "do not repeat the last plan: it leads to a tree that was seen before"
    ),
    "changed no file|no_change": "make the next plan's first step a concrete change to a named file",
    "is not known|outcome_unknown": "look at the tree before planning: the last delivery may have been done in part",
    "of the tree is unchanged|ratio": "plan a smaller change: one cause, few files",
}
"""What to do about the words of the tracker, the most urgent first."""


class RuleReflector:
    """Reflects by rules; never fails and needs no network."""

    async def reflect(self, briefing: ReflectionBriefing) -> ReflectorAnswer:
        """Return a diagnosis and at least one action item."""
        return ReflectorAnswer(reflection=rule_reflection(briefing), source="rules")


def rule_reflection(briefing: ReflectionBriefing) -> Reflection:
    """Say why the reflection is made and what fails, and derive what to do."""
    found: list[str] = []
    if briefing.cause is ReflectCause.RESTORED:
        happened = "The work was set back to an earlier checkpoint"
        found.append("start from the restored files and do not take the path that was given up")
    elif briefing.cause is ReflectCause.REPEATED_FAILURE:
        happened = "The same failure came back"
        tried = shorten(briefing.previous.diagnosis, 120) if briefing.previous else ""
        why = f"acting on '{tried}' did not help" if tried else "what was planned does not touch the cause"
        found.append(f"form a new diagnosis: {why}")
    else:
        happened = "The last iteration left its course"
        found.extend(action for words, action in _BY_REASON.items() if re.search(words, briefing.detail, re.IGNORECASE))
    found.extend(_by_check(briefing.checks))
    detail = shorten(" ".join(briefing.detail.split()), DETAIL_CHARACTERS) or "no detail is known"
    parts = [f"{happened} ({detail})", *_failing(briefing.checks)]
    request = briefing.plan_request
    if request is not None and request.outcome not in ("", "completed", "no_change"):
        parts.append(f"the executor ended with '{request.outcome}'")
    return Reflection(
        diagnosis=". ".join(part.rstrip(".") for part in parts) + ".",
        action_items=tuple(dict.fromkeys(found)) or ("compare the result with the goal, then plan what is missing",),
    )


def _failing(checks: CheckReport | None) -> list[str]:
    if checks is None or not checks.results:
        return ["No check has run"]
    if checks.green:
        return ["All checks pass"]
    return [f"'{result.name}' {result.status.value}: {last_error(result)}" for result in checks.failed[:CHECKS_NAMED]]


def _by_check(checks: CheckReport | None) -> list[str]:
    found: list[str] = []
    for result in checks.failed[:CHECKS_NAMED] if checks else ():
        if result.status is CheckStatus.NOT_FOUND:
            found.append(f"have the program of '{result.name}' installed, or correct the command")
        elif result.status is CheckStatus.TIMED_OUT:
            found.append(f"find what hangs in '{result.name}'")
        else:
            causes = ", ".join(result.failing[:CHECKS_NAMED])
            found.append(f"make '{result.name}' pass" + (f", beginning with {causes}" if causes else ""))
    return found
