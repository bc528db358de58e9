"""Input and output of planners and reflectors."""

from enum import StrEnum

from tightloop.episode.check import CheckReport
from tightloop.episode.remembering import Followed
from tightloop.errors import did_you_mean
from tightloop.executor.messages.message import PlanMessage, PlanRequestMessage, Reflection
from tightloop.executor.usage import Usage
from tightloop.memory.model import Recollection
from tightloop.safety.prompt_privacy import PromptPrivacy
from tightloop.safety.rubric import Finding
from tightloop.value import Value, shorten
from tightloop.value.artifact import ArtifactRef

PLANNERS = ("auto", "openai", "heuristic")
"""`auto`: `openai` where a key is present, else `heuristic`, which needs none."""


def planner_problem(name: str) -> str:
    """Return what is wrong with the name of a planner; empty: nothing."""
    if name in PLANNERS:
        return ""
    return f"the planner {shorten(name, 60)!r} is unknown. {did_you_mean(name, PLANNERS)}"


class PlanVerdict(StrEnum):
    """Meaning of the planner's answer."""

    PLANNED = "planned"
    """There is a plan with steps."""
    CLAIMS_DONE = "claims_done"
    """Nothing is left to do, says the planner; the checks decide."""
    GAVE_UP = "gave_up"
    """The planner says that it cannot go on, and why."""
    MALFORMED = "malformed"
    """The answer could not be used, also after the bounded number of corrections."""


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


class ReflectCause(StrEnum):
    """Why a reflection is made (EP-6)."""

    PROBABILITY_CLASS = "probability_class"
    RESTORED = "restored"
    REPEATED_FAILURE = "repeated_failure"


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
