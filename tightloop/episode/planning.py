"""Planning of an iteration, and memory of failures and fixes."""

from collections.abc import Iterable
from datetime import datetime

from tightloop.episode.check import CheckReport, CheckResult, CheckStatus
from tightloop.episode.failure import failure_type, normalize_explaining_line, signature
from tightloop.episode.model import PlanVerdict as PlanVerdict
from tightloop.episode.model import ReflectCause as ReflectCause
from tightloop.executor.message import PlanMessage, PlanRequestMessage, Reflection
from tightloop.executor.model import Usage
from tightloop.memory import Match, Outcome, Pattern, Query, Recollection, SeenFailure
from tightloop.safety.drift import PromptPrivacy
from tightloop.safety.rubric import Finding
from tightloop.value import ArtifactRef, Value

ASKED_FOR = 3
"""Maximum number of failing checks to query the memory for."""


class FollowedPattern(Value):
    """Recalled pattern that a plan followed."""

    failure: str
    """Signature of the earlier failure."""
    pattern: str
    check: str
    """The failed command."""


def failure_signature(result: CheckResult) -> str:
    """Return the id of a failure, from its check, failing items and explaining line.

    Coarser than the signature of the loop, which detects any change of the output.
    """
    return signature(result.run, result.status.value, normalize_explaining_line(result.tail), *result.failing)


def seen_failures(
    reports: Iterable[CheckReport | None], *, workflow_id: str, iteration: int, at: datetime
) -> tuple[SeenFailure, ...]:
    """Return the distinct failures in these reports."""
    failures: dict[str, SeenFailure] = {}
    for result in (result for report in reports if report is not None for result in report.failed):
        failure_key = failure_signature(result)
        failures[failure_key] = SeenFailure(
            signature=failure_key,
            type=problem_type(result),
            check=result.run,
            line=normalize_explaining_line(result.tail) or f"{result.name}: {result.status.value}",
            context=result.tail,
            workflow_id=workflow_id,
            iteration=iteration,
            at=at,
        )
    return tuple(failures.values())


def problem_type(result: CheckResult) -> str:
    """Return the type of a failure: an exception, a rule, or the tool."""
    if result.status is not CheckStatus.FAILED:
        return result.status.value
    # Entries with `/` or `::` are files and tests.
    rules = [name for name in result.failing if "/" not in name and "::" not in name]
    return failure_type(result.tail) or (rules[0] if rules else "") or result.counts.tool


def turned_green(before: CheckReport, after: CheckReport) -> tuple[CheckResult, ...]:
    """Return the failures of the checks that pass now."""
    passed = {result.run for result in after.results if result.passed}
    return tuple(result for result in before.failed if result.run in passed)


def pattern_of(
    message: PlanMessage, solved: CheckResult, *, code: str, tests: str, workflow_id: str, iteration: int
) -> Pattern:
    """Return a successful plan as a pattern; `code` and `tests` are its change as a diff."""
    steps = message.steps
    # A pattern with some of the commands would repeat only a part of the fix.
    ran = all(step.run for step in steps)
    return Pattern(
        problem_type=problem_type(solved),
        title=steps[0].title if steps else "",
        steps=tuple(step.title for step in steps),
        commands=tuple(step.run for step in steps) if ran else (),
        code_template=code,
        test_template=tests,
        workflow_id=workflow_id,
        iteration=iteration,
    )


def list_outcomes(
    followed: Iterable[FollowedPattern], after: CheckReport, *, key: str, at: datetime
) -> tuple[Outcome, ...]:
    """Return the outcome of each followed pattern: it worked if its check passes now."""
    passed = {result.run: result.passed for result in after.results}
    return tuple(
        Outcome(signature=entry.failure, pattern=entry.pattern, worked=passed[entry.check], key=key, at=at)
        for entry in followed
        # A check that an amendment removed says nothing about the pattern.
        if entry.check in passed
    )


