"""From the many ways in which plans are written to the one that `Plan` describes; positions are kept."""

from collections.abc import Iterator
from typing import Any

from tightloop.plan.model import ArtifactDeclaration, Plan, PlanBudget
from tightloop.plan.policy import Policy
from tightloop.plan.problem import Position, Problem, Severity, did_you_mean
from tightloop.plan.text.marked import Map, Seq, entries, seq
from tightloop.plan.text.spelling import (
    IGNORED_IN_PLAN,
    PLAN_NAMES,
    TEXT_LISTS,
    as_fields,
    as_list,
    as_seconds,
    budget_fields,
    rename_fields,
    snake,
)
from tightloop.plan.text.step_aliases import CAPABILITIES, StepAliases

PLAN_FIELDS = frozenset(Plan.model_fields)
STEP_MARKS = frozenset({"kind", "using", "capabilities", "command", "run", "success_criteria", "next", *CAPABILITIES})
"""Fields that only a step has."""


GATE_HINTS = 25


class PlanAliases:
    """Rewrites one document in place and collects what is worth telling."""

    def __init__(self) -> None:
        """Begin with nothing to tell."""
        self.problems: list[Problem] = []
        self._steps = StepAliases(self.problems)

    def apply(self, plan: Map) -> Map:
        """Return the document in the spelling of `Plan`; what cannot be understood is left for the model to refuse."""
        gates = [plan.take(name)[0] for name in list(plan) if name == "gates"]
        self._ignore(plan)
        rename_fields(plan, PLAN_NAMES, PLAN_FIELDS)
        if "steps" not in plan and STEP_MARKS & {snake(field) for field in plan}:
            plan = self._one_step(plan)
        for field in (*TEXT_LISTS, "memory", "definition_of_done"):
            as_list(plan, field)
        self._values(plan)
        self._gates(plan, gates)
        for index, step in enumerate(_maps(plan.get("steps"))):
            self._steps.apply(step, f"step-{index + 1}")
            self._step_artifacts(plan, step)
        self._artifacts(plan)
        return plan

    def _warn(self, message: str, at: Position, suggestion: str, code: str) -> None:
        self.problems.append(
            Problem(message=message, suggestion=suggestion, severity=Severity.WARNING, position=at, code=code)
        )

    def _ignore(self, plan: Map) -> None:
        for field in [field for field in plan if snake(field) in IGNORED_IN_PLAN]:
            _, _, at = plan.take(field)
            self._warn(f"'{field}' is not read", at, f"Remove it: {IGNORED_IN_PLAN[snake(field)]}", "ignored")

    def _one_step(self, task: Map) -> Map:
        """Put a plan around a task that stands alone."""
        made = Map(task.at)
        made.put("id", task.get("id", "plan"), at=task.values_at.get("id"), key_at=task.keys_at.get("id"))
        if "title" in task:
            made.put("title", task["title"], at=task.values_at["title"], key_at=task.keys_at["title"])
        made.put("steps", seq([task], task.at), at=task.at)
        said = "this is one task without a plan around it; it is read as a plan of one step"
        self._warn(said, task.at, "Write `id:` and `steps:`", "one-task")
        return made

    def _values(self, plan: Map) -> None:
        memory = plan.get("memory")
        if isinstance(memory, Map) and set(memory) == {"keys"}:
            _, at, key_at = plan.take("memory")
            plan.put("memory", memory["keys"], at=at, key_at=key_at)
        hypotheses = plan.get("hypotheses")
        if isinstance(hypotheses, Seq):
            for index, (value, at) in enumerate(entries(hypotheses, plan.at)):
                hypotheses[index] = _named(value, "id", at)
        budget = plan.get("budget")
        time = budget_fields(budget, frozenset(PlanBudget.model_fields))
        if isinstance(budget, Map):
            if time is not None:
                budget.put("max_wall_s", time[0], at=time[1], key_at=time[2])
            as_seconds(budget, "max_wall_s")
        self._policy(plan.get("policy"))

    def _policy(self, policy: Any) -> None:
        if not isinstance(policy, Map):
            return
        rename_fields(policy, {}, frozenset(Policy.model_fields))
        for field in [field for field in policy if snake(field) == "require_gate_for_prod"]:
            value, at, key_at = policy.take(field)
            if not isinstance(value, bool):
                policy.put(field, value, at=at, key_at=key_at)
            elif "approve" not in policy:
                policy.put("approve", seq(["deploy"] if value else [], at), at=at, key_at=key_at)
            elif value and isinstance(policy["approve"], Seq) and "deploy" not in policy["approve"]:
                policy["approve"].add("deploy", at)
        for field in ("write", "protect", "network", "approve"):
            as_list(policy, field)

    def _gates(self, plan: Map, given: list[Any]) -> None:
        """Merge what stands under `gates:` into the steps with the same ids."""
        steps = {str(step.get("id")): step for step in _maps(plan.get("steps"))}
        for gates in given:
            for gate in _maps(gates):
                id_, at = str(gate.get("id", "")), gate.values_at.get("id", gate.at)
                if id_ not in steps:
                    said = f"'gates' names '{id_}', which is no step"
                    hint = did_you_mean(id_, steps) if len(self.problems) < GATE_HINTS else ""
                    self.problems.append(Problem(message=said, suggestion=hint, position=at, code="unknown-step"))
                    continue
                for field in [field for field in gate if field != "id"]:
                    value, value_at, key_at = gate.take(field)
                    if field not in steps[id_]:
                        steps[id_].put(field, value, at=value_at, key_at=key_at)

    def _step_artifacts(self, plan: Map, step: Map) -> None:
        """Declare the artifacts of a step for the plan; its outputs of the same names are what they are read from."""
        if not isinstance(step.get("artifacts"), Seq):
            return
        declared, declared_at, key_at = step.take("artifacts")
        if "outputs" not in step:
            step.put("outputs", Map(declared_at), at=declared_at, key_at=key_at)
        if not isinstance(plan.get("artifacts"), Seq):
            plan.put("artifacts", Seq(declared_at), at=declared_at, key_at=key_at)
        present = {(one.get("name"), one.get("from", one.get("from_step"))) for one in _maps(plan["artifacts"])}
        for value, at in list(entries(declared, declared_at)):
            artifact = _named(value, "name", at)
            name = artifact.get("name") if isinstance(artifact, Map) else None
            if isinstance(name, str) and isinstance(step["outputs"], Map) and name not in step["outputs"]:
                step["outputs"].put(name, name, at=at)
            if isinstance(artifact, Map) and (name, step.get("id")) not in present:
                artifact.put("from_step", step.get("id"), at=at)
                plan["artifacts"].add(artifact, at)

    def _artifacts(self, plan: Map) -> None:
        for artifact in _maps(plan.get("artifacts")):
            rename_fields(artifact, {"from": "from_step"}, frozenset(ArtifactDeclaration.model_fields))
            if "retention" in artifact:
                _, _, at = artifact.take("retention")
                self._warn("'retention' is not read", at, "Remove it: artifacts stay until they are cleaned", "ignored")


def _maps(values: Any) -> Iterator[Map]:
    return (value for value in values if isinstance(value, Map)) if isinstance(values, Seq) else iter(())


def _named(value: Any, field: str, at: Position) -> Any:
    """Return `{field: value}` for a bare text."""
    holder = Map(at)
    holder.put("value", value, at=at)
    as_fields(holder, "value", field)
    return holder["value"]
