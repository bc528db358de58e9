"""Activities that plan an iteration within a time limit and according to the plan template."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from temporalio import activity

from activities.artifacts.port import ArtifactStore, ArtifactStores, find_model, get_model, put_model, put_text
from activities.memory.port import Memories, no_memories, recall_solutions
from activities.model import observed
from activities.safety.gate import AlignmentChecker, AlignmentResult, JudgeBriefing
from activities.workspace.folders import root_of
from activities.workspace.scope import EpisodeScope
from tightloop.episode.check import CheckReport
from tightloop.episode.messages import CORRECTIONS, gaps_of_plan, given_up, review_plan
from tightloop.episode.model import EpisodeRequest
from tightloop.episode.planning import (
    Briefing,
    DraftedScenarios,
    FollowedPattern,
    PlannerAnswer,
    PlanningOutcome,
    PlanRecord,
    PlanVerdict,
    ReflectionRecord,
    WrittenCheck,
)
from tightloop.episode.scenarios import HiddenScenarios, ScenarioBundle
from tightloop.errors import PlannerError, PlannerUnavailableError
from tightloop.executor.message import Alignment, PlanMessage, PlannedStep, PlanRequestMessage, Reflection, render_plan
from tightloop.executor.model import Usage, total
from tightloop.safety.drift import PromptPrivacy
from tightloop.value import ArtifactRef, Value, format_count, shorten
from tightloop.wording import span

if TYPE_CHECKING:
    # Workflows import this module, but must not import the client of a model.
    from activities.planner.writers import CheckWriters, ScenarioWriters


class Planner(Protocol):
    """Decides on the next step. An invalid model response is returned as a verdict instead of being raised."""

    async def plan(self, briefing: Briefing) -> PlannerAnswer:
        """Decide on the next step, based on a briefing.

        Raises:
            PlannerError: the service rejects the request; not retryable.
            PlannerUnavailableError: the service is busy or down; retryable.
        """
        ...


Planners = Callable[[str], Planner]
"""Returns the planner of this kind (`openai`, `heuristic` or `auto`).

