"""The hash of all that the result of a step depends on: with the same one a re-run takes the result over."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from activities.plan.entered import Attempt
from activities.plan.references import base_tree
from tightloop.plan.language.reference import is_one_reference
from tightloop.plan.model import Access, Capability


def inputs_digest(attempt: Attempt) -> str:
    """Return the digest for an attempt whose inputs are resolved."""
    step, request = attempt.step, attempt.request
    written = step.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    unread = _OF_NO_EFFECT | ({"title"} if step.capability in _WITHOUT_TITLE else frozenset[str]())
    acting = {name: value for name, value in written.items() if name not in unread}
    parts = {
        "step": acting,
        "inputs": attempt.lookup.inputs,
        "values": attempt.lookup.used(_with_references(acting)),
        "tree": request.expected_tree if step.tree_access is not Access.NONE else "",
        "beliefs": [belief.model_dump(mode="json") for belief in request.beliefs]
        if step.capability is Capability.DECISION
        else [],
        "seed": attempt.loaded.plan.seed,
        # What another policy let through need not be allowed by this one.
        "policy": attempt.loaded.plan.policy.model_dump(mode="json", exclude_defaults=True),
        "bases": _bases(attempt),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _bases(attempt: Attempt) -> list[str]:
    """Return the trees that a gate compares with."""
    gate, scope = attempt.step.gate, attempt.request.scope
    reviews = [check.diff for check in gate.checks if check.diff is not None] if gate is not None else []
    return [base_tree(scope, review.since, attempt.records) for review in reviews]


def _with_references(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields in which references count: a diff is literal unless it is one."""
    edit = written.get("edit", {})
    if not edit.get("diff") or is_one_reference(edit["diff"]):
        return dict(written)
    return {**written, "edit": {name: value for name, value in edit.items() if name != "diff"}}


_OF_NO_EFFECT = frozenset(
    {"description", "owner", "labels", "priority", "needs", "for_each", "effects", "assumptions", "risks",
     "watchdog", "estimate_s", "cache", "compensate", "timeout_s", "timebox_s", "retry", "on_failure", "on_success"}
)  # fmt: skip
"""Fields of a step that change neither what it does nor how its result is judged."""
_WITHOUT_TITLE = frozenset({Capability.NONE, Capability.SHELL, Capability.EDIT, Capability.HTTP, Capability.CHECKPOINT})
"""The others show their title to a person or a model, or search for it."""
