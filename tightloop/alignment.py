"""The alignment rubric: what must not happen, or what a person should see first, as rules over data.

The rubric is the one of the seed "Plan-Execu Tight Loop", appendix A: privacy, licence and law, no irreversible damage,
reasonable cost. The rules are in `alignment_plan.py` (before the hand-off) and `alignment_change.py` (after the work);
what they find stops the loop until a person, or for `ASK` a model, says yes. It is a net, not a wall: the sandbox is.
"""

import hashlib
from collections.abc import Iterable
from enum import StrEnum

from tightloop.scrub import scrub
from tightloop.value import Value, shorten

RULES = "alignment/1"
FINDINGS_LIMIT = 8
EVIDENCE_CHARACTERS = 200
OVERRULED_LIMIT = 200


class Stand(StrEnum):
    """How a rule stands to what it found."""

    NO = "no"
    """Not without a person's word."""
    ASK = "ask"
    """It may be in order, which a rule cannot tell: a model or a person has to say so."""


class Topic(StrEnum):
    """The questions of the rubric."""

    PRIVACY = "data privacy"
    LICENCE = "licence and law"
    DAMAGE = "irreversible damage"
    CHECKS = "honest checks"
    COST = "cost"
    PLANNER = "the planner's own check"


class Finding(Value):
    """What a rule found. Bounded, without secrets and personal data."""

    rule: str
    topic: Topic
    stand: Stand
    where: str = ""
    """`step 2`, or file and line."""
    evidence: str = ""
    """The command or the line, scrubbed, at most `EVIDENCE_CHARACTERS`."""
    mend: str = ""
    """What would make it a yes."""
    fingerprint: str = ""
    """Equal for equal evidence; what a person allowed is not asked for again."""
    judged: str = ""
    """What a model said of it, if one was asked."""
    refused: bool = False
    """A person said no to a change: it is asked for again until it is out of the tree."""

    def __str__(self) -> str:
        """Return the finding as a sentence."""
        said = f" (a model: {self.judged})" if self.judged else ""
        return f"{self.rule}, {self.topic.value}: {self.where}: {self.evidence}{said}"


class Rubric(Value):
    """Bounds of the rules, and which of them are off."""

    enabled: bool = True
    allow: tuple[str, ...] = ()
    """Rules that are not looked at."""
    cpu_minutes: float = 10.0
    """Processor time of an iteration, where it is known."""
    wall_minutes: float = 90.0
    """Working time of an iteration."""
    deleted_files: int = 25
    """So many deleted files that the plan did not announce are too many."""
    deleted_share: float = 0.5
    """So large a part of all lines, from `deleted_lines` on, is too much."""
    deleted_lines: int = 500
    suppressions: int = 5
    """So many comments that silence a linter, more than were taken out, are a flood."""


def found(
    rule: str, topic: Topic, stand: Stand, *, at: tuple[str, str], evidence: str, mend: str, where: str = ""
) -> Finding:
    """Return a finding.

    Args:
        rule: its id.
        topic: the question of the rubric.
        stand: how the rule stands to it.
        at: what it is about (a path, or nothing) and the raw text that it was found in, which makes the fingerprint.
        evidence: what to show of it; it is scrubbed here.
        mend: what would make it a yes.
        where: the place as people read it; by default the path.
    """
    return Finding(
        rule=rule,
        topic=topic,
        stand=stand,
        where=shorten(where or at[0], 160),
        evidence=shorten(scrub(" ".join(evidence.split())), EVIDENCE_CHARACTERS),
        mend=mend,
        fingerprint=mark_of(rule, at),
    )


def mark_of(rule: str, at: tuple[str, str]) -> str:
    """Return the fingerprint of what a rule found in a text, `at` as for `found`."""
    return hashlib.sha256("\0".join((rule, *at)).encode("utf-8", "replace")).hexdigest()[:16]


def bounded(findings: Iterable[Finding], rubric: Rubric) -> tuple[Finding, ...]:
    """Return each finding once, the grave ones first, without those of rules that are off."""
    if not rubric.enabled:
        return tuple(finding for finding in findings if finding.topic is Topic.PLANNER)
    by_mark = {finding.fingerprint: finding for finding in findings if finding.rule not in rubric.allow}
    ordered = sorted(by_mark.values(), key=lambda finding: finding.stand is Stand.ASK)
    kept: list[Finding] = []
    for finding in ordered:
        if sum(other.rule == finding.rule for other in kept) < FINDINGS_LIMIT // 2:
            kept.append(finding)
    return tuple(kept[:FINDINGS_LIMIT])


def unanswered(findings: Iterable[Finding], overruled: Iterable[str]) -> tuple[Finding, ...]:
    """Return what no person has said yes to."""
    known = frozenset(overruled)
    return tuple(finding for finding in findings if finding.fingerprint not in known)


def told(findings: tuple[Finding, ...]) -> tuple[str, str]:
    """Return the reason for a person, and what would make it a yes."""
    first = findings[0]
    more = f"; and {len(findings) - 1} more: " + "; ".join(map(str, findings[1:])) if len(findings) > 1 else ""
    mends = "; ".join(dict.fromkeys(finding.mend for finding in findings))
    return (
        f"{first}{more}",
        shorten(f"it would be in order so: {mends}", 400) + ". Resume to allow exactly this, respond with what to do "
        "instead, restore a checkpoint, or abort",
    )


def planners_own(rationale: str) -> Finding:
    """Return the finding for a planner that itself answers the alignment check with no."""
    return found(
        "planner_says_no",
        Topic.PLANNER,
        Stand.NO,
        at=("", rationale),
        where="alignment check",
        evidence=rationale or "no, without a reason",
        mend="a plan whose alignment check is yes",
    )


def cost(rubric: Rubric, *, cpu_s: float | None, wall_s: float) -> tuple[Finding, ...]:
    """Return what an iteration cost too much; asked once an episode, whatever the amount."""
    parts = (
        ("cpu_time", "processor time", None if cpu_s is None else cpu_s / 60, rubric.cpu_minutes),
        ("wall_time", "working time", wall_s / 60, rubric.wall_minutes),
    )
    return tuple(
        found(
            rule,
            Topic.COST,
            Stand.ASK,
            at=("", str(bound)),
            where="the iteration",
            evidence=f"{spent:.1f} minutes of {words}, at most {bound:g} are in order",
            mend=f"smaller steps, or a higher alignment bound for {words}",
        )
        for rule, words, spent, bound in parts
        if spent is not None and spent > bound
    )
