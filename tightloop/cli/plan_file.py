"""Plan files: validation and text form."""

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tightloop.cli.start import json_or_text, read_pairs
from tightloop.errors import InvalidRequestError, PlanError, Problem
from tightloop.plan.child import StepStatus
from tightloop.plan.document import Plan
from tightloop.plan.step import Capability, Step
from tightloop.plan.text.reading import TEXT_BYTES, ReadPlan, decode
from tightloop.plan.validation import check_inputs, check_text
from tightloop.plan.validation.step import find_file_cycles, find_missing, find_unknown_inputs
from tightloop.value import shorten

STDIN = "-"
STDIN_NAME = "stdin"


@dataclass(frozen=True)
class Examined:
    """The text of a plan, with its errors and warnings."""

    name: str
    text: str
    read: ReadPlan | None
    """Parsed plan, or its readable part if there are errors. None if the text is not a plan at all."""
    problems: tuple[Problem, ...]

    @property
    def errors(self) -> tuple[Problem, ...]:
        """Problems that prevent the plan from running."""
        return tuple(problem for problem in self.problems if problem.is_error)

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """Problems that do not prevent the plan from running."""
        return tuple(problem for problem in self.problems if not problem.is_error)


def read_text(file: str) -> tuple[str, str]:
    """Return the name and the text of a plan file. `-` means standard input.

    Raises:
        InvalidRequestError: the file cannot be read. The error is a `PlanError` if the file is not UTF-8.
    """
    if file == STDIN:
        # One byte more than allowed reveals a text that is too long, without reading all of it.
        return STDIN_NAME, decode(sys.stdin.buffer.read(TEXT_BYTES + 1), name=STDIN_NAME)
    path = Path(file).expanduser()
    try:
        # Before reading, so that a huge file given by mistake is not loaded.
        if path.stat().st_size > TEXT_BYTES:
            raise InvalidRequestError(
                f"{file} is larger than {TEXT_BYTES} bytes. Split the plan into subplans with `file:`"
            )
        return file, decode(path.read_bytes(), name=file)
    except OSError as error:
        raise InvalidRequestError(f"cannot read the plan file {file}: {error.strerror}. Check the path") from error


def examine(file: str) -> Examined:
    """Parse a plan file and collect all problems."""
    name, text = read_text(file)
    read, problems = check_text(text, name=name)
    if read is not None and file != STDIN:
        problems = (*problems, *_file_problems(read, Path(file).expanduser().resolve()))
    return Examined(name, text, read, tuple(sorted(problems, key=lambda one: one.position)))


def _file_problems(read: ReadPlan, file: Path) -> tuple[Problem, ...]:
    # Subplan files are relative to the root of the tree.
    root = next((folder for folder in file.parents if (folder / ".git").exists()), file.parent)

    def load(name: str) -> str | None:
        # Links are resolved before the check: a subplan must not come from outside the tree.
        path = (root / name).resolve()
        if not path.is_relative_to(root) or not path.is_file() or path.stat().st_size > TEXT_BYTES:
            return None
        try:
            return decode(path.read_bytes())
        except (OSError, PlanError):
            return None

    def names(folder: str) -> list[str] | None:
        path = (root / folder).resolve()
        if not path.is_relative_to(root) or not path.is_dir():
            return None
        try:
            return [entry.name for entry in path.iterdir()]
        except OSError:
            return None

    relative_name = file.relative_to(root).as_posix()
    return (*find_file_cycles(read, relative_name, load), *find_missing(read, names), *find_unknown_inputs(read, load))


def examine_any(file: str) -> Examined:
    """Parse a plan file. A file that cannot be read is reported as a problem."""
    try:
        return examine(file)
    except PlanError as error:
        return Examined(file, "", None, error.problems)
    except InvalidRequestError as error:
        return Examined(file, "", None, (Problem(message=error.message, code="unreadable", file=file),))


def load_valid_plan(file: str) -> tuple[Examined, ReadPlan]:
    """Load a plan and check that it is valid. Return the plan and its text.

    Raises:
        PlanError: the plan is not valid. The error contains all problems with their positions.
    """
    result = examine(file)
    if result.read is None or result.errors:
        raise PlanError(result.errors)
    return result, result.read


