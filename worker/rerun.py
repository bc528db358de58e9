"""Execution of checks on a checkout, and reproduction of a proof, without a Temporal server."""

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from activities.artifacts.stores import LocalArtifactStore
from activities.checks.activity import CheckView
from activities.checks.runner import CheckRunner
from activities.proof import untracked
from activities.proof.checkouts import LocalCheckouts
from activities.proof.port import LockedTrees
from activities.proof.proving import Subject, prove_tree
from activities.proof.runs import Runs
from activities.proof.scenarios import baseline_of, result_of
from activities.sandbox.choose import choose_sandbox
from activities.workspace.store.objects import TreeStore
from activities.workspace.working_tree import CheckedTree
from tightloop.client.proof.statement import statement_of
from tightloop.episode.check import Check, CheckStatus, failed_tests, judge
from tightloop.episode.proof import Proof, TestsFrom
from tightloop.episode.proof.files import ENVIRONMENTS
from tightloop.episode.proof.report import CheckBaseline, InitialState
from tightloop.episode.proof.verdict import add_scenarios
from tightloop.episode.scenarios import HiddenScenarios, ScenarioBundle
from tightloop.errors import InvalidRequestError
from tightloop.run.core import Evidence
from tightloop.safety.approval import Approval, FileVersion
from tightloop.settings import Settings
from tightloop.value import Document, Value, clip, first_problem
from tightloop.value.scrub import scrub

TAIL_CHARACTERS = 600
MOST_COMMANDS = 100


class RerunRequest(Document):
    """Request to run commands on a checkout."""

    root: Path
    """Working tree whose installed environments are mounted read-only. The checkout is mounted at the same path."""
    content: Path
    """Checkout folder."""
    commands: Annotated[tuple[Check, ...], Field(min_length=1, max_length=MOST_COMMANDS)]
    isolated: bool = False
    """Run the commands like hidden scenarios, without network."""


class RerunResult(Value):
    """Result of one command."""

    run: str
    status: CheckStatus
    sandbox: str = ""
    tail: str = ""


def print_rerun(settings: Settings) -> bool:
    """Read a `RerunRequest` as JSON from standard input and print the results as JSON.

    Return True if all commands passed.

    Raises:
        InvalidRequestError: the input is invalid.
        SandboxUnavailableError: no sandbox works on this host.
    """
    try:
        request = RerunRequest.model_validate_json(sys.stdin.buffer.read())
    except ValidationError as error:
        raise InvalidRequestError(f"rerun: {first_problem(error)}") from None
    results = rerun(request, settings)
    print(json.dumps([result.model_dump(mode="json") for result in results]))
    return all(result.status is CheckStatus.PASSED for result in results)


def rerun(request: RerunRequest, settings: Settings) -> list[RerunResult]:
    """Run all commands of a request and return their results."""
    present = [name for name in sorted(ENVIRONMENTS) if (request.root / name).is_dir()]
    for name in present:
        # Mount points of the installed environments, which a checkout does not contain.
        (request.content / name).mkdir(exist_ok=True)
    view = CheckView(
        content=request.content,
        mounts=tuple((request.root / name, request.root / name) for name in present),
        network=not request.isolated,
        shared_folders=not request.isolated,
    )
    runner = CheckRunner(choose_sandbox(settings.sandbox), settings.sandbox)
    results = []
    for check in request.commands:
        result = runner.run(check, request.root, cancelled=lambda: False, started=lambda _pid: None, view=view)
        judged = judge(
            check,
            tree="",
            exit_code=result.exit_code,
            timed_out=result.timed_out,
            duration_s=result.duration_s,
            output=result.output.decode("utf-8", "replace"),
        )
        tail = clip(scrub(judged.tail), TAIL_CHARACTERS)
        results.append(RerunResult(run=check.run, status=judged.status, sandbox=result.sandbox, tail=tail))
    return results


class ReproductionRequest(Document):
    """Request to reproduce a proof."""

    root: Path
    """Working tree with the installed environments. Its other files are not used."""
    objects: tuple[Path, ...]
    """Git object folders that contain both trees."""
    base_tree: str
    tree: str
    checks: Annotated[tuple[Check, ...], Field(min_length=1, max_length=MOST_COMMANDS)]
    with_failures: tuple[str, ...] = ()
    """Commands that passed even though tests failed, because these tests had failed before."""
    announced: tuple[str, ...] = ()
    """Paths of changed files whose change was announced; see `Proof.announced`."""
    scenarios: ScenarioBundle | None = None