def queries(report: CheckReport | None, limit: int) -> tuple[tuple[str, Query], ...]:
    """Return the memory queries for a report, each with the failed command."""
    failed = report.failed[:ASKED_FOR] if report is not None else ()
    return tuple(
        (result.run, Query(text=result.tail, signature=failure_signature(result), limit=limit)) for result in failed
    )


def best_of(candidates: Iterable[tuple[str, Recollection]], limit: int) -> tuple[Recollection, ...]:
    """Return the best patterns for several checks without duplicates, each with its check.

    The best one for each check precedes the second best for any.
    """
    # Exact matches first: a similar failure with a high success rate is still another failure.
    ordered = sorted(
        candidates, key=lambda one: (one[1].match is not Match.SIGNATURE, -one[1].score, -one[1].evidence.rate)
    )
    best_by_id: dict[str, Recollection] = {}
    places: dict[str, int] = {}
    ranks: dict[str, int] = {}
    for check, recollection in ordered:
        if recollection.pattern is not None and recollection.pattern.id not in best_by_id:
            best_by_id[recollection.pattern.id] = recollection.evolve(check=check)
            ranks[recollection.pattern.id] = places[check] = places.get(check, -1) + 1
    best = sorted(best_by_id, key=lambda name: (best_by_id[name].match is not Match.SIGNATURE, ranks[name]))
    return tuple(best_by_id[name] for name in best[:limit])


class Briefing(Value):
    """Input of a planner; bounded, so that prompts stay flat over an episode."""

    project: str = ""
    goal: str = ""
    definition_of_done: tuple[str, ...] = ()
    iteration: int = 1
    plan_request: PlanRequestMessage | None = None
    """Result of the last plan; None before the first."""
    checks: CheckReport | None = None
    """Latest results; the baseline before the first plan."""
    reflection: Reflection | None = None
    reflection_is_fresh: bool = False
    """True if the reflection is about the last iteration."""
    notes: tuple[str, ...] = ()
    """Messages of people and warnings of the loop, newest last."""
    asked_for: tuple[str, ...] = ()
    """The notes that request work, regardless of the checks."""
    sent_back: str = ""
    """Faults of the planner's own last message with an example; it has to correct them."""
    programs: tuple[str, ...] = ()
    """Programs that the executor may run; empty: the executor decides."""
    takes_whole_plans: bool = False
    """True if the executor is an agent that works on goals and findings; its steps need no command."""
    remembered: tuple[Recollection, ...] | None = None
    """Fixes that helped against similar failures, most reliable first, at most three; None: not queried."""
    files: tuple[str, ...] = ()
    """Files of the tree, bounded."""
    root: str = ""
    """Folder of the tree on this host; not for prompts."""
    prompt_privacy: PromptPrivacy = PromptPrivacy.FULL
    """Restriction on the content of prompts."""


class PlannerAnswer(Value):
    """Result of an adapter of the planner port."""

    verdict: PlanVerdict
    message: PlanMessage | None = None
    followed: tuple[str, ...] = ()
    """Ids of the patterns that the plan follows, as far as known."""
    reason: str = ""
    """Reason that there is no plan; a sentence for a person."""
    usage: Usage | None = None
    """`None` if no model was involved."""
    model: str = ""
    prompt_sha256: str = ""
    """Version of the prompt files."""
    repair: str = ""
    """Amount of repair needed to parse the reply; see `activities/model/repair.py`. Empty: no model was asked."""
    transcript: bytes = b""
    """Bounded record of prompts and replies."""


