"""What a new revision does to the bounds of a plan that runs."""

from collections.abc import Iterator

from tightloop.plan.model import PlanBudget
from tightloop.plan.rules.bounds import least


def stated(new: PlanBudget, before: PlanBudget) -> PlanBudget:
    """Return the bounds of a revision: those that its text names, and for the others those of the revision before.

    A bound is lifted only by a text that says so (`max_tokens: null`), not by one that leaves it out.
    """
    return before.model_copy(update={name: getattr(new, name) for name in new.model_fields_set})


def taken_up(in_force: PlanBudget, before: PlanBudget, after: PlanBudget, *, by_person: bool) -> PlanBudget:
    """Return the bounds with which a plan goes on under a new revision.

    A bound that the revision does not change stays as it is in force, with what people added. One that it changes is
    the new one; a text that a planner wrote lowers bounds at most.

    Args:
        in_force: the bounds of now, with what people added.
        before: as the revision before states them.
        after: as the new revision states them.
        by_person: the text came from a person, not from a planner.
    """
    changed = {name: getattr(after, name) for name in _different(before, after)}
    if not by_person:
        changed = {name: least(getattr(in_force, name), bound) for name, bound in changed.items()}
    return in_force.model_copy(update=changed)


def changed_bounds(before: PlanBudget, after: PlanBudget) -> str:
    """Return what is different, such as `max_cost_usd 2 -> 2.5, max_tokens none -> 1000000`; empty if nothing is."""
    return ", ".join(
        f"{name} {_shown(getattr(before, name))} -> {_shown(getattr(after, name))}"
        for name in _different(before, after)
    )


def _different(before: PlanBudget, after: PlanBudget) -> Iterator[str]:
    return (name for name in PlanBudget.model_fields if getattr(before, name) != getattr(after, name))


def _shown(bound: float | None) -> str:
    return "none" if bound is None else f"{bound:.12g}"
