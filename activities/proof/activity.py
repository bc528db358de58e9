"""Proof activities, which create baselines and proofs and record a person's acceptance."""

import asyncio
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from temporalio import activity

from activities.artifacts.port import ArtifactStore, ArtifactStores, find_model, get_model, put_model, put_text
from activities.attempt import should_stop
from activities.checks.activity import verification_of
from activities.proof import untracked
from activities.proof.finding import CheckFinder
from activities.proof.port import (
    AcceptRequest,
    AcceptResult,
    BeginRequest,
    BeginResult,
    FindChecksRequest,
    FoundDefinition,
    LockedTrees,
    ProveRequest,
    ProveResult,
    ReviewAnswer,
    ReviewRequest,
    ReviewResult,
)
from activities.proof.proving import prove_tree, store_proof, subject_of
from activities.proof.runs import FirstRuns, Runs
from activities.proof.scenarios import add_drafts, baseline_of, choose_drafts, result_of
from activities.workspace.folders import root_of, store_folder_of
from activities.workspace.scope import EpisodeScope
from tightloop.checks.choice import choose_checks
from tightloop.episode.check import FAILING_LIMIT, CheckReport, check_key, check_name
from tightloop.episode.model import EpisodeRequest
from tightloop.episode.planning import Briefing
from tightloop.episode.proof import Proof, Review
from tightloop.episode.proof.report import CheckBaseline, InitialState
from tightloop.episode.proof.verdict import add_review, add_scenarios, answer_proof, changed_paths
from tightloop.episode.scenarios import ScenarioResult
from tightloop.host import diff_command
from tightloop.run.core import Evidence
from tightloop.safety.approval import ShownChange, find_approval
from tightloop.safety.change.patch import read_patch, show_change
from tightloop.safety.drift import DriftCause, PromptPrivacy
from tightloop.value import shorten

if TYPE_CHECKING:
    from activities.checks.runner import CheckRunner
    from activities.proof.checkouts import LocalCheckouts

    # Workflows import this module, but must not import the client of a model.
    from activities.proof.reviewer import Reviewers
    from activities.workspace.differ import Differ
    from activities.workspace.working_tree import WorkingTree, Workspaces
    from tightloop.client.scenarios import ScenarioStore


REASON_CHARACTERS = 400


