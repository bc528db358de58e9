"""Judges steps by a plan's policy: what they may change, run and request, and which wait for a person."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tightloop.plan.document.policy import Policy
from tightloop.plan.document.step import Capability, Step
from tightloop.plan.rules.command import judge_command, judge_known_part
from tightloop.plan.rules.network import judge_url
from tightloop.safety.change.patch import read_patch
from tightloop.safety.commands.effects import written_paths
from tightloop.safety.commands.places import PLACEHOLDER
from tightloop.safety.commands.shell import plain
from tightloop.safety.glob import find_excess, fits
from tightloop.safety.verdict import Ruling, Verdict, strictest
from tightloop.value import counted

PATHS_SHOWN = 5
_HEADER = re.compile(r"^--- ([^\"\n]+)\n\+\+\+ ([^\"\n]+)\n@@", re.MULTILINE)
"""Of a file in a diff without the headers of git."""


@dataclass(frozen=True, kw_only=True)
class Acts:
    """The known effects of a step before it starts."""

    paths: tuple[str, ...] = ()
    """Files that it will change, below the root."""
    commands: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the commands are given."""
    folder: str = ""
    """Below the root, in which the commands start."""
    urls: tuple[str, ...] = ()


def acts_of(step: Step, action: Mapping[str, Any]) -> Acts:
    """Return what a step will do.

    `action` has the fields of its action with references replaced, a command quoted for the shell.
    """
    if step.capability is Capability.SHELL:
        given = {str(name): str(value) for name, value in dict(action.get("environment", {})).items()}
        folder = str(action.get("folder", ""))
        return Acts(commands=(str(action.get("run", "")),), environment=given, folder=folder)
    if step.capability is Capability.EDIT:
        files = (str(file["path"]) for file in action.get("files", ()) if isinstance(file, Mapping))
        return Acts(paths=(*files, *_patched(str(action.get("diff", "")))))
    if step.branch is not None:
        # Run in worktrees, where nobody asks again.
        return Acts(commands=(*(check.run for check in step.branch.checks), step.branch.score))
    if step.episode is not None:
        return Acts(commands=tuple(check.run for check in step.episode.definition_of_done))
    if step.capability is Capability.HTTP:
        return Acts(urls=(str(action["url"]),) if action.get("url") else ())
    return Acts()


def judge(policy: Policy, step: Step, acts: Acts) -> Ruling:
    """Return the strictest ruling of a policy, and of those around it, on a step that is about to start.

    Fetched documents are judged one by one when requested: a refused one does not stop the others.
    """
    policies = tuple(enclosing_policies(policy))
    if excess := find_excess_of(policies):
        return excess
    return strictest(verdict for one in policies for verdict in _verdicts(one, step, acts))


def judge_command_of_plan(policy: Policy, command: str, folder: str = "") -> Ruling:
    """Return the ruling on a command of a plan before it runs: on what is the same whatever references stand for.

    Args:
        policy: of the plan.
        command: with a placeholder for each reference.
        folder: below the root, in which it starts; alike.
    """
    is_known = PLACEHOLDER not in command
    rules = policy.commands
    found = [judge_command(command, rules) if is_known else judge_known_part(command, rules)]
    written = written_paths(plain(command), folder)
    certain = tuple(path for path in written.certain if PLACEHOLDER not in path)
    found += _protected(policy, (*certain, *(path for path in written.possible if PLACEHOLDER not in path)))
    found += _unscoped(policy, _outside_folders(policy, certain))
    return strictest(found)


def judge_changes(policy: Policy, paths: Iterable[str]) -> Ruling:
    """Return whether a step may have changed these paths, by the policy and those around it."""
    changed, policies = tuple(paths), tuple(enclosing_policies(policy))
    return find_excess_of(policies) or strictest(verdict for one in policies for verdict in _of_paths(one, changed))


def judge_deletions(policy: Policy, gone: Sequence[str], lines: int, lines_before: int) -> Ruling:
    """Return whether this much may be gone, by the policy and those around it.

    Args:
        policy: with its bounds, if it has any.
        gone: files that were removed since the plan began.
        lines: that were lost with them and in others.
        lines_before: that there were.
    """
    share = lines / lines_before if lines_before > 0 else 0.0
    for bound in filter(None, (one.deletions for one in enclosing_policies(policy))):
        if len(gone) >= bound.files or (lines >= bound.lines and share >= bound.share):
            said = (
                f"{counted(len(gone), 'file')} and {counted(lines, 'line')} ({share:.0%}) are gone since the plan began"
            )
            named = f": {_listed(list(gone))}" if gone else ""
            return Ruling(Verdict.ASK, "policy.deletions", f"policy.deletions: {said}{named}")
    return Ruling()


def find_excess_of(policies: Iterable[Policy]) -> Ruling | None:
    """Return the refusal of policies with patterns that would take too long to match."""
    for policy in policies:
        for name, patterns in pattern_lists(policy):
            if excess := find_excess(patterns):
                return Ruling(Verdict.DENY, f"policy.{name}", f"policy.{name}: {excess}")
    return None


def pattern_lists(policy: Policy) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the patterns of a policy by the names of its fields."""
    yield "write", policy.write
    yield "protect", policy.protect
    yield "commands", tuple(rule.match for rule in policy.commands)
    yield "network", policy.network


def tightened(policy: Policy, bound: Policy) -> Policy:
    """Return a policy that lets through only what both do. Its own rules that allow commands do not count."""
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
        yield judge_command(command, policy.commands, acts.environment)
        written = written_paths(plain(command), acts.folder)
        yield from _protected(policy, (*written.certain, *written.possible))
        yield from _unscoped(policy, _outside_folders(policy, written.certain))
    for url in acts.urls:
        if refusal := judge_url(url, policy.network).refusal:
            yield Ruling(Verdict.DENY, "policy.network", refusal)
    words = {step.kind.value, step.capability.value, *step.labels}
    asked = next((word for word in policy.approve if word in words), None)
    if asked is not None and step.capability is not Capability.GATE:
        reason = f"step {step.id!r} ({step.title or step.kind.value}) waits: policy.approve names {asked!r}"
        yield Ruling(Verdict.ASK, "policy.approve", reason)


def _outside_folders(policy: Policy, paths: Iterable[str]) -> tuple[str, ...]:
    """Return the paths but for folders that may be written to: a file of them is what is written."""
    return tuple(path for path in paths if not fits(policy.write, f"{path}/any"))


def _of_paths(policy: Policy, paths: tuple[str, ...]) -> Iterator[Ruling]:
    yield from _protected(policy, paths)
    yield from _unscoped(policy, paths)


def _protected(policy: Policy, paths: tuple[str, ...]) -> Iterator[Ruling]:
    # Case is folded: on macOS and Windows `.GIT/hooks` is `.git/hooks`.
    kept = [path for path in paths if fits(policy.protect, path, folded=True)]
    if kept:
        reason = f"policy.protect covers {_listed(kept)}: no step may change that. Leave these paths alone"
        yield Ruling(Verdict.DENY, "policy.protect", reason)


def _unscoped(policy: Policy, paths: tuple[str, ...]) -> Iterator[Ruling]:
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
