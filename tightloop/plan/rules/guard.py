"""Judges steps by a plan's policy: what they may change, run and request, and which wait for a person."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tightloop.plan.document.policy import Policy
from tightloop.plan.document.step import Capability, Step
from tightloop.plan.rules.command import judge_command
from tightloop.plan.rules.network import judge_url
from tightloop.safety.change.patch import read_patch
from tightloop.safety.glob import fits
from tightloop.safety.verdict import Ruling, Verdict, strictest

PATHS_SHOWN = 5
_HEADER = re.compile(r"^--- ([^\"\n]+)\n\+\+\+ ([^\"\n]+)\n@@", re.MULTILINE)
"""Of a file in a diff without the headers of git."""


@dataclass(frozen=True, kw_only=True)
class Acts:
    """The known effects of a step before it starts."""

    paths: tuple[str, ...] = ()
    """Files that it will change, below the root."""
    commands: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()


def acts_of(step: Step, action: Mapping[str, Any]) -> Acts:
    """Return what a step will do.

    `action` has the fields of its action with references replaced, a command quoted for the shell.
    """
    if step.capability is Capability.SHELL:
        return Acts(commands=(str(action.get("run", "")),))
    if step.capability is Capability.EDIT:
        files = (str(file["path"]) for file in action.get("files", ()) if isinstance(file, Mapping))
        return Acts(paths=(*files, *_patched(str(action.get("diff", "")))))
    if step.branch is not None:
        # Run in worktrees, where nobody asks again.
        return Acts(commands=(*(check.run for check in step.branch.checks), step.branch.score))
    if step.episode is not None:
        return Acts(commands=tuple(check.run for check in step.episode.definition_of_done))
    if step.capability is Capability.HTTP:
        return Acts(urls=(str(action.get("url", "")),))
    return Acts()


def judge(policy: Policy, step: Step, acts: Acts) -> Ruling:
    """Return the strictest ruling of a policy, and of those around it, on a step that is about to start.

    Fetched documents are judged one by one when requested: a refused one does not stop the others.
    """
    return strictest(verdict for one in enclosing_policies(policy) for verdict in _verdicts(one, step, acts))


def judge_changes(policy: Policy, paths: Iterable[str]) -> Ruling:
    """Return whether a step may have changed these paths, by the policy and those around it."""
    changed = tuple(paths)
    return strictest(verdict for one in enclosing_policies(policy) for verdict in _of_paths(one, changed))


def tightened(policy: Policy, bound: Policy) -> Policy:
    """Return a policy that lets through only what both do. Its own rules that allow commands no longer count."""
    if policy == bound:
        return bound
    around = bound if policy.within is None else tightened(policy.within, bound)
    both = [one for one in policy.network if _lists(bound.network, one)] + [
        one for one in bound.network if _lists(policy.network, one)
    ]
    return policy.evolve(
        commands=tuple(rule for rule in policy.commands if rule.verdict != Verdict.ALLOW),
        network=tuple(dict.fromkeys(both)),
        shell_network=policy.shell_network and bound.shell_network,
        within=around,
    )


def enclosing_policies(policy: Policy) -> Iterator[Policy]:
    """Yield a policy, then those around it, from the inside out."""
    one: Policy | None = policy
    while one is not None:
        yield one
        one = one.within


def _verdicts(policy: Policy, step: Step, acts: Acts) -> Iterator[Ruling]:
    yield from _of_paths(policy, acts.paths)
    for command in acts.commands:
        yield judge_command(command, policy.commands)
    for url in acts.urls:
        if refusal := judge_url(url, policy.network).refusal:
            yield Ruling(Verdict.DENY, "policy.network", refusal)
    words = {step.kind.value, step.capability.value, *step.labels}
    asked = next((word for word in policy.approve if word in words), None)
    if asked is not None and step.capability is not Capability.GATE:
        reason = f"step {step.id!r} ({step.title or step.kind.value}) waits: policy.approve names {asked!r}"
        yield Ruling(Verdict.ASK, "policy.approve", reason)


def _of_paths(policy: Policy, paths: tuple[str, ...]) -> Iterator[Ruling]:
    # Case is folded: on macOS and Windows `.GIT/hooks` is `.git/hooks`.
    kept = [path for path in paths if fits(policy.protect, path, folded=True)]
    if kept:
        reason = f"policy.protect covers {_listed(kept)}: no step may change that. Leave these paths alone"
        yield Ruling(Verdict.DENY, "policy.protect", reason)
    strange = [path for path in paths if not fits(policy.write, path)]
    if strange:
        allowed = ", ".join(policy.write[:PATHS_SHOWN]) or "nothing"
        reason = f"policy.write ({allowed}) does not cover {_listed(strange)}. Change only what it covers, or widen it"
        yield Ruling(Verdict.DENY, "policy.write", reason)


def _listed(paths: list[str]) -> str:
    more = f" and {len(paths) - PATHS_SHOWN} more" if len(paths) > PATHS_SHOWN else ""
    return ", ".join(paths[:PATHS_SHOWN]) + more


def _patched(diff: str) -> tuple[str, ...]:
    headed = (re.sub(r"^[ab]/", "", name.split("\t")[0].strip()) for pair in _HEADER.findall(diff) for name in pair)
    found = [path for file in read_patch(diff) for path in (file.path, file.was)]
    return tuple(dict.fromkeys(path for path in (*found, *headed) if path and path != "/dev/null"))


def _lists(network: tuple[str, ...], entry: str) -> bool:
    """Return whether every host of an entry is in a list."""
    name = entry.strip().lower()
    rules = [rule.strip().lower() for rule in network]
    # `*.example.org` is for the usual ports only: an entry with a port is not below it.
    return name in rules or any(rule.startswith("*.") and name.endswith(rule[1:]) and ":" not in name for rule in rules)