class ProofActivities:
    """Proves that checks pass in fresh checkouts and with the original tests."""

    def __init__(
        self,
        workspaces: "Workspaces",
        stores: ArtifactStores,
        runner: "CheckRunner",
        bench: "LocalCheckouts",
        differ: "Differ",
        scenarios: "ScenarioStore",
        *,
        twice_limit_s: float = 0.0,
    ) -> None:
        self._workspaces, self._stores, self._runner, self._checkouts = workspaces, stores, runner, bench
        self._differ, self._scenarios, self._twice_limit_s = differ, scenarios, twice_limit_s

    @activity.defn(no_thread_cancel_exception=True)
    def find_checks(self, request: FindChecksRequest) -> FoundDefinition:
        """Find and try the project's own checks. Store the request with the chosen checks. Idempotent."""
        store = self._stores(Path(request.scope.workspace))
        episode = get_model(store, request.scope.stored_request, EpisodeRequest)
        with store.open_batch() as together, self._workspaces.hold(request.scope) as tree:
            drift = tree.expect(request.expected_tree)
            finder = CheckFinder(self._runner, self._checkouts, together)
            tried = finder.try_checks(tree, request.expected_tree, episode.goal, folder=episode.folder)
            chosen = choose_checks(tried, episode.goal)
            # A check with known failures passes with them, but its first run did not.
            used = {check.run for check in chosen.checks if not check.known_failures}
            first = FirstRuns(
                tree=request.expected_tree, runs=tuple(run for run in finder.first_runs if run.result.run in used)
            )
            stored = put_model(together, episode.evolve(definition_of_done=chosen.checks), name="request")
        return FoundDefinition(
            request=stored,
            checks=chosen.checks,
            sentences=chosen.sentences,
            first_runs=put_model(store, first, name="first runs"),
            drift=drift,
            attempt=activity.info().attempt,
        )

    @activity.defn(no_thread_cancel_exception=True)
    def begin(self, request: BeginRequest) -> BeginResult:
        """Run every check to obtain a baseline, and record the untracked files. Idempotent."""
        store = self._stores(Path(request.scope.workspace))
        # If work has already been done, the checks say nothing about the initial tree.
        checks = () if request.base_tree else subject_of(store, request.scope, request.plan).checks
        inherited = find_model(store, request.inherited, InitialState)
        first = find_model(store, request.first_runs, FirstRuns)
        earlier = first.runs if first is not None and first.tree == request.expected_tree else ()
        with self._workspaces.hold(request.scope) as tree:
            drift = tree.expect(request.expected_tree)
            # Before the checks run, so that their leftovers are not recorded.
            tracked = LockedTrees(tree).files(request.expected_tree)
            manifest = untracked.survey(tree.root, tracked).write()
            # Now, because an agent may commit its own work.
            later = self._checkouts.list_later_commits(tree.root)
            try:
                runs, hidden = self._runs(tree, store), request.scenarios
                outcomes = runs.run_in_place(checks, request.expected_tree, {run.result.run: run for run in earlier})
                # Like the checks, they say nothing about the initial tree if work has already been done.
                scenarios = None
                if hidden is not None and hidden.count and not request.base_tree and inherited is None:
                    scenarios = baseline_of(runs, self._scenarios, hidden, request.expected_tree)
                drafts = request.drafts
                if drafts is not None and drafts.count:
                    drafts = choose_drafts(runs, self._scenarios, drafts, request.expected_tree)
            finally:
                # Also after a cancellation: leftovers of a check must not be taken for a person's edits.
                touched = tree.ensure(request.expected_tree, DriftCause.DURING_CHECKS)
        report = CheckReport(tree=request.expected_tree, results=tuple(outcome.result for outcome in outcomes))
        baselines = tuple(
            CheckBaseline(
                run=result.run,
                passed=result.passed,
                flaky=is_flaky,
                exit_code=result.exit_code,
                observation=observation,
            )
            for result, observation, is_flaky in outcomes
        )
        beginning = InitialState(
            tree=inherited.tree if inherited else request.base_tree or request.expected_tree,
            root=str(root_of(request.scope)),
            checks=inherited.checks if inherited else baselines,
            scenarios=inherited.scenarios if inherited else scenarios,
            ignored=store.put(manifest, name="beside the tree", media_type="application/zlib"),
            later_commits=inherited.later_commits if inherited else later,
        )
        verification = verification_of(store, report, find_model(store, request.compare_with, CheckReport))
        flaky = tuple(check_name(outcome.result.name) for outcome in outcomes if outcome.is_flaky)
        return BeginResult(
            verification=verification.evolve(
                drift=drift,
                touched=touched,
                checks_touched_tree=touched is not None,
                flaky=flaky[:FAILING_LIMIT],
                attempt=activity.info().attempt,
            ),
            beginning=put_model(store, beginning, name="beginning"),
            scenario_failed=bool(beginning.scenarios and beginning.scenarios.failed),
            drafts=drafts,
        )

    @activity.defn(no_thread_cancel_exception=True)
    def prove(self, request: ProveRequest) -> ProveResult:
        """Run the definition of done in fresh checkouts of the delivered tree, and store the proof. Idempotent."""
        store = self._stores(Path(request.scope.workspace))
        subject = subject_of(store, request.scope, request.plan, request.goal)
        with self._workspaces.hold(request.scope) as tree:
            drift = tree.expect(request.expected_tree)
            runs, beginning = self._runs(tree, store), find_model(store, request.beginning, InitialState)
            proof = prove_tree(
                runs,
                subject,
                workflow_id=request.scope.episode_id,
                delivered=request.expected_tree,
                beginning=beginning,
                allowed=request.allow,
                approvals=request.approvals,
                earlier=find_model(store, request.earlier, Proof),
                evidence=Evidence(
                    # An amendment or a revision may have replaced the checks that failed.
                    seen_to_fail=any(check_key(check.run) in request.failed_before for check in subject.checks),
                    worked=request.worked,
                    flaky=request.flaky,
                ),
            )
            failed_drafts: tuple[int, ...] = ()
            if request.scenarios is not None or (request.drafts is not None and request.drafts.count):
                beginning = beginning or InitialState(tree=request.expected_tree, root=str(tree.root))
                result, failed_drafts = self._run_scenarios(runs, request, beginning)
                proof = add_scenarios(proof, result, request.allow)
        change, proved = shown_change(self._differ, request.scope, proof), store_proof(store, proof)
        is_drafts_only = proved.only_scenarios and proof.scenarios is not None and proof.scenarios.is_drafts_only
        return proved.evolve(
            change=change,
            failed_drafts=failed_drafts if is_drafts_only else (),
            drift=drift,
            attempt=activity.info().attempt,
        )

    def _run_scenarios(
        self, runs: Runs, request: ProveRequest, beginning: InitialState
    ) -> tuple[ScenarioResult, tuple[int, ...]]:
        result, delivered = ScenarioResult(), request.expected_tree
        if request.scenarios is not None:
            result = result_of(runs, self._scenarios, request.scenarios, beginning, delivered)
        if request.drafts is None or not request.drafts.count:
            return result, ()
        return add_drafts(runs, self._scenarios, request.drafts, beginning, delivered, result)

    @activity.defn(no_thread_cancel_exception=True)
    def accept_proof(self, request: AcceptRequest) -> AcceptResult:
        """Store a person's answer to the open findings of a proof. Idempotent."""
        store = self._stores(Path(request.scope.workspace))
        answered = answer_proof(get_model(store, request.proof, Proof), by=request.by, asked_for=request.asked_for)
        return AcceptResult(proof=put_model(store, answered, name="proof"), facts=answered.evidence)

    def _runs(self, tree: "WorkingTree", store: ArtifactStore) -> Runs:
        limit = self._twice_limit_s
        return Runs(tree, store, self._runner, self._checkouts, should_stop, activity.heartbeat, twice_limit_s=limit)


