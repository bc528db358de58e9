"""The port of the judge: a model decides on findings that a rule only asks about."""

from collections.abc import Callable
from typing import Protocol

from tightloop.executor.usage import Usage
from tightloop.safety.prompt_privacy import PromptPrivacy
from tightloop.safety.rubric import Finding
from tightloop.safety.verdict import Verdict
from tightloop.value import Value
from tightloop.value.artifact import ArtifactRef


class JudgeBriefing(Value):
    """The material for a judge; bounded by the prompt."""

    goal: str = ""
    about: str = "a plan"
    """`a plan` that was not yet handed off, or `a change` that was made."""
    material: str = ""
    """The plan, or the beginning of the diff."""
    findings: tuple[Finding, ...] = ()
    prompt_privacy: PromptPrivacy = PromptPrivacy.FULL


class JudgeAnswer(Value):
    """One verdict for each finding, in their order; all `ASK` without an answer."""

    verdicts: tuple[Verdict, ...] = ()
    rationales: tuple[str, ...] = ()
    note: str = ""
    """Why no verdict was reached, if so."""
    model: str = ""
    prompt_sha256: str = ""
    usage: Usage | None = None
    transcript: bytes = b""


class AlignmentRecord(Value):
    """The stored evidence of an alignment check that found something."""

    rules: str
    findings: tuple[Finding, ...]
    """All that the rules found."""
    left: tuple[str, ...] = ()
    """Fingerprints of what is left for a person."""
    verdicts: tuple[Verdict, ...] = ()
    """Of the findings that were shown to the judge, in their order."""
    rationales: tuple[str, ...] = ()
    note: str = ""
    model: str = ""
    prompt_sha256: str = ""
    transcript: ArtifactRef | None = None


class Judge(Protocol):
    """Decides whether findings are acceptable. Never raises for a failure of the model service."""

    async def judge(self, briefing: JudgeBriefing) -> JudgeAnswer:
        """Return one verdict for each finding; `ASK` where the material does not decide it."""
        ...


Judges = Callable[[str], Judge | None]
"""Returns the judge that fits a planner of this kind; None: a person is asked at once."""
