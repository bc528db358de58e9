"""The gate between a briefing and a model service: what the project's level does not let out stays here.

A briefing is reduced field by field before a prompt is made of it (`cleared`), and every text is scrubbed once more
where it is sent (`passed`), which also covers what a model's own answer quotes when it is sent back.
"""

from typing import TypeVar

from tightloop.check import CheckReport, CheckResult
from tightloop.egress import Egress
from tightloop.errors import PlannerError
from tightloop.message import PlanRequestMessage, Reflection
from tightloop.planning import Briefing, ReflectCause, ReflectionBriefing
from tightloop.scrub import scrub

WITHHELD = "[withheld: privacy.egress is summary]"

B = TypeVar("B", Briefing, ReflectionBriefing)


def cleared(briefing: B) -> B:
    """Return what may be put into a prompt, by the level that the briefing names.

    In a summary stay: goal, definition of done, notes of the operator, names and counts of checks, names of
    changed files, titles and outcomes of iterations, and reflections that were themselves made from a summary.
    """
    if briefing.egress is Egress.FULL:
        return briefing
    if briefing.egress is Egress.SUMMARY:
        briefing = _summarised(briefing)
    return scrub.model(briefing)


def passed(text: str, egress: Egress | None, *, strictest: Egress) -> str:
    """Return a text as it may be sent.

    Args:
        text: a part of a prompt.
        egress: the level that its author kept; None: its author did not say.
        strictest: the strictest level of any project here.

    Raises:
        PlannerError: a project here is at `summary`, and nobody vouches that this text is one.
    """
    if egress is None and strictest is Egress.SUMMARY:
        raise PlannerError(
            "a prompt was not sent: privacy.egress is 'summary' for a project here, and what made the prompt does not "
            "say which level it keeps. Set privacy.egress to 'redacted' or 'full', or leave this use of a model out"
        )
    return text if (egress or strictest) is Egress.FULL else scrub(text)


def _summarised(briefing: B) -> B:
    changes: dict[str, object] = {
        "checks": _counted(briefing.checks) if briefing.checks else None,
        "plan_request": _outlined(briefing.plan_request) if briefing.plan_request else None,
    }
    if isinstance(briefing, ReflectionBriefing) and briefing.cause is ReflectCause.REPEATED_FAILURE:
        # Its detail may quote the failure.
        changes["detail"] = WITHHELD if briefing.detail else ""
    return briefing.model_copy(update=changes)


def _counted(report: CheckReport) -> CheckReport:
    return report.model_copy(update={"results": tuple(_without_output(result) for result in report.results)})


def _without_output(result: CheckResult) -> CheckResult:
    return result.model_copy(update={"tail": WITHHELD if result.tail else "", "output": None})


def _outlined(message: PlanRequestMessage) -> PlanRequestMessage:
    return message.model_copy(
        update={
            "report": WITHHELD if message.report else "",
            "checks": tuple(line.partition("\n")[0] for line in message.checks),
            "questions": (WITHHELD,) if message.questions else (),
            "reflection": Reflection(),
        }
    )
