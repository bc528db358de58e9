"""Policy and budget rules that a plan must satisfy before and while it runs."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tightloop.plan.commands import judge_command, judge_known_part, judge_url
from tightloop.plan.document import CommandRule, Deletions, Plan, PlanBudget, Policy
from tightloop.plan.step import Capability, Step, walk
from tightloop.safety.change.patch import read_patch
from tightloop.safety.commands.effects import PLACEHOLDER, written_paths
from tightloop.safety.commands.shell import plain
from tightloop.safety.rubric import Ruling, Verdict, strictest
from tightloop.safety.scope import find_excess, fits
from tightloop.value import format_count

PATHS_SHOWN = 5
_HEADER = re.compile(r"^--- ([^\"\n]+)\n\+\+\+ ([^\"\n]+)\n@@", re.MULTILINE)
"""File header in a diff that does not have git headers."""


@dataclass(frozen=True, kw_only=True)
class StepEffects:
    """The effects of a step that are known before it starts."""

    paths: tuple[str, ...] = ()
    """Files that the step changes, relative to the root."""
    commands: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the commands."""
    folder: str = ""
    """Working directory of the commands, relative to the root."""
    urls: tuple[str, ...] = ()


def find_effects(step: Step, action: Mapping[str, Any]) -> StepEffects:
    """Find the effects of a step that is about to start.

    `action` contains the fields of the step's action. References are resolved, and commands are quoted for the shell.
    """
    if step.capability is Capability.SHELL:
        environment = {str(name): str(value) for name, value in dict(action.get("environment", {})).items()}
        folder = str(action.get("folder", ""))
        return StepEffects(commands=(str(action.get("run", "")),), environment=environment, folder=folder)
    if step.capability is Capability.EDIT:
        files = (str(file["path"]) for file in action.get("files", ()) if isinstance(file, Mapping))
        return StepEffects(paths=(*files, *_list_patch_paths(str(action.get("diff", "")))))
    if step.branch is not None:
        # They run in worktrees without another policy check.
        return StepEffects(commands=(*(check.run for check in step.branch.checks), step.branch.score))
    if step.episode is not None:
        return StepEffects(commands=tuple(check.run for check in step.episode.definition_of_done))
    if step.capability is Capability.HTTP:
        return StepEffects(urls=(str(action["url"]),) if action.get("url") else ())
    return StepEffects()


def judge(policy: Policy, step: Step, acts: StepEffects) -> Ruling:
    """Return the strictest ruling on a step that is about to start.

    The policy and its enclosing policies are applied. For documents, the ruling is made when each
    document is requested, so that one refused document does not stop the others.
    """
    policies = tuple(enclosing_policies(policy))
    # First, because matching takes time in proportion to the patterns.
    if excess := find_excess_of(policies):
        return excess
    return strictest(verdict for enclosing in policies for verdict in _verdicts(enclosing, step, acts))


def judge_command_of_plan(policy: Policy, command: str, folder: str = "") -> Ruling:
    """Return the ruling on a command before the plan runs.

    Only the parts that do not depend on references are judged.

    Args:
        policy: policy of the plan.
        command: command with a placeholder for each reference.
        folder: working directory relative to the root, with the same placeholders.
    """
    is_known = PLACEHOLDER not in command
    rules = policy.commands
    rulings = [judge_command(command, rules) if is_known else judge_known_part(command, rules)]
    written = written_paths(plain(command), folder)
    certain = tuple(path for path in written.certain if PLACEHOLDER not in path)
    # Paths that are only possibly written count for `protect` alone; for `write` most of them would be false alarms.
    rulings += _check_protected_paths(
        policy, (*certain, *(path for path in written.possible if PLACEHOLDER not in path))
    )
    rulings += _check_write_scope(policy, _outside_folders(policy, certain))
    return strictest(rulings)


def judge_changes(policy: Policy, paths: Iterable[str]) -> Ruling:
    """Return the ruling on a list of changed paths. Enclosing policies are applied too."""
    changed, policies = tuple(paths), tuple(enclosing_policies(policy))
    return find_excess_of(policies) or strictest(
        verdict for enclosing in policies for verdict in _of_paths(enclosing, changed)
    )


