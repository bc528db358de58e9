"""Plans and revisions written by a model, within limits that it cannot extend."""

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from activities.model.asking import WITHHELD, Asker, Prompts, Question, UnusableAnswerError
from activities.model.client import AnswerSchema, ModelService
from activities.plan.port import WrittenPlan
from activities.plan.requests import PlanScope, RevisePlanRequest
from activities.plan.runners.model import strict
from activities.workspace.folders import root_of
from activities.workspace.user_repository import list_files
from tightloop.errors import InvalidRequestError, PlanError, PlannerError
from tightloop.plan.child import StepStatus
from tightloop.plan.document import Plan, PlanBudget, Policy
from tightloop.plan.engine.revision import diff_plans, find_refusals
from tightloop.plan.guard import (
    Caution,
    apply_policy,
    confine_plan,
    confine_revision,
    find_gate_bypasses,
    find_objections,
)
from tightloop.plan.request import PlanRequest
from tightloop.plan.step import Capability, Step
from tightloop.plan.text.reading import read_plan
from tightloop.plan.text.writing import write_plan
from tightloop.plan.validation import validate
from tightloop.safety.drift import PromptPrivacy

PROMPTS = Path(__file__).parent / "prompts"
FILES_LIMIT = 5_000
RATIONALE_CHARACTERS = 2_000
_TEXT = {"type": "string"}
_PLAN = {"rationale": _TEXT, "plan": _TEXT}
_REVISION = {"rationale": _TEXT, "keep": {"type": "array", "items": _TEXT}, "plan": _TEXT}
SCHEMA = AnswerSchema("plan", strict({"type": "object", "properties": _PLAN}))
REVISION_SCHEMA = AnswerSchema("revision", strict({"type": "object", "properties": _REVISION}))
PLAN_SHARE = 0.4
"""Share of the prompt available for the plan's text. A larger plan is shown as an outline."""
EXAMPLE = '{"rationale": "...", "plan": "id: fix\\nsteps:\\n  - id: test\\n    shell: {run: pytest -q}\\n"}'


@dataclass(frozen=True, kw_only=True)
class PlannerOptions:
    """The settings for plans written by a model."""

    service: ModelService
    caution: Caution
    prompt_privacy_of: Callable[[str], PromptPrivacy] = lambda _workspace: PromptPrivacy.FULL
    capabilities: frozenset[str] = frozenset(capability.value for capability in Capability)
    enabled: bool = False
    """The `plans.agent_planning` setting."""


