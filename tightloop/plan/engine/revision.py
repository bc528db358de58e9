"""Revisions of a plan."""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tightloop.plan.document import Plan
from tightloop.plan.engine import state as code
from tightloop.plan.engine.graph import Graph, Node
from tightloop.plan.engine.state import ScheduleState, decode_tries, encode_tries
from tightloop.plan.step import Step
from tightloop.value import shorten


class Roster:
    """Steps by number: first the nodes of the graph, then the steps made from templates in the order of their making.

    Attributes:
        names: the ids of the steps.
        origin: for each step the number of its template, or its own.
        item: for each step the index of its item; 0 for a step of the graph.
        expansions: template's number and how many steps it became, in that order.
    """

    def __init__(self, graph: Graph, expansions: Iterable[tuple[int, int]]) -> None:
        """Number the nodes of the graph, then what templates became before."""
        self._graph = graph
        self._size = len(graph.nodes)
        self.names = [node.id for node in graph.nodes]
        self.origin = list(range(self._size))
        self.item = [0] * self._size
        self._made: dict[str, int] = {}
        self._instances: dict[int, range] = {}
        self.expansions: list[tuple[int, int]] = []
        for template, count in expansions:
            self.add(template, count)

    def __len__(self) -> int:
        """Return how many steps there are, templates and what they became included."""
        return len(self.names)

    def add(self, template: int, count: int) -> range:
        """Number `count` steps made from a template; of `look-*` they are `look-1`, `look-2` ..."""
        first = len(self.names)
        stem = self._graph.nodes[template].id.removesuffix("*")
        names = [f"{stem}{item + 1}" for item in range(count)]
        self._made.update({name: first + item for item, name in enumerate(names)})
        self.names.extend(names)
        self.origin.extend([template] * count)
        self.item.extend(range(count))
        self._instances[template] = range(first, first + count)
        self.expansions.append((template, count))
        return self._instances[template]

    def node(self, number: int) -> Node:
        """Return the definition: for a step made from a template that of the template."""
        return self._graph.nodes[self.origin[number]]

    def find(self, name: str) -> int | None:
        """Return the number of the step with this id."""
        return self._graph.index.get(name, self._made.get(name))

    def is_instance(self, number: int) -> bool:
        """Return whether the step was made from a template."""
        return number >= self._size

    def instances(self, template: int) -> range | None:
        """Return the numbers of what a template became; None before it did."""
        return self._instances.get(template)


# It goes through Temporal with the revision.
WORDS_CHARACTERS = 1_000
_EDGE_FIELDS: Final = ("needs", "join", "on_success", "on_failure")
_UNHASHED: Final = frozenset(
    {
        "title", "description", "owner", "labels", "priority", "needs", "join", "on_success", "on_failure", "retry",
        "timeout_s", "timebox_s", "watchdog", "estimate_s", "budget", "compensate", "evidence", "failure_modes",
        "assumptions", "risks", "effects", "cache",
    }
)  # fmt: skip
"""Fields of a step that do not change what an attempt does and whether it succeeds."""
_KEPT = frozenset(
    {code.COMPLETED, code.RECOVERED, code.COMPENSATED, code.RUNNING, code.WAITING, code.LATER, code.AGAIN}
)
_KEPT_WITH_FAILURES = _KEPT | {code.FAILED, code.FAILED_OVER}
_SHOWN: Final = 8


