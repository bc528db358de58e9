"""Planning of an iteration, and what is remembered of it."""

from collections.abc import Iterable
from datetime import datetime

from tightloop.episode.check import CheckReport, CheckResult, CheckStatus
from tightloop.episode.failure import failure_type, said_line, signature
from tightloop.episode.model import PlanVerdict as PlanVerdict
from tightloop.episode.model import ReflectCause as ReflectCause
from tightloop.executor.message import PlanMessage, PlanRequestMessage, Reflection
from tightloop.executor.model import Usage
from tightloop.memory import Match, Outcome, Pattern, Query, Recollection, SeenFailure
from tightloop.safety.drift import PromptPrivacy
from tightloop.safety.rubric import Finding
from tightloop.value import ArtifactRef, Value

ASKED_FOR = 3
"""Failing checks for which a briefing is made."""


class Followed(Value):
    """Something that was recalled for a check, and that a plan followed."""

    failure: str
    """Signature of the failure of earlier."""
    pattern: str
    check: str
    """The command that failed."""


def failure_signature(result: CheckResult) -> str:
    """Return the id of a failure: its check, what fails in it, and the line that says why.

    Coarser than that of the loop, which tells whether anything at all changed in an output.
    """
    return signature(result.run, result.status.value, said_line(result.tail), *result.failing)


def seen_failures(
    reports: Iterable[CheckReport | None], *, workflow_id: str, iteration: int, at: datetime
) -> tuple[SeenFailure, ...]:
    """Return what failed in these reports, each failure once."""
    found: dict[str, SeenFailure] = {}
    for result in (result for report in reports if report is not None for result in report.failed):
        mark = failure_signature(result)
        found[mark] = SeenFailure(
            signature=mark,
            type=problem_type(result),
            check=result.run,
            line=said_line(result.tail) or f"{result.name}: {result.status.value}",
            context=result.tail,
            workflow_id=workflow_id,
            iteration=iteration,
            at=at,
        )
    return tuple(found.values())


def problem_type(result: CheckResult) -> str:
    """Return what kind of failure it is: an exception, a rule, or the tool."""
    if result.status is not CheckStatus.FAILED:
        return result.status.value
    rules = [name for name in result.failing if "/" not in name and "::" not in name]
    return failure_type(result.tail) or (rules[0] if rules else "") or result.counts.tool


def turned_green(before: CheckReport, after: CheckReport) -> tuple[CheckResult, ...]:
    """Return the failures of the checks that pass now."""
    passed = {result.run for result in after.results if result.passed}
    return tuple(result for result in before.failed if result.run in passed)


def pattern_of(
    message: PlanMessage, solved: CheckResult, *, code: str, tests: str, workflow_id: str, iteration: int
) -> Pattern:
    """Return a plan that worked as a pattern; `code` and `tests` are its change as a diff."""
    steps = message.steps
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


def outcomes_of_followed(
    followed: Iterable[Followed], after: CheckReport, *, key: str, at: datetime
) -> tuple[Outcome, ...]:
    """Return what became of what was recalled: it worked where its check passes now."""
    passed = {result.run: result.passed for result in after.results}
    return tuple(
        Outcome(signature=one.failure, pattern=one.pattern, worked=passed[one.check], key=key, at=at)
        for one in followed
        if one.check in passed
    )


def queries(report: CheckReport | None, limit: int) -> tuple[tuple[str, Query], ...]:
    """Return what to ask the memory about a report, each with the command that failed."""
    failed = report.failed[:ASKED_FOR] if report is not None else ()
    return tuple(
        (result.run, Query(text=result.tail, signature=failure_signature(result), limit=limit)) for result in failed
    )


def best_of(found: Iterable[tuple[str, Recollection]], limit: int) -> tuple[Recollection, ...]:
    """Return the best of what was found for several checks, each pattern once, with the check that it is for.

    The best one for each check comes before the second best for any.
    """
    ordered = sorted(found, key=lambda one: (one[1].match is not Match.SIGNATURE, -one[1].score, -one[1].evidence.rate))
    kept: dict[str, Recollection] = {}
    places: dict[str, int] = {}
    ranks: dict[str, int] = {}
    for check, one in ordered:
        if one.pattern is not None and one.pattern.id not in kept:
            kept[one.pattern.id] = one.evolve(check=check)
            ranks[one.pattern.id] = places[check] = places.get(check, -1) + 1
    best = sorted(kept, key=lambda name: (kept[name].match is not Match.SIGNATURE, ranks[name]))
    return tuple(kept[name] for name in best[:limit])


class Briefing(Value):
    """Everything that a planner may know; bounded, so that prompts stay flat over an episode."""

    project: str = ""
    goal: str = ""
    definition_of_done: tuple[str, ...] = ()
    iteration: int = 1
    plan_request: PlanRequestMessage | None = None
    """What came of the last plan; None before the first."""
    checks: CheckReport | None = None
    """The last results; the baseline before the first plan."""
    reflection: Reflection | None = None
    reflection_is_fresh: bool = False
    """The reflection is about the last iteration, not about an earlier one."""
    notes: tuple[str, ...] = ()
    """Messages of the operator and warnings of the loop, newest last."""
    asked_for: tuple[str, ...] = ()
    """Those of them with which a person asks for work, whatever the checks say."""
    sent_back: str = ""
    """What the planner's own last message lacks, with an example: it is asked for it again."""
    programs: tuple[str, ...] = ()
    """Programs that the executor may run; empty: the executor decides itself."""
    takes_whole_plans: bool = False
    """The executor is an agent: it works on goals and findings, its steps need no command."""
    remembered: tuple[Recollection, ...] | None = None
    """What helped against such failures before, the surest first, at most three; None: nobody asked."""
    files: tuple[str, ...] = ()
    """Files of the tree, bounded."""
    root: str = ""
    """Folder of the tree on this host; not for prompts."""
    prompt_privacy: PromptPrivacy = PromptPrivacy.FULL
    """What a prompt may contain of all this."""


