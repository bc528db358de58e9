"""Planning of an iteration, and the memory of failures and fixes."""

from collections.abc import Iterable
from datetime import datetime

from tightloop.episode.check import CheckReport, CheckResult, CheckStatus
from tightloop.episode.failure import failure_type, normalize_explaining_line, signature
from tightloop.episode.model import PlanVerdict as PlanVerdict
from tightloop.episode.model import ReflectCause as ReflectCause
from tightloop.episode.scenarios import HiddenScenarios
from tightloop.executor.message import PlanMessage, PlanRequestMessage, Reflection
from tightloop.executor.model import Usage
from tightloop.memory import Match, Outcome, Pattern, Query, Recollection, SeenFailure
from tightloop.safety.drift import PromptPrivacy
from tightloop.safety.rubric import Finding
from tightloop.value import ArtifactRef, Value

ASKED_FOR = 3
"""Maximum number of failing checks for which the memory is queried."""


class FollowedPattern(Value):
    """A pattern from the memory that a plan was based on."""

    failure: str
    """Signature of the earlier failure."""
    pattern: str
    check: str
    """The command that failed."""


def failure_signature(result: CheckResult) -> str:
    """Return the ID of a failure.

    The ID depends on the check, the failing items and the explanatory line. Unlike the signature used for loop
    detection, it does not depend on the rest of the output.
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
    """Return the type of a failure: the name of an exception, a rule or the tool."""
    if result.status is not CheckStatus.FAILED:
        return result.status.value
    # Entries with `/` or `::` are files and tests.
    rules = [name for name in result.failing if "/" not in name and "::" not in name]
    return failure_type(result.tail) or (rules[0] if rules else "") or result.counts.tool


def turned_green(before: CheckReport, after: CheckReport) -> tuple[CheckResult, ...]:
    """Return the previous results of the checks that failed before and pass now."""
    passed = {result.run for result in after.results if result.passed}
    return tuple(result for result in before.failed if result.run in passed)


def pattern_of(
    message: PlanMessage, solved: CheckResult, *, code: str, tests: str, workflow_id: str, iteration: int
) -> Pattern:
    """Create a pattern from a successful plan.

    `code` and `tests` are diffs of the plan's changes.
    """
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
    """Return the outcome of each pattern that the plan used. A pattern worked if its check now passes."""
    passed = {result.run: result.passed for result in after.results}
    return tuple(
        Outcome(signature=entry.failure, pattern=entry.pattern, worked=passed[entry.check], key=key, at=at)
        for entry in followed
        # A check that an amendment removed says nothing about the pattern.
        if entry.check in passed
    )


def queries(report: CheckReport | None, limit: int) -> tuple[tuple[str, Query], ...]:
    """Return a memory query for each failure in a check report, together with the failed command."""
    failed = report.failed[:ASKED_FOR] if report is not None else ()
    return tuple(
        (result.run, Query(text=result.tail, signature=failure_signature(result), limit=limit)) for result in failed
    )


def best_of(candidates: Iterable[tuple[str, Recollection]], limit: int) -> tuple[Recollection, ...]:
    """Return the best patterns for several checks, without duplicates.

    Exact matches come first. The best pattern for each check comes before the second-best pattern for any
    check.
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
    """Input for a planner.

    The size is bounded, so that prompts do not grow during an episode.
    """

    project: str = ""
    goal: str = ""
    definition_of_done: tuple[str, ...] = ()
    iteration: int = 1
    plan_request: PlanRequestMessage | None = None
    """Result of the last plan, or None before the first one."""
    checks: CheckReport | None = None
    """Latest check results. Before the first plan, this is the baseline."""
    reflection: Reflection | None = None
    reflection_is_fresh: bool = False
    """True if the reflection refers to the last iteration."""
    notes: tuple[str, ...] = ()
    """Messages from people and warnings from the loop, newest last."""
    asked_for: tuple[str, ...] = ()
    """Those notes that request work, regardless of whether the checks pass."""
    sent_back: str = ""
    """Errors in the planner's last message, with an example. The planner has to correct the message."""
    programs: tuple[str, ...] = ()
    """Programs that the executor is allowed to run. If empty, the executor decides."""
    takes_whole_plans: bool = False
    """True if the executor is an agent that works on goals and findings, so that its steps do not need commands."""
    remembered: tuple[Recollection, ...] | None = None
    """Fixes that helped with similar failures, most reliable first and at most three.

    None if the memory was not queried.
    """
    files: tuple[str, ...] = ()
    """Files in the tree. The list is bounded."""
    excerpts: tuple[str, ...] = ()
    """Files that share words with the goal, each with its path. They are bounded, most similar first."""
    root: str = ""
    """Folder of the tree on this host. It must not be used in prompts."""
    prompt_privacy: PromptPrivacy = PromptPrivacy.FULL
    """Restriction on what prompts may contain."""


class ProposedCheck(Value):
    """A check that the planner wrote because all existing checks already pass."""

    run: str
    path: str = ""
    """New test file that the command runs, relative to the root of the tree. Empty if the command needs no file."""
    content: str = ""


class WrittenCheck(Value):
    """Result of asking the planner to write a check."""

    by_model: bool = False
    """False if no model plans this episode, in which case there was nobody to ask."""
    check: ArtifactRef | None = None
    """The stored `ProposedCheck`. None if the planner did not find one."""
    reason: str = ""
    """Reason why there is no check, as a sentence."""
    usage: Usage | None = None
    attempt: int = 1


