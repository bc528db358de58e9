"""Beginning of an attempt, and the reuse of an earlier result."""

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from activities.artifacts.port import ArtifactStore, ArtifactStores
from activities.plan.outputs import References, find_base_tree, unpack
from activities.plan.port import Trees, Work
from activities.plan.records import LoadedPlan, PlanCache, open_file_records
from activities.plan.requests import RunStepRequest
from activities.workspace.port import Workspaces
from activities.workspace.scope import Differ, this_call
from tightloop.plan.child import StepRecord
from tightloop.plan.reference import is_one_reference
from tightloop.plan.step import Access, Capability, Step, StepKind


@dataclass(frozen=True, kw_only=True)
class AttemptPorts:
    """What attempts are made of."""

    workspaces: Workspaces
    stores: ArtifactStores
    trees: Trees
    differ: Differ

    @cached_property
    def plans(self) -> PlanCache:
        """The stored plans, parsed once."""
        return PlanCache(self.stores)

    def begin(self, request: RunStepRequest, loaded: LoadedPlan) -> Work:
        """Return an attempt of the request's step that begins now; within an activity only."""
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
            begun=datetime.now(UTC),
        )


_OF_NO_EFFECT = frozenset(
    {"description", "owner", "labels", "priority", "needs", "for_each", "effects", "assumptions", "risks",
     "watchdog", "estimate_s", "cache", "compensate", "timeout_s", "timebox_s", "retry", "on_failure", "on_success"}
)  # fmt: skip
"""Fields of a step that change neither what it does nor how its result is judged."""
_WITHOUT_TITLE = frozenset({Capability.NONE, Capability.SHELL, Capability.EDIT, Capability.HTTP, Capability.CHECKPOINT})
"""The others show their title to a person or a model, or search for it."""


def is_cacheable(step: Step) -> bool:
    """Return whether the result of a step depends on nothing but what the digest of its inputs covers."""
    if step.search is not None and step.search.where != "project":
        # The cache of documents is not the tree's; a search in it is quick.
        return False
    if step.tree_access is Access.MERGES:
        # Its tree holds what other steps merged before it.
        return False
    # Git steps find out themselves what is done: the branch that is checked out may be another one now.
    return step.cache and step.kind is not StepKind.COMPENSATION and step.capability is not Capability.GIT


def is_fresh(step: Step, old: StepRecord, store: ArtifactStore) -> bool:
    """Return whether fetched documents are still young enough; True for steps that fetch nothing.

    Raises:
        ArtifactMissingError: the list of them is not in the store.
    """
    if step.http is None or not step.http.urls:
        return True
    try:
        documents = unpack(old.outputs["documents"], store)
        times = [datetime.fromisoformat(document["fetched_at"]) for document in documents]
    except (LookupError, TypeError, ValueError):
        # The step declares an output of that name which is something else.
        return False
    return all((datetime.now(UTC) - at).total_seconds() < step.http.max_age_s for at in times)


def hash_inputs(work: Work) -> str:
    """Return the digest for an attempt whose inputs are resolved."""
    step, request = work.step, work.request
    written = step.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    # Documents are ranked by it.
    untitled = step.capability in _WITHOUT_TITLE and not (step.http and step.http.urls)
    unread = _OF_NO_EFFECT | ({"title"} if untitled else frozenset[str]())
    acting = {name: value for name, value in written.items() if name not in unread}
    # A diff is literal unless it is one reference: what looks like references in it has no values.
    edit = acting.get("edit", {})
    literal = {"diff"} if edit.get("diff") and not is_one_reference(edit["diff"]) else set[str]()
    referring = {**acting, "edit": {name: value for name, value in edit.items() if name not in literal}}
    gate, scope = step.gate, request.scope
    reviews = [check.diff for check in gate.checks if check.diff is not None] if gate is not None else []
    parts = {
        "step": acting,
        "inputs": work.lookup.inputs,
        "values": work.lookup.used(referring),
        # What does not see the tree has the same result on every tree.
        "tree": request.expected_tree if step.tree_access is not Access.NONE else "",
        "beliefs": [belief.model_dump(mode="json") for belief in request.beliefs]
        if step.capability is Capability.DECISION
        else [],
        "seed": work.loaded.plan.seed,
        # What another policy let through need not be allowed by this one.
        "policy": work.loaded.plan.policy.model_dump(mode="json", exclude_defaults=True),
        "bases": [find_base_tree(scope, review.since, work.records) for review in reviews],
    }
    # Sorted: the order of fields in the plan's text makes no difference to the step.
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