def problem_line(problem: Problem) -> str:
    """Format a problem as `file:line:column: error: message. suggestion.`, as compilers do."""
    text = str(problem)
    if not problem.is_error:
        return text
    location = f"{problem.file}:{problem.position.line}:{problem.position.column}: " if problem.position.line else ""
    location = location or (f"{problem.file}: " if problem.file else "")
    return f"{location}error: {text.removeprefix(location)}"


def read_inputs(pairs: list[str], plan_inputs: dict[str, Any] | None) -> dict[str, Any]:
    """Parse `name=value` pairs.

    If the plan gives the input as text, its new value is also kept as text, so that a version such as 1.10 is not read
    as a number. Any other value is parsed as JSON, or kept as text if it is not valid JSON.

    Args:
        pairs: pairs as typed by the user.
        plan_inputs: inputs of the plan, or None if they are unknown.

    Raises:
        InvalidRequestError: the `=` is missing, or the plan has no such input.
    """
    values = read_pairs("--set", pairs, "target=staging")
    if plan_inputs is not None:
        check_inputs(values, plan_inputs)
    # Otherwise `--set version=1.10` would become the number 1.1.
    texts = {name for name, value in (plan_inputs or {}).items() if isinstance(value, str)}
    return {name: value if name in texts else json_or_text(value) for name, value in values.items()}


VALUE_CHARACTERS = 400
_PLAN_FIELDS = ("labels", "owner", "created_at", "inputs", "assumptions", "risks", "memory", "seed")
_OWN_LINE = frozenset({"id", "title", "description", "kind", "access", "needs", "join"})


def in_order(steps: Iterable[Step]) -> list[Step]:
    """Sort steps topologically. Where possible, keep the order of the plan file."""
    every = list(steps)
    positions = {step.id: number for number, step in enumerate(every)}
    sorter: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(positions.values(), ()))
    for source, target in (edge for step in every for edge in _edges(step)):
        # Unknown ids are reported by the validation; the view shows the remaining plan.
        if source in positions and target in positions:
            sorter.add(positions[target], positions[source])
    # A plan with a cycle is shown too; steps that depend on the cycle come last.
    with contextlib.suppress(CycleError):
        sorter.prepare()
    order: list[int] = []
    ready = sorted(sorter.get_ready())
    while ready:
        # A heap, because steps that become ready later may come earlier in the text.
        order.append(heappop(ready))
        sorter.done(order[-1])
        for number in sorter.get_ready():
            heappush(ready, number)
    ordered = set(order)
    return [every[number] for number in (*order, *(number for number in positions.values() if number not in ordered))]


def _edges(step: Step) -> Iterator[tuple[str, str]]:
    yield from ((need, step.id) for need in step.needs)
    yield from ((step.id, target) for target in step.on_success)
    yield from ((step.id, target) for _, target in choices(step))
    if step.on_failure:
        yield step.id, step.on_failure.to


def choices(step: Step) -> Iterator[tuple[str, str]]:
    """Yield the condition and the target step for each branch of a decision or gate."""
    decision, approval = step.decision, step.gate.approval if step.gate else None
    if decision:
        yield from ((rule.when, target) for rule in decision.rules for target in rule.to)
        yield from (("otherwise", target) for target in decision.otherwise)
        yield from (
            (f"{name} is best supported", target) for name, ids in decision.hypotheses.items() for target in ids
        )
        yield from ((option.name, target) for option in decision.options for target in option.to)
    if approval:
        yield from ((option.name, target) for option in approval.options for target in option.to)


def plan_text(plan: Plan, statuses: Mapping[str, StepStatus] | None = None) -> str:
    """Return a plan as text. The limits and rules come first, followed by the steps."""
    lines = [f"{plan.id}  {plan.title}".rstrip(), *_prose(plan.description)]
    lines += [f"  {name}: {text}" for name, text in _plan_rows(plan)]
    for number, step in enumerate(in_order(plan.steps), start=1):
        status = (statuses or {}).get(step.id)
        lines += ["", f"{number}. {step_text(step, status)}"]
    return "\n".join(lines) + "\n"


