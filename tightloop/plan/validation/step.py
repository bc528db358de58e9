"""Validation of a single step."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from posixpath import basename, dirname, normpath
from typing import Any

from tightloop.episode.exit_status import masked_problem
from tightloop.errors import ExpressionError, Problem, Severity, did_you_mean
from tightloop.plan.guard import judge_changes, judge_command_of_plan
from tightloop.plan.reference import (
    CommandSegment,
    as_operand,
    find_place_faults,
    not_a_number,
    place_references,
    with_placeholders,
)
from tightloop.plan.step import ACTIONS, RESERVED_IDS, WORK_KINDS, Access, Capability, Step, StepKind
from tightloop.plan.text.located import Path
from tightloop.plan.text.reading import ReadPlan, read_parts
from tightloop.plan.validation.edges import Scope, find_repeats
from tightloop.plan.validation.references import find_value_faults
from tightloop.safety.commands.effects import PLACEHOLDER, QuotingContext
from tightloop.safety.commands.rules import read_scripts
from tightloop.safety.commands.shell import plain
from tightloop.safety.rubric import Verdict
from tightloop.safety.scope import find_excess
from tightloop.value import format_count

ACTION_OF_KIND = {
    StepKind.GATE: Capability.GATE,
    StepKind.DECISION: Capability.DECISION,
    StepKind.CHECKPOINT: Capability.CHECKPOINT,
    StepKind.SUBPLAN: Capability.SUBPLAN,
    StepKind.BRANCH: Capability.BRANCH,
    StepKind.EPISODE: Capability.EPISODE,
    StepKind.MODEL: Capability.MODEL,
}
"""Kinds of steps that imply a capability."""
CHECK_WAYS = ("command", "invariant", "artifact", "diff", "prose")
LONGEST_S = 1e9
"""Longest duration in seconds, about 30 years. Neither Temporal nor `timedelta` supports infinite durations."""


def check_step(scope: Scope, index: int) -> None:
    """Validate a single step, independently of other steps."""
    step = scope.steps[index]
    if step.id.removesuffix("*") in RESERVED_IDS:
        problem = f"'{step.id}' cannot be a step id: `${{{step.id}...}}` is reserved"
        scope.report.error("reserved-id", scope.at(index, "id"), problem, f"Write `{step.id}-step`")
    if step.id.endswith("*") and step.for_each is None:
        problem = f"'{step.id}' is a template without items"
        hint = "Add `for_each: ${step.output}`, or remove the '*'"
        scope.report.error("template", scope.at(index, "id"), problem, hint)
    if step.for_each is not None and not step.id.endswith("*"):
        problem = f"'{step.id}' has 'for_each' but is not a template"
        scope.report.error("template", scope.at(index, "id"), problem, f"Write `id: {step.id}-*`")
    most = scope.plan.budget.max_fan_out
    if isinstance(step.for_each, tuple) and len(step.for_each) > most:
        problem = f"'{step.id}' expands to {format_count(len(step.for_each), 'step')}, but budget.max_fan_out is {most}"
        scope.report.error(
            "fan-out", scope.at(index, "for_each"), problem, "Raise budget.max_fan_out, or split up the items"
        )
    _check_action(scope, index, step)
    for fields, message, suggestion in _faults(step):
        scope.report.error("action", scope.at(index, *fields), message, suggestion)
    for fault in find_value_faults(step, scope.plan.policy.network):
        problem = f"'{step.id}': {fault.message}"
        scope.report.error("value", scope.at(index, *fault.path), problem, fault.suggestion)
    watchdog = step.watchdog.after_s if step.watchdog else 0.0
    for fields, seconds in (
        (("timeout_s",), step.timeout_s),
        (("timebox_s",), step.timebox_s or 0.0),
        (("estimate_s",), step.estimate_s),
        (("retry", "initial_s"), step.retry.initial_s),
        (("retry", "maximum_s"), step.retry.maximum_s),
        (("watchdog", "after_s"), watchdog),
    ):
        # `not <=` instead of `>`: it also catches NaN, for which every comparison is false.
        if not seconds <= LONGEST_S:
            problem = f"'{'.'.join(fields)}' in '{step.id}' must be at most {LONGEST_S:g} s, got {seconds:g} s"
            scope.report.error("duration", scope.at(index, *fields), problem, "Use a smaller number of seconds")
    _check_gate(scope, index, step)
    _check_budget(scope, index, step)
    _check_names(scope, index, step)
    _check_edits(scope, index, step)


def _check_action(scope: Scope, index: int, step: Step) -> None:
    actions = [action for action in ACTIONS if getattr(step, action.value) is not None]
    report, capability = scope.report, step.capability
    if len(actions) > 1:
        names = " and ".join(f"`{action.value}`" for action in actions)
        message = f"'{step.id}' has more than one action: {names}"
        hint = "Create one step per action and connect them with `needs`"
        report.error("two-actions", scope.at(index, actions[1].value), message, hint)
    available = scope.capabilities
    if available is not None and capability is not Capability.NONE and capability.value not in available:
        message = f"'{step.id}' requires the capability '{capability.value}', which is not available here"
        there_is = f"Available: {', '.join(sorted(available))}"
        report.error("capability", scope.at(index, capability.value), message, there_is)
    expected = ACTION_OF_KIND.get(step.kind)
    # With two actions, `capability` is only the first of them, and they have been reported above.
    if expected and capability is not expected and len(actions) < 2:
        message = f"'{step.id}' has kind {step.kind.value} but no `{expected.value}:`"
        # Other kinds can be implemented by any action, but a gate or a decision needs its own.
        tell = report.error if step.kind in (StepKind.GATE, StepKind.DECISION) else report.warning
        tell("kind", scope.at(index, "kind"), message, f"Add `{expected.value}:`, or change the kind")
    if step.kind in WORK_KINDS and capability is Capability.NONE:
        message = f"'{step.id}' has kind {step.kind.value} but no action, so it would do nothing"
        hint = "Add an action such as `run:` or `episode:`. Leave out `kind` for a milestone"
        report.error("no-action", scope.at(index, "kind"), message, hint)


def _faults(step: Step) -> Iterator[tuple[Path, str, str]]:
    """Yield the field, message and suggestion for each missing or forbidden part of an action."""
    yield from _text_faults(step)
    if step.edit and bool(step.edit.files) == bool(step.edit.diff.strip()):
        yield ("edit",), f"'{step.id}' must have either `files` or `diff`", ""
    for number, file in enumerate(step.edit.files if step.edit else ()):
        ways = [bool(file.search), file.content is not None, file.delete]
        if sum(ways) != 1 or (file.replace and not file.search):
            message = (
                f"the edit of '{file.path}' in '{step.id}' must use exactly one of search/replace, content and delete"
            )
            yield ("edit", "files", number), message, ""
    if step.search and (excess := find_excess(step.search.paths)):
        yield ("search", "paths"), f"the search paths in '{step.id}': {excess}", ""
    if step.git and not (step.git.branch or step.git.commit or step.git.pull_request):
        yield ("git",), f"the `git` action in '{step.id}' does nothing", "Add `branch`, `commit` or `pull_request`"
    if step.subplan and bool(step.subplan.steps) == bool(step.subplan.file):
        yield ("subplan",), f"'{step.id}' must have either `steps` or `file`", ""
    yield from _worktree_faults(step)
    yield from _option_faults(step)
    yield from _decision_faults(step)
    yield from _branch_faults(step)
    undo = step.compensate
    if undo and bool(undo.run) + bool(undo.step) + undo.none > 1:
        yield ("compensate",), f"`compensate` in '{step.id}' must have only one of `run`, `step` and `none`", ""


def _text_faults(step: Step) -> Iterator[tuple[Path, str, str]]:
    for fields, text, what in _texts(step):
        if not text.strip():
            yield fields, f"'{step.id}' {what}", f"Write `{fields[-1]}:`"
        elif "definition_of_done" in fields and (problem := masked_problem(text)):
            yield fields, f"'{step.id}': {problem}", ""


def _texts(step: Step) -> Iterator[tuple[Path, str, str]]:
    """Yield the texts that must not be empty, each with its message."""
    if step.shell:
        yield ("shell", "run"), step.shell.run, "runs an empty command"
    if step.model:
        yield ("model", "prompt"), step.model.prompt, "has an empty model prompt"
    if step.search:
        yield ("search", "query"), step.search.query, "has an empty search query"
    if step.episode:
        yield ("episode", "goal"), step.episode.goal, "has an episode without a goal"
        for number, check in enumerate(step.episode.definition_of_done):
            yield ("episode", "definition_of_done", number, "run"), check.run, "has a check without a command"
    for number, check in enumerate(step.branch.checks if step.branch else ()):
        yield ("branch", "checks", number, "run"), check.run, "has a check without a command"


def _worktree_faults(step: Step) -> Iterator[tuple[Path, str, str]]:
    is_own = step.episode is not None and step.episode.worktree
    if is_own and step.access not in (None, Access.MERGES):
        message = f"'{step.id}' works in its own worktree, so its access cannot be '{step.tree_access.value}'"
        yield ("access",), message, "Remove `access`"
    if not is_own and step.access is Access.MERGES:
        message = f"'{step.id}' has access 'merges' but is not an episode in its own worktree"
        yield ("access",), message, "Set `worktree: true` in its `episode`, or use another `access`"
    if step.episode is not None and step.episode.merge is not None and not is_own:
        yield ("episode", "merge"), f"'{step.id}' has `merge` but does not run in a worktree", "Add `worktree: true`"


def _option_faults(step: Step) -> Iterator[tuple[Path, str, str]]:
    approval = step.gate.approval if step.gate else None
    for way, options in (
        (("decision", "options"), step.decision.options if step.decision else ()),
        (("gate", "approval", "options"), approval.options if approval else ()),
    ):
        for number, name in find_repeats(option.name.strip() for option in options):
            message = f"duplicate option '{name}' in '{step.id}': nobody could choose the second one"
            yield (*way, number, "name"), message, "Rename one"


def _decision_faults(step: Step) -> Iterator[tuple[Path, str, str]]:
    decision = step.decision
    if decision and not (decision.rules or decision.hypotheses or decision.question):
        yield ("decision",), f"'{step.id}' has no basis for its decision", "Add `rules`, `hypotheses` or `question`"
    if decision and decision.question and not decision.options:
        yield (
            ("decision", "question"),
            f"'{step.id}' asks a question that has no options",
            "Add `options: [{name: ...}]`",
        )
    if decision and not any(choice.to for choice in step.choices()):
        yield ("decision",), f"'{step.id}' makes a decision that leads to no step", "Name steps in `to:`"


def _branch_faults(step: Step) -> Iterator[tuple[Path, str, str]]:
    if step.branch is None:
        return
    if len(step.branch.alternatives) < 2:
        yield ("branch",), f"'{step.id}' has fewer than two alternatives", "Add more items to `alternatives`"
    where = ("branch", "alternatives")
    for number, name in find_repeats(alternative.name for alternative in step.branch.alternatives):
        yield (*where, number, "name"), f"duplicate alternative '{name}' in '{step.id}'", "Rename one"
    for number, alternative in enumerate(step.branch.alternatives):
        if not alternative.steps:
            yield (*where, number), f"alternative '{alternative.name}' of '{step.id}' has no steps", "Add `steps:`"


def _check_gate(scope: Scope, index: int, step: Step) -> None:
    gate, report = step.gate, scope.report
    if gate is None:
        return
    if not gate.checks and gate.approval is None:
        hint = "Add `checks`, or `approval: {role: ...}`"
        report.error(
            "empty-gate", scope.at(index, "gate"), f"gate '{step.id}' has neither checks nor an approval", hint
        )
    for number, check in enumerate(gate.checks):
        path = scope.at(index, "gate", "checks", number)
        ways = [way for way in CHECK_WAYS if getattr(check, way)]
        if len(ways) != 1:
            message = f"check {number + 1} of gate '{step.id}' has {' and '.join(ways) if ways else 'no way to check'}"
            report.error("gate-check", path, message, f"Use exactly one of {', '.join(CHECK_WAYS)}")
        if check.artifact and check.schema_ is None and not check.confirmations:
            message = f"check {number + 1} of gate '{step.id}' does not specify what to check in its artifact"
            report.error("gate-check", path, message, "Add `schema` or `confirmations`")
        for field in ("only", "never") if check.diff else ():
            if excess := find_excess(getattr(check.diff, field)):
                report.error("patterns", (*path, "diff", field), f"check {number + 1} of gate '{step.id}': {excess}")
        if check.diff and check.diff.since and check.diff.since not in scope.index:
            message = f"check {number + 1} of gate '{step.id}' compares with '{check.diff.since}', which is not a step"
            report.error(
                "unknown-step",
                (*path, "diff", "since"),
                message,
                report.closest(check.diff.since, scope.index, but=step.id),
            )
    prose = any(check.prose for check in gate.checks)
    if prose and not (gate.approval and gate.approval.role):
        message = f"gate '{step.id}' has a check that only a person can do, but names no role"
        report.warning("no-approver", scope.at(index, "gate"), message, "Add `approval: {role: ...}`")


def _check_budget(scope: Scope, index: int, step: Step) -> None:
    plan, report = scope.plan.budget, scope.report
    spenders = (("budget", step.budget, "max_cost_usd"), ("budget", step.budget, "max_tokens"))
    for field, spender, name in (*spenders, ("branch", step.branch, "max_cost_usd")):
        step_limit, whole = getattr(spender, name, None), getattr(plan, name)
        if step_limit is not None and whole is not None and step_limit > whole:
            message = f"'{step.id}' may spend {name} {step_limit:g}, but the whole plan may spend only {whole:g}"
            report.error(
                "step-budget",
                scope.at(index, field, name),
                message,
                "Lower the step's budget, or raise the plan's budget",
            )
    if step.timebox_s and plan.max_wall_s and step.timebox_s > plan.max_wall_s:
        message = f"'{step.id}' may take {step.timebox_s:g} s, but the whole plan may take only {plan.max_wall_s:g} s"
        report.error(
            "step-budget", scope.at(index, "timebox_s"), message, "Lower timebox_s, or raise budget.max_wall_s"
        )
    if step.http and not scope.plan.policy.network:
        message = f"'{step.id}' uses the network, but the policy allows no host"
        hint = "Add `policy: {network: [host]}`"
        report.error("no-network", scope.at(index, step.capability.value), message, hint)


def _check_edits(scope: Scope, index: int, step: Step) -> None:
    for number, file in enumerate(step.edit.files if step.edit else ()):
        refusal = "" if "${" in file.path else judge_changes(scope.plan.policy, (file.path,)).reason
        if refusal:
            # A refusal is `fault. advice`; a problem keeps the two apart.
            message, _, hint = refusal.partition(". ")
            scope.report.error(
                "scope", scope.at(index, "edit", "files", number, "path"), f"'{step.id}': {message}", hint
            )


def _check_names(scope: Scope, index: int, step: Step) -> None:
    report, hypotheses = scope.report, {hypothesis.id for hypothesis in scope.plan.hypotheses}
    named: list[tuple[Path, str, str]] = [
        (("evidence", number, "hypothesis"), "has evidence for", rule.hypothesis)
        for number, rule in enumerate(step.evidence)
    ]
    if step.decision:
        named += [(("decision", "hypotheses", name), "decides by", name) for name in step.decision.hypotheses]
    for fields, does, name in named:
        if name not in hypotheses:
            message = f"'{step.id}' {does} '{name}', which is not a hypothesis of the plan"
            hint = report.closest(name, hypotheses) or "Declare it"
            report.error("unknown-hypothesis", scope.at(index, *fields), message, hint)
    undo = step.compensate.step if step.compensate else ""
    if undo:
        path = scope.at(index, "compensate", "step")
        if undo not in scope.index:
            message = f"'{step.id}' is undone by '{undo}', which is not a step"
            report.error("unknown-step", path, message, report.closest(undo, scope.index, but=step.id))
        elif scope.steps[scope.index[undo]].kind is not StepKind.COMPENSATION:
            message = f"'{step.id}' is undone by '{undo}', whose kind is not compensation"
            report.error("compensation-kind", path, message, f"Write `kind: compensation` in '{undo}'")


_CHANGES_GIT = frozenset(
    ("add", "checkout", "cherry-pick", "commit", "merge", "mv", "rebase", "reset", "restore", "revert", "rm", "switch")
)


def check_commands(scope: Scope, index: int) -> None:
    """Validate the commands of a step. References are checked when the step starts."""
    step = scope.steps[index]
    for path, text, takes_references in _commands(step):
        try:
            command = with_placeholders(text) if takes_references else text
            placed = place_references(text) if takes_references and "${" in text else ()
        except ExpressionError:
            # Reported with its position by the rules for references.
            continue
        folder = with_placeholders(step.shell.folder) if step.shell and path[0] == "shell" else ""
        if path[0] in ("shell", "compensate") and (subcommand := _git_word(command)):
            message = f"'{step.id}' runs `git {subcommand}`, but `.git` is read-only for commands"
            hint = "Use the `git` action instead. File changes are undone by default"
            scope.report.warning("git", scope.at(index, *path), message, hint)
        ruling = judge_command_of_plan(scope.plan.policy, command, folder)
        if ruling.verdict is Verdict.DENY:
            message, _, hint = ruling.reason.replace(PLACEHOLDER, "${...}").partition(". ")
            # A warning only: at run time it fails the step, from which a plan may recover.
            scope.report.warning("command", scope.at(index, *path), f"'{step.id}': {message}", hint)
        for part, message, hint in find_place_faults(placed):
            at = (_as_written(scope, index, path, text), part.offset)
            scope.report.within("here-document", scope.at(index, *path), at, f"'{step.id}': {message}", hint)
        for part in placed:
            if part.piece.is_reference and part.context.context is QuotingContext.ARITHMETIC:
                _check_operand(scope, index, (path, text), part)


def _commands(step: Step) -> Iterator[tuple[Path, str, bool]]:
    """Yield the commands of a step with their paths.

    The flag is True if references in the command are resolved for use in a shell.
    """
    if step.shell:
        yield ("shell", "run"), step.shell.run, True
    for number, check in enumerate(step.gate.checks if step.gate else ()):
        yield ("gate", "checks", number, "command"), check.command, True
    if step.branch:
        for number, entry in enumerate(step.branch.checks):
            yield ("branch", "checks", number, "run"), entry.run, True
        yield ("branch", "score"), step.branch.score, True
    if step.compensate:
        yield ("compensate", "run"), step.compensate.run, True
    for number, entry in enumerate(step.episode.definition_of_done if step.episode else ()):
        yield ("episode", "definition_of_done", number, "run"), entry.run, False


def _git_word(script: str) -> str:
    """Return the first git subcommand in a script that changes the tree's own repository, or "".

    The result is also "" if the script changes its folder, because git may then write to another
    repository.
    """
    calls = read_scripts(plain(script)).calls
    if any(call.name in ("cd", "pushd") for call in calls):
        return ""
    subcommands = (call.operands[0] for call in calls if call.name == "git" and call.operands)
    return next((subcommand for subcommand in subcommands if subcommand in _CHANGES_GIT), "")


def _as_written(scope: Scope, index: int, path: Path, text: str) -> str:
    """Return a text as it was parsed. If it is a block scalar, the position of each line is kept."""
    node: Any = scope.report.read.tree
    for part in scope.at(index, *path):
        try:
            node = node[part]
        except (KeyError, IndexError, TypeError):
            return text
    return node if isinstance(node, str) and node == text else text


def _check_operand(scope: Scope, index: int, where: tuple[Path, str], part: CommandSegment) -> None:
    """Report a known value that cannot be used in shell arithmetic."""
    path, text = where
    step, name = scope.steps[index], part.piece.text
    wrong = [value for value in _known_values(scope, step, name) if as_operand(value) is None]
    if not wrong:
        return
    message, hint = not_a_number(name, wrong[0])
    report, at = scope.report, scope.at(index, *path)
    if name.startswith("plan."):
        # A warning only: the request may override the value.
        report.warning(
            "arithmetic", at, f"'{step.id}': {message}", f"Use a whole number, for example `--set {name[5:]}=1`"
        )
    else:
        offset = (_as_written(scope, index, path, text), part.offset)
        report.within("arithmetic", at, offset, f"'{step.id}': {message}", hint)


def _known_values(scope: Scope, step: Step, name: str) -> Iterator[Any]:
    """Yield the values of a reference that are known before the plan runs."""
    head, _, field = name.partition(".")
    # In a nested plan these values come from the step that starts it, and may hold references.
    if head == "plan" and scope.depth == 1:
        values: tuple[Any, ...] = (scope.plan.inputs.get(field),)
    elif head == "inputs":
        values = (step.inputs.get(field),)
    elif name == "item" and isinstance(step.for_each, tuple):
        values = step.for_each
    else:
        return
    yield from (value for value in values if value is not None and not (isinstance(value, str) and "${" in value))


FILES_LIMIT = 200
"""Maximum number of files to read."""
Names = Callable[[str], Collection[str] | None]
"""Function that returns the names in a folder, given relative to the root. `""` is the root. It returns None if there
is no such folder.
"""
Load = Callable[[str], str | None]
"""Function that returns the text of a file, given relative to the root. It returns None if the file does not exist yet.
"""


def find_file_cycles(read: ReadPlan, plan_file: str, load: Load) -> tuple[Problem, ...]:
    """Return an error for each step whose plan file includes itself, directly or through other files.

    Args:
        read: the plan to check.
        plan_file: file of the plan, relative to the root of the tree.
        load: function that reads the other files.
    """
    includes: dict[str, tuple[str, ...]] = {}
    problems = []
    for path, file in _files(read.plan.steps, ("steps",)):
        # Normalised, because `./a.yaml` and `a.yaml` are the same file.
        way = _find_cycle((normpath(plan_file), normpath(file)), includes, load)
        if way:
            message = f"the plan includes itself: {' -> '.join(way)}"
            hint = "Remove one of these steps, or use another file"
            position = read.where(path)
            problems.append(
                Problem(message=message, suggestion=hint, position=position, code="file-cycle", file=read.name)
            )
    return tuple(problems)


def find_missing(read: ReadPlan, names: Names) -> tuple[Problem, ...]:
    """Return a problem for each file or folder that does not exist.

    Subplan files, working directories and folders in `policy.write` are checked. A missing path is an
    error if no earlier step could create it.
    """
    problems = []
    for path, target, what, is_first in _places(read):
        siblings = names(dirname(normpath(target)).lstrip("."))
        if siblings is not None and basename(normpath(target)) in siblings:
            continue
        hint = did_you_mean(basename(target), siblings) if siblings else ""
        is_close = hint.startswith("Did")
        if path[0] == "policy" and not is_close:
            continue  # steps may make it
        hint = hint if is_close else "Write the path relative to the root of the tree"
        severity = Severity.ERROR if is_first else Severity.WARNING
        message = f"{what} '{target}', which does not exist" + ("" if is_first else " yet")
        fields = {"message": message, "suggestion": hint, "code": "missing-file", "file": read.name}
        problems.append(Problem(severity=severity, position=read.where(path), **fields))
    return tuple(problems)


def find_unknown_inputs(read: ReadPlan, load: Load) -> tuple[Problem, ...]:
    """Return a problem for each input that the plan file of a subplan does not declare.

    If no earlier step could change the file, the problem is an error.
    """
    problems = []
    inputs_by_file: dict[str, Collection[str] | None] = {}
    for path, step, is_first in _steps(read.plan.steps, ("steps",)):
        if step.subplan is None or not step.subplan.inputs or not step.subplan.file or "${" in step.subplan.file:
            continue
        file = normpath(step.subplan.file)
        if file not in inputs_by_file:
            text = load(file) if len(inputs_by_file) < FILES_LIMIT else None
            inner = read_parts(text)[0] if text is not None else None
            inputs_by_file[file] = None if inner is None or ("inputs",) in inner.left_out else inner.plan.inputs
        names = inputs_by_file[file]
        for name in step.subplan.inputs if names is not None else ():
            if name not in (names or ()):
                message = f"'{step.id}' passes the input '{name}', which {file} does not declare"
                hint = did_you_mean(name, names or ()) or "Declare it under `inputs:` in that file"
                severity = Severity.ERROR if is_first else Severity.WARNING
                position = read.where((*path, "subplan", "inputs", name), key=True)
                fields = {"message": message, "suggestion": hint, "code": "unknown-input", "file": read.name}
                problems.append(Problem(severity=severity, position=position, **fields))
    return tuple(problems)


def _places(read: ReadPlan) -> Iterator[tuple[Path, str, str, bool]]:
    """Yield the field, path and owner of each file or folder that the plan uses.

    The last item of each tuple is True if no earlier step could create the path.
    """
    for number, pattern in enumerate(read.plan.policy.write):
        folder = pattern.removeprefix("./").partition("*")[0].rpartition("/")[0]
        if folder:
            yield ("policy", "write", number), folder, "policy.write covers", False
    for path, step, is_first in _steps(read.plan.steps, ("steps",)):
        if step.subplan and step.subplan.file and "${" not in step.subplan.file:
            yield (*path, "subplan", "file"), step.subplan.file, f"'{step.id}' runs the plan", is_first
        if step.shell and step.shell.folder not in ("", ".") and "${" not in step.shell.folder:
            yield (*path, "shell", "folder"), step.shell.folder, f"'{step.id}' runs in the folder", is_first


def _steps(steps: tuple[Step, ...], path: Path, *, begin: bool = True) -> Iterator[tuple[Path, Step, bool]]:
    behind_a_writer = _find_steps_after_writers(steps)
    for number, step in enumerate(steps):
        is_first = begin and step.id not in behind_a_writer
        yield (*path, number), step, is_first
        for inner in step.inner():
            yield from _steps(inner.steps, (*path, number, *inner.path), begin=is_first)


def _find_steps_after_writers(steps: tuple[Step, ...]) -> set[str]:
    """Return the IDs of the steps that run after a step that writes to the tree."""
    behind: defaultdict[str, list[str]] = defaultdict(list)
    for step in steps:
        for name in step.needs:
            behind[name].append(step.id)
        behind[step.id] += (*step.on_success, *(name for choice in step.choices() for name in choice.to))
    reached: set[str] = set()
    left = [name for step in steps if step.tree_access.changes_tree for name in behind[step.id]]
    while left:
        if (name := left.pop()) not in reached:
            reached.add(name)
            left += behind[name]
    return reached


def _find_cycle(way: tuple[str, ...], includes: dict[str, tuple[str, ...]], load: Load) -> tuple[str, ...]:
    if way[-1] in way[:-1]:
        return way[way.index(way[-1]) :]
    if way[-1] not in includes:
        if len(includes) >= FILES_LIMIT:
            return ()
        text = load(way[-1])
        read = read_parts(text)[0] if text is not None else None
        named = (normpath(file) for _, file in _files(read.plan.steps, ())) if read else ()
        includes[way[-1]] = tuple(dict.fromkeys(named))
    for file in includes[way[-1]]:
        if back := _find_cycle((*way, file), includes, load):
            return back
    # No cycle through this file: skip it the next time.
    includes[way[-1]] = ()
    return ()


def _files(steps: tuple[Step, ...], path: Path) -> Iterator[tuple[Path, str]]:
    for number, step in enumerate(steps):
        if step.subplan and step.subplan.file and "${" not in step.subplan.file:
            yield (*path, number, "subplan", "file"), step.subplan.file
        for inner in step.inner():
            yield from _files(inner.steps, (*path, number, *inner.path))
