"""Revisions of a plan: numbering, differences, and the state that is carried over."""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tightloop.plan.document import Plan
from tightloop.plan.engine import state as code
from tightloop.plan.engine.graph import Graph, Node
from tightloop.plan.engine.state import ScheduleState, decode_tries, encode_tries
from tightloop.plan.step import Step
from tightloop.value import shorten


class StepIndex:
    """Steps by number.

    The nodes of the graph come first. The instances of templates follow in order of creation.

    Attributes:
        names: IDs of the steps.
        origin: for each step, the number of its template, or its own number.
        item: for each step, the index of its item. It is 0 for a node of the graph.
        expansions: (template number, number of instances), in order of creation.
    """

    def __init__(self, graph: Graph, expansions: Iterable[tuple[int, int]]) -> None:
        self._graph = graph
        self._size = len(graph.nodes)
        self.names = [node.id for node in graph.nodes]
        self.origin = list(range(self._size))
        self.item = [0] * self._size
        self._instance_numbers: dict[str, int] = {}
        self._instances: dict[int, range] = {}
        self.expansions: list[tuple[int, int]] = []
        for template, count in expansions:
            self.add(template, count)

    def __len__(self) -> int:
        """Return the number of steps, including templates and their instances."""
        return len(self.names)

    def add(self, template: int, count: int) -> range:
        """Add `count` instances of a template and return their numbers.

        The instances of `look-*` are named `look-1`, `look-2` and so on.
        """
        first = len(self.names)
        stem = self._graph.nodes[template].id.removesuffix("*")
        names = [f"{stem}{item + 1}" for item in range(count)]
        self._instance_numbers.update({name: first + item for item, name in enumerate(names)})
        self.names.extend(names)
        self.origin.extend([template] * count)
        self.item.extend(range(count))
        self._instances[template] = range(first, first + count)
        self.expansions.append((template, count))
        return self._instances[template]

    def node(self, number: int) -> Node:
        """Return the definition of a step. An instance has the definition of its template."""
        return self._graph.nodes[self.origin[number]]

    def find(self, name: str) -> int | None:
        """Return the number of the step with this ID, or None."""
        return self._graph.index.get(name, self._instance_numbers.get(name))

    def is_instance(self, number: int) -> bool:
        """Return whether the step was created from a template."""
        return number >= self._size

    def instances(self, template: int) -> range | None:
        """Return the numbers of a template's instances, or None if it has not been expanded yet."""
        return self._instances.get(template)

    def find_undone_needs(self, numbers: Iterable[int], codes: Sequence[str]) -> set[int]:
        """Return the compensated steps that these steps need, directly or through other compensated steps.

        Instances of templates are not included: they would not wait for the steps that their template needs.
        """
        undone: set[int] = set()
        work = list(numbers)
        while work:
            needs = self.node(work.pop()).needs
            found = {need for need in needs if codes[need] == code.COMPENSATED and need not in undone}
            work += found
            undone |= found
        return undone


# It is part of the revision, which crosses Temporal.
WORDS_CHARACTERS = 1_000
_EDGE_FIELDS: Final = ("needs", "join", "on_success", "on_failure")
_UNHASHED: Final = frozenset(
    {
        "title", "description", "owner", "labels", "priority", "needs", "join", "on_success", "on_failure", "retry",
        "timeout_s", "timebox_s", "watchdog", "estimate_s", "budget", "compensate", "evidence", "failure_modes",
        "assumptions", "risks", "effects", "cache",
    }
)  # fmt: skip
"""Step fields that affect neither the action of an attempt nor its success."""
_KEPT = frozenset(
    {code.COMPLETED, code.RECOVERED, code.COMPENSATED, code.RUNNING, code.WAITING, code.LATER, code.AGAIN}
)
_KEPT_WITH_FAILURES = _KEPT | {code.FAILED, code.FAILED_OVER}
_SHOWN: Final = 8


