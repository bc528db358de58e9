"""The port of the judge: what a model may say of what a rule only asks about."""

from enum import StrEnum
from typing import Protocol

from tightloop.alignment import Finding
from tightloop.artifact import ArtifactRef
from tightloop.budget import Usage
from tightloop.egress import Egress
from tightloop.value import Value


class Ruling(StrEnum):
    """What a judge says of one finding."""

    YES = "yes"
    """It is in order."""
    NO = "no"
    UNSURE = "unsure"
    """A person has to say."""


class JudgeBriefing(Value):
    """What a judge is to look at; bounded by the prompt."""

    goal: str = ""
    about: str = "a plan"
    """`a plan` that was not yet handed off, or `a change` that was made."""
    material: str = ""
    """The plan, or the beginning of the diff."""
    findings: tuple[Finding, ...] = ()
    egress: Egress = Egress.FULL


class JudgeAnswer(Value):
    """One ruling for each finding, in their order; all `UNSURE` where there is no answer."""

    rulings: tuple[Ruling, ...] = ()
    rationales: tuple[str, ...] = ()
    note: str = ""
    """Why nothing was ruled, if so."""
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
    rulings: tuple[Ruling, ...] = ()
    """Of the findings that were shown to the judge, in their order."""
    rationales: tuple[str, ...] = ()
    note: str = ""
    model: str = ""
    prompt_sha256: str = ""
    transcript: ArtifactRef | None = None


class Judge(Protocol):
    """Says of findings whether they are in order. Never raises for what a model service does."""

    async def judge(self, briefing: JudgeBriefing) -> JudgeAnswer:
        """Return one ruling for each finding; what cannot be told is `UNSURE`."""
        ...


class Judges(Protocol):
    """Chooses the judge that fits the episode's planner."""

    def __call__(self, planner: str, /) -> Judge | None:
        """Return the judge for a planner of this kind; None: a person is asked at once."""
        ...
