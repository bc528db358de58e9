"""Activities that reflect on an iteration."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from temporalio import activity

from activities.artifacts.port import ArtifactStore, ArtifactStores, find_model, get_model, put_model, put_text
from activities.memory.port import Memories, no_memories, recall_solutions
from activities.workspace.scope import EpisodeScope
from tightloop.episode.check import CheckReport
from tightloop.episode.messages import PlanDelta, show_delta
from tightloop.episode.model import CheckpointFile, EpisodeRequest
from tightloop.episode.planning import (
    EARLIER_REFLECTIONS,
    PlanRecord,
    ReflectCause,
    ReflectionBriefing,
    ReflectionOutcome,
    ReflectionRecord,
    ReflectorAnswer,
)
from tightloop.executor.message import PlanRequestMessage, render_plan
from tightloop.safety.drift import PromptPrivacy
from tightloop.value import ArtifactRef, Value, shorten
from tightloop.value.scrub import scrub


class Reflector(Protocol):
    """Explains the result of an iteration. Falls back to rules if no model responds."""

    async def reflect(self, briefing: ReflectionBriefing) -> ReflectorAnswer:
        """Return a diagnosis and at least one action item."""
        ...


Reflectors = Callable[[str], Reflector]
"""Returns the reflector that goes with a planner of this kind."""


class ReflectRequest(Value):
    """A reflection's input, by reference."""

    scope: EpisodeScope
    cause: ReflectCause
    detail: str = ""
    plan_request: ArtifactRef | None = None
    checks: ArtifactRef | None = None
    checkpoint: ArtifactRef | None = None
    """The iteration's `CheckpointFile`, which shows how its plan changed."""
    previous: ArtifactRef | None = None


@dataclass(frozen=True)
class ReflectionActivities:
    """Activities that ask the reflector."""

    stores: ArtifactStores
    reflectors: Reflectors
    prompt_privacy: Callable[[str], PromptPrivacy] = lambda _workspace: PromptPrivacy.FULL
    """Returns a workspace's prompt privacy."""
    memories: Memories = no_memories

    @activity.defn
    async def reflect(self, request: ReflectRequest) -> ReflectionOutcome:
        """Reflect on an iteration. Never fails, because it falls back to rules."""
        store = self.stores(Path(request.scope.workspace))
        planner, briefing = await asyncio.to_thread(self._brief, store, request)
        answer = await self.reflectors(planner).reflect(briefing)
        # Models and rules quote check output, and the next prompt quotes the reflection.
        answer = answer.evolve(reflection=scrub.model(answer.reflection), note=scrub(answer.note))
        reference = await asyncio.to_thread(self._record, store, request, briefing, answer)
        return ReflectionOutcome.of(
            answer,
            reflection=reference,
            diagnosis=shorten(answer.reflection.diagnosis, 240),
            attempt=activity.info().attempt,
        )

    @staticmethod
    def _record(
        store: ArtifactStore, request: ReflectRequest, briefing: ReflectionBriefing, answer: ReflectorAnswer
    ) -> ArtifactRef:
        earlier = (*briefing.earlier, briefing.previous) if briefing.previous else briefing.earlier
        with store.open_batch() as together:
            record = ReflectionRecord.of(
                answer,
                diagnosis=answer.reflection.diagnosis,
                action_items=answer.reflection.action_items,
                cause=request.cause,
                about=request.plan_request.sha256 if request.plan_request else "",
                prompt_privacy=briefing.prompt_privacy,
                transcript=put_text(together, answer.transcript, name="reflector transcript"),
                earlier=earlier[-EARLIER_REFLECTIONS:],
            )
            return put_model(together, record, name="reflection")

    def _brief(self, store: ArtifactStore, request: ReflectRequest) -> tuple[str, ReflectionBriefing]:
        episode = get_model(store, request.scope.stored_request, EpisodeRequest)
        prompt_privacy = self.prompt_privacy(str(Path(request.scope.workspace).resolve()))
        plan_request = find_model(store, request.plan_request, PlanRequestMessage)
        previous = find_model(store, request.previous, ReflectionRecord)
        if previous is not None and not previous.usable_at(prompt_privacy):
            previous = None
        checks = find_model(store, request.checks, CheckReport)
        memory = self.memories(Path(request.scope.workspace))
        return episode.planner, ReflectionBriefing(
            goal=episode.goal,
            cause=request.cause,
            detail=request.detail,
            plan_request=plan_request,
            plan_change=_plan_change(store, request),
            checks=checks,
            remembered=recall_solutions(memory, checks) or (),
            previous=previous.plain if previous else None,
            earlier=previous.earlier if previous else (),
            prompt_privacy=prompt_privacy,
        )


def _plan_change(store: ArtifactStore, request: ReflectRequest) -> str:
    """Return the difference between the previous plan and this one, or "" if either plan is unknown."""
    # After a restore the newest checkpoint belongs to another iteration.
    if request.cause is ReflectCause.RESTORED:
        return ""
    file = find_model(store, request.checkpoint, CheckpointFile)
    delta = find_model(store, file.plan_delta, PlanDelta) if file else None
    base = find_model(store, delta.base, PlanRecord) if delta else None
    if delta is None or base is None or base.message is None:
        return ""
    try:
        return show_delta(render_plan(base.message), delta)
    except ValueError:
        # A delta applies only to text rendered by the same version; the reflection works without it.
        return ""
