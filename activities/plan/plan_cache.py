"""Stored plans, parsed once in each process."""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from activities.artifacts.port import ArtifactStores
from activities.plan.requests import PlanScope
from tightloop.errors import ArtifactMissingError, InvalidRequestError
from tightloop.plan.document.plan import Plan
from tightloop.plan.document.step import Step
from tightloop.plan.engine.graph import compile_graph
from tightloop.plan.stored import StoredPlan
from tightloop.value.artifact import ArtifactRef

PLANS_KEPT = 8
GRAPH_CHARACTERS = 1_500_000
"""Temporal takes no payload above 2 MiB, and an activity with a larger result fails however often it is tried."""


@dataclass(frozen=True)
class LoadedPlan:
    """A stored plan with an index of its steps."""

    stored: StoredPlan

    @property
    def plan(self) -> Plan:
        """The document."""
        return self.stored.plan

    @cached_property
    def steps(self) -> Mapping[str, Step]:
        """By id; templates under the id with `*`."""
        return {step.id: step for step in self.plan.steps}

    @cached_property
    def graph(self) -> str:
        """What the scheduler needs, packed for the history; compiled once, though each run of the workflow wants it.

        Raises:
            InvalidRequestError: it is too large for one.
        """
        packed = compile_graph(self.plan, self.stored.inputs).packed()
        if len(packed) > GRAPH_CHARACTERS:
            raise InvalidRequestError(
                f"the plan's {len(self.plan.steps)} steps need {len(packed)} characters of the history, more than "
                f"{GRAPH_CHARACTERS}. Split it into subplans, or use templates (`name-*`)"
            )
        return packed

    def step(self, step: str, template: str = "") -> Step:
        """Return a step; one made from a template has its own id.

        Raises:
            InvalidRequestError: the plan has no such step.
        """
        found = self.steps.get(template or step)
        if found is None:
            raise InvalidRequestError(
                f"plan {self.stored.plan_id} has no step {template or step!r} in revision {self.stored.revision}"
            )
        return found.evolve(id=step) if template else found


class PlanCache:
    """Reads stored plans; the last `PLANS_KEPT` stay in memory, by hash."""

    def __init__(self, stores: ArtifactStores) -> None:
        """Take the stores of the workspaces."""
        self._stores = stores
        self._kept: OrderedDict[tuple[str, str], LoadedPlan] = OrderedDict()
        self._lock = threading.Lock()

    def known(self, scope: PlanScope) -> LoadedPlan | None:
        """Return the plan of a scope if it is in memory and nobody is reading one; never waits."""
        # It is asked on the event loop, which must not wait while a thread parses a large plan.
        if scope.plan is None or not self._lock.acquire(blocking=False):
            return None
        try:
            return self._kept.get((scope.workspace, scope.plan.sha256))
        finally:
            self._lock.release()

    def put(self, workspace: str, stored: StoredPlan) -> tuple[ArtifactRef, LoadedPlan]:
        """Store a revision, and keep it as it will be read.

        Raises:
            InvalidRequestError: its graph is too large for the history; nothing is stored.
        """
        content = stored.content()
        loaded = LoadedPlan(StoredPlan.model_validate_json(content))
        # Compiled before anything is stored: a plan that is too large leaves nothing behind.
        _ = loaded.graph
        ref = self._stores(Path(workspace)).put(content, name=f"plan revision {stored.revision}")
        with self._lock:
            self._keep((workspace, ref.sha256), loaded)
        return ref, loaded

    def load(self, scope: PlanScope) -> LoadedPlan:
        """Return the plan of a scope.

        Raises:
            ArtifactMissingError: the scope names none, or it is not in the store.
        """
        if scope.plan is None:
            raise ArtifactMissingError(f"plan {scope.episode_id} has no stored revision: it was never opened")
        key = (scope.workspace, scope.plan.sha256)
        # Under the lock: hundreds of first steps at once must not parse a plan of 10 000 steps hundreds of times.
        with self._lock:
            if key not in self._kept:
                content = self._stores(Path(scope.workspace)).get(scope.plan)
                self._keep(key, LoadedPlan(StoredPlan.model_validate_json(content)))
            self._kept.move_to_end(key)
            return self._kept[key]

    def _keep(self, key: tuple[str, str], loaded: LoadedPlan) -> None:
        self._kept[key] = loaded
        if len(self._kept) > PLANS_KEPT:
            self._kept.popitem(last=False)
