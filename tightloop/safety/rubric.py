"""Rubric of alignment."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, NamedTuple

from pydantic import Field

from tightloop.value import Value, shorten
from tightloop.value.scrub import scrub


class Verdict(StrEnum):
    """Whether an act is allowed, from lenient to strict."""

    ALLOW = "allow"
    ASK = "ask"
    """A person has to approve it first; for a finding of the rubric a model may do so."""
    DENY = "deny"
    """Forbidden; for a finding of the rubric only a person can allow it."""


_STRICTNESS = tuple(Verdict)


@dataclass(frozen=True)
class Ruling:
    """A verdict, and the rule that gave it."""

    verdict: Verdict = Verdict.ALLOW
    rule: str = ""
    """Such as `policy.protect`; empty: no rule applied."""
    reason: str = ""
    """One sentence for a person: the rule, and what to do instead."""


def strictest(rulings: Iterable[Ruling]) -> Ruling:
    """Return the strictest ruling; of equally strict ones the first."""
    return max(rulings, key=lambda ruling: _STRICTNESS.index(ruling.verdict), default=Ruling())


RULES = "alignment/1"
FINDINGS_LIMIT = 8
EVIDENCE_CHARACTERS = 200
OVERRULED_LIMIT = 200


class Topic(StrEnum):
    """The questions of the rubric."""

    PRIVACY = "data privacy"
    LICENCE = "licence and law"
    DAMAGE = "irreversible damage"
    CHECKS = "honest checks"
    CODE = "safety of code"
    COST = "cost"
    PLANNER = "the planner's own check"


class Violation(NamedTuple):
    """A rule that was broken, without the place where."""

    rule: str
    topic: Topic
    verdict: Verdict
    suggestion: str
    """What to do instead."""


class Finding(Value):
    """A violation at a place, with its evidence; bounded, without secrets and personal data."""

    rule: str
    topic: Topic
    verdict: Verdict
    where: str = ""
    """`step 2`, or file and line."""
    evidence: str = ""
    """The command or the line, scrubbed, at most `EVIDENCE_CHARACTERS`."""
    suggestion: str = ""
    """What would resolve it."""
    fingerprint: str = ""
    """Equal for equal evidence; what a person allowed is not asked for again."""
    judged: str = ""
    """What a model said about it, if one was asked."""
    refused: bool = False
    """A person denied the change: it is reported again until it is out of the tree."""
    layer: str = ""
    """Of code that is reviewed before it is run: the layer that found it, such as `ast` or `bandit`."""

    def __str__(self) -> str:
        said = f" (a model: {self.judged})" if self.judged else ""
        return f"{self.rule}, {self.topic.value}: {self.where}: {self.evidence}{said}"


_Minutes = Annotated[float, Field(gt=0)]
_Count = Annotated[int, Field(ge=1)]


class Rubric(Value):
    """Bounds of the rules, and which of them are off."""

    enabled: bool = True
    """Look for these things at all."""
    allow: tuple[str, ...] = ()
    """Rules that are off, by the names that pauses show, such as `publishes`."""
    cpu_minutes: _Minutes = 10.0
    """Maximum processor time of an iteration, where it is known."""
    wall_minutes: _Minutes = 90.0
    """Maximum working time of an iteration."""
    deleted_files: _Count = 25
    """This many deleted files that the plan did not announce are reported."""
    deleted_share: Annotated[float, Field(ge=0, le=1)] = 0.5
    """This share of all lines, once `deleted_lines` are gone, is reported."""
    deleted_lines: _Count = 500
    """Deleted lines below which `deleted_share` is not looked at."""
    suppressions: _Count = 5
    """This many more comments that silence a linter than were removed are reported."""


def make_finding(violation: Violation, *, at: tuple[str, str], evidence: str, where: str = "") -> Finding:
    """Make a finding of what broke a rule.

    Args:
        violation: the rule that was broken.
        at: what it is about (a path, or nothing) and the raw text that it was found in, which makes the fingerprint.
        evidence: what to show of it; it is scrubbed here.
        where: the place as people read it; by default the path.
    """
    return Finding(
        **violation._asdict(),
        where=shorten(where or at[0], 160),
        evidence=shorten(scrub(" ".join(evidence.split())), EVIDENCE_CHARACTERS),
        fingerprint=fingerprint_of(violation.rule, at),
    )


def fingerprint_of(rule: str, at: tuple[str, str]) -> str:
    """Return the fingerprint of a finding, `at` as for `make_finding`."""
    return hashlib.sha256("\0".join((rule, *at)).encode("utf-8", "replace")).hexdigest()[:16]


def bounded(findings: Iterable[Finding], rubric: Rubric) -> tuple[Finding, ...]:
    """Return each finding once, the forbidden ones first, without those of rules that are off."""
    if not rubric.enabled:
        return tuple(finding for finding in findings if finding.topic is Topic.PLANNER)
    by_fingerprint = {finding.fingerprint: finding for finding in findings if finding.rule not in rubric.allow}
    ordered = sorted(by_fingerprint.values(), key=lambda finding: finding.verdict is Verdict.ASK)
    kept: list[Finding] = []
    for finding in ordered:
        # One rule takes at most half of the places, so that it hides no other.
        if sum(other.rule == finding.rule for other in kept) < FINDINGS_LIMIT // 2:
            kept.append(finding)
    return tuple(kept[:FINDINGS_LIMIT])


def told(findings: tuple[Finding, ...]) -> tuple[str, tuple[str, ...]]:
    """Return what a person is asked about findings: a title, and the rest with what would resolve each."""
    first, *others = findings
    more = f" (and {len(others)} more)" if others else ""
    resolved = [f"to resolve it: {each}" for each in dict.fromkeys(each.suggestion for each in findings)]
    return f"{first}{more}", (*map(str, others), *resolved)


def unanswered(findings: Iterable[Finding], overruled: Iterable[str]) -> tuple[Finding, ...]:
    """Return the findings that no person has allowed."""
    known = frozenset(overruled)
    return tuple(finding for finding in findings if finding.fingerprint not in known)


_PLANNER_SAYS_NO = Violation("planner_says_no", Topic.PLANNER, Verdict.DENY, "a plan whose alignment check is yes")


def planners_own(rationale: str) -> Finding:
    """Return the finding for a planner that answers the alignment check itself with no."""
    text = rationale or "no, without a reason"
    return make_finding(_PLANNER_SAYS_NO, at=("", rationale), where="alignment check", evidence=text)


def cost(rubric: Rubric, *, cpu_s: float | None, wall_s: float) -> tuple[Finding, ...]:
    """Return the findings for an iteration that cost too much; asked once an episode, whatever the amount."""
    parts = (
        ("cpu_time", "processor time", None if cpu_s is None else cpu_s / 60, rubric.cpu_minutes),
        ("wall_time", "working time", wall_s / 60, rubric.wall_minutes),
    )
    return tuple(
        make_finding(
            Violation(rule, Topic.COST, Verdict.ASK, f"smaller steps, or a higher alignment bound for {words}"),
            at=("", str(bound)),
            where="the iteration",
            evidence=f"{spent:.1f} minutes of {words}; the bound is {bound:g}",
        )
        for rule, words, spent, bound in parts
        if spent is not None and spent > bound
    )