def judge_deletions(policy: Policy, deleted_files: Sequence[str], lines: int, lines_before: int) -> Ruling:
    """Return the ruling on all deletions so far. Enclosing policies are applied too.

    Args:
        policy: policy with optional deletion limits.
        deleted_files: number of files removed since the start of the plan.
        lines: number of lines removed from all files, including the deleted files.
        lines_before: total number of lines at the start.
    """
    share = lines / lines_before if lines_before > 0 else 0.0
    for bound in filter(None, (enclosing.deletions for enclosing in enclosing_policies(policy))):
        if len(deleted_files) >= bound.files or (lines >= bound.lines and share >= bound.share):
            summary = (
                f"{format_count(len(deleted_files), 'file')} and {format_count(lines, 'line')} ({share:.0%}) "
                f"have been deleted since the plan started"
            )
            named = f": {_join_paths(list(deleted_files))}" if deleted_files else ""
            return Ruling(Verdict.ASK, "policy.deletions", f"policy.deletions: {summary}{named}")
    return Ruling()


def find_excess_of(policies: Iterable[Policy]) -> Ruling | None:
    """Return a refusal if matching the patterns of the policies would take too long, or None."""
    for policy in policies:
        for name, patterns in pattern_lists(policy):
            if excess := find_excess(patterns):
                return Ruling(Verdict.DENY, f"policy.{name}", f"policy.{name}: {excess}")
    return None


