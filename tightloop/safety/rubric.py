"""Verdicts, and the alignment rubric."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, NamedTuple

from pydantic import Field

from tightloop.value import Value, shorten
from tightloop.value.scrub import scrub


class Verdict(StrEnum):
    """A verdict on an action, from lenient to strict."""

    ALLOW = "allow"
    ASK = "ask"
    """A person has to approve the action first. A finding of the rubric may also be approved by a model."""
    DENY = "deny"
    """The action is forbidden. If it is a finding of the rubric, only a person can allow it."""


_STRICTNESS = tuple(Verdict)


@dataclass(frozen=True)
class Ruling:
    """A verdict and the rule that led to it."""

    verdict: Verdict = Verdict.ALLOW
    rule: str = ""
    """Name of the rule, such as `policy.protect`. Empty if no rule applied."""
    reason: str = ""
    """Sentence for a person that states the rule and the alternative."""


def strictest(rulings: Iterable[Ruling]) -> Ruling:
    """Return the strictest ruling. If several rulings are equally strict, return the first."""
    return max(rulings, key=lambda ruling: _STRICTNESS.index(ruling.verdict), default=Ruling())


RULES = "alignment/1"
FINDINGS_LIMIT = 8
EVIDENCE_CHARACTERS = 200
OVERRULED_LIMIT = 200


class Topic(StrEnum):
    """Topics of the rubric."""

    PRIVACY = "data privacy"
    LICENCE = "licence and law"
    DAMAGE = "irreversible damage"
    CHECKS = "honest checks"
    CODE = "safety of code"
    COST = "cost"
    PLANNER = "the planner's own check"


class Violation(NamedTuple):
    """A rule that was violated, without a location."""

    rule: str
    topic: Topic
    verdict: Verdict
    suggestion: str
    """Recommended alternative."""


class Finding(Value):
    """A violation with its location and evidence.

    The size is limited. Secrets and personal data are removed.
    """

    rule: str
    topic: Topic
    verdict: Verdict
    where: str = ""
    """Location, such as `step 2`, or a file and line."""
    evidence: str = ""
    """The command or the line, scrubbed and truncated to `EVIDENCE_CHARACTERS`."""
    suggestion: str = ""
    """Action that would resolve the finding."""
    fingerprint: str = ""
    """Fingerprint, which is the same for the same evidence.

    An allowed fingerprint does not lead to another question.
    """
    judged: str = ""
    """Assessment by a model, if a model was asked."""
    refused: bool = False
    """True if a person refused the change. It is reported until it is no longer in the tree."""
    layer: str = ""
    """Layer of the code review that found the violation, such as `ast` or `bandit`."""

    @property
    def path(self) -> str:
        """File that the finding refers to, or another location if there is no file."""
        path, _, number = self.where.rpartition(":")
        return path if number.isdigit() else self.where

    def __str__(self) -> str:
        origin = f" (a model: {self.judged})" if self.judged else ""
        return f"{self.rule}, {self.topic.value}: {self.where}: {self.evidence}{origin}"


_Minutes = Annotated[float, Field(gt=0)]
_Count = Annotated[int, Field(ge=1)]


class Rubric(Value):
    """Limits and disabled rules of the alignment check."""

    enabled: bool = True
    """Enable the check."""
    allow: tuple[str, ...] = ()
    """Disabled rules, by the names that are shown when the episode pauses, such as `publishes`."""
    cpu_minutes: _Minutes = 10.0
    """Maximum CPU time of an iteration in minutes. It applies only if the CPU time is known."""
    wall_minutes: _Minutes = 90.0
    """Maximum working time of an iteration in minutes. Deliveries that a limit or an error ended do not count."""
    deleted_files: _Count = 25
    """Minimum number of unannounced file deletions that is reported."""
    deleted_share: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of all lines whose deletion is reported. It applies once at least `deleted_lines` are deleted."""
    deleted_lines: _Count = 500
    """Number of deleted lines below which `deleted_share` is ignored."""
    suppressions: _Count = 5
    """Minimum net number of added linter suppressions that is reported."""