def shown_change(differ: "Differ", scope: EpisodeScope, proof: Proof) -> ShownChange | None:
    """Return the change that the open findings refer to, or None if there are no open findings.

    The change names no files if a finding refers to something else.
    """
    if not proof.open_findings:
        return None
    diff = differ.compare(store_folder_of(scope), proof.base_tree, proof.delivered_tree)
    command = diff_command(Path(scope.workspace), proof.base_tree, proof.delivered_tree)
    return show_change(diff.patch.decode("utf-8", "replace"), changed_paths(proof), command)


@dataclass(frozen=True)
class ReviewActivities:
    """Activities that ask a model to review proven changes."""

    stores: ArtifactStores
    differ: "Differ"
    reviewers: "Reviewers" = lambda _planner: None
    prompt_privacy: Callable[[str], PromptPrivacy] = lambda _workspace: PromptPrivacy.FULL
    """Returns a workspace's prompt privacy."""

    @activity.defn
    async def review_proof(self, request: ReviewRequest) -> ReviewResult:
        """Ask a model whether the change solves the task overall. Store the proof with the review.

        The same work is reviewed only once. If the model is slow or unavailable or gives no usable answer, there
        is simply no review. Not idempotent: each retry makes another paid request.
        """
        scope, attempt = request.scope, activity.info().attempt
        store = self.stores(Path(scope.workspace))
        work = await asyncio.to_thread(self._load, store, request)
        if work.earlier is not None:
            review, line, usage = work.earlier, "", None
        else:
            answer = await self._ask(work, root_of(scope))
            if answer.review is None:
                return ReviewResult(line=answer.reason, usage=answer.usage, attempt=attempt)
            review, usage = answer.review.evolve(subject=work.subject), answer.usage
            line = f"the model {review.model} " + (
                f"has doubts about the change: {review.doubt}" if review.doubt else "has no doubts about the change"
            )
            transcript = await asyncio.to_thread(put_text, store, answer.transcript, name="review transcript")
            review = review.evolve(transcript=transcript)
        proved = await asyncio.to_thread(self._store, store, request, work, review)
        return ReviewResult(proved=proved, line=line, usage=usage, attempt=attempt)

    def _load(self, store: ArtifactStore, request: ReviewRequest) -> "_Work":
        scope, proof = request.scope, get_model(store, request.proof, Proof)
        episode = get_model(store, scope.stored_request, EpisodeRequest)
        briefing = Briefing(
            goal=episode.goal,
            definition_of_done=tuple(check.run for check in episode.definition_of_done),
            prompt_privacy=self.prompt_privacy(str(Path(scope.workspace).resolve())),
        )
        identity = [proof.base_tree, proof.delivered_tree, briefing.goal, *briefing.definition_of_done]
        subject = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
        earlier = find_model(store, request.earlier, Proof)
        review = earlier.review if earlier is not None else None
        diff = self.differ.compare(store_folder_of(scope), proof.base_tree, proof.delivered_tree)
        return _Work(
            proof,
            episode.planner,
            briefing,
            subject,
            diff.patch.decode("utf-8", "replace"),
            review if review is not None and review.subject == subject else None,
        )

    async def _ask(self, work: "_Work", root: Path) -> ReviewAnswer:
        reviewer = self.reviewers(work.planner)
        if reviewer is None:
            return ReviewAnswer(None, "the change was not reviewed, because the planner does not use a model")
        if work.briefing.prompt_privacy is PromptPrivacy.SUMMARY:
            return ReviewAnswer(
                None, "the change was not reviewed, because privacy.prompts does not allow code in prompts"
            )
        if not work.patch:
            return ReviewAnswer(None, "the change was not reviewed, because it is too large")
        answer = await reviewer.review(work.briefing, work.patch, root)
        reason = shorten(f"the reviewer did not respond: {answer.reason}", REASON_CHARACTERS)
        return answer if answer.review is not None else answer._replace(reason=reason)

    def _store(self, store: ArtifactStore, request: ReviewRequest, work: "_Work", review: Review) -> ProveResult:
        versions = [version for file in read_patch(work.patch) for version in file.versions]
        answers = {version.path: find_approval(request.approvals, version) for version in versions}
        answered = {path: answer for path, answer in answers.items() if answer is not None}
        proof = add_review(work.proof, review, request.allow, answered)
        return store_proof(store, proof).evolve(change=shown_change(self.differ, request.scope, proof))


class _Work(NamedTuple):
    """A proven change, with an earlier review of the same change if there is one."""

    proof: Proof
    planner: str
    briefing: Briefing
    subject: str
    patch: str
    earlier: Review | None
