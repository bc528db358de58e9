"""Alignment check of a plan or a change."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from activities.artifacts.port import ArtifactStore, put_model, put_text
from tightloop.executor.model import Usage
from tightloop.safety.drift import PromptPrivacy
from tightloop.safety.rubric import RULES, Finding, Rubric, Verdict, unanswered_findings
from tightloop.value import ArtifactRef, Value, shorten


class JudgeBriefing(Value):
    """The information that a judge receives. The prompt limits its size."""

    goal: str = ""
    about: str = "a plan"
    """Either `a plan`, before its hand-off, or `a change`, after it was made."""
    material: str = ""
    """The plan or the start of the diff."""
    findings: tuple[Finding, ...] = ()
    prompt_privacy: PromptPrivacy = PromptPrivacy.FULL


class JudgeAnswer(Value):
    """One verdict per finding, in order. If there is no response, all verdicts are `ASK`."""

    verdicts: tuple[Verdict, ...] = ()
    rationales: tuple[str, ...] = ()
    note: str = ""
    """Reason why there are no verdicts."""
    model: str = ""
    prompt_sha256: str = ""
    usage: Usage | None = None
    transcript: bytes = b""


class AlignmentRecord(Value):
    """The stored evidence of an alignment check that had findings."""

    rules: str
    findings: tuple[Finding, ...]
    """All findings from the rules."""
    left: tuple[str, ...] = ()
    """Fingerprints of findings left for a person."""
    verdicts: tuple[Verdict, ...] = ()
    """Verdicts on the findings shown to the judge, in order."""
    rationales: tuple[str, ...] = ()
    note: str = ""
    model: str = ""
    prompt_sha256: str = ""
    transcript: ArtifactRef | None = None


class Judge(Protocol):
    """Decides whether findings are acceptable. Never raises, even if the model service fails."""

    async def judge(self, briefing: JudgeBriefing) -> JudgeAnswer:
        """Return one verdict per finding. The verdict is `ASK` if there is not enough information."""
        ...


Judges = Callable[[str], Judge | None]
"""Returns the judge for a planner of this kind. If None, a person is asked directly."""


RATIONALE_CHARACTERS = 160


class AlignmentResult(NamedTuple):
    """The findings that a person must decide on, with the evidence."""

    findings: tuple[Finding, ...] = ()
    record: AlignmentRecord | None = None
    usage: Usage | None = None
    transcript: bytes = b""

    def store(self, store: ArtifactStore) -> ArtifactRef | None:
        """Store the evidence of the check. Return None if there is no evidence."""
        if self.record is None:
            return None
        transcript = put_text(store, self.transcript, name="judge transcript")
        return put_model(store, self.record.evolve(transcript=transcript), name="alignment")


@dataclass(frozen=True)
class AlignmentChecker:
    """Checks the alignment of plans and changes with the help of judges."""

    rubric: Rubric = field(default_factory=Rubric)
    judges: Judges = lambda _planner: None
    """Returns the judge for a kind of planner. By default, a person is asked directly."""
    prompt_privacy: Callable[[str], PromptPrivacy] = lambda _workspace: PromptPrivacy.FULL
    """Returns a workspace's prompt privacy."""

    async def check_alignment(
        self, findings: tuple[Finding, ...], briefing: JudgeBriefing, *, planner: str, overruled: tuple[str, ...] = ()
    ) -> AlignmentResult:
        """Check alignment and return the findings that a person must decide on.

        The episode's planner determines the judge. If there is a judge, it receives the briefing and the
        findings. `overruled` contains the fingerprints of findings that a person allowed earlier.
        """
        if not findings:
            return AlignmentResult()
        left = unanswered_findings(findings, overruled)
        # A judge decides only on findings for which the rules ask a person. A model cannot override what they deny.
        open_findings = tuple(finding for finding in left if finding.verdict is Verdict.ASK)
        answer = await self._ask(open_findings, briefing, planner) if open_findings else JudgeAnswer()
        # Without a judge there are no verdicts: nothing is cleared, and a person decides on everything.
        ruled = dict(zip((finding.fingerprint for finding in open_findings), answer.verdicts, strict=False))
        cleared = {fingerprint for fingerprint, verdict in ruled.items() if verdict is Verdict.ALLOW}
        judgements = {
            finding.fingerprint: f"{verdict.value}: {shorten(why, RATIONALE_CHARACTERS)}"
            for finding, verdict, why in zip(open_findings, answer.verdicts, answer.rationales, strict=False)
        }
        undecided = tuple(
            finding.evolve(judged=judgements.get(finding.fingerprint, ""))
            for finding in left
            if finding.fingerprint not in cleared
        )
        record = AlignmentRecord(
            rules=RULES,
            findings=findings,
            left=tuple(finding.fingerprint for finding in undecided),
            verdicts=answer.verdicts,
            rationales=answer.rationales,
            note=answer.note,
            model=answer.model,
            prompt_sha256=answer.prompt_sha256,
        )
        return AlignmentResult(undecided, record, answer.usage, answer.transcript)

    async def _ask(self, findings: tuple[Finding, ...], briefing: JudgeBriefing, planner: str) -> JudgeAnswer:
        judge = self.judges(planner)
        if judge is None:
            return JudgeAnswer(note="this planner has no model to judge the findings")
        if briefing.prompt_privacy is PromptPrivacy.SUMMARY:
            return JudgeAnswer(note="privacy.prompts is set to summary, so the evidence cannot be sent to a model")
        return await judge.judge(briefing.evolve(findings=findings))