class PlannerAnswer(Value):
    """Result of an adapter of the planner port."""

    verdict: PlanVerdict
    message: PlanMessage | None = None
    followed: tuple[str, ...] = ()
    """Ids of the patterns in the briefing that the plan is made from, as far as that can be told."""
    reason: str = ""
    """Why no plan was made; a sentence for a person."""
    usage: Usage | None = None
    """`None` where no model was involved."""
    model: str = ""
    prompt_sha256: str = ""
    """Version of the prompt files that were used."""
    repair: str = ""
    """How much help the answer needed to be read; see `activities/model/repair.py`. Empty: no model was asked."""
    transcript: bytes = b""
    """Bounded record of what was asked and answered."""


class ReflectionBriefing(Value):
    """Everything that a reflector may know; bounded."""

    goal: str = ""
    cause: ReflectCause = ReflectCause.PROBABILITY_CLASS
    detail: str = ""
    """Reasons of the class, or which checkpoint was restored and why."""
    plan_request: PlanRequestMessage | None = None
    plan_change: str = ""
    """How the last plan differs from the one before, as a word diff."""
    checks: CheckReport | None = None
    remembered: tuple[Recollection, ...] = ()
    """What helped against such failures before, the surest first; at most three."""
    previous: Reflection | None = None
    """The reflection before this one."""
    earlier: tuple[Reflection, ...] = ()
    """Those before `previous`, oldest first, at most `EARLIER_REFLECTIONS`."""
    prompt_privacy: PromptPrivacy = PromptPrivacy.FULL
    """What a prompt may contain of all this."""


EARLIER_REFLECTIONS = 2


class ReflectorAnswer(Value):
    """Result of an adapter of the reflector port; there is always a reflection."""

    reflection: Reflection
    source: str = "rules"
    """`rules` or the model's name."""
    note: str = ""
    """What went wrong on the way, if the rules had to stand in."""
    usage: Usage | None = None
    repair: str = ""
    """How much help the model's answer needed to be read; empty where the rules answered."""
    truncated: bool = False
    """The model's answer was cut off, so that the rules had to stand in."""
    prompt_sha256: str = ""
    transcript: bytes = b""


class ReflectionRecord(Reflection):
    """A stored reflection with its evidence. It reads as a plain `Reflection`, too."""

    cause: ReflectCause = ReflectCause.PROBABILITY_CLASS
    about: str = ""
    """SHA-256 of the plan request that it is about; empty where there was none."""
    source: str = "rules"
    note: str = ""
    repair: str = ""
    truncated: bool = False
    prompt_privacy: PromptPrivacy = PromptPrivacy.FULL
    """What the prompt could contain."""
    prompt_sha256: str = ""
    transcript: ArtifactRef | None = None
    earlier: tuple[Reflection, ...] = ()
    """The reflections before this one, oldest first, so that the next one need not read them one by one."""

    def usable_at(self, prompt_privacy: PromptPrivacy) -> bool:
        """Return whether it may be shown to a model: one from a fuller prompt may quote what a summary leaves out."""
        return prompt_privacy is not PromptPrivacy.SUMMARY or self.prompt_privacy is PromptPrivacy.SUMMARY

    @property
    def plain(self) -> Reflection:
        """The reflection alone."""
        return Reflection(diagnosis=self.diagnosis, action_items=self.action_items)


class PlanRecord(Value):
    """A stored planner answer: the message with its evidence."""

    message: PlanMessage | None = None
    verdict: PlanVerdict = PlanVerdict.PLANNED
    checks: ArtifactRef | None = None
    """The stored `CheckReport` that it was made from."""
    recalled: int | None = None
    """How much the memory had for it; None: it was not asked."""
    followed: tuple[Followed, ...] = ()
    """What it took from the memory."""
    reason: str = ""
    model: str = ""
    prompt_sha256: str = ""
    repair: str = ""
    prompt_privacy: PromptPrivacy = PromptPrivacy.FULL
    """What the prompt could contain."""
    transcript: ArtifactRef | None = None


class PlanningOutcome(Value):
    """Summary of a planner's answer for the workflow; the message is the artifact."""

    verdict: PlanVerdict
    plan: ArtifactRef | None = None
    """A stored `PlanRecord`."""
    title: str = ""
    """First step, at most 120 characters."""
    reason: str = ""
    aligned: bool = True
    """The planner's alignment check said yes."""
    findings: tuple[Finding, ...] = ()
    """Findings for a person before the plan is handed off."""
    alignment: ArtifactRef | None = None
    """The stored evidence of the alignment check, where it found something."""
    final: bool = False
    usage: Usage | None = None
    attempt: int = 1


class ReflectionOutcome(Value):
    """Summary of a reflection for the workflow."""

    reflection: ArtifactRef
    diagnosis: str = ""
    """At most 240 characters."""
    source: str = "rules"
    repair: str = ""
    truncated: bool = False
    usage: Usage | None = None
    attempt: int = 1