def pattern_lists(policy: Policy) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the pattern lists of a policy by field name."""
    yield "write", policy.write
    yield "protect", policy.protect
    yield "commands", tuple(rule.match for rule in policy.commands)
    yield "network", policy.network


def tighten_policy(policy: Policy, bound: Policy) -> Policy:
    """Return the intersection of two policies. Rules in `policy` that allow commands are dropped."""
    if policy == bound:
        return bound
    outer = bound if policy.within is None else tighten_policy(policy.within, bound)
    # In both directions: `*.example.org` in one list covers `api.example.org` in the other.
    both = [entry for entry in policy.network if _lists(bound.network, entry)] + [
        entry for entry in bound.network if _lists(policy.network, entry)
    ]
    return policy.evolve(
        # The rules of `bound` decide what is allowed without asking.
        commands=tuple(rule for rule in policy.commands if rule.verdict != Verdict.ALLOW),
        network=tuple(dict.fromkeys(both)),
        shell_network=policy.shell_network and bound.shell_network,
        within=outer,
    )


def enclosing_policies(policy: Policy) -> Iterator[Policy]:
    """Yield a policy and its enclosing policies, starting with the innermost."""
    current: Policy | None = policy
    while current is not None:
        yield current
        current = current.within


def _verdicts(policy: Policy, step: Step, acts: StepEffects) -> Iterator[Ruling]:
    yield from _of_paths(policy, acts.paths)
    for command in acts.commands:
        yield judge_command(command, policy.commands, acts.environment)
        written = written_paths(plain(command), acts.folder)
        yield from _check_protected_paths(policy, (*written.certain, *written.possible))
        yield from _check_write_scope(policy, _outside_folders(policy, written.certain))
    for url in acts.urls:
        if refusal := judge_url(url, policy.network).refusal:
            yield Ruling(Verdict.DENY, "policy.network", refusal)
    labels = {step.kind.value, step.capability.value, *step.labels}
    approval_label = next((label for label in policy.approve if label in labels), None)
    # A gate asks a person anyway; a second question would be about the same step.
    if approval_label is not None and step.capability is not Capability.GATE:
        reason = (
            f"step {step.id!r} ({step.title or step.kind.value}) needs approval: "
            f"policy.approve lists {approval_label!r}"
        )
        yield Ruling(Verdict.ASK, "policy.approve", reason)


def _outside_folders(policy: Policy, paths: Iterable[str]) -> tuple[str, ...]:
    """Return the paths, excluding folders that contain writable files."""
    return tuple(path for path in paths if not fits(policy.write, f"{path}/any"))


def _of_paths(policy: Policy, paths: tuple[str, ...]) -> Iterator[Ruling]:
    yield from _check_protected_paths(policy, paths)
    yield from _check_write_scope(policy, paths)


def _check_protected_paths(policy: Policy, paths: tuple[str, ...]) -> Iterator[Ruling]:
    # Case-insensitive: on macOS and Windows `.GIT/hooks` is `.git/hooks`.
    protected_paths = [path for path in paths if fits(policy.protect, path, folded=True)]
    if protected_paths:
        reason = f"policy.protect forbids changes to {_join_paths(protected_paths)}. Leave these paths unchanged"
        yield Ruling(Verdict.DENY, "policy.protect", reason)


def _check_write_scope(policy: Policy, paths: tuple[str, ...]) -> Iterator[Ruling]:
    strange = [path for path in paths if not fits(policy.write, path)]
    if strange:
        allowed = ", ".join(policy.write[:PATHS_SHOWN]) or "nothing"
        reason = (
            f"policy.write ({allowed}) does not cover {_join_paths(strange)}. Change only paths that policy.write "
            "covers, or extend policy.write"
        )
        yield Ruling(Verdict.DENY, "policy.write", reason)


def _join_paths(paths: list[str]) -> str:
    more = f" and {len(paths) - PATHS_SHOWN} more" if len(paths) > PATHS_SHOWN else ""
    return ", ".join(paths[:PATHS_SHOWN]) + more


def _list_patch_paths(diff: str) -> tuple[str, ...]:
    # Both kinds of headers count: a path that only one reader sees could otherwise escape the policy.
    headed = (re.sub(r"^[ab]/", "", name.split("\t")[0].strip()) for pair in _HEADER.findall(diff) for name in pair)
    paths = [path for file in read_patch(diff) for path in (file.path, file.was)]
    return tuple(dict.fromkeys(path for path in (*paths, *headed) if path and path != "/dev/null"))


def _lists(network: tuple[str, ...], entry: str) -> bool:
    """Return whether a network list covers every host that an entry matches."""
    name = entry.strip().lower()
    rules = [rule.strip().lower() for rule in network]
    # `*.example.org` covers default ports only, so it does not match an entry with a port.
    return name in rules or any(rule.startswith("*.") and name.endswith(rule[1:]) and ":" not in name for rule in rules)


def cap_budget(budget: PlanBudget, cost_usd: float | None, tokens: int | None) -> PlanBudget:
    """Return a budget with its cost and number of tokens limited to these amounts."""
    return budget.evolve(max_cost_usd=least(budget.max_cost_usd, cost_usd), max_tokens=least(budget.max_tokens, tokens))


def narrowest(budget: PlanBudget, bound: PlanBudget) -> PlanBudget:
    """Combine two budgets, using the lower limit for each field."""
    fields = PlanBudget.model_fields
    return PlanBudget(**{name: least(getattr(budget, name), getattr(bound, name)) for name in fields})


def least(first: Any, second: Any) -> Any:
    """Return the lower of two limits. None means unlimited."""
    limits = [value for value in (first, second) if value is not None]
    return min(limits) if limits else None


def merge_stated_limits(new: PlanBudget, before: PlanBudget) -> PlanBudget:
    """Return the limits of a revision. If its text does not state a limit, the previous limit is kept.

    Only an explicit `max_tokens: null` removes a limit. Omitting the field does not.
    """
    return before.evolve(**{name: getattr(new, name) for name in new.model_fields_set})


def carry_over_bounds(in_force: PlanBudget, before: PlanBudget, after: PlanBudget, *, by_person: bool) -> PlanBudget:
    """Return the limits that apply after a new revision.

    A limit that the revision does not change keeps its current value, including top-ups. A changed limit
    gets the new value, but a planner can only lower limits.

    Args:
        in_force: current limits, including top-ups.
        before: limits stated by the previous revision.
        after: limits stated by the new revision.
        by_person: True if a person, not a planner, wrote the text.
    """
    # Compared with the previous text instead of the current limits, which may include top-ups.
    changed = {name: getattr(after, name) for name in _different(before, after)}
    if not by_person:
        changed = {name: least(getattr(in_force, name), bound) for name, bound in changed.items()}
    return in_force.evolve(**changed)


def changed_bounds(before: PlanBudget, after: PlanBudget) -> str:
    """Return the changed limits, or "" if none changed.

    For example: `max_cost_usd 2 -> 2.5, max_tokens none -> 1000000`.
    """
    return ", ".join(
        f"{name} {_format_bound(getattr(before, name))} -> {_format_bound(getattr(after, name))}"
        for name in _different(before, after)
    )


def _different(before: PlanBudget, after: PlanBudget) -> Iterator[str]:
    return (name for name in PlanBudget.model_fields if getattr(before, name) != getattr(after, name))


def _format_bound(bound: float | None) -> str:
    return "none" if bound is None else f"{bound:.12g}"


UNREVIEWED = "unreviewed"
"""Label of a step that a model added to a person's plan. The step needs approval."""
# The effects of these cannot be judged from the plan text.
_REACHES_OUT = frozenset({Capability.HTTP, Capability.EPISODE})