def make_finding(violation: Violation, *, at: tuple[str, str], evidence: str, where: str = "") -> Finding:
    """Create a finding for a violated rule.

    Args:
        violation: the rule.
        at: path (may be empty) and raw text of the match. Both determine the fingerprint.
        evidence: text to show. This function scrubs the text.
        where: location to show. The default is the path.
    """
    return Finding(
        **violation._asdict(),
        where=shorten(where or at[0], 160),
        evidence=shorten(scrub(" ".join(evidence.split())), EVIDENCE_CHARACTERS),
        # Of the raw text, because different secrets are equal once they are scrubbed.
        fingerprint=fingerprint_of(violation.rule, at),
    )


def fingerprint_of(rule: str, at: tuple[str, str]) -> str:
    """Return the fingerprint of a finding. See `make_finding` for `at`."""
    return hashlib.sha256("\0".join((rule, *at)).encode("utf-8", "replace")).hexdigest()[:16]


def limit_findings(findings: Iterable[Finding], rubric: Rubric) -> tuple[Finding, ...]:
    """Return the distinct findings of enabled rules. Denied findings come first."""
    # The planner's own no is not a rule that settings can turn off.
    if not rubric.enabled:
        return tuple(finding for finding in findings if finding.topic is Topic.PLANNER)
    by_fingerprint = {finding.fingerprint: finding for finding in findings if finding.rule not in rubric.allow}
    ordered = sorted(by_fingerprint.values(), key=lambda finding: finding.verdict is Verdict.ASK)
    selected: list[Finding] = []
    for finding in ordered:
        # One rule gets at most half of the places, so that it cannot hide others.
        if sum(other.rule == finding.rule for other in selected) < FINDINGS_LIMIT // 2:
            selected.append(finding)
    return tuple(selected[:FINDINGS_LIMIT])


def describe_findings(findings: tuple[Finding, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the title and the evidence of a question about findings. Suggestions are part of the evidence."""
    first, *rest = findings
    more = f" (and {len(rest)} more)" if rest else ""
    resolved = [
        f"to resolve the finding: {suggestion}"
        for suggestion in dict.fromkeys(finding.suggestion for finding in findings)
    ]
    return f"{first}{more}", (*map(str, rest), *resolved)


def unanswered_findings(findings: Iterable[Finding], overruled: Iterable[str]) -> tuple[Finding, ...]:
    """Return the findings that no person has allowed."""
    fingerprints = frozenset(overruled)
    return tuple(finding for finding in findings if finding.fingerprint not in fingerprints)


_PLANNER_SAYS_NO = Violation(
    "planner_says_no", Topic.PLANNER, Verdict.DENY, "write a plan that passes its alignment check"
)


def planners_own(rationale: str) -> Finding:
    """Return the finding for a plan that its own planner considers misaligned."""
    text = rationale or "the planner says no and gives no reason"
    return make_finding(_PLANNER_SAYS_NO, at=("", rationale), where="alignment check", evidence=text)


def cost(rubric: Rubric, *, cpu_s: float | None, wall_s: float) -> tuple[Finding, ...]:
    """Return the findings for an iteration that used too much time.

    A person is asked only once per episode, regardless of how much time was used.
    """
    parts = (
        ("cpu_time", "processor time", None if cpu_s is None else cpu_s / 60, rubric.cpu_minutes),
        ("wall_time", "working time", wall_s / 60, rubric.wall_minutes),
    )
    return tuple(
        make_finding(
            Violation(rule, Topic.COST, Verdict.ASK, f"use smaller steps, or raise the alignment limit for {label}"),
            # The bound and not the amount, so that an answer holds until the bound changes.
            at=("", str(bound)),
            where="the iteration",
            evidence=f"{spent:.1f} minutes of {label}, but the limit is {bound:g}",
        )
        for rule, label, spent, bound in parts
        if spent is not None and spent > bound
    )
