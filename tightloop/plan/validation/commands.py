"""Rules about the commands of a step: what of them is known to fail or to be refused before the plan runs."""

from collections.abc import Iterator
from typing import Any

from tightloop.errors import ExpressionError
from tightloop.plan.document.step import Step
from tightloop.plan.language.command import (
    Placed,
    as_operand,
    find_place_faults,
    not_a_number,
    place_references,
    with_placeholders,
)
from tightloop.plan.rules.guard import judge_command_of_plan
from tightloop.plan.text.located import Path
from tightloop.plan.validation.scope import Scope
from tightloop.safety.commands.judge import read_scripts
from tightloop.safety.commands.places import PLACEHOLDER, Place
from tightloop.safety.commands.shell import plain
from tightloop.safety.verdict import Verdict

_CHANGES_GIT = frozenset(
    ("add", "checkout", "cherry-pick", "commit", "merge", "mv", "rebase", "reset", "restore", "revert", "rm", "switch")
)


def check_commands(scope: Scope, place: int) -> None:
    """Check the commands of one step; what depends on the value of a reference is judged when the step starts."""
    step = scope.steps[place]
    for path, text, takes_references in _commands(step):
        try:
            shown = with_placeholders(text) if takes_references else text
            placed = place_references(text) if takes_references and "${" in text else ()
        except ExpressionError:
            # Reported with its place by the rules about references.
            continue
        folder = with_placeholders(step.shell.folder) if step.shell and path[0] == "shell" else ""
        if path[0] in ("shell", "compensate") and (word := _git_word(shown)):
            said = f"'{step.id}' runs `git {word}`, but `.git` is read-only for commands"
            hint = "Use the action `git`; files are undone by default"
            scope.report.warning("git", scope.at(place, *path), said, hint)
        ruling = judge_command_of_plan(scope.plan.policy, shown, folder)
        if ruling.verdict is Verdict.DENY:
            said, _, hint = ruling.reason.replace(PLACEHOLDER, "${...}").partition(". ")
            # No error: it is a failure of its step, from which a plan may recover.
            scope.report.warning("command", scope.at(place, *path), f"'{step.id}': {said}", hint)
        for one, said, hint in find_place_faults(placed):
            at = (_as_written(scope, place, path, text), one.offset)
            scope.report.within("here-document", scope.at(place, *path), at, f"'{step.id}': {said}", hint)
        for one in placed:
            if one.piece.is_reference and one.found.place is Place.ARITHMETIC:
                _check_operand(scope, place, (path, text), one)


def _commands(step: Step) -> Iterator[tuple[Path, str, bool]]:
    """Yield the commands with their places, and whether their references are inserted for a shell."""
    if step.shell:
        yield ("shell", "run"), step.shell.run, True
    for number, check in enumerate(step.gate.checks if step.gate else ()):
        yield ("gate", "checks", number, "command"), check.command, True
    if step.branch:
        for number, one in enumerate(step.branch.checks):
            yield ("branch", "checks", number, "run"), one.run, True
        yield ("branch", "score"), step.branch.score, True
    if step.compensate:
        yield ("compensate", "run"), step.compensate.run, True
    for number, one in enumerate(step.episode.definition_of_done if step.episode else ()):
        yield ("episode", "definition_of_done", number, "run"), one.run, False


def _git_word(script: str) -> str:
    """Return the first subcommand that changes the repository of the tree, or ""; elsewhere git may write."""
    calls = read_scripts(plain(script)).calls
    if any(call.name in ("cd", "pushd") for call in calls):
        return ""
    words = (call.operands[0] for call in calls if call.name == "git" and call.operands)
    return next((word for word in words if word in _CHANGES_GIT), "")


def _as_written(scope: Scope, place: int, path: Path, text: str) -> str:
    """Return a text as it was read: one of several lines knows where each of them stands."""
    found: Any = scope.report.read.tree
    for part in scope.at(place, *path):
        try:
            found = found[part]
        except (KeyError, IndexError, TypeError):
            return text
    return found if isinstance(found, str) and found == text else text


def _check_operand(scope: Scope, place: int, where: tuple[Path, str], one: Placed) -> None:
    """Report a value that is known now, and with which a shell cannot calculate."""
    path, text = where
    step, name = scope.steps[place], one.piece.text
    wrong = [value for value in _known_values(scope, step, name) if as_operand(value) is None]
    if not wrong:
        return
    said, hint = not_a_number(name, wrong[0])
    report, at = scope.report, scope.at(place, *path)
    if name.startswith("plan."):
        # Another value may be given when the plan is started.
        report.warning("arithmetic", at, f"'{step.id}': {said}", f"Give a whole number, such as `--set {name[5:]}=1`")
    else:
        offset = (_as_written(scope, place, path, text), one.offset)
        report.within("arithmetic", at, offset, f"'{step.id}': {said}", hint)


def _known_values(scope: Scope, step: Step, name: str) -> Iterator[Any]:
    """Yield what a reference is known to stand for; nothing where only the run will tell."""
    head, _, field = name.partition(".")
    if head == "plan" and scope.depth == 1:
        values: tuple[Any, ...] = (scope.plan.inputs.get(field),)
    elif head == "inputs":
        values = (step.inputs.get(field),)
    elif name == "item" and isinstance(step.for_each, tuple):
        values = step.for_each
    else:
        return
    yield from (value for value in values if value is not None and not (isinstance(value, str) and "${" in value))