@dataclass(frozen=True, kw_only=True)
class Caution:
    """Limits for plans written by a model, taken from the settings."""

    policy: Policy
    budget: PlanBudget
    max_steps: int = 200


def policy_for(
    allowed: tuple[str, ...], *, write: tuple[str, ...], network: tuple[str, ...], deletions: Deletions
) -> Policy:
    """Return a policy that requires approval for all commands that no pattern allows.

    Args:
        allowed: patterns that match the words of a command, such as `git diff **`.
        write: glob patterns for the paths that steps may change.
        network: hosts that `http` steps may send requests to.
        deletions: deletion limits for all steps together.
    """
    rules = tuple(CommandRule(match=match, verdict=Verdict.ALLOW) for match in allowed)
    # Goes last, because the first matching rule decides.
    ask = CommandRule(match="**", verdict=Verdict.ASK, reason="a model wrote this command")
    return Policy(write=write, network=network, commands=(*rules, ask), deletions=deletions)


def apply_policy(plan: Plan, old: Plan | None, caution: Caution) -> Plan:
    """Return a model's plan with the policy of `old`.

    If `old` is None and the plan names no hosts, the hosts from the settings are used.
    """
    if old is not None:
        return plan.evolve(policy=old.policy)
    hosts = plan.policy.network or caution.policy.network
    return plan.evolve(policy=plan.policy.evolve(network=hosts))


def confine_plan(plan: Plan, caution: Caution) -> Plan:
    """Restrict a model's plan to the policy and the budget from the settings."""
    budget = narrowest(plan.budget, caution.budget)
    return plan.evolve(policy=tighten_policy(plan.policy, caution.policy), budget=budget)


def confine_revision(plan: Plan, old: Plan, caution: Caution) -> Plan:
    """Restrict a model's revision to the constraints of the old plan.

    The policy, budget, definition of done, inputs, hypotheses and `on_failure` are taken from the old
    plan. New risky steps need approval.
    """
    old_steps = {step.id: step for step in old.steps}
    # A plan inside the policy of the settings is checked against it at every step anyway.
    is_confined = caution.policy in enclosing_policies(old.policy)
    steps = tuple(
        step if step == old_steps.get(step.id) or is_confined else label_risky_step(step, caution)
        for step in plan.steps
    )
    policy = old.policy
    if policy.deletions is None and not is_confined:
        # A person's plan may be allowed to delete more; steps added by a model must not inherit that.
        policy = policy.evolve(deletions=caution.policy.deletions)
    waits = any(UNREVIEWED in step.labels for step in walk(steps))
    if waits and UNREVIEWED not in policy.approve:
        policy = policy.evolve(approve=(*policy.approve, UNREVIEWED))
    # A model could loosen a person's restrictions through these fields.
    kept_fields = (
        "id",
        "budget",
        "definition_of_done",
        "inputs",
        "hypotheses",
        "on_failure",
        "max_parallel",
        "seed",
        "owner",
    )
    return plan.evolve(**{name: getattr(old, name) for name in kept_fields}, policy=policy, steps=steps)