def step_digest(step: Step) -> str:
    """Return the sha256 over what an attempt of the step does: its action, inputs, outputs and conditions.

    What only decides when it runs, how often, and what follows, is left out: changing that does not undo its work.
    """
    fields = step.model_dump(mode="json", by_alias=True, exclude=set(_UNHASHED))
    return hashlib.sha256(json.dumps(fields, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class RevisionDiff:
    """What a new revision of a plan changes, by step id in the order of the plans."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: dict[str, tuple[str, ...]]
    """Step -> fields that are different and are not edges."""
    moved: dict[str, tuple[str, ...]]
    """Step -> edges that are different: `needs`, `join`, `on_success`, `on_failure`."""
    redone: tuple[str, ...] = ()
    """Steps whose digest is different: what they did does not count any more."""
    plan_fields: tuple[str, ...] = ()
    """Fields of the plan itself that are different."""

    @property
    def empty(self) -> bool:
        """Whether the two say the same."""
        return not (self.added or self.removed or self.changed or self.moved or self.plan_fields)

    def words(self) -> str:
        """Return one line for each kind of change, for people; at most `WORDS_CHARACTERS`."""
        lines = (
            ("added", _listed(self.added)),
            ("removed", _listed(self.removed)),
            ("changed", _listed([f"{name} ({', '.join(fields)})" for name, fields in self.changed.items()])),
            ("edges moved", _listed([f"{name} ({', '.join(fields)})" for name, fields in self.moved.items()])),
            ("of the plan itself", ", ".join(self.plan_fields)),
        )
        said = "\n".join(f"{title}: {names}" for title, names in lines if names)
        return shorten(said, WORDS_CHARACTERS) or "nothing is different"


def diff_plans(old: Plan, new: Plan) -> RevisionDiff:
    """Compare two revisions step by step."""
    before = {step.id: step for step in old.steps}
    after = {step.id: step for step in new.steps}
    common = [name for name in after if name in before and after[name] != before[name]]
    fields = {name: tuple(_different(before[name], after[name])) for name in common}
    edges = {name: tuple(field for field in found if field in _EDGE_FIELDS) for name, found in fields.items()}
    return RevisionDiff(
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        changed={name: rest for name in common if (rest := tuple(f for f in fields[name] if f not in _EDGE_FIELDS))},
        moved={name: moved for name, moved in edges.items() if moved},
        redone=tuple(name for name in common if step_digest(before[name]) != step_digest(after[name])),
        plan_fields=tuple(field for field in _different(old, new) if field != "steps"),
    )


def find_refusals(found: RevisionDiff, *, fixed: Collection[str], running: Collection[str] = ()) -> tuple[str, ...]:
    """Return why a revision is refused, one sentence for each step; empty if it can.

    `fixed` are the ids of steps that are completed or under way, also those made from templates; `running` are those
    of them that are under way.
    """
    templates = {name: name.removesuffix("*") for name in (*found.redone, *found.removed) if name.endswith("*")}
    done, busy = _with_templates(fixed, templates), _with_templates(running, templates)
    refused = [
        f"step {name!r} is {'under way' if name in busy else 'completed'} and cannot be changed: "
        "leave it as it is, or give the new work another id"
        for name in found.redone
        if name in done
    ]
    refused += [
        f"step {name!r} is under way and cannot be left out: cancel the plan, or wait until it has ended"
        for name in found.removed
        if name in busy
    ]
    return tuple(refused)


class CarriedOver(NamedTuple):
    """Where a new revision of a plan goes on."""

    state: ScheduleState
    fresh: frozenset[str]
    """Steps that begin again or are gone: what was noted about them counts no more."""


def carry_over(
    old: Graph, state: ScheduleState, new: Graph, changed: Collection[str] = (), *, keeps_failures: bool = False
) -> CarriedOver:
    """Return the state with which a new revision goes on.

    Completed steps, and those under way, stay as they are. Everything else begins again: steps that were
    blocked or skipped because of others, and steps that failed, get another go.

    Args:
        old: the graph of the revision before.
        state: saved by its schedule.
        new: the graph of the new revision.
        changed: steps whose work does not count any more (`RevisionDiff.redone`).
        keeps_failures: steps that failed stay failed: nobody has looked at them.
    """
    unchanged = _KEPT_WITH_FAILURES if keeps_failures else _KEPT
    # By id: the new graph numbers its steps in another order.
    before = Roster(old, state.expansions).names
    letters = dict(zip(before, state.codes, strict=True))
    tries = dict(zip(before, decode_tries(state.tries) or [0] * len(before), strict=True))
    changed = frozenset(changed)
    kept = {name for name in old.index if name in new.index and name not in changed}
    expansions = tuple(
        (new.index[old.nodes[number].id], count)
        for number, count in state.expansions
        if old.nodes[number].id in kept and new.nodes[new.index[old.nodes[number].id]].template
    )
    spread = {new.nodes[number].id for number, _ in expansions}
    names = Roster(new, expansions).names
    known = kept.union(names[len(new.nodes) :])
    codes = [
        code.EXPANDED
        if name in spread
        else (letter if letter in unchanged else _next_code(new, name, letter, tries.get(name, 0), letters))
        for name in names
        for letter in (letters.get(name, "") if name in known else "",)
    ]
    fresh = {name for name, letter in zip(names, codes, strict=True) if letter == code.PENDING}
    # Also those that are gone: a later revision may use their ids again.
    fresh |= letters.keys() - set(names)
    carried = ScheduleState(
        codes="".join(codes),
        tries=encode_tries([tries.get(name, 0) for name in names]),
        expansions=expansions,
        lengths={key: size for key, size in state.lengths.items() if _is_of(key, kept)},
        chosen={name: ids for name, ids in state.chosen.items() if name in kept and name not in fresh},
    )
    return CarriedOver(carried, frozenset(fresh))


def _next_code(new: Graph, name: str, letter: str, tries: int, letters: dict[str, str]) -> str:
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
    # ids may hold dots themselves
    return any(letter == "." and key[:at] in steps for at, letter in enumerate(key))


def _different(before: Any, after: Any) -> Iterator[str]:
    return (field for field in type(before).model_fields if getattr(before, field) != getattr(after, field))


def _with_templates(ids: Collection[str], templates: dict[str, str]) -> set[str]:
    found = set(ids)
    for template, stem in templates.items():
        if any(each.startswith(stem) and each[len(stem) :].isdigit() for each in ids):
            found.add(template)
    return found


def _listed(names: Collection[str]) -> str:
    shown = list(names)[:_SHOWN]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