class PlanWriter:
    """Writes plans with a model if the setting `plans.agent_planning` is on.

    An invalid plan is sent back to the model with a list of its problems. The number of attempts is limited.
    """

    def __init__(self, planning: PlannerOptions) -> None:
        self._planning = planning
        self._asker = Asker(planning.service)
        self._prompts = Prompts(PROMPTS, context_characters=planning.service.context_characters)

    @property
    def available(self) -> bool:
        """True if the setting is on and a model is configured."""
        return self._planning.enabled and self._planning.service.configured

    def write(self, scope: PlanScope, request: PlanRequest) -> WrittenPlan:
        """Write a plan for a goal. Every call costs money.

        Raises:
            InvalidRequestError: the setting is off, or the worker has no model. The message says what to set.
            PlannerUnavailableError: the model is busy or down. Retryable.
        """
        self._check("write a plan for a goal")
        prompt_privacy = self._planning.prompt_privacy_of(scope.workspace)
        # Names that are not UTF-8 hold surrogates, which the JSON of the request could not carry.
        paths = {os.fsencode(path).decode("utf-8", "backslashreplace") for path in list_files(root_of(scope))}
        # Files near the root say most about a project, so the limit drops deep ones.
        ordered = sorted(paths, key=lambda path: (path.count("/"), path))[:FILES_LIMIT]
        prompt = self._prompts.render(
            "goal.md",
            bounds=self._bounds(),
            # An overlong list in a prompt keeps its end: here the files nearest to the root.
            files=ordered[::-1],
            withheld=prompt_privacy is PromptPrivacy.SUMMARY,
            inputs={name: str(value) for name, value in request.inputs.items()},
            goal=request.goal,
        )

        def read(value: dict[str, Any]) -> tuple[Plan, str]:
            plan, why = self._read(value, None)
            return confine_plan(plan, self._planning.caution), why

        return self._ask_model(prompt, prompt_privacy, read)

    def revise(self, request: RevisePlanRequest, plan: Plan) -> WrittenPlan:
        """Write the next revision. Raises the same errors as `write`."""
        self._check("change a plan")
        prompt_privacy = self._planning.prompt_privacy_of(request.scope.workspace)
        trouble = "\n".join(part for part in (request.rationale, request.trouble) if part)
        prompt = self._prompts.render(
            "revise.md",
            bounds=self._bounds(),
            plan=self._render_plan(plan, prompt_privacy, request.statuses),
            fixed=sorted(request.fixed) or ["none"],
            statuses=[f"{step}: {status}" for step, status in request.statuses.items()] or ["none"],
            trouble=WITHHELD if prompt_privacy is PromptPrivacy.SUMMARY and trouble else trouble,
        )

        def read(value: dict[str, Any]) -> tuple[Plan, str]:
            written, why = self._read(value, plan, request.fixed)
            new = confine_revision(written, plan, self._planning.caution)
            refusals = find_refusals(diff_plans(plan, new), fixed=request.fixed, running=request.busy)
            problems = [*refusals, *find_gate_bypasses(new, plan)]
            # Compared by steps: a revision that only rewords its title would fail in the same way.
            if new.steps == plan.steps:
                problems.append("the plan is identical to the failed plan and would fail again")
            if problems:
                raise UnusableAnswerError(*problems)
            return new, why

        return self._ask_model(prompt, prompt_privacy, read, REVISION_SCHEMA)

    def _render_plan(self, plan: Plan, prompt_privacy: PromptPrivacy, statuses: Mapping[str, str]) -> str:
        """Return a plan's text, or an outline with the failed steps.

        The outline is used if the text is too long or must not be sent.
        """
        # Without policy and budget, which the model must not write.
        whole = write_plan(plan.evolve(policy=Policy(), budget=PlanBudget()))
        if (
            prompt_privacy is not PromptPrivacy.SUMMARY
            and len(whole) <= self._planning.service.context_characters * PLAN_SHARE
        ):
            return whole
        outline = [_outline(step) for step in plan.steps]
        failed = [step for step in plan.steps if statuses.get(step.id) == StepStatus.FAILED]
        if prompt_privacy is PromptPrivacy.SUMMARY or not failed:
            return "\n".join(outline)
        return write_plan(Plan(id=plan.id, steps=tuple(failed))) + "\nAll steps:\n" + "\n".join(outline)

    def _check(self, what: str) -> None:
        if not self._planning.enabled:
            raise InvalidRequestError(
                f"a model is not allowed to {what}: plans.agent_planning is off. Set plans.agent_planning to true "
                "for the worker (TIGHTLOOP_PLANS__AGENT_PLANNING=true), or provide a plan or a plan file"
            )
        if not self._planning.service.configured:
            raise InvalidRequestError(
                f"cannot ask a model to {what}: the worker has no API key. Set OPENAI_API_KEY (or the variable named "
                "in planner.api_key_env), or set planner.base_url to your own service, and restart the worker"
            )

    def _bounds(self) -> Mapping[str, Any]:
        caution = self._planning.caution
        policy = caution.policy
        return {
            "steps": caution.max_steps,
            "write": policy.write,
            "protect": policy.protect,
            "network": policy.network,
            "allowed": [rule.match for rule in policy.commands if rule.verdict == "allow"],
            "capabilities": sorted(self._planning.capabilities),
        }

    def _read(self, value: dict[str, Any], old: Plan | None, fixed: tuple[str, ...] = ()) -> tuple[Plan, str]:
        """Parse the plan in a response. Steps of the previous revision `old` that are `fixed` are always kept.

        Raises:
            UnusableAnswerError: the plan is invalid. The error contains the problems with line and column.
        """
        try:
            read = read_plan(str(value.get("plan") or ""), name="plan")
        except PlanError as error:
            raise UnusableAnswerError(*map(str, error.problems)) from error
        whole = read.plan if old is None else _with_kept(read.plan, old, (*_texts(value.get("keep")), *fixed))
        # Validated with the kept steps and the host's policy, which may both contradict what the model wrote.
        read = replace(read, plan=apply_policy(whole, old, self._planning.caution))
        wrong = [problem for problem in validate(read, capabilities=self._planning.capabilities) if problem.is_error]
        if wrong:
            raise UnusableAnswerError(*map(str, wrong))
        if problems := find_objections(read.plan, self._planning.caution, old):
            raise UnusableAnswerError(*problems)
        return read.plan, str(value.get("rationale") or "")[:RATIONALE_CHARACTERS]

    def _ask_model(
        self,
        prompt: str,
        prompt_privacy: PromptPrivacy,
        read: Callable[[dict[str, Any]], tuple[Plan, str]],
        schema: AnswerSchema = SCHEMA,
    ) -> WrittenPlan:
        question = Question(self._prompts.render("plan.md"), prompt, schema, EXAMPLE, prompt_privacy)
        try:
            # Runs in a worker thread without an event loop.
            exchange = asyncio.run(self._asker.ask(question, read))
        except PlannerError as error:
            # A failed call counts as well, though the service reports no usage for it.
            return WrittenPlan(problem=error.message, calls=1)
        paid = WrittenPlan(
            usage=exchange.usage,
            calls=exchange.attempts,
            model=exchange.model,
            transcript=exchange.transcript,
            prompts_sha256=self._prompts.sha256,
        )
        if exchange.value is None:
            refusal = f"model {exchange.model} refused to plan: {exchange.refusal}" if exchange.refusal else ""
            return replace(paid, problem=refusal or exchange.failure)
        plan, why = exchange.value
        return replace(paid, text=write_plan(plan), rationale=why)


def _with_kept(plan: Plan, old: Plan, keep: tuple[str, ...]) -> Plan:
    """Add the steps of the old plan that are listed in `keep`.

    A step that the new plan defines is not replaced.

    Raises:
        UnusableAnswerError: `keep` contains an unknown step.
    """
    old_steps = {step.id: step for step in old.steps}
    # A step generated from a template counts as the template.
    templates = {name: name.rstrip("0123456789") + "*" for name in keep if name not in old_steps}
    if unknown := [name for name, template in templates.items() if template not in old_steps]:
        raise UnusableAnswerError(*(f"`keep` contains {name!r}, but the plan has no such step" for name in unknown))
    own_ids = {step.id for step in plan.steps}
    kept_ids = {*keep, *templates.values()}
    kept_steps = tuple(step for step in old.steps if step.id in kept_ids and step.id not in own_ids)
    # Appended, so that line numbers of its own steps stay valid.
    return plan.evolve(steps=(*plan.steps, *kept_steps))


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _outline(step: Step) -> str:
    needs = f" needs {', '.join(step.needs)}" if step.needs else ""
    after = f" on failure {step.on_failure.to}" if step.on_failure is not None else ""
    return f"- {step.id} ({step.capability.value}): {step.title or step.kind.value}{needs}{after}"
