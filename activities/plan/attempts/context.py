"""A step attempt's dependencies, and cache keys for reusing earlier results."""

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from activities.artifacts.port import ArtifactStore, ArtifactStores
from activities.plan.outputs import References, find_base_tree, unpack
from activities.plan.port import Work
from activities.plan.records import LoadedPlan, PlanCache, open_file_records
from activities.plan.requests import RunStepRequest
from activities.workspace.scope import this_call
from tightloop.plan.child import StepRecord
from tightloop.plan.reference import is_one_reference
from tightloop.plan.step import Access, Capability, Step, StepKind

if TYPE_CHECKING:
    from activities.plan.attempts.trees import Trees
    from activities.workspace.differ import Differ
    from activities.workspace.working_tree import Workspaces


@dataclass(frozen=True, kw_only=True)
class AttemptPorts:
    """Dependencies of a step attempt."""

    workspaces: "Workspaces"
    stores: ArtifactStores
    trees: "Trees"
    differ: "Differ"

    @cached_property
    def plans(self) -> PlanCache:
        return PlanCache(self.stores)

    def begin(self, request: RunStepRequest, loaded: LoadedPlan) -> Work:
        """Start an attempt at the requested step. Call this inside an activity."""
        workspace, step = Path(request.scope.workspace), loaded.step(request.step, request.template)
        store, records = self.stores(workspace), open_file_records(workspace)
        return Work(
            request=request,
            run=this_call().run,
            loaded=loaded,
            step=step,
            lookup=References(loaded=loaded, step=step, request=request, store=store, records=records),
            store=store,
            records=records,
            started_at=datetime.now(UTC),
        )


_OF_NO_EFFECT = frozenset(
    {"description", "owner", "labels", "priority", "needs", "for_each", "effects", "assumptions", "risks",
     "watchdog", "estimate_s", "cache", "compensate", "timeout_s", "timebox_s", "retry", "on_failure", "on_success"}
)  # fmt: skip
"""Step fields that affect neither the action nor the evaluation of its result."""
_WITHOUT_TITLE = frozenset({Capability.NONE, Capability.SHELL, Capability.EDIT, Capability.HTTP, Capability.CHECKPOINT})
"""Capabilities that ignore the title. All others show it to a person or a model, or use it as a search query."""


def is_cacheable(step: Step) -> bool:
    """Return whether a step's result depends only on the data covered by its input hash."""
    if step.search is not None and step.search.where != "project":
        # The document cache is not part of the tree, and searching it is fast.
        return False
    if step.tree_access is Access.MERGES:
        # Its tree contains what other steps merged before it.
        return False
    # Git steps detect completed work themselves: a different branch may be checked out by now.
    return step.cache and step.kind is not StepKind.COMPENSATION and step.capability is not Capability.GIT


def is_fresh(step: Step, old: StepRecord, store: ArtifactStore) -> bool:
    """Return whether the fetched documents are younger than `max_age_s`.

    Always return True for steps that fetch nothing.

    Raises:
        ArtifactMissingError: the store does not contain the document list.
    """
    if step.http is None or not step.http.urls:
        return True
    try:
        documents = unpack(old.outputs["documents"], store)
        times = [datetime.fromisoformat(document["fetched_at"]) for document in documents]
    except (LookupError, TypeError, ValueError):
        # The step declares an unrelated output with that name.
        return False
    return all((datetime.now(UTC) - at).total_seconds() < step.http.max_age_s for at in times)


def hash_inputs(work: Work) -> str:
    """Return an attempt's cache key, the SHA-256 of its resolved inputs, action, tree and policy."""
    step, request = work.step, work.request
    written = step.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    # The title ranks the documents.
    untitled = step.capability in _WITHOUT_TITLE and not (step.http and step.http.urls)
    unread = _OF_NO_EFFECT | ({"title"} if untitled else frozenset[str]())
    # Only this step's fields: an edit elsewhere in the plan must not invalidate its result.
    acting = {name: value for name, value in written.items() if name not in unread}
    # A diff is literal unless it consists of a single reference, so apparent references in it have no values.
    edit = acting.get("edit", {})
    literal = {"diff"} if edit.get("diff") and not is_one_reference(edit["diff"]) else set[str]()
    referring = {**acting, "edit": {name: value for name, value in edit.items() if name not in literal}}
    gate, scope = step.gate, request.scope
    reviews = [check.diff for check in gate.checks if check.diff is not None] if gate is not None else []
    parts = {
        "step": acting,
        "inputs": work.lookup.inputs,
        "values": work.lookup.used(referring),
        # A step that cannot see the tree has the same result on every tree.
        "tree": request.expected_tree if step.tree_access is not Access.NONE else "",
        "beliefs": [belief.model_dump(mode="json") for belief in request.beliefs]
        if step.capability is Capability.DECISION
        else [],
        "seed": work.loaded.plan.seed,
        # Another policy may have allowed what this one denies.
        "policy": work.loaded.plan.policy.model_dump(mode="json", exclude_defaults=True),
        "bases": [find_base_tree(scope, review.since, work.records) for review in reviews],
    }
    # Sorted: field order in the plan's text does not matter.
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
