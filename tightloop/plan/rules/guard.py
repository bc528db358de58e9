"""The rules of a plan's policy: what a step may touch, run and ask, and which steps wait for a person."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tightloop.alignment_patch import read_patch
from tightloop.plan.model import Capability, Step
from tightloop.plan.policy import Policy
from tightloop.plan.rules.command import judge_command
from tightloop.plan.rules.glob import fits
from tightloop.plan.rules.network import judge_url
from tightloop.plan.rules.ruling import Stance, Verdict, strictest

PATHS_SHOWN = 5
_HEADER = re.compile(r"^--- ([^\"\n]+)\n\+\+\+ ([^\"\n]+)\n@@", re.MULTILINE)
"""Of a file in a diff without the headers of git."""


@dataclass(frozen=True, kw_only=True)
class Acts:
    """What a step is about to do, as far as it is known before."""

    paths: tuple[str, ...] = ()
    """Files that it will change, below the root."""
    commands: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()


def acts_of(step: Step, action: Mapping[str, Any]) -> Acts:
    """Return what a step will do.

    Args:
        step: as it is written.
        action: the fields of its action with references replaced; a command quoted for the shell.
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


def judge(policy: Policy, step: Step, acts: Acts) -> Verdict:
    """Return the strictest answer of a policy, and of those around it, to a step that is about to start.

    Fetched documents are judged one by one when they are asked for: a refused one is no reason to leave the others.
    """
    return strictest(verdict for one in _around(policy) for verdict in _verdicts(one, step, acts))


def judge_changes(policy: Policy, paths: Iterable[str]) -> Verdict:
    """Return whether a step may have changed these paths, by the policy and those around it."""
    changed = tuple(paths)
    return strictest(verdict for one in _around(policy) for verdict in _of_paths(one, changed))


def tightened(policy: Policy, bound: Policy) -> Policy:
    """Return a policy that lets through only what both do. Its own rules that allow commands no longer count."""
    if policy == bound:
        return bound
    around = bound if policy.within is None else tightened(policy.within, bound)
    return policy.model_copy(
        update={
            "commands": tuple(rule for rule in policy.commands if rule.verdict != Stance.ALLOW),
            "network": _common(policy.network, bound.network),
            "shell_network": policy.shell_network and bound.shell_network,
            "within": around,
        }
    )


def _around(policy: Policy) -> Iterator[Policy]:
    one: Policy | None = policy
    while one is not None:
        yield one
        one = one.within


def _verdicts(policy: Policy, step: Step, acts: Acts) -> Iterator[Verdict]:
    yield from _of_paths(policy, acts.paths)
    for command in acts.commands:
        yield judge_command(command, policy.commands)
    for url in acts.urls:
        if refusal := judge_url(url, policy.network).refusal:
            yield Verdict(Stance.DENY, "policy.network", refusal)
    words = {step.kind.value, step.capability.value, *step.labels}
    asked = next((word for word in policy.approve if word in words), None)
    if asked is not None and step.capability is not Capability.GATE:
        reason = f"step {step.id!r} ({step.title or step.kind.value}) waits: policy.approve names {asked!r}"
        yield Verdict(Stance.ASK, "policy.approve", reason)


def _of_paths(policy: Policy, paths: tuple[str, ...]) -> Iterator[Verdict]:
    kept = [path for path in paths if fits(policy.protect, path, folded=True)]
    if kept:
        reason = f"policy.protect covers {_listed(kept)}: no step may change that. Leave these paths alone"
        yield Verdict(Stance.DENY, "policy.protect", reason)
    strange = [path for path in paths if not fits(policy.write, path)]
    if strange:
        allowed = ", ".join(policy.write[:PATHS_SHOWN]) or "nothing"
        reason = f"policy.write ({allowed}) does not cover {_listed(strange)}. Change only what it covers, or widen it"
        yield Verdict(Stance.DENY, "policy.write", reason)


def _listed(paths: list[str]) -> str:
    more = f" and {len(paths) - PATHS_SHOWN} more" if len(paths) > PATHS_SHOWN else ""
    return ", ".join(paths[:PATHS_SHOWN]) + more


def _patched(diff: str) -> tuple[str, ...]:
    headed = (re.sub(r"^[ab]/", "", name.split("\t")[0].strip()) for pair in _HEADER.findall(diff) for name in pair)
    found = [path for file in read_patch(diff) for path in (file.path, file.was)]
    return tuple(dict.fromkeys(path for path in (*found, *headed) if path and path != "/dev/null"))


def _common(ours: tuple[str, ...], theirs: tuple[str, ...]) -> tuple[str, ...]:
    """Return entries for hosts that both lists name, at least in part of what they name."""
    both = [one for one in ours if _lists(theirs, one)] + [one for one in theirs if _lists(ours, one)]
    return tuple(dict.fromkeys(both))


def _lists(network: tuple[str, ...], entry: str) -> bool:
    """Return whether every host of an entry is in a list."""
    name = entry.strip().lower()
    for rule in (one.strip().lower() for one in network):
        below = rule.startswith("*.") and name.endswith(rule[1:]) and ":" not in name
        if name == rule or below:
            return True
    return False
