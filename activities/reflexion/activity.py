"""The reflexion activity: why an iteration went as it did, for the next plan."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from temporalio import activity

from activities.artifacts.port import ArtifactStore, ArtifactStores, find_model, get_model, put_model
from activities.reflexion.port import Reflectors
from activities.scope import EpisodeScope
from tightloop.artifact import ArtifactRef
from tightloop.check import CheckReport
from tightloop.egress import Egress
from tightloop.episode import EpisodeRequest
from tightloop.errors import ArtifactMissingError
from tightloop.message import PlanRequestMessage
from tightloop.planning import (
    EARLIER_REFLECTIONS,
    ReflectCause,
    ReflectionBriefing,
    ReflectionOutcome,
    ReflectionRecord,
    ReflectorAnswer,
)
from tightloop.scrub import scrub
from tightloop.value import Value, shorten


class ReflectRequest(Value):
    """What the reflector is to know, by reference."""

    scope: EpisodeScope
    cause: ReflectCause
    detail: str = ""
    plan_request: ArtifactRef | None = None
    checks: ArtifactRef | None = None
    previous: ArtifactRef | None = None


class ReflexionActivities:
    """Asks the reflector."""

    def __init__(
        self,
        stores: ArtifactStores,
        reflectors: Reflectors,
        egress: Callable[[str], Egress] = lambda _workspace: Egress.FULL,
    ) -> None:
        """Take the ports, and what prompts about a workspace may contain."""
        self._stores = stores
        self._reflectors = reflectors
        self._egress = egress

    @activity.defn
    async def reflect(self, request: ReflectRequest) -> ReflectionOutcome:
        """Make a reflection. Always ends in one: rules stand in for a model that does not answer."""
        store = self._stores(Path(request.scope.workspace))
        planner, briefing = await asyncio.to_thread(self._brief, store, request)
        answer = await self._reflectors(planner).reflect(briefing)
        answer = answer.model_copy(update={"reflection": scrub.model(answer.reflection), "note": scrub(answer.note)})
        reference = await asyncio.to_thread(self._record, store, request, briefing, answer)
        return ReflectionOutcome(
            reflection=reference,
            diagnosis=shorten(answer.reflection.diagnosis, 240),
            source=answer.source,
            repair=answer.repair,
            truncated=answer.truncated,
            usage=answer.usage,
            attempt=activity.info().attempt,
        )

    @staticmethod
    def _record(
        store: ArtifactStore, request: ReflectRequest, briefing: ReflectionBriefing, answer: ReflectorAnswer
    ) -> ArtifactRef:
        transcript = (
            store.put(answer.transcript, name="reflector transcript", media_type="text/plain")
            if answer.transcript
            else None
        )
        earlier = (*briefing.earlier, *((briefing.previous,) if briefing.previous else ()))
        record = ReflectionRecord(
            diagnosis=answer.reflection.diagnosis,
            action_items=answer.reflection.action_items,
            cause=request.cause,
            about=request.plan_request.sha256 if request.plan_request else "",
            source=answer.source,
            note=answer.note,
            repair=answer.repair,
            truncated=answer.truncated,
            egress=briefing.egress,
            prompt_sha256=answer.prompt_sha256,
            transcript=transcript,
            earlier=earlier[-EARLIER_REFLECTIONS:],
        )
        return put_model(store, record, name="reflection")

    def _brief(self, store: ArtifactStore, request: ReflectRequest) -> tuple[str, ReflectionBriefing]:
        if request.scope.request is None:
            raise ArtifactMissingError("the episode has no stored request: its workspace was never opened")
        episode = get_model(store, request.scope.request, EpisodeRequest)
        egress = self._egress(str(Path(request.scope.workspace).resolve()))
        previous = find_model(store, request.previous, ReflectionRecord)
        if previous is not None and not previous.usable_at(egress):
            previous = None
        return episode.planner, ReflectionBriefing(
            goal=episode.goal,
            cause=request.cause,
            detail=request.detail,
            plan_request=find_model(store, request.plan_request, PlanRequestMessage),
            checks=find_model(store, request.checks, CheckReport),
            previous=previous.plain if previous else None,
            earlier=previous.earlier if previous else (),
            egress=egress,
        )