def step_digest(step: Step) -> str:
    """Return the SHA-256 of a step's action, inputs, outputs and conditions.

    Fields for scheduling, retries and failure handling are excluded, so that changing these fields does
    not invalidate completed work.
    """
    fields = step.model_dump(mode="json", by_alias=True, exclude=set(_UNHASHED))
    # Sorted, because another order of keys in the plan text is no change of the work.
    return hashlib.sha256(json.dumps(fields, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class RevisionDiff:
    """The changes in a new revision. Step IDs are in plan order."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: dict[str, tuple[str, ...]]
    """Mapping of steps to their changed fields, except for edges."""
    moved: dict[str, tuple[str, ...]]
    """Mapping of steps to their changed edges: `needs`, `join`, `on_success`, `on_failure`."""
    redone: tuple[str, ...] = ()
    """Steps whose digest has changed, which means that their earlier work is invalid."""
    plan_fields: tuple[str, ...] = ()
    """Changed fields of the plan itself."""

    @property
    def empty(self) -> bool:
        """True if there are no changes."""
        return not (self.added or self.removed or self.changed or self.moved or self.plan_fields)

    def words(self) -> str:
        """Describe the changes to the user, one line for each kind of change.

        The text has at most `WORDS_CHARACTERS` characters.
        """
        lines = (
            ("added", _join_names(self.added)),
            ("removed", _join_names(self.removed)),
            ("changed", _join_names([f"{name} ({', '.join(fields)})" for name, fields in self.changed.items()])),
            ("edges changed", _join_names([f"{name} ({', '.join(fields)})" for name, fields in self.moved.items()])),
            ("plan fields", ", ".join(self.plan_fields)),
        )
        text = "\n".join(f"{title}: {names}" for title, names in lines if names)
        return shorten(text, WORDS_CHARACTERS) or "no changes"


def diff_plans(old: Plan, new: Plan) -> RevisionDiff:
    """Compare two revisions step by step."""
    before = {step.id: step for step in old.steps}
    after = {step.id: step for step in new.steps}
    common = [name for name in after if name in before and after[name] != before[name]]
    fields = {name: tuple(_different(before[name], after[name])) for name in common}
    edges = {
        name: tuple(field for field in changed_fields if field in _EDGE_FIELDS)
        for name, changed_fields in fields.items()
    }
    return RevisionDiff(
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        changed={name: rest for name in common if (rest := tuple(f for f in fields[name] if f not in _EDGE_FIELDS))},
        moved={name: moved for name, moved in edges.items() if moved},
        redone=tuple(name for name in common if step_digest(before[name]) != step_digest(after[name])),
        plan_fields=tuple(field for field in _different(old, new) if field != "steps"),
    )


def find_refusals(diff: RevisionDiff, *, fixed: Collection[str], running: Collection[str] = ()) -> tuple[str, ...]:
    """Return the reasons to refuse a revision, one sentence per step.

    The result is empty if the revision is acceptable. `fixed` contains the IDs of completed and running
    steps, including template instances. `running` contains only the IDs of running steps.
    """
    templates = {name: name.removesuffix("*") for name in (*diff.redone, *diff.removed) if name.endswith("*")}
    fixed_names, busy = _with_templates(fixed, templates), _with_templates(running, templates)
    refused = [
        f"step {name!r} is {'running' if name in busy else 'completed'} and cannot be changed. Leave the step "
        "unchanged, or use another id for the new work"
        for name in diff.redone
        if name in fixed_names
    ]
    refused += [
        f"step {name!r} is running and cannot be removed. Cancel the plan, or wait until the step ends"
        for name in diff.removed
        if name in busy
    ]
    return tuple(refused)


class CarriedOver(NamedTuple):
    """State that is carried over to a new revision."""

    state: ScheduleState
    reset_steps: frozenset[str]
    """Steps that restart or no longer exist. Notes about them do not apply any more."""


def carry_over(
    old: Graph, state: ScheduleState, new: Graph, changed: Collection[str] = (), *, keeps_failures: bool = False
) -> CarriedOver:
    """Derive the state of the schedule for a new revision.

    Completed and running steps keep their state. All other steps restart, including steps that failed,
    were blocked, or were skipped because of other steps. A compensated step restarts if a step that will run
    needs it.

    Args:
        old: graph of the previous revision.
        state: state that was saved by the schedule of that revision.
        new: graph of the new revision.
        changed: steps whose earlier work is invalid; see `RevisionDiff.redone`.
        keeps_failures: True if failed steps stay failed, because no person has reviewed them.
    """
    unchanged = _KEPT_WITH_FAILURES if keeps_failures else _KEPT
    # By id, because the new graph numbers its steps differently.
    before = StepIndex(old, state.expansions).names
    letters = dict(zip(before, state.codes, strict=True))
    tries = dict(zip(before, decode_tries(state.tries) or [0] * len(before), strict=True))
    changed = frozenset(changed)
    kept_steps = {name for name in old.index if name in new.index and name not in changed}
    expansions = tuple(
        (new.index[old.nodes[number].id], count)
        for number, count in state.expansions
        if old.nodes[number].id in kept_steps and new.nodes[new.index[old.nodes[number].id]].template
    )
    spread = {new.nodes[number].id for number, _ in expansions}
    index = StepIndex(new, expansions)
    names = index.names
    known_steps = kept_steps.union(names[len(new.nodes) :])
    codes = [
        code.EXPANDED
        if name in spread
        else (letter if letter in unchanged else _next_code(new, name, letter, tries.get(name, 0), letters))
        for name in names
        for letter in (letters.get(name, "") if name in known_steps else "",)
    ]
    will_run = [number for number, letter in enumerate(codes) if letter == code.PENDING]
    for number in index.find_undone_needs(will_run, codes):
        codes[number] = code.PENDING
    reset_steps = {name for name, letter in zip(names, codes, strict=True) if letter == code.PENDING}
    # Including removed steps: a later revision may reuse their ids.
    reset_steps |= letters.keys() - set(names)
    carried = ScheduleState(
        codes="".join(codes),
        tries=encode_tries([tries.get(name, 0) for name in names]),
        expansions=expansions,
        lengths={key: size for key, size in state.lengths.items() if _is_of(key, kept_steps)},
        # A decision that runs again chooses again.
        chosen={name: ids for name, ids in state.chosen.items() if name in kept_steps and name not in reset_steps},
    )
    return CarriedOver(carried, frozenset(reset_steps))


def _next_code(new: Graph, name: str, letter: str, tries: int, letters: dict[str, str]) -> str:
    # Skipped by its own condition or by a person, as in `Schedule.reopen`; not because of other steps.
    if letter == code.SKIPPED and tries > 0:
        return letter
    if name not in new.index:
        return code.PENDING
    node = new.nodes[new.index[name]]
    alternate = "" if node.alternate is None else new.nodes[node.alternate].id
    if letter == code.FAILED_OVER and letters.get(alternate, "") in _KEPT:
        return letter  # its work is being done right now
    return code.initial_code(node.kind)


def _is_of(key: str, steps: Collection[str]) -> bool:
    # ids may contain dots themselves
    return any(letter == "." and key[:at] in steps for at, letter in enumerate(key))


def _different(before: Any, after: Any) -> Iterator[str]:
    return (field for field in type(before).model_fields if getattr(before, field) != getattr(after, field))


def _with_templates(ids: Collection[str], templates: dict[str, str]) -> set[str]:
    all_ids = set(ids)
    for template, stem in templates.items():
        if any(step_id.startswith(stem) and step_id[len(stem) :].isdigit() for step_id in ids):
            all_ids.add(template)
    return all_ids


def _join_names(names: Collection[str]) -> str:
    first_names = list(names)[:_SHOWN]
    more = len(names) - len(first_names)
    return ", ".join(first_names) + (f" and {more} more" if more else "")
