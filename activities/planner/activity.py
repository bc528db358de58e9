"""The planning activity: briefs the planner and stores its answer."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from temporalio import activity

from activities.artifacts.port import ArtifactStore, ArtifactStores, find_model, get_model, put_model, put_text
from activities.memory.recalling import recalled
from activities.memory.spared import Memories, no_memories
from activities.planner.enforce import enforced_plan
from activities.planner.in_time import in_time
from activities.planner.port import Planners
from activities.safety.gate import Gate, Weighed
from activities.safety.port import JudgeBriefing
from activities.workspace.folders import root_of
from activities.workspace.scope import EpisodeScope
from tightloop.episode.check import CheckReport
from tightloop.episode.messages.plan_rules import review_plan
from tightloop.episode.model import EpisodeRequest
from tightloop.episode.planning import (
    Briefing,
    PlannerAnswer,
    PlanningOutcome,
    PlanRecord,
    PlanVerdict,
    ReflectionRecord,
)
from tightloop.episode.remembering import Followed
from tightloop.executor.messages.message import PlanRequestMessage, render_plan
from tightloop.executor.usage import total
from tightloop.safety.prompt_privacy import PromptPrivacy
from tightloop.value import Value, shorten
from tightloop.value.artifact import ArtifactRef

TITLE_CHARACTERS = 120
PLAN_TIMEOUT = timedelta(minutes=10)


class NextPlanRequest(Value):
    """Input of the planner, by reference."""

    scope: EpisodeScope
    iteration: int
    plan_request: ArtifactRef | None = None
    checks: ArtifactRef | None = None
    reflection: ArtifactRef | None = None
    notes: tuple[str, ...] = ()
    asked_for: tuple[str, ...] = ()
    """Those of them with which a person asks for work."""
    overruled: tuple[str, ...] = ()
    """Fingerprints of alignment findings that a person allowed."""


@dataclass(frozen=True)
class PlanningActivities:
    """Asks the planner."""

    stores: ArtifactStores
    planners: Planners
    programs: tuple[str, ...] = ()
    """Programs that the command executor may run."""
    command_takes_whole_plans: bool = False
    prompt_privacy: Callable[[str], PromptPrivacy] = lambda _workspace: PromptPrivacy.FULL
    """Returns what prompts about a workspace may contain."""
    timeout: timedelta = PLAN_TIMEOUT
    """For all attempts at one plan together, without the waits between them."""
    gate: Gate = field(default_factory=Gate)
    memories: Memories = no_memories

    @activity.defn
    async def next_plan(self, request: NextPlanRequest) -> PlanningOutcome:
        """Ask for the next plan. Not idempotent: a retry asks, and pays, again.

        Raises:
            PlannerError: the model service refuses, or the time for this plan is up; not retryable.
            PlannerUnavailableError: it is busy or down; retryable, after the time it asks for.
        """
        store = self.stores(Path(request.scope.workspace))
        episode, briefing = await asyncio.to_thread(self._brief, store, request)
        answer = await in_time(
            lambda: enforced_plan(self.planners(episode.planner), briefing), self.timeout, episode.planner
        )
        weighed = await self._weigh(request, episode, answer, briefing.prompt_privacy)
        return await asyncio.to_thread(self._record, store, answer, briefing, request.checks, weighed)

    async def _weigh(
        self, request: NextPlanRequest, episode: EpisodeRequest, answer: PlannerAnswer, prompt_privacy: PromptPrivacy
    ) -> Weighed:
        message = answer.message
        if message is None or answer.verdict not in (PlanVerdict.PLANNED, PlanVerdict.CLAIMS_DONE):
            return Weighed()
        roots = (str(root_of(request.scope)), request.scope.workspace)
        # In a thread: a long plan would hold up the event loop, and with it the heartbeats of every other activity.
        found = await asyncio.to_thread(review_plan, message, self.gate.rubric, goal=episode.goal, roots=roots)
        briefing = JudgeBriefing(goal=episode.goal, material=render_plan(message), prompt_privacy=prompt_privacy)
        return await self.gate.weigh(found, briefing, planner=episode.planner, overruled=request.overruled)

    def _brief(self, store: ArtifactStore, request: NextPlanRequest) -> tuple[EpisodeRequest, Briefing]:
        episode = get_model(store, request.scope.stored_request, EpisodeRequest)
        choice = episode.executor
        template = self.command_takes_whole_plans or "argv" in choice.options
        prompt_privacy = self.prompt_privacy(str(Path(request.scope.workspace).resolve()))
        reflection = find_model(store, request.reflection, ReflectionRecord)
        if reflection is not None and not reflection.usable_at(prompt_privacy):
            reflection = None
        # A retry gets the reflection of an earlier iteration, too: it counts as fresh for the report it was made from.
        about = request.plan_request.sha256 if request.plan_request else ""
        checks = find_model(store, request.checks, CheckReport)
        # Only the command executor runs the steps one by one; the others get the whole plan as a text.
        own_steps = choice.name == "command" and not template
        return episode, Briefing(
            project=episode.project_name,
            goal=episode.goal,
            definition_of_done=tuple(check.run for check in episode.definition_of_done),
            iteration=request.iteration,
            plan_request=find_model(store, request.plan_request, PlanRequestMessage),
            checks=checks,
            remembered=recalled(self.memories(Path(request.scope.workspace)), checks),
            reflection=reflection.plain if reflection else None,
            reflection_is_fresh=reflection is not None and reflection.about == about,
            notes=request.notes,
            asked_for=request.asked_for,
            programs=self.programs if own_steps else (),
            takes_whole_plans=not own_steps,
            root=str(root_of(request.scope)),
            prompt_privacy=prompt_privacy,
        )

    def _record(
        self,
        store: ArtifactStore,
        answer: PlannerAnswer,
        briefing: Briefing,
        checks: ArtifactRef | None,
        weighed: Weighed,
    ) -> PlanningOutcome:
        with store.together() as together:
            record = PlanRecord(
                message=answer.message,
                verdict=answer.verdict,
                checks=checks,
                recalled=None if briefing.remembered is None else len(briefing.remembered),
                followed=tuple(
                    Followed(failure=one.failure, pattern=one.pattern.id, check=one.check)
                    for one in briefing.remembered or ()
                    if one.pattern is not None and one.pattern.id in answer.followed
                ),
                reason=answer.reason,
                model=answer.model,
                prompt_sha256=answer.prompt_sha256,
                repair=answer.repair,
                prompt_privacy=briefing.prompt_privacy,
                transcript=put_text(together, answer.transcript, name="planner transcript"),
            )
            plan, alignment = put_model(together, record, name="plan"), weighed.store(together)
        message = answer.message
        return PlanningOutcome(
            verdict=answer.verdict,
            plan=plan,
            title=shorten(message.steps[0].title, TITLE_CHARACTERS) if message and message.steps else "",
            reason=shorten(answer.reason or (message.alignment.rationale if message else ""), 400),
            aligned=message is None or message.alignment.answer == "yes",
            findings=weighed.findings,
            alignment=alignment,
            final=message is not None and message.final,
            usage=total(spent) if (spent := [u for u in (answer.usage, weighed.usage) if u is not None]) else None,
            attempt=activity.info().attempt,
        )