Raises `PlannerError` if the kind is unknown or its key is missing.
"""


async def enforced_plan(planner: Planner, briefing: Briefing) -> PlannerAnswer:
    """Ask a planner until its message matches the template. Return `MALFORMED` with a reason if it never does.

    Fields that the loop knows are filled in: project, goal, iteration, definition of done and a fresh
    reflection. The planner must supply the rest.

    Raises:
        PlannerError: the service rejects the request; not retryable.
        PlannerUnavailableError: the service is busy or down; retryable.
    """
    usages: list[Usage] = []
    answer, gaps = PlannerAnswer(verdict=PlanVerdict.MALFORMED), ""
    for _ in range(1 + CORRECTIONS):
        reply = _asked_for(await planner.plan(briefing), briefing)
        # Rejected messages cost money as well.
        usages += [reply.usage] if reply.usage is not None else []
        answer = reply.evolve(
            message=_complete_message(reply.message, briefing), usage=total(usages) if usages else None
        )
        if answer.verdict is PlanVerdict.GAVE_UP and not answer.reason.strip():
            gaps = "- [reason] is missing. State in one sentence what a person must do"
        elif answer.verdict is PlanVerdict.IMPOSSIBLE and not answer.reason.strip():
            gaps = "- [reason] is missing. State in one sentence why the goal cannot be reached"
        elif answer.verdict is PlanVerdict.PLANNED:
            gaps = gaps_of_plan(answer.message or PlanMessage())
        elif answer.verdict is PlanVerdict.CLAIMS_DONE and answer.message is not None:
            gaps = gaps_of_plan(answer.message.evolve(final=True))
        else:
            gaps = ""
        if not gaps:
            return answer
        briefing = briefing.evolve(sent_back=gaps)
    reason = given_up("plan message", gaps, returned=CORRECTIONS)
    return answer.evolve(verdict=PlanVerdict.MALFORMED, message=None, reason=reason)


def _asked_for(answer: PlannerAnswer, briefing: Briefing) -> PlannerAnswer:
    """If the planner claims to be done, return a plan for the work that a person requested.

    Any other answer is returned unchanged.
    """
    if answer.verdict is not PlanVerdict.CLAIMS_DONE or not briefing.asked_for:
        return answer
    if not briefing.takes_whole_plans:
        reason = f"the checks pass, but no command is known that fulfills the request: {briefing.asked_for[-1]}"
        return answer.evolve(verdict=PlanVerdict.GAVE_UP, message=None, reason=reason)
    message = PlanMessage(
        steps=tuple(PlannedStep(title=f"Do what was requested: {shorten(text, 300)}") for text in briefing.asked_for),
        reflection=Reflection(
            diagnosis="the checks pass, but someone asked for more work",
            action_items=("do what was requested", "keep the checks green"),
        ),
        alignment=Alignment(answer="yes", rationale="a person requested it"),
    )
    return answer.evolve(verdict=PlanVerdict.PLANNED, message=message, reason="")


def _complete_message(message: PlanMessage | None, briefing: Briefing) -> PlanMessage | None:
    if message is None:
        return None
    context, learnt = message.context, briefing.reflection if briefing.reflection_is_fresh else None
    # The executor also needs the last reflection: the planner may have used it without mentioning it.
    if learnt is not None and learnt.diagnosis not in context:
        items = "".join(f"\n- {item}" for item in learnt.action_items)
        reflection_text = f"Reflection on the last iteration: {learnt.diagnosis}{items}"
        context = f"{context}\n\n{reflection_text}" if context else reflection_text
    # A person's request reaches the executor verbatim.
    context = "\n\n".join(filter(None, (context, *(text for text in briefing.asked_for if text not in context))))
    return message.evolve(
        project=message.project or briefing.project or "unnamed",
        goal=message.goal or briefing.goal,
        iteration=message.iteration or briefing.iteration,
        definition_of_done=message.definition_of_done or briefing.definition_of_done,
        context=context,
    )


T = TypeVar("T")


async def ask_with_timeout(ask: Callable[[], Awaitable[T]], limit: timedelta, planner: str) -> T:
    """Run `ask` within the time left by earlier attempts, and return its result.

    Raises:
        PlannerError: the time is up. The message includes the problem with the last response. Not
            retryable.
        PlannerUnavailableError: the service is busy or down, and there is still time for another attempt.
    """
    work = observed.begin(f"asking planner {planner!r}", limit)
    start = time.monotonic()

    def seconds_left() -> float:
        return limit.total_seconds() - work.spent_s - (time.monotonic() - start)

    try:
        # Not left to Temporal's timeout, whose failure would not name the problem of the last answer.
        async with asyncio.timeout(seconds_left()):
            return await ask()
    except TimeoutError:
        raise PlannerError(_timeout_message(limit)) from None
    except PlannerUnavailableError as error:
        observed.record_failure(limit - timedelta(seconds=seconds_left()), error.message)
        if seconds_left() <= 0:
            raise PlannerError(_timeout_message(limit)) from error
        raise


def _timeout_message(limit: timedelta) -> str:
    why = observed.describe_problem().rstrip(". ") or "the model had not responded yet"
    tries = format_count(activity.info().attempt, "attempt")
    return (
        f"the planner returned no plan after {span(limit.total_seconds())} and {tries} (planner.plan_timeout_s): "
        f"{why}. Choose a faster or stronger model (planner.models), allow more time, or plan without a model: "
        f"tightloop amend {activity.info().workflow_id} --planner heuristic"
    )


TITLE_CHARACTERS = 120
PLAN_TIMEOUT = timedelta(minutes=10)


class NextPlanRequest(Value):
    """The planner's input, by reference."""

    scope: EpisodeScope
    iteration: int
    plan_request: ArtifactRef | None = None
    checks: ArtifactRef | None = None
    reflection: ArtifactRef | None = None
    notes: tuple[str, ...] = ()
    asked_for: tuple[str, ...] = ()
    """Notes in which a person requests work."""
    overruled: tuple[str, ...] = ()
    """Fingerprints of alignment findings that a person has allowed."""


