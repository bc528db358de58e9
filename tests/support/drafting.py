"""Drafted scenarios of one task: which count, and what they say about a cheat and an honest solution."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from activities.artifacts.stores import open_local_store
from activities.checks.runner import CheckRunner
from activities.model.client import ModelService
from activities.planner.writers import ScenarioWriter
from activities.proof import untracked
from activities.proof.checkouts import LocalCheckouts
from activities.proof.port import LockedTrees
from activities.proof.runs import Runs
from activities.proof.scenarios import add_drafts, choose_drafts
from activities.sandbox.choose import choose_sandbox
from activities.workspace.scope import EpisodeScope
from activities.workspace.working_tree import Workspaces
from tests.support.git_sample import make_repository, write
from tightloop.client.scenarios import ScenarioStore
from tightloop.episode.planning import Briefing
from tightloop.episode.proof.report import InitialState
from tightloop.episode.scenarios import ScenarioResult
from tightloop.settings import SandboxSettings, Settings


class Drafted(NamedTuple):
    """Result of drafting for one task."""

    agreed: int
    """Drafts on whose output two answers agree."""
    used: int
    """Those that fail at the start by what they print, or have to stay."""
    fail_cheat: int
    fail_honest: int
    reason: str = ""


async def draft_for(
    folder: Path,
    settings: Settings,
    service: ModelService,
    *,
    goal: str,
    done: str,
    base: Mapping[str, str],
    cheat: Mapping[str, str],
    honest: Mapping[str, str],
    limit: int = 5,
) -> Drafted:
    """Draft scenarios for a new project in `folder`, and run those that count on both solutions."""
    root = make_repository(folder, dict(base))
    briefing = Briefing(goal=goal, definition_of_done=(done,))
    answer = await ScenarioWriter(service).write(briefing, root, limit)
    if answer.bundle is None:
        return Drafted(0, 0, 0, 0, answer.reason)
    source, sandbox = ScenarioStore(settings), SandboxSettings()
    scope = EpisodeScope(episode_id="ep-drafts", workspace=str(root))
    workspaces = Workspaces(lock_wait=timedelta(seconds=10))
    workspaces.prepare(scope, take_over=lambda _episode: True)
    runner = CheckRunner(choose_sandbox(sandbox), sandbox)
    with workspaces.hold(scope) as tree:
        use = Runs(tree, open_local_store(root), runner, LocalCheckouts(), lambda: False, lambda _work: None)
        begun = tree.snapshot()
        manifest = untracked.survey(root, LockedTrees(tree).files(begun)).write()
        stored = use.store.put(manifest, name="beside the tree", media_type="application/zlib")
        beginning = InitialState(tree=begun, root=str(root), ignored=stored)
        drafts = choose_drafts(use, source, source.store(answer.bundle), begun)
        failures = []
        for solution in (cheat, honest):
            write(root, dict(solution))
            _, failed = add_drafts(use, source, drafts, beginning, tree.snapshot(), ScenarioResult())
            failures.append(len(failed))
    return Drafted(len(answer.bundle.scenarios), drafts.count, *failures)