def step_text(step: Step, status: StepStatus | None = None) -> str:
    """Return a step as text. A heading is followed by one line per field."""
    said_by_kind = step.capability is Capability.NONE or step.capability.value == step.kind.value
    how = "" if said_by_kind else f" by {step.capability.value}"
    access = {"none": "does not access the tree", "reads": "reads the tree", "writes": "writes the tree"}
    access["merges"] = "works in its own worktree"
    title = f'  "{step.title}"' if step.title else ""
    state = f"  [{status.value}]" if status else ""
    head = f"{step.id}{title}  {step.kind.value}{how}, {access[step.tree_access.value]}{state}"
    lines = [head, *_prose(step.description)]
    lines += [f"   {name}: {text}" for name, text in _step_rows(step)]
    return "\n".join(lines)


def _prose(text: str) -> list[str]:
    return [f"  {line}".rstrip() for line in text.strip().splitlines()]


def _plan_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    waits = {"ask": "wait for a person", "fail": "end as failed", "compensate": "undo all steps and end as compensated"}
    yield "steps", f"{len(plan.steps)}, at most {plan.max_parallel} at the same time"
    yield "after a failure", waits[plan.on_failure.value]
    yield "budget", _fields(plan.budget, all_=True)
    policy = plan.policy
    yield "may write", _join_names(policy.write) + (f"; never {_join_names(policy.protect)}" if policy.protect else "")
    yield "network", (_join_names(policy.network) or "none") + ("; shell steps too" if policy.shell_network else "")
    if policy.commands:
        yield "commands", "; ".join(f"{rule.verdict} `{rule.match}`" for rule in policy.commands)
    if policy.approve:
        yield "needs approval", f"steps with the kind, action or label {_join_names(policy.approve)}"
    gates = [step.id for step in plan.steps if step.gate]
    if gates:
        yield "gates", _join_names(gates)
    for check in plan.definition_of_done:
        yield "done when", f"`{check.run}` passes"
    for hypothesis in plan.hypotheses:
        yield f"hypothesis {hypothesis.id}", f"{hypothesis.statement or '-'} (prior {hypothesis.prior:g})"
    for artifact in plan.artifacts:
        yield "produces", f"{artifact.name} ({artifact.type}), from {artifact.from_step}"
    for name in _PLAN_FIELDS:
        if value := getattr(plan, name):
            yield name, _value(value)


def _step_rows(step: Step) -> Iterator[tuple[str, str]]:
    if step.needs:
        yield "needs", _join_names(step.needs) + (" (any of them)" if step.join.value == "any" else "")
    action = None if step.capability is Capability.NONE else getattr(step, step.capability.value)
    if action is not None:
        yield from _action_rows(action)
    yield from ((f"if {why}" if why != "otherwise" else why, f"start {target}") for why, target in choices(step))
    for name in type(step).model_fields:
        value = getattr(step, name)
        default = type(step).model_fields[name].get_default(call_default_factory=True)
        skipped = name in _OWN_LINE or name in {capability.value for capability in Capability}
        if not skipped and value != default:
            yield name, _value(value)


def _action_rows(action: BaseModel) -> Iterator[tuple[str, str]]:
    for name, value in action.model_dump(mode="json", by_alias=True, exclude_defaults=True).items():
        if name == "steps" or name == "alternatives":
            yield name, ", ".join(str(entry.get("id", entry.get("name"))) for entry in value)
        elif isinstance(value, str) and "\n" in value.strip():
            yield name, "".join(f"\n     {line}".rstrip() for line in value.strip().splitlines())
        else:
            yield name, _value(value)


def _fields(model: BaseModel, *, all_: bool = False) -> str:
    values = model.model_dump(mode="json", by_alias=True, exclude_defaults=not all_, exclude_none=True)
    return ", ".join(f"{name} {_value(value)}" for name, value in values.items())


def _value(value: Any) -> str:
    if isinstance(value, BaseModel):
        return _fields(value)
    if isinstance(value, tuple | list):
        return shorten("; ".join(_value(part) for part in value), VALUE_CHARACTERS)
    if isinstance(value, dict):
        return shorten(", ".join(f"{name}: {_value(part)}" for name, part in value.items()), VALUE_CHARACTERS)
    lines = str(value).strip("\n").splitlines()
    more = f" ... ({len(lines)} lines)" if len(lines) > 1 else ""
    return shorten(lines[0].strip() if lines else "", VALUE_CHARACTERS) + more


def _join_names(names: Iterable[str]) -> str:
    return ", ".join(names)