class ReflectionBriefing(Value):
    """Input of a reflector; bounded."""

    goal: str = ""
    cause: ReflectCause = ReflectCause.PROBABILITY_CLASS
    detail: str = ""
    """Reasons for the class, or the restored checkpoint and the reason."""
    plan_request: PlanRequestMessage | None = None
    plan_change: str = ""
    """Word diff from the previous plan."""
    checks: CheckReport | None = None
    remembered: tuple[Recollection, ...] = ()
    """Fixes that helped against similar failures, most reliable first; at most three."""
    previous: Reflection | None = None
    """The previous reflection."""
    earlier: tuple[Reflection, ...] = ()
    """Reflections before `previous`, oldest first, at most `EARLIER_REFLECTIONS`."""
    prompt_privacy: PromptPrivacy = PromptPrivacy.FULL
    """Restriction on the content of prompts."""


EARLIER_REFLECTIONS = 2


class ReflectorAnswer(Value):
    """Result of an adapter of the reflector port; it always holds a reflection."""

    reflection: Reflection
    source: str = "rules"
    """`rules` or the model's name."""
    note: str = ""
    """Reason for falling back to the rules; empty if there was no fallback."""
    usage: Usage | None = None
    repair: str = ""
    """Amount of repair needed to parse the reply; empty if the rules produced it."""
    truncated: bool = False
    """True if the model's reply was truncated, so that the rules were used."""
    prompt_sha256: str = ""
    transcript: bytes = b""


class ReflectionRecord(Reflection):
    """Stored reflection with its evidence; can be loaded as a plain `Reflection`."""

    cause: ReflectCause = ReflectCause.PROBABILITY_CLASS
    about: str = ""
    """SHA-256 of the plan request it refers to; empty if there was none."""
    source: str = "rules"
    note: str = ""
    repair: str = ""
    truncated: bool = False
    prompt_privacy: PromptPrivacy = PromptPrivacy.FULL
    """Restriction that applied to the prompt."""
    prompt_sha256: str = ""
    transcript: ArtifactRef | None = None
    earlier: tuple[Reflection, ...] = ()
    """Preceding reflections, oldest first; saves the next reflection from loading them one by one."""

    def usable_at(self, prompt_privacy: PromptPrivacy) -> bool:
        """Return whether a model may see it: one from a less restricted prompt may quote what a summary omits."""
        return prompt_privacy is not PromptPrivacy.SUMMARY or self.prompt_privacy is PromptPrivacy.SUMMARY

    @property
    def plain(self) -> Reflection:
        """The reflection without its evidence."""
        return Reflection(diagnosis=self.diagnosis, action_items=self.action_items)


class PlanRecord(Value):
    """Stored planner reply: the message with its evidence."""

    message: PlanMessage | None = None
    verdict: PlanVerdict = PlanVerdict.PLANNED
    checks: ArtifactRef | None = None
    """Stored `CheckReport` that the plan is based on."""
    recalled: int | None = None
    """Number of memory entries found for it; None: not queried."""
    followed: tuple[FollowedPattern, ...] = ()
    """Patterns that it followed."""
    reason: str = ""
    model: str = ""
    prompt_sha256: str = ""
    repair: str = ""
    prompt_privacy: PromptPrivacy = PromptPrivacy.FULL
    """Restriction that applied to the prompt."""
    transcript: ArtifactRef | None = None


class PlanningOutcome(Value):
    """Planner reply as seen by the workflow; the message is in the artifact."""

    verdict: PlanVerdict
    plan: ArtifactRef | None = None
    """The stored `PlanRecord`."""
    title: str = ""
    """First step, at most 120 characters."""
    reason: str = ""
    aligned: bool = True
    """Result of the planner's alignment check."""
    findings: tuple[Finding, ...] = ()
    """Findings for a person to review before the hand-off."""
    alignment: ArtifactRef | None = None
    """Stored evidence of the alignment check, if there are findings."""
    final: bool = False
    usage: Usage | None = None
    attempt: int = 1


class ReflectionOutcome(Value):
    """Reflection as seen by the workflow."""

    reflection: ArtifactRef
    diagnosis: str = ""
    """At most 240 characters."""
    source: str = "rules"
    repair: str = ""
    truncated: bool = False
    usage: Usage | None = None
    attempt: int = 1
