"""A reflector without a model: it reads the reasons of the class, the failing checks and the cause."""

import re
from typing import NamedTuple

from tightloop.check import CheckReport, CheckStatus
from tightloop.message import Reflection
from tightloop.planning import ReflectCause, ReflectionBriefing, ReflectorAnswer
from tightloop.remedy import last_error
from tightloop.value import shorten

CHECKS_NAMED = 3
DETAIL_CHARACTERS = 300


class _Rule(NamedTuple):
    words: str
    action: str


_BY_REASON = (
    _Rule("newly.failing", "first undo or mend what broke the checks that passed before"),
    _Rule("outside the plan|out_of_scope", "keep to the announced files, or announce the others with a reason"),
    _Rule(
        "back and forth|alternation", "stop alternating: choose one of the two states and say why the other is wrong"
    ),
    _Rule(
        "exactly like this before|same_tree_again",
        "do not repeat the last plan: it leads to a tree that was seen before",
    ),
    _Rule("changed no file|no_change", "make the next plan's first step a concrete change to a named file"),
    _Rule(
        "is not known|outcome_unknown", "look at the tree before planning: the last delivery may have been done in part"
    ),
    _Rule("of the tree is unchanged|ratio", "plan a smaller change: one cause, few files"),
)
"""What to do about the words of the tracker, the most urgent first."""


class RuleReflector:
    """Reflects by rules; never fails and needs no network."""

    async def reflect(self, briefing: ReflectionBriefing) -> ReflectorAnswer:
        """Return a diagnosis and at least one action item."""
        return ReflectorAnswer(reflection=rule_reflection(briefing), source="rules")


def rule_reflection(briefing: ReflectionBriefing) -> Reflection:
    """Say why the reflection is made and what fails, and derive what to do."""
    parts = [_cause(briefing), *_failing(briefing.checks)]
    request = briefing.plan_request
    if request is not None and request.outcome not in ("", "completed", "no_change"):
        parts.append(f"the executor ended with '{request.outcome}'")
    return Reflection(diagnosis=". ".join(part.rstrip(".") for part in parts) + ".", action_items=_actions(briefing))


def _cause(briefing: ReflectionBriefing) -> str:
    detail = shorten(" ".join(briefing.detail.split()), DETAIL_CHARACTERS) or "no detail is known"
    if briefing.cause is ReflectCause.RESTORED:
        return f"The work was set back to an earlier checkpoint ({detail})"
    if briefing.cause is ReflectCause.REPEATED_FAILURE:
        return f"The same failure came back ({detail})"
    return f"The last iteration left its course ({detail})"


def _failing(checks: CheckReport | None) -> list[str]:
    if checks is None or not checks.results:
        return ["No check has run"]
    if checks.green:
        return ["All checks pass"]
    return [f"'{result.name}' {result.status.value}: {last_error(result)}" for result in checks.failed[:CHECKS_NAMED]]


def _actions(briefing: ReflectionBriefing) -> tuple[str, ...]:
    found: list[str] = []
    if briefing.cause is ReflectCause.RESTORED:
        found.append("start from the restored files and do not take the path that was given up")
    elif briefing.cause is ReflectCause.REPEATED_FAILURE:
        found.append(_other_diagnosis(briefing.previous))
    else:
        found.extend(rule.action for rule in _BY_REASON if re.search(rule.words, briefing.detail, re.IGNORECASE))
    found.extend(_by_check(briefing.checks))
    return tuple(dict.fromkeys(found)) or ("compare the result with the goal, then plan what is missing",)


def _other_diagnosis(previous: Reflection | None) -> str:
    if previous is None or not previous.diagnosis:
        return "form a new diagnosis: what was planned does not touch the cause"
    return f"form a new diagnosis: acting on '{shorten(previous.diagnosis, 120)}' did not help"


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