def print_reproduction(settings: Settings) -> None:
    """Read a `ReproductionRequest` as JSON from standard input, and print the statement of the proof as JSON.

    Raises:
        InvalidRequestError: the input is invalid.
        GitError: a tree is incomplete.
        SandboxUnavailableError: no sandbox works on this host.
    """
    try:
        request = ReproductionRequest.model_validate_json(sys.stdin.buffer.read())
    except ValidationError as error:
        raise InvalidRequestError(f"reproduce: {first_problem(error)}") from None
    with tempfile.TemporaryDirectory(prefix="tightloop-reproduction-") as folder:
        proof = reproduce(request, settings, Path(folder).resolve())
    failed = [check for run in proof.runs for check in run.checks if not check.passed]
    tails = {check.run: clip(check.tail, TAIL_CHARACTERS) for check in failed}
    print(json.dumps([statement_of(proof).model_dump(mode="json", by_alias=True), tails]))


def reproduce(request: ReproductionRequest, settings: Settings, folder: Path) -> Proof:
    """Run the checks on the initial and the delivered tree, and return the resulting proof.

    A proof does not include the goal. Changes that the goal mentioned are treated as approved, so that the same files
    are restored. Other commits are not searched for copies.
    """
    tree, store = _open_tree(request.root, folder / "trees", request.objects), LocalArtifactStore(folder / "artifacts")
    runner = CheckRunner(choose_sandbox(settings.sandbox), settings.sandbox)
    use = Runs(tree, store, runner, LocalCheckouts(), lambda: False, lambda _work: None)
    trees = LockedTrees(use.tree)
    before, after = trees.files(request.base_tree), trees.files(request.tree)
    found = untracked.survey(request.root, before.keys() | after.keys())
    folders = tuple(f"{environment}/" for environment in found.environments)
    # A clean checkout: of the other ignored files on this host, the checks see none.
    installed = untracked.Survey(
        {path: entry for path, entry in found.files.items() if path.startswith(folders)}, found.environments
    )
    beginning = InitialState(
        tree=request.base_tree,
        root=str(request.root),
        ignored=store.put(installed.write(), name="beside the tree", media_type="application/zlib"),
    )
    environments = untracked.compare(request.root, installed, before)
    with ExitStack() as rooms:
        initial = use.run_in_checkout(
            rooms, request.checks, TestsFrom.BEGINNING, before, environments, InitialState(tree=request.base_tree)
        )
    baselines, checks = [], []
    for check, run, observation in zip(request.checks, initial.run.checks, initial.observations, strict=True):
        baseline = CheckBaseline(run=run.run, passed=run.passed, exit_code=run.exit_code, observation=observation)
        baselines.append(baseline)
        output = store.get(run.output).decode("utf-8", "replace") if run.output else ""
        known = failed_tests(output) if run.run in request.with_failures else ()
        checks.append(check.evolve(known_failures=known))
    beginning = beginning.evolve(checks=tuple(baselines))
    hidden = request.scenarios.commitment if request.scenarios else None
    source = _Scenarios({hidden.digest: request.scenarios} if hidden and request.scenarios else {})
    if hidden is not None:
        beginning = beginning.evolve(scenarios=baseline_of(use, source, hidden, request.base_tree))
    proof = prove_tree(
        use,
        Subject("", "", tuple(checks)),
        workflow_id="reproduction",
        delivered=request.tree,
        beginning=beginning,
        approvals=_approvals(trees, request),
        evidence=Evidence(seen_to_fail=any(not baseline.passed for baseline in baselines), worked=True),
    )
    if hidden is None:
        return proof
    return add_scenarios(proof, result_of(use, source, hidden, beginning, request.tree), ())


def _approvals(trees: LockedTrees, request: ReproductionRequest) -> tuple[Approval, ...]:
    before, after = trees.files(request.base_tree), trees.files(request.tree)
    versions = (
        FileVersion(
            path=path,
            before=before[path].blob if path in before else "",
            after=after[path].blob if path in after else "",
        )
        for path in request.announced
    )
    files = tuple(versions)
    return (Approval(files=files, by="the proof", asked=True),) if files else ()


def _open_tree(root: Path, folder: Path, objects: Sequence[Path]) -> CheckedTree:
    """Open a tree whose objects are in a repository. It is not locked, because nothing is written to it."""
    store = TreeStore(folder)
    store.make()
    (folder / "objects" / "info" / "alternates").write_text("".join(f"{path}\n" for path in objects))
    return CheckedTree(root, store)


@dataclass(frozen=True)
class _Scenarios:
    bundles: Mapping[str, ScenarioBundle]

    def load(self, commitment: HiddenScenarios) -> ScenarioBundle:
        return self.bundles[commitment.digest]

    def find(self, digest: str) -> ScenarioBundle | None:
        return self.bundles.get(digest)
