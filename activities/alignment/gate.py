"""The gate between the rules and a person: what a judge clears goes on, all else waits."""

from collections.abc import Callable
from typing import NamedTuple

from activities.alignment.port import AlignmentRecord, JudgeAnswer, JudgeBriefing, Judges, Ruling
from activities.artifacts.port import ArtifactStore, put_model
from tightloop.alignment import RULES, Finding, Rubric, Stand, unanswered
from tightloop.artifact import ArtifactRef
from tightloop.budget import Usage
from tightloop.egress import Egress
from tightloop.value import shorten

RATIONALE_CHARACTERS = 160


class Weighed(NamedTuple):
    """What is left of the findings, and the evidence."""

    findings: tuple[Finding, ...] = ()
    """For a person."""
    record: AlignmentRecord | None = None
    usage: Usage | None = None
    transcript: bytes = b""

    def store(self, store: ArtifactStore) -> ArtifactRef | None:
        """Keep the evidence; nothing where nothing was found."""
        if self.record is None:
            return None
        transcript = (
            store.put(self.transcript, name="judge transcript", media_type="text/plain") if self.transcript else None
        )
        return put_model(store, self.record.model_copy(update={"transcript": transcript}), name="alignment")


def _nobody(_planner: str) -> None:
    return None


class Gate:
    """Holds the rubric and the judges."""

    def __init__(
        self,
        rubric: Rubric | None = None,
        judges: Judges = _nobody,
        egress: Callable[[str], Egress] = lambda _workspace: Egress.FULL,
    ) -> None:
        """Take the bounds of the rules, who judges, and what prompts about a workspace may contain."""
        self.rubric = rubric or Rubric()
        self._judges = judges
        self.egress = egress

    async def weigh(
        self, found: tuple[Finding, ...], briefing: JudgeBriefing, *, planner: str, overruled: tuple[str, ...] = ()
    ) -> Weighed:
        """Return what a person has to see.

        Args:
            found: what the rules found.
            briefing: what the judge is to know, without the findings.
            planner: the planner of the episode, which decides whether there is a judge.
            overruled: fingerprints of what a person allowed before.
        """
        if not found:
            return Weighed()
        left = unanswered(found, overruled)
        asked = tuple(finding for finding in left if finding.stand is Stand.ASK)
        answer = await self._ask(asked, briefing, planner) if asked else JudgeAnswer()
        ruled = dict(zip((finding.fingerprint for finding in asked), answer.rulings, strict=False))
        cleared = {fingerprint for fingerprint, ruling in ruled.items() if ruling is Ruling.YES}
        said = {
            finding.fingerprint: f"{ruling.value}: {shorten(why, RATIONALE_CHARACTERS)}"
            for finding, ruling, why in zip(asked, answer.rulings, answer.rationales, strict=False)
        }
        kept = tuple(
            finding.model_copy(update={"judged": said.get(finding.fingerprint, "")})
            for finding in left
            if finding.fingerprint not in cleared
        )
        record = AlignmentRecord(
            rules=RULES,
            findings=found,
            left=tuple(finding.fingerprint for finding in kept),
            rulings=answer.rulings,
            rationales=answer.rationales,
            note=answer.note,
            model=answer.model,
            prompt_sha256=answer.prompt_sha256,
        )
        return Weighed(kept, record, answer.usage, answer.transcript)

    async def _ask(self, asked: tuple[Finding, ...], briefing: JudgeBriefing, planner: str) -> JudgeAnswer:
        judge = self._judges(planner)
        if judge is None:
            return JudgeAnswer(note="no model judges for this planner")
        if briefing.egress is Egress.SUMMARY:
            return JudgeAnswer(note="privacy.egress is summary: a model may not see the evidence")
        return await judge.judge(briefing.model_copy(update={"findings": asked}))
