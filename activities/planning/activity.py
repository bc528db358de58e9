"""The planning activity: a briefing for the planner, its answer into the artifact store."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from temporalio import activity

from activities.alignment.gate import Gate, Weighed
from activities.alignment.port import JudgeBriefing
from activities.artifacts.port import ArtifactStore, ArtifactStores, find_model, get_model, put_model
from activities.model.usage import total
from activities.planning.enforce import enforced_plan
from activities.planning.port import Planners
from activities.scope import EpisodeScope
from tightloop.alignment_plan import of_plan
from tightloop.artifact import ArtifactRef
from tightloop.check import CheckReport
from tightloop.egress import Egress
from tightloop.episode import EpisodeRequest
from tightloop.errors import ArtifactMissingError
from tightloop.message import PlanRequestMessage, render_plan
from tightloop.planning import Briefing, PlannerAnswer, PlanOutcome, PlanRecord, PlanVerdict, ReflectionRecord
from tightloop.value import Value, shorten

TITLE_CHARACTERS = 120


class NextPlanRequest(Value):
    """What the planner is to know, by reference."""

    scope: EpisodeScope
    iteration: int
    plan_request: ArtifactRef | None = None
    checks: ArtifactRef | None = None
    reflection: ArtifactRef | None = None
    notes: tuple[str, ...] = ()
    overruled: tuple[str, ...] = ()
    """Fingerprints of alignment findings that a person allowed."""


class PlanningActivities:
    """Asks the planner."""

    def __init__(
        self,
        stores: ArtifactStores,
        planners: Planners,
        programs: tuple[str, ...] = (),
        *,
        command_takes_whole_plans: bool = False,
        egress: Callable[[str], Egress] = lambda _workspace: Egress.FULL,
        gate: Gate | None = None,
    ) -> None:
        """Take the ports, what the command executor may run, and what prompts about a workspace may contain."""
        self._stores = stores
        self._planners = planners
        self._programs = programs
        self._command_takes_whole_plans = command_takes_whole_plans
        self._egress = egress
        self._gate = gate or Gate()

    @activity.defn
    async def next_plan(self, request: NextPlanRequest) -> PlanOutcome:
        """Ask for the next plan. Not idempotent: a retry asks, and pays, again.

        Raises:
            PlannerError: the model service refuses; not retryable.
            PlannerUnavailableError: it is busy or down; retryable, after the time it asks for.
        """
        store = self._stores(Path(request.scope.workspace))
        episode, briefing = await asyncio.to_thread(self._brief, store, request)
        answer = await enforced_plan(self._planners(episode.planner), briefing)
        weighed = await self._weigh(request, episode, answer, briefing.egress)
        return await asyncio.to_thread(self._record, store, answer, briefing.egress, weighed)

    async def _weigh(
        self, request: NextPlanRequest, episode: EpisodeRequest, answer: PlannerAnswer, egress: Egress
    ) -> Weighed:
        message = answer.message
        if message is None or answer.verdict not in (PlanVerdict.PLANNED, PlanVerdict.CLAIMS_DONE):
            return Weighed()
        roots = (str(request.scope.root), request.scope.workspace)
        found = await asyncio.to_thread(of_plan, message, self._gate.rubric, goal=episode.goal, roots=roots)
        briefing = JudgeBriefing(goal=episode.goal, material=render_plan(message), egress=egress)
        return await self._gate.weigh(found, briefing, planner=episode.planner, overruled=request.overruled)

    def _brief(self, store: ArtifactStore, request: NextPlanRequest) -> tuple[EpisodeRequest, Briefing]:
        if request.scope.request is None:
            raise ArtifactMissingError("the episode has no stored request: its workspace was never opened")
        episode = get_model(store, request.scope.request, EpisodeRequest)
        choice = episode.executor
        template = self._command_takes_whole_plans or "argv" in choice.options
        egress = self._egress(str(Path(request.scope.workspace).resolve()))
        reflection = find_model(store, request.reflection, ReflectionRecord)
        if reflection is not None and not reflection.usable_at(egress):
            reflection = None
        about = request.plan_request.sha256 if request.plan_request else ""
        own_steps = choice.name == "command" and not template
        return episode, Briefing(
            project=episode.project_name,
            goal=episode.goal,
            definition_of_done=tuple(check.run for check in episode.definition_of_done),
            iteration=request.iteration,
            plan_request=find_model(store, request.plan_request, PlanRequestMessage),
            checks=find_model(store, request.checks, CheckReport),
            reflection=reflection.plain if reflection else None,
            reflection_is_fresh=reflection is not None and reflection.about == about,
            notes=request.notes,
            programs=self._programs if own_steps else (),
            takes_whole_plans=not own_steps,
            egress=egress,
        )

    def _record(self, store: ArtifactStore, answer: PlannerAnswer, egress: Egress, weighed: Weighed) -> PlanOutcome:
        transcript = (
            store.put(answer.transcript, name="planner transcript", media_type="text/plain")
            if answer.transcript
            else None
        )
        record = PlanRecord(
            message=answer.message,
            verdict=answer.verdict,
            reason=answer.reason,
            model=answer.model,
            prompt_sha256=answer.prompt_sha256,
            repair=answer.repair,
            egress=egress,
            transcript=transcript,
        )
        message = answer.message
        return PlanOutcome(
            verdict=answer.verdict,
            plan=put_model(store, record, name="plan"),
            title=shorten(message.steps[0].title, TITLE_CHARACTERS) if message and message.steps else "",
            reason=shorten(answer.reason or (message.alignment.rationale if message else ""), 400),
            aligned=message is None or message.alignment.answer == "yes",
            findings=weighed.findings,
            alignment=weighed.store(store),
            final=message is not None and message.final,
            usage=total(spent) if (spent := [u for u in (answer.usage, weighed.usage) if u is not None]) else None,
            attempt=activity.info().attempt,
        )