class WriteCheckRequest(Value):
    """A request to write a check that fails before the work starts."""

    scope: EpisodeScope
    problem: str = ""
    """Reason for rejecting the previous check."""


class DraftRequest(Value):
    """A request to draft hidden scenarios before the work starts."""

    scope: EpisodeScope
    limit: int
    """Maximum number of scenarios."""


@dataclass(frozen=True)
class PlanningActivities:
    """Activities that ask the planner."""

    stores: ArtifactStores
    planners: Planners
    programs: tuple[str, ...] = ()
    """Programs that the command executor may run."""
    command_takes_whole_plans: bool = False
    prompt_privacy: Callable[[str], PromptPrivacy] = lambda _workspace: PromptPrivacy.FULL
    """Returns a workspace's prompt privacy."""
    timeout: timedelta = PLAN_TIMEOUT
    """Time limit for all attempts at one plan together, excluding the pauses between them."""
    gate: AlignmentChecker = field(default_factory=AlignmentChecker)
    memories: Memories = no_memories
    check_writers: "CheckWriters" = lambda _planner: None
    scenario_writers: "ScenarioWriters" = lambda _planner: None
    store_scenarios: Callable[[ScenarioBundle], HiddenScenarios] = lambda bundle: bundle.commitment
    """Stores scenarios encrypted and returns the commitment."""

    @activity.defn
    async def draft_scenarios(self, request: DraftRequest) -> DraftedScenarios:
        """Ask a model to draft hidden scenarios. Not idempotent: each retry makes another paid request.

        If the service rejects the request or the model is too slow, the episode simply has no drafts.

        Raises:
            PlannerUnavailableError: the model service is busy or down; retryable after the delay that it
                requests.
        """
        store, attempt = self.stores(Path(request.scope.workspace)), activity.info().attempt
        plan_request = NextPlanRequest(scope=request.scope, iteration=0)
        episode, briefing = await asyncio.to_thread(self._brief, store, plan_request)
        # In a thread, because the first use of a sandbox probes it.
        writer = await asyncio.to_thread(self.scenario_writers, episode.planner)
        if writer is None:
            reason = "the planner does not use a model, or the worker has no sandbox"
            return DraftedScenarios(reason=reason, attempt=attempt)
        if briefing.prompt_privacy is PromptPrivacy.SUMMARY:
            return DraftedScenarios(reason="prompts may not contain code (privacy.prompts)", attempt=attempt)
        root = root_of(request.scope)
        try:
            answer = await ask_with_timeout(
                lambda: writer.write(briefing, root, request.limit), self.timeout, episode.planner
            )
        except PlannerError as error:
            return DraftedScenarios(reason=shorten(error.message, 400), attempt=attempt)
        drafts = None
        if answer.bundle is not None:
            drafts = await asyncio.to_thread(self.store_scenarios, answer.bundle)
        reason = shorten(answer.reason, 400)
        return DraftedScenarios(drafts=drafts, reason=reason, usage=answer.usage, attempt=attempt)

    @activity.defn
    async def write_check(self, request: WriteCheckRequest) -> WrittenCheck:
        """Ask a model to write a check that fails before the work starts.

        Not idempotent: each retry makes another paid request.

        Raises:
            PlannerError: the model service rejects the request, or the time is up; not retryable.
            PlannerUnavailableError: the service is busy or down; retryable after the delay that it requests.
        """
        store = self.stores(Path(request.scope.workspace))
        plan_request = NextPlanRequest(scope=request.scope, iteration=0)
        episode, briefing = await asyncio.to_thread(self._brief, store, plan_request)
        writer = self.check_writers(episode.planner)
        if writer is None:
            return WrittenCheck(attempt=activity.info().attempt)
        root = root_of(request.scope)
        answer = await ask_with_timeout(
            lambda: writer.write(briefing.evolve(sent_back=request.problem), root), self.timeout, episode.planner
        )
        proposed, check = answer.check, None
        if proposed is not None:
            check = await asyncio.to_thread(put_model, store, proposed, name="written check")
        return WrittenCheck(
            by_model=True,
            check=check,
            reason=shorten(answer.reason, 400),
            usage=answer.usage,
            attempt=activity.info().attempt,
        )

    @activity.defn
    async def next_plan(self, request: NextPlanRequest) -> PlanningOutcome:
        """Ask the planner for the next plan. Not idempotent: each retry makes another paid request.

        Raises:
            PlannerError: the model service rejects the request, or the time for this plan is up; not
                retryable.
            PlannerUnavailableError: the service is busy or down; retryable after the delay that it requests.
        """
        store = self.stores(Path(request.scope.workspace))
        episode, briefing = await asyncio.to_thread(self._brief, store, request)
        answer = await ask_with_timeout(
            lambda: enforced_plan(self.planners(episode.planner), briefing), self.timeout, episode.planner
        )
        weighed = await self._check_alignment(request, episode, answer, briefing.prompt_privacy)
        return await asyncio.to_thread(self._record, store, answer, briefing, request.checks, weighed)

    async def _check_alignment(
        self, request: NextPlanRequest, episode: EpisodeRequest, answer: PlannerAnswer, prompt_privacy: PromptPrivacy
    ) -> AlignmentResult:
        message = answer.message
        if message is None or answer.verdict not in (PlanVerdict.PLANNED, PlanVerdict.CLAIMS_DONE):
            return AlignmentResult()
        roots = (str(root_of(request.scope)), request.scope.workspace)
        # In a thread: a long plan would block the event loop, and with it the heartbeats of all other activities.
        findings = await asyncio.to_thread(review_plan, message, self.gate.rubric, goal=episode.goal, roots=roots)
        briefing = JudgeBriefing(goal=episode.goal, material=render_plan(message), prompt_privacy=prompt_privacy)
        return await self.gate.check_alignment(findings, briefing, planner=episode.planner, overruled=request.overruled)

    def _brief(self, store: ArtifactStore, request: NextPlanRequest) -> tuple[EpisodeRequest, Briefing]:
        episode = get_model(store, request.scope.stored_request, EpisodeRequest)
        choice = episode.executor
        template = self.command_takes_whole_plans or "argv" in choice.options
        prompt_privacy = self.prompt_privacy(str(Path(request.scope.workspace).resolve()))
        reflection = find_model(store, request.reflection, ReflectionRecord)
        # Written under a laxer setting, it may quote what must not be sent any more.
        if reflection is not None and not reflection.usable_at(prompt_privacy):
            reflection = None
        # A retry also gets the reflection of an earlier iteration, which is fresh only for its own report.
        request_digest = request.plan_request.sha256 if request.plan_request else ""
        checks = find_model(store, request.checks, CheckReport)
        # Only the command executor runs single steps; the others get the whole plan as text.
        own_steps = choice.name == "command" and not template
        return episode, Briefing(
            project=episode.project_name,
            goal=episode.goal,
            definition_of_done=tuple(check.run for check in episode.definition_of_done),
            iteration=request.iteration,
            plan_request=find_model(store, request.plan_request, PlanRequestMessage),
            checks=checks,
            remembered=recall_solutions(self.memories(Path(request.scope.workspace)), checks),
            reflection=reflection.plain if reflection else None,
            reflection_is_fresh=reflection is not None and reflection.about == request_digest,
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
        weighed: AlignmentResult,
    ) -> PlanningOutcome:
        with store.open_batch() as together:
            record = PlanRecord.of(
                answer,
                checks=checks,
                recalled=None if briefing.remembered is None else len(briefing.remembered),
                followed=tuple(
                    FollowedPattern(
                        failure=recollection.failure, pattern=recollection.pattern.id, check=recollection.check
                    )
                    for recollection in briefing.remembered or ()
                    if recollection.pattern is not None and recollection.pattern.id in answer.followed
                ),
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