class DraftedScenarios(Value):
    """Result of drafting hidden scenarios."""

    drafts: HiddenScenarios | None = None
    """Commitment to the drafts, which are stored encrypted and have not been tried yet."""
    reason: str = ""
    """Reason why there are no drafts, as a sentence that does not quote any of them."""
    usage: Usage | None = None
    attempt: int = 1


class PlannerAnswer(Value):
    """Planner's reply, returned by an adapter of the planner port."""

    verdict: PlanVerdict
    message: PlanMessage | None = None
    followed: tuple[str, ...] = ()
    """Ids of the patterns that the plan is known to follow."""
    reason: str = ""
    """Reason why there is no plan, as a sentence for a person."""
    usage: Usage | None = None
    """Usage of the model, or `None` if no model was involved."""
    model: str = ""
    prompt_sha256: str = ""
    """Digest that identifies the version of the prompt files."""
    repair: str = ""
    """Amount of repair needed to parse the reply; see `activities/model/repair.py`.

    Empty if no model was called.
    """
    transcript: bytes = b""
    """Bounded record of the prompts and replies."""


class ReflectionBriefing(Value):
    """Input for a reflector. Its size is limited."""

    goal: str = ""
    cause: ReflectCause = ReflectCause.PROBABILITY_CLASS
    detail: str = ""
    """Reasons for the class, or the restored checkpoint and the reason for the restore."""
    plan_request: PlanRequestMessage | None = None
    plan_change: str = ""
    """Word diff against the previous plan."""
    checks: CheckReport | None = None
    remembered: tuple[Recollection, ...] = ()
    """Fixes that helped with similar failures, most reliable first and at most three."""
    previous: Reflection | None = None
    """The previous reflection."""
    earlier: tuple[Reflection, ...] = ()
    """Reflections before `previous`, oldest first. There are at most `EARLIER_REFLECTIONS`."""
    prompt_privacy: PromptPrivacy = PromptPrivacy.FULL
    """Restriction on what prompts may contain."""


EARLIER_REFLECTIONS = 2


class ReflectorAnswer(Value):
    """A reflection and its metadata, returned by an adapter of the reflector port."""

    reflection: Reflection
    source: str = "rules"
    """Source of the reflection: `rules` or the name of the model."""
    note: str = ""
    """Reason for falling back to the rules, or empty if there was no fallback."""
    usage: Usage | None = None
    repair: str = ""
    """Amount of repair needed to parse the reply. Empty if the rules produced the reflection."""
    truncated: bool = False
    """True if the model's reply was truncated, in which case the rules were used."""
    prompt_sha256: str = ""
    transcript: bytes = b""


class ReflectionRecord(Reflection):
    """A reflection that is stored together with its evidence.

    The record can also be loaded as a plain `Reflection`.
    """

    cause: ReflectCause = ReflectCause.PROBABILITY_CLASS
    about: str = ""
    """SHA-256 of the plan request that the reflection refers to. Empty if there was none."""
    source: str = "rules"
    note: str = ""
    repair: str = ""
    truncated: bool = False
    prompt_privacy: PromptPrivacy = PromptPrivacy.FULL
    """Privacy level that applied to the prompt."""
    prompt_sha256: str = ""
    transcript: ArtifactRef | None = None
    earlier: tuple[Reflection, ...] = ()
    """Preceding reflections, oldest first, so that the next reflection does not have to load them one by one."""

    def usable_at(self, prompt_privacy: PromptPrivacy) -> bool:
        """Return True if a model may see this reflection.

        A reflection from a less restricted prompt may quote details that a summary must omit.
        """
        return prompt_privacy is not PromptPrivacy.SUMMARY or self.prompt_privacy is PromptPrivacy.SUMMARY

    @property
    def plain(self) -> Reflection:
        """The reflection without its evidence."""
        return Reflection(diagnosis=self.diagnosis, action_items=self.action_items)


class PlanRecord(Value):
    """A planner's reply that is stored together with its evidence."""

    message: PlanMessage | None = None
    verdict: PlanVerdict = PlanVerdict.PLANNED
    checks: ArtifactRef | None = None
    """Stored `CheckReport` that the plan is based on."""
    recalled: int | None = None
    """Number of memory entries found for the plan, or None if the memory was not queried."""
    followed: tuple[FollowedPattern, ...] = ()
    """Patterns that the plan followed."""
    reason: str = ""
    model: str = ""
    prompt_sha256: str = ""
    repair: str = ""
    prompt_privacy: PromptPrivacy = PromptPrivacy.FULL
    """Privacy level that applied to the prompt."""
    transcript: ArtifactRef | None = None


class PlanningOutcome(Value):
    """Metadata of a planner's reply for the workflow. The message itself is stored in the artifact."""

    verdict: PlanVerdict
    plan: ArtifactRef | None = None
    """The stored `PlanRecord`."""
    title: str = ""
    """The first step, truncated to 120 characters."""
    reason: str = ""
    aligned: bool = True
    """Result of the planner's own alignment check."""
    findings: tuple[Finding, ...] = ()
    """Findings that a person has to review before the hand-off."""
    alignment: ArtifactRef | None = None
    """Stored evidence of the alignment check, if there are findings."""
    final: bool = False
    usage: Usage | None = None
    attempt: int = 1


class ReflectionOutcome(Value):
    """Result of a reflection for the workflow."""

    reflection: ArtifactRef
    diagnosis: str = ""
    """Diagnosis, truncated to 240 characters."""
    source: str = "rules"
    repair: str = ""
    truncated: bool = False
    usage: Usage | None = None
    attempt: int = 1