def label_risky_step(step: Step, caution: Caution) -> Step:
    """Label a model's step and its nested steps if they need a person's approval."""
    changes: dict[str, Any] = {}
    if step.subplan is not None:
        inner = tuple(label_risky_step(nested, caution) for nested in step.subplan.steps)
        changes["subplan"] = step.subplan.evolve(steps=inner)
    if step.branch is not None:
        ways = tuple(
            way.evolve(steps=tuple(label_risky_step(nested, caution) for nested in way.steps))
            for way in step.branch.alternatives
        )
        changes["branch"] = step.branch.evolve(alternatives=ways)
    if (
        step.capability in _REACHES_OUT
        or judge(caution.policy, step, find_effects(step, _action(step))).verdict != Verdict.ALLOW
    ):
        changes["labels"] = tuple(dict.fromkeys((*step.labels, UNREVIEWED)))
    return step.evolve(**changes)


def find_objections(plan: Plan, caution: Caution, old: Plan | None) -> tuple[str, ...]:
    """Return the objections to a model's plan, as sentences addressed to the model.

    Steps that are unchanged since the previous revision `old` are not checked.
    """
    old_steps = {step.id: step for step in old.steps} if old is not None else {}
    steps = walk(step for step in plan.steps if step != old_steps.get(step.id))
    problems = [problem for step in steps for problem in _of_step(step, caution.policy)]
    if len(plan.steps) > caution.max_steps:
        problems.append(
            f"the plan has {len(plan.steps)} steps, but the maximum is {caution.max_steps}: use fewer steps"
        )
    if old is None:
        problems += [
            f"definition_of_done runs {check.run!r}, which needs a person's approval: move it to a gate check"
            for check in plan.definition_of_done
            if judge_command(check.run, caution.policy.commands).verdict != Verdict.ALLOW
        ]
    return tuple(problems)


def find_gate_bypasses(plan: Plan, old: Plan) -> tuple[str, ...]:
    """Return one sentence for each gate that a model's revision changes or bypasses."""
    steps, gates = {step.id: step for step in plan.steps}, [step for step in old.steps if step.gate is not None]
    problems = [
        f"step '{gate.id}' is a gate that a person defined: leave the gate unchanged"
        for gate in gates
        if steps.get(gate.id) != gate
    ]
    # Transitively: a new step between two others could bypass a gate.
    before, after = _needs(old), _needs(plan)
    for gate in gates:
        freed = [name for name in steps if gate.id in before.get(name, ()) and gate.id not in after[name]]
        problems += [f"step '{name}' no longer waits for gate '{gate.id}': keep the gate in `needs`" for name in freed]
    return tuple(problems)


def _needs(plan: Plan) -> dict[str, frozenset[str]]:
    """Return the direct and indirect dependencies of each step."""
    direct = {step.id: step.needs for step in plan.steps}
    needs: dict[str, frozenset[str]] = {}
    for name in direct:
        waiting, visited = list(direct[name]), set[str]()
        while waiting:
            if (need := waiting.pop()) not in visited:
                visited.add(need)
                waiting += direct.get(need, ())
        needs[name] = frozenset(visited)
    return needs


def _of_step(step: Step, policy: Policy) -> Iterator[str]:
    if step.subplan is not None and step.subplan.file:
        yield f"step '{step.id}' loads a plan from a file: write the steps of that plan under `subplan.steps` instead"
    verdict = judge(policy, step, find_effects(step, _action(step)))
    # References are judged when the step starts.
    if verdict.verdict == Verdict.DENY and not (step.http is not None and "${" in step.http.url):
        yield f"step '{step.id}': {verdict.reason}"
    # These run without a question at run time, so a command that needs an approval could never run.
    quiet = [step.compensate.run] if step.compensate is not None and step.compensate.run else []
    if step.branch is not None:
        quiet += [command for command in (*(check.run for check in step.branch.checks), step.branch.score) if command]
    for command in quiet:
        if judge_command(command, policy.commands).verdict != Verdict.ALLOW:
            yield f"step '{step.id}' runs {command!r}, but nobody can approve it: use a command that needs no approval"


def _action(step: Step) -> dict[str, object]:
    action = getattr(step, step.capability.value, None)
    return {} if action is None else action.model_dump(by_alias=True)
