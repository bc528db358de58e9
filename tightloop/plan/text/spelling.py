"""Names and short forms of other plan languages, and the fields of `Plan` that they stand for."""

from collections.abc import Mapping

from pydantic import BaseModel

from tightloop.plan.document import action, failing, plan, step
from tightloop.plan.document.policy import Policy

RENAMED: Mapping[type[BaseModel], Mapping[str, str]] = {
    plan.Plan: {"plan_id": "id", "nodes": "steps", "tasks": "steps", "policies": "policy", "memory.keys": "memory"},
    step.Step: {
        "depends_on": "needs",
        "dependsOn": "needs",
        "input": "inputs",
        "success_criteria": "expect",
        "validation": "expect",
        "rollback": "compensate",
        "timeout": "timeout_s",
        "timebox": "timebox_s",
        "estimate": "estimate_s",
        "budget.timeMin": "timebox_s",
        "checks": "gate.checks",
    },
    plan.PlanBudget: {"time": "max_wall_s", "timeMin": "max_wall_s", "costUSD": "max_cost_usd"},
    step.StepBudget: {"costUSD": "max_cost_usd"},
    plan.ArtifactDeclaration: {"from": "from_step"},
}
"""Other name -> field of the model; a dot leads into a field's own fields. A number in `...Min` counts minutes."""
COMMAND_NAMES = ("run", "command")
"""On a step: the command of `shell`."""
_RUN_STATE = {"status": "the run knows it", "state": "the run knows it"}
_FOR_EACH = "Write `for_each: [...]` in a step with an id such as `build-*`, and `${item}` for one of them"
GONE: Mapping[type[BaseModel], Mapping[str, str]] = {
    plan.Plan: {"name": "Write `id:`, or `title:` for readers", "plan": "Write `id:`"},
    step.Step: {
        "name": "Write `id:`, or `title:` for readers",
        "if": "Write `when:` with an expression",
        "cmd": "Write `run:`",
        "script": "Write `run:`",
        "env": "Write `shell: {run: ..., environment: {NAME: value}}`",
        "environment": "Write `shell: {run: ..., environment: {NAME: value}}`",
        "cwd": "Write `shell: {run: ..., folder: ...}`",
        "folder": "Write `shell: {run: ..., folder: ...}`",
        "depends": "Write `needs:`",
        "dependencies": "Write `needs:`",
        "continue_on_error": "Write `failure_modes: [{name: any, recover: skip}]`",
        "matrix": _FOR_EACH,
        "loop": _FOR_EACH,
        "fetch": "Write `http: {urls: [...]}`",
        "using": "Remove it and name the action: `shell: make`, `model: ...`, `search: ...`",
    },
    plan.PlanBudget: {"max_steps": "Write `max_attempts`"},
    action.ShellAction: {"env": "Write `environment`", "cwd": "Write `folder`", "cmd": "Write `run`"},
    action.Rule: {"if": "Write `when`", "then": "Write `to`"},
}
"""Fields that are refused, and what to write in their place."""
IGNORED: Mapping[type[BaseModel], Mapping[str, str]] = {
    plan.Plan: {"version": "the run counts revisions", **_RUN_STATE},
    step.Step: _RUN_STATE,
    Policy: {"requireGateForProd": "steps of kind deploy wait for a person unless `approve` says otherwise"},
}
"""Fields that are dropped with a warning, and why they are not needed."""
MAIN_FIELD: Mapping[type[BaseModel], str] = {
    action.ShellAction: "run",
    action.ModelAction: "prompt",
    action.SearchAction: "query",
    action.HttpAction: "url",
    action.EpisodeAction: "goal",
    action.CheckpointAction: "name",
    step.SubplanAction: "file",
    action.Approval: "role",
    failing.OnFailure: "to",
    failing.Compensation: "run",
    plan.Hypothesis: "id",
}
"""The field that a bare text stands for: `shell: make`."""
ID_LISTS = frozenset({(step.Step, "needs"), (step.Step, "on_success"), (failing.OnFailure, "compensate")})
"""Lists that may be written as `a b` or `a, b`; all others take a bare text as their only item."""
