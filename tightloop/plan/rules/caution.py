"""Confines plans that a model wrote: a policy and a budget around its own, and what a person must review."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tightloop.plan.document.plan import Plan, PlanBudget
from tightloop.plan.document.policy import CommandRule, Deletions, Policy
from tightloop.plan.document.step import Capability, Step, walk
from tightloop.plan.rules.budgeting import narrowest
from tightloop.plan.rules.command import judge_command
from tightloop.plan.rules.guard import acts_of, enclosing_policies, judge, tightened
from tightloop.safety.verdict import Verdict

UNREVIEWED = "unreviewed"
"""Label of a step that a model added to a person's plan; it waits for an approval."""
# What these do cannot be judged from the text of the plan.
_REACHES_OUT = frozenset({Capability.HTTP, Capability.EPISODE})


@dataclass(frozen=True, kw_only=True)
class Caution:
    """The strictest defaults, from the settings."""

    policy: Policy
    budget: PlanBudget
    max_steps: int = 200


def policy_for(
    allowed: tuple[str, ...], *, write: tuple[str, ...], network: tuple[str, ...], deletions: Deletions
) -> Policy:
    """Return a policy in which a person approves every command that is not allowed by a pattern.

    Args:
        allowed: patterns over the words of a command, such as `git diff **`.
        write: globs of what steps may change.
        network: hosts that `http` may ask.
        deletions: bounds of what its steps together may remove.
    """
    rules = tuple(CommandRule(match=match, verdict=Verdict.ALLOW) for match in allowed)
    ask = CommandRule(match="**", verdict=Verdict.ASK, reason="a model wrote it")
    return Policy(write=write, network=network, commands=(*rules, ask), deletions=deletions)


def under(plan: Plan, old: Plan | None, caution: Caution) -> Plan:
    """Return a plan of a model's with the policy that it is judged by: that of `old`, or with the settings' hosts."""
    if old is not None:
        return plan.evolve(policy=old.policy)
    hosts = plan.policy.network or caution.policy.network
    return plan.evolve(policy=plan.policy.evolve(network=hosts))


def confined(plan: Plan, caution: Caution) -> Plan:
    """Return a plan of a model's within the policy and the budget of the settings, which it cannot loosen."""
    budget = narrowest(plan.budget, caution.budget)
    return plan.evolve(policy=tightened(plan.policy, caution.policy), budget=budget)


def revised(plan: Plan, old: Plan, caution: Caution) -> Plan:
    """Return a revision by a model: what binds the plan stays, and a person looks at risky steps that are new.

    Policy, budget, definition of done, inputs, hypotheses and what follows a failure are those of the old plan.
    """
    known = {step.id: step for step in old.steps}
    # A plan within the policy of the settings is judged by it at every step anyway.
    is_confined = caution.policy in enclosing_policies(old.policy)
    steps = tuple(step if step == known.get(step.id) or is_confined else marked(step, caution) for step in plan.steps)
    policy = old.policy
    if policy.deletions is None and not is_confined:
        # A person's plan may remove what it says; what a model added may not go on from there.
        policy = policy.evolve(deletions=caution.policy.deletions)
    waits = any(UNREVIEWED in step.labels for step in walk(steps))
    if waits and UNREVIEWED not in policy.approve:
        policy = policy.evolve(approve=(*policy.approve, UNREVIEWED))
    # Fields by which a model could loosen what a person set.
    kept = ("id", "budget", "definition_of_done", "inputs", "hypotheses", "on_failure", "max_parallel", "seed", "owner")
    return plan.evolve(**{name: getattr(old, name) for name in kept}, policy=policy, steps=steps)


def marked(step: Step, caution: Caution) -> Step:
    """Return a step of a model's, labelled where a person has to approve it; those within it too."""
    changes: dict[str, Any] = {}
    if step.subplan is not None:
        inner = tuple(marked(one, caution) for one in step.subplan.steps)
        changes["subplan"] = step.subplan.evolve(steps=inner)
    if step.branch is not None:
        ways = tuple(
            way.evolve(steps=tuple(marked(one, caution) for one in way.steps)) for way in step.branch.alternatives
        )
        changes["branch"] = step.branch.evolve(alternatives=ways)
    if (
        step.capability in _REACHES_OUT
        or judge(caution.policy, step, acts_of(step, _action(step))).verdict != Verdict.ALLOW
    ):
        changes["labels"] = tuple(dict.fromkeys((*step.labels, UNREVIEWED)))
    return step.evolve(**changes)


def objections(plan: Plan, caution: Caution, old: Plan | None) -> tuple[str, ...]:
    """Return what a model's plan must not contain, one sentence each, for the model to read.

    Steps that are as in `old`, the revision before, are not looked at.
    """
    known = {step.id: step for step in old.steps} if old is not None else {}
    steps = walk(step for step in plan.steps if step != known.get(step.id))
    found = [problem for step in steps for problem in _of_step(step, caution.policy)]
    if len(plan.steps) > caution.max_steps:
        found.append(f"the plan has {len(plan.steps)} steps; the maximum is {caution.max_steps}: make it smaller")
    if old is None:
        found += [
            f"definition_of_done runs {check.run!r}, which a person has to approve: make it the check of a gate"
            for check in plan.definition_of_done
            if judge_command(check.run, caution.policy.commands).verdict != Verdict.ALLOW
        ]
    return tuple(found)


def evaded(plan: Plan, old: Plan) -> tuple[str, ...]:
    """Return the gates that a revision by a model changes or bypasses, one sentence each."""
    steps, gates = {step.id: step for step in plan.steps}, [step for step in old.steps if step.gate is not None]
    found = [
        f"step '{gate.id}' is a gate that a person set: leave it as it is"
        for gate in gates
        if steps.get(gate.id) != gate
    ]
    # Through others too: a new step between two could open a way around a gate.
    before, after = _needs(old), _needs(plan)
    for gate in gates:
        freed = [name for name in steps if gate.id in before.get(name, ()) and gate.id not in after[name]]
        found += [f"step '{name}' does not wait for gate '{gate.id}' any longer: keep it in `needs`" for name in freed]
    return tuple(found)


def _needs(plan: Plan) -> dict[str, frozenset[str]]:
    """Return what each step waits for, directly and through others."""
    direct = {step.id: step.needs for step in plan.steps}
    found: dict[str, frozenset[str]] = {}
    for name in direct:
        waiting, seen = list(direct[name]), set[str]()
        while waiting:
            if (one := waiting.pop()) not in seen:
                seen.add(one)
                waiting += direct.get(one, ())
        found[name] = frozenset(seen)
    return found


def _of_step(step: Step, policy: Policy) -> Iterator[str]:
    if step.subplan is not None and step.subplan.file:
        yield f"step '{step.id}' takes a plan from a file: write its steps into the plan, under `subplan.steps`"
    verdict = judge(policy, step, acts_of(step, _action(step)))
    # What a reference stands for is judged when the step starts.
    if verdict.verdict == Verdict.DENY and not (step.http is not None and "${" in step.http.url):
        yield f"step '{step.id}': {verdict.reason}"
    quiet = [step.compensate.run] if step.compensate is not None and step.compensate.run else []
    if step.branch is not None:
        quiet += [command for command in (*(check.run for check in step.branch.checks), step.branch.score) if command]
    for command in quiet:
        if judge_command(command, policy.commands).verdict != Verdict.ALLOW:
            yield f"step '{step.id}' runs {command!r} where nobody can be asked: use a command that needs no approval"


def _action(step: Step) -> dict[str, object]:
    action = getattr(step, step.capability.value, None)
    return {} if action is None else action.model_dump(by_alias=True)
