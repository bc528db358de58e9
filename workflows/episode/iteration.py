"""One iteration: plan, hand off, execute, verify, prove, track and reflect."""

from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from activities.checks.activity import VerificationActivities, VerifyRequest
from activities.coder.activity import CoderActivities
from activities.coder.port import TryCheckRequest, TryCheckResult
from activities.executor.activity import ConcludeRequest, ExecuteRequest, ExecutionActivities, HandOffRequest
from activities.planner.activity import DraftRequest, NextPlanRequest, PlanningActivities, WriteCheckRequest
from activities.planner.reflection import ReflectionActivities, ReflectRequest
from activities.proof.activity import ProofActivities, ReviewActivities
from activities.proof.port import AcceptRequest, BeginRequest, BeginResult, ProveRequest, ProveResult, ReviewRequest
from activities.tracking.activity import TrackingActivities, TrackRequest
from tightloop.coder.model import CODER, CoderInput, path_line
from tightloop.episode import decisions, state_changes
from tightloop.episode.budget import PROOF, checks_work
from tightloop.episode.check import Check, Verification
from tightloop.episode.decisions import ACCEPT, ALLOW, ASKED, WITHDRAW, make_question
from tightloop.episode.model import HEURISTIC, EpisodeOutcome, EpisodePhase, EpisodeState
from tightloop.episode.planning import PlanningOutcome, WrittenCheck
from tightloop.episode.proof import ProofVerdict
from tightloop.episode.scenarios import DRAFT_ROUNDS, HiddenScenarios, and_scenarios
from tightloop.executor.asking import (
    IN_A_WINDOW,
    RETRY,
    report_by_message,
    report_on_crash,
    report_on_impossible,
    report_on_work,
    report_question,
)
from tightloop.executor.model import ExecutorReport, ExecutorStatus
from tightloop.ledger.alert import AlertKind
from tightloop.plan.child import child_id
from tightloop.run.core import Evidence
from tightloop.run.outcome import Facts, with_announcements
from tightloop.run.question import QuestionKind
from tightloop.safety.drift import DriftCause
from tightloop.value import ArtifactRef, clip, format_count
from workflows.children import run_coder
from workflows.episode.record import EpisodeRecord
from workflows.episode.safe_points import EpisodeOver, QuestionAnswered, SafePoints
from workflows.run.activities import (
    GRACE,
    HAND_OFF_TIMEOUT,
    OPEN_TIMEOUT,
    PLAN_TIMEOUT,
    REFLECT_TIMEOUT,
    REVIEW_TIMEOUT,
    TRACK_TIMEOUT,
    ActivityOptions,
)

CHECKS_TRIED = 3
"""Maximum number of checks that the planner may write. If none of them is usable, the work starts without one."""
TRIAL_TIMEOUT = timedelta(minutes=30)
"""Timeout for the trial runs of one new check and its tests, each of which has its own limit."""


class Proof:
    """The baseline and the proof of an episode.

    The methods raise `EpisodeOver` when success is proven or accepted.
    """

    def __init__(self, record: EpisodeRecord, points: SafePoints) -> None:
        self._record, self._points = record, points

    async def begin(self) -> BeginResult:
        """Run the checks for the baseline, and store the initial tree with its untracked files.

        If drafts are enabled, a model first drafts hidden scenarios. Drafts are only requested once.
        """
        record = self._record
        drafts, goal = await self._draft(), record.request.goal
        self._points.enter(EpisodePhase.VERIFYING)
        baseline = await self._points.do(
            ProofActivities.begin,
            lambda: BeginRequest(
                scope=record.scope,
                expected_tree=record.state.tree,
                inherited=record.state.inherited,
                scenarios=record.request.scenarios,
                drafts=drafts,
                compare_with=record.state.checks if record.state.checked_tree else None,
                first_runs=record.state.first_runs,
            ),
            ActivityOptions(
                "checks before the first plan",
                # Checks that fail are run twice.
                2 * self._limit + self._hidden_limit(drafts) + OPEN_TIMEOUT,
                record.request.queues.workspace,
                work=checks_work(record.request.definition_of_done),
            ),
        )
        record.log_drift(baseline.verification.drift)
        record.log_drift(baseline.verification.touched)
        if baseline.drafts is not None and (record.request.goal != goal or not record.request.drafts):
            # Amended in the meantime.
            return baseline.evolve(drafts=None)
        if baseline.drafts is not None:
            used = format_count(baseline.drafts.count, "drafted scenario")
            record.log("scenarios", f"{used} will be part of the proof")
        return baseline

    async def _draft(self) -> HiddenScenarios | None:
        """Ask a model to draft hidden scenarios. Return None if the episode does not use drafts.

        The drafted scenarios have not been tried yet.
        """
        record = self._record
        # The work of a forked episode has begun, so nothing can fail at the start any more.
        if not record.request.drafts or record.state.drafts is not None or record.state.inherited is not None:
            return None
        if record.request.planner == HEURISTIC:
            record.replace(record.state.evolve(drafts=HiddenScenarios()))
            record.log("scenarios", "no scenarios were drafted, because the heuristic planner does not use a model")
            return None
        self._points.enter(EpisodePhase.PLANNING)
        drafted = await self._points.do(
            PlanningActivities.draft_scenarios,
            lambda: DraftRequest(scope=record.scope, limit=record.request.drafts),
            ActivityOptions("draft hidden scenarios", PLAN_TIMEOUT, record.request.queues.llm),
        )
        record.replace(
            record.state.evolve(drafts=HiddenScenarios(), spent=record.state.spent.with_usage(drafted.usage))
        )
        record.apply(state_changes.with_retries, drafted.attempt)
        if drafted.drafts is None:
            record.log("scenarios", f"no scenarios were drafted: {drafted.reason}")
        self._points.enter(EpisodePhase.VERIFYING)
        return drafted.drafts

    async def prove_success(self) -> None:
        """Prove the current tree. Returns only if more work is needed.

        Raises:
            EpisodeOver: success is proven, or a person accepted the tree.
        """
        while await self._prove():
            pass

    async def _prove(self) -> bool:
        """Prove the current tree once. Return True if scenarios were withdrawn and another proof is needed."""
        record = self._record
        self._points.enter(EpisodePhase.PROVING)
        proved = await self._points.do(
            ProofActivities.prove,
            lambda: ProveRequest(
                scope=record.scope,
                expected_tree=record.state.tree,
                beginning=record.state.beginning,
                allow=record.request.allow,
                approvals=record.state.approvals,
                failed_before=record.state.failed_before,
                worked=record.state.worked,
                flaky=record.state.flaky,
                scenarios=record.request.scenarios,
                drafts=record.state.drafts,
            ),
            ActivityOptions(
                "prove the result in a fresh checkout",
                # The checks run twice: as delivered, and with the original tests put back.
                2 * self._limit + self._hidden_limit(record.state.drafts) + OPEN_TIMEOUT,
                record.request.queues.workspace,
                work=checks_work(record.request.definition_of_done, PROOF),
            ),
        )
        record.log_drift(proved.drift)
        record.apply(state_changes.with_retries, proved.attempt)
        if not self._is_outdated and proved.verdict is ProofVerdict.PROVEN and record.request.review:
            proved = await self._review(proved)
        if self._is_outdated:
            return False
        record.replace(record.state.evolve(proof=proved.proof, evidence=proved.facts))
        if proved.verdict is not ProofVerdict.DOUBTED:
            raise self._success()
        limit = record.request.scenario_reports
        limit = min(limit, DRAFT_ROUNDS) if proved.failed_drafts else limit
        if proved.only_scenarios and record.state.scenario_reports < limit:
            record.apply(state_changes.with_failed_scenarios, proved.title)
            record.log(
                "doubted",
                f"{proved.title}. The planner was notified (report {record.state.scenario_reports} of {limit})",
            )
            return False
        tree = record.state.tree
        # Checks may have seen changes that were undone after they ran; the fresh checkout never contains them.
        undone = (drift for drift in record.core.drifts if drift.cause is DriftCause.DURING_CHECKS)
        evidence = (*(drift.sentence for drift in undone if drift.expected == tree), *proved.evidence)
        question = make_question(QuestionKind.PROOF, proved.title, evidence=evidence)
        if proved.failed_drafts:
            question = decisions.about_drafts(question, proved.failed_drafts, record.id)
        answer = await self._points.ask(decisions.about_change(question, proved.change))
        # Edits during the pause make the answer obsolete: it was about another tree.
        if record.state.checked_tree != record.state.tree or record.state.tree != tree:
            return False
        if answer is not None and answer.option == WITHDRAW:
            reason = f"{answer.by} decided that the scenarios are wrong"
            record.apply(state_changes.without_drafts, reason, proved.failed_drafts)
            return True
        if answer is None or answer.option not in (ACCEPT, ASKED):
            record.apply(state_changes.with_refused_proof, proved.title, proved.evidence)
            return False
        accepted = await self._points.do(
            ProofActivities.accept_proof,
            lambda: AcceptRequest(
                scope=record.scope,
                proof=proved.proof,
                by=answer.by,
                asked_for=record.state.approvals[-1] if answer.option == ASKED else None,
            ),
            ActivityOptions("record who accepted the proof", HAND_OFF_TIMEOUT, record.request.queues.workspace),
        )
        # Compared again: `do` passes a safe point first, where a pause may have brought edits.
        if record.state.tree == tree and not record.state.asked_for:
            record.replace(record.state.evolve(proof=accepted.proof, evidence=accepted.facts))
            raise self._success()
        return False

    @property
    def _is_outdated(self) -> bool:
        """True if a person has edited files, amended the request or asked for more since the checks ran."""
        state = self._record.state
        return state.checked_tree != state.tree or bool(state.asked_for)

    async def _review(self, proved: ProveResult) -> ProveResult:
        """Ask a model to review a proven change. Return the proof, including the review if there is one."""
        record = self._record
        if record.request.planner == HEURISTIC:
            record.log("review", "the change was not reviewed, because the heuristic planner does not use a model")
            return proved
        reviewed = await self._points.do(
            ReviewActivities.review_proof,
            lambda: ReviewRequest(
                scope=record.scope,
                proof=proved.proof,
                allow=record.request.allow,
                approvals=record.state.approvals,
                earlier=record.state.reviewed,
            ),
            ActivityOptions("review the change", REVIEW_TIMEOUT, record.request.queues.llm),
        )
        record.replace(record.state.evolve(spent=record.state.spent.with_usage(reviewed.usage)))
        record.apply(state_changes.with_retries, reviewed.attempt)
        if reviewed.line:
            record.log("review", reviewed.line)
        if reviewed.proved is None:
            return proved
        record.replace(record.state.evolve(reviewed=reviewed.proved.proof))
        return reviewed.proved

    def _success(self) -> EpisodeOver:
        state = self._record.state
        facts = Facts(**dict(state.evidence or Evidence()))
        text = f"all checks pass: {state.checks_text}{and_scenarios(facts.scenarios, facts.drafted)}"
        return EpisodeOver(EpisodeOutcome.SUCCEEDED, with_announcements(text, facts))

    def _hidden_limit(self, drafts: HiddenScenarios | None) -> timedelta:
        hidden = (self._record.request.scenarios, drafts)
        return timedelta(seconds=sum(scenarios.limit_s for scenarios in hidden if scenarios is not None))

    @property
    def _limit(self) -> timedelta:
        return GRACE + timedelta(seconds=sum(check.timeout_s for check in self._record.request.definition_of_done))


class FailingCheck:
    """Finds a failing check if all checks pass before the first plan."""

    def __init__(self, record: EpisodeRecord, points: SafePoints) -> None:
        self._record, self._points = record, points

    async def find(self) -> None:
        """Ask the planner's model to write a failing check, or ask the person at the terminal.

        Without a failing check, the checks only guard against regressions.
        """
        record = self._record
        problem = ""
        for _ in range(CHECKS_TRIED):
            written = await self._write(problem)
            if not written.by_model:
                return await self._ask()
            if written.check is None:
                problem = written.reason
                break
            tried = await self._try(written.check)
            if tried.run:
                record.amend(record.request.with_check(Check(run=tried.run)))
                record.is_amended = True
                record.apply(state_changes.with_added_check, tried.tree)
                return record.log("check", f"the planner added a check that fails: {tried.run}")
            problem = tried.problem
        record.log(
            "check", f"the planner found no failing check, so the checks only show that nothing breaks: {problem}"
        )
        record.replace(record.state.evolve(green_settled=True))
        return None

    async def _write(self, problem: str) -> WrittenCheck:
        record = self._record
        if record.request.planner == HEURISTIC:
            return WrittenCheck()
        self._points.enter(EpisodePhase.PLANNING)
        written = await self._points.do(
            PlanningActivities.write_check,
            lambda: WriteCheckRequest(scope=record.scope, problem=problem),
            ActivityOptions("write a check that fails", PLAN_TIMEOUT, record.request.queues.llm),
        )
        record.replace(record.state.evolve(spent=record.state.spent.with_usage(written.usage)))
        record.apply(state_changes.with_retries, written.attempt)
        return written

    async def _try(self, check: ArtifactRef) -> TryCheckResult:
        record = self._record
        self._points.enter(EpisodePhase.VERIFYING)
        tried = await self._points.do(
            CoderActivities.try_check,
            lambda: TryCheckRequest(scope=record.scope, expected_tree=record.state.tree, check=check),
            ActivityOptions("try the check that the planner wrote", TRIAL_TIMEOUT, record.request.queues.workspace),
        )
        record.log_drift(tried.drift)
        record.apply(state_changes.with_retries, tried.attempt)
        return tried

    async def _ask(self) -> None:
        record = self._record
        answer = None
        if record.request.attended:
            answer = await self._points.ask(decisions.already_green_question(record.request.definition_of_done))
        match answer and answer.option:
            case decisions.ADD:
                record.apply(state_changes.with_added_check, record.state.tree)
            case decisions.ACCEPT:
                # A claim like that of a planner: it counts if the checks still pass.
                record.replace(record.state.evolve(green_settled=True, plan_final=True))
            case _:
                record.replace(record.state.evolve(green_settled=True))


class Iteration:
    """The steps of one iteration. Each step runs at a safe point."""

    def __init__(self, record: EpisodeRecord, points: SafePoints, proof: Proof) -> None:
        self._record, self._points, self._proof = record, points, proof
        self._failing_check = FailingCheck(record, points)

    async def check_unseen_tree(self) -> None:
        """Run the checks if they have not run on the current tree.

        This is needed at the start, after edits and after an amendment.

        Raises:
            EpisodeOver: the checks pass and the success is proven.
        """
        record = self._record
        while True:
            # A loop, because people may change the tree or the request at the safe point before each activity.
            is_first = not record.state.checked_tree
            if record.state.beginning is None:
                begun = await self._proof.begin()
                record.apply(
                    state_changes.with_beginning,
                    begun.beginning,
                    begun.verification,
                    begun.scenario_failed,
                    begun.drafts,
                )
            elif record.state.checks is None or record.state.checked_tree != record.state.tree:
                verification = await self._run_checks("checks before the next plan", compare=not is_first)
                record.apply(state_changes.with_verification, verification, baseline=is_first)
            elif decisions.must_find_failing_check(record.state, record.request):
                await self._failing_check.find()
            else:
                return
            if decisions.is_complete(record.state):
                await self._proof.prove_success()

    async def wait_for_budget(self) -> None:
        """Wait until the budget allows another iteration."""
        while True:
            self._record.count_work()
            decision = decisions.guard_rails(self._record.state, self._record.now())
            if decision.question is None:
                return
            await self._points.apply_decision(decision)

    async def plan(self) -> PlanningOutcome:
        """Return a plan that may be carried out. If a person rejects a plan, request a new plan."""
        record = self._record
        while True:
            await self.check_unseen_tree()
            self._points.enter(EpisodePhase.PLANNING)
            notes: tuple[str, ...] = ()

            def ask() -> NextPlanRequest:
                nonlocal notes
                # Notes that arrive after this request was built stay queued for the next plan.
                notes = record.state.notes
                return NextPlanRequest.of(record.state, scope=record.scope)

            outcome = await self._points.do(
                PlanningActivities.next_plan,
                ask,
                ActivityOptions(
                    f"iteration {record.state.iteration}: next plan", PLAN_TIMEOUT, record.request.queues.llm
                ),
            )
            # Before the question about the plan, so that the planner's cost counts even if the plan is rejected.
            record.apply(state_changes.with_plan, outcome, notes)
            decision = decisions.after_planning(outcome, record.state.overruled)
            option = await self._points.apply_decision(decision)
            if decision.question is None or (option == ALLOW and decisions.is_plan_allowed(record.state, outcome)):
                return outcome

    async def verify(self) -> Verification:
        """Run the definition of done on the executor's result."""
        verification = await self._run_checks(f"iteration {self._record.state.iteration}: check the definition of done")
        self._record.apply(state_changes.with_verification, verification)
        return verification

    async def _run_checks(self, summary: str, *, compare: bool = True) -> Verification:
        record = self._record
        self._points.enter(EpisodePhase.VERIFYING)
        limit = timedelta(seconds=sum(check.timeout_s for check in record.request.definition_of_done))
        verification = await self._points.do(
            VerificationActivities.verify,
            lambda: VerifyRequest(
                scope=record.scope,
                expected_tree=record.state.tree,
                previous=record.state.checks if compare else None,
                failed_before=record.state.failed_before,
            ),
            ActivityOptions(
                summary,
                # A check's first failure is repeated.
                2 * limit + GRACE,
                record.request.queues.workspace,
                work=checks_work(record.request.definition_of_done),
            ),
        )
        record.log_drift(verification.drift)
        record.log_drift(verification.touched)
        return verification

    async def track(
        self, before: EpisodeState, report: ExecutorReport | None, verification: Verification | None
    ) -> None:
        """Record a checkpoint and classify the iteration.

        Args:
            before: state at the start of the iteration.
            report: the executor's report, if a plan was delivered.
            verification: check results, if the checks ran.
        """
        record = self._record
        self._points.enter(EpisodePhase.TRACKING)
        last = before.last_checkpoint
        tracked = await self._points.do(
            TrackingActivities.track_iteration,
            lambda: TrackRequest(
                scope=record.scope,
                # A checkpoint contains neither the list of checkpoints nor what only questions show.
                state=record.state.evolve(checkpoints=(), last_words="", change=None),
                base_tree=before.tree,
                base_lines=last.lines if last and last.tree == before.tree else None,
                previous_plan=before.plan,
                checks_before=before.checks_text,
                parent=last.id if last else None,
                report=report,
                verification=verification,
                worked=record.worked - before.spent.wall_time - record.state.repeated_work,
            ),
            ActivityOptions(
                f"iteration {record.state.iteration}: checkpoint and classification",
                TRACK_TIMEOUT,
                record.request.queues.workspace,
            ),
        )
        # Event id for a Temporal reset: the start of the current workflow task.
        checkpoint = tracked.checkpoint.evolve(event_id=workflow.info().get_current_history_length())
        record.apply(state_changes.with_tracking, tracked.evolve(checkpoint=checkpoint), verification)
        record.log_drift(tracked.drift)
        if tracked.memory_problem:
            record.log("memory", tracked.memory_problem)
        record.log(
            "iteration",
            f"{checkpoint.id}: {record.state.plan_title or 'no plan'} - checks {checkpoint.checks}, "
            f"{tracked.tracking.probability_class.value}, "
            f"{format_count(tracked.tracking.files_changed, 'file')} changed"
            + (f", executor {report.status.value}: {clip(report.error, 100)}" if report and report.error else ""),
        )

    async def reflect(self) -> None:
        """Run a reflection on the last iteration if there is a reason for one."""
        # A reset is itself a cause for reflection, so reconcile it before reading the cause.
        await self._points.tree.reconcile_reset()
        record, cause = self._record, self._record.state.reflect_next
        if cause is None:
            return
        self._points.enter(EpisodePhase.REFLECTING)
        outcome = await self._points.do(
            ReflectionActivities.reflect,
            lambda: ReflectRequest(
                scope=record.scope,
                cause=cause,
                detail=record.state.reflect_detail,
                plan_request=record.state.plan_request,
                checks=record.state.checks,
                previous=record.state.reflection,
                checkpoint=last.state if (last := record.state.last_checkpoint) else None,
            ),
            ActivityOptions(f"reflect: {cause.value}", REFLECT_TIMEOUT, record.request.queues.llm),
        )
        record.apply(state_changes.with_reflection, outcome)


class Delivery:
    """Delivers plans to an episode's executor."""

    def __init__(self, record: EpisodeRecord, points: SafePoints) -> None:
        self._record, self._points = record, points

    async def deliver(self, plan: PlanningOutcome) -> ExecutorReport:
        """Hand off a plan and execute it. After a limit or a question, the executor resumes where it stopped."""
        record, points = self._record, self._points
        number = 0
        while True:
            number += 1
            key = await self._hand_off(plan, number)
            before, worked = record.state.tree, record.worked
            report = await self._execute(key)
            worked = record.worked - worked
            # An executor that is cancelled may still report. A cancel, restore or move goes before that report.
            points.raise_if_leaving()
            if report.status is ExecutorStatus.PAUSED and points.is_pause_wanted:
                continue  # the pause begins before the next hand-off
            changed = record.state.tree != before
            decision = decisions.after_execution(record.state, report, record.request.executor, changed=changed)
            question = decision.question
            if question is None:
                if decision.wait is None:
                    return report
                record.apply(state_changes.with_repeated_work, worked)
                await self._back_off(report, decision.wait, decision.tell)
                continue
            if record.state.failed_deliveries:
                record.apply(state_changes.with_repeated_work, worked)
            answer = await points.ask(question, patience=decision.wait)
            if question.kind is QuestionKind.WORK and answer is not None:
                report = report_on_work(report, answer, tree=record.state.tree)
                if report.question is None:
                    record.apply(state_changes.with_settled_report, report)
                    return report
                question, answer = report.question, await points.ask(report.question)
            if question.kind is QuestionKind.IMPOSSIBLE:
                report = report_on_impossible(report, answer, tree=record.state.tree)
                record.apply(state_changes.with_settled_report, report)
                return report
            if question.kind is QuestionKind.CRASH and (answer is None or answer.option != RETRY):
                report = report_on_crash(report, tree=record.state.tree)
                record.apply(state_changes.with_settled_report, report)
                return report

    async def _hand_off(self, plan: PlanningOutcome, number: int) -> str:
        """Queue the plan and return the delivery's key."""
        if plan.plan is None:
            raise ApplicationError("the planner reported that it had a plan, but did not save it", non_retryable=True)
        record, reference = self._record, plan.plan
        self._points.enter(EpisodePhase.HANDING_OFF)
        handed = await self._points.do(
            ExecutionActivities.hand_off,
            lambda: HandOffRequest.of(record.state, scope=record.scope, plan=reference, delivery=number),
            ActivityOptions(f"iteration {record.state.iteration}: queue the plan", HAND_OFF_TIMEOUT, self._queue),
        )
        record.apply(state_changes.with_retries, handed.attempt)
        return handed.key

    async def _execute(self, key: str) -> ExecutorReport:
        record = self._record
        self._points.enter(EpisodePhase.EXECUTING)
        limit = timedelta(seconds=record.request.executor.wall_limit_s)
        name = record.request.executor.name
        summary = f"{name}: {record.state.plan_title}"
        # An agent in an editor window is not a process that ends: the agent or a person has to say that it is done.
        reports = name in IN_A_WINDOW
        try:
            report = await self._points.do(
                ExecutionActivities.execute,
                lambda: ExecuteRequest(scope=record.scope, key=key, expected_tree=record.state.tree),
                ActivityOptions(
                    summary, limit + GRACE, self._queue, open_question=report_question() if reports else None
                ),
            )
        except QuestionAnswered as answered:
            # The answer has stopped the activity before it could report, so only the files tell what was done.
            before = ExecutorReport(status=ExecutorStatus.NEEDS_PERSON, key=key, new_tree=record.state.tree)
            await self._points.tree.take_tree("collect the files that the agent left behind")
            report = report_by_message(before, answered.answer, executor=name, tree=record.state.tree)
        record.log_drift(report.drift)
        self._log_stand_in(report)
        if report.status is ExecutorStatus.DELEGATED:
            report = await self._by_coder(report)
        record.apply(state_changes.with_report, report)
        return report

    async def _by_coder(self, begin_report: ExecutorReport) -> ExecutorReport:
        """Run the delivery as a coder workflow, and report its outcome."""
        record = self._record
        limit = record.request.executor.wall_limit_s
        title = f"{CODER}: {record.state.plan_title}"
        _, _, key_path = begin_report.key.partition("/")
        # Derived from the key: each delivery has its own workflow, and after a reset its orphan is found by id.
        identity = child_id(record.id, CODER, record.state.iteration, key_path.rpartition("/")[2])
        result = await self._points.do_workflow(
            lambda: run_coder(identity, self._coder_input(begin_report, limit), title),
            ActivityOptions(title, timedelta(seconds=limit)),
            pause=lambda: workflow.get_external_workflow_handle(identity).signal("pause"),
        )
        record.log(CODER, path_line(result.progress))
        return await self._points.do(
            ExecutionActivities.conclude,
            lambda: ConcludeRequest(scope=record.scope, begun=begin_report, result=result),
            ActivityOptions(f"{CODER}: conclude the delivery", HAND_OFF_TIMEOUT, self._queue, at_once=True),
        )

    def _coder_input(self, begin_report: ExecutorReport, limit_s: float) -> CoderInput:
        record = self._record
        scope = record.scope
        return CoderInput.of(
            scope,
            absence_s=record.request.queues.absence_s,
            within=scope.holder,
            key=begin_report.key,
            base_tree=begin_report.new_tree,
            title=record.state.plan_title,
            wall_limit_s=limit_s,
        )

    async def _back_off(self, report: ExecutorReport, wait: timedelta, tell: str) -> None:
        record = self._record
        text = (report.limit.evidence if report.limit else "") or report.error or report.summary
        failures = record.state.failed_deliveries
        record.log(
            "limit", f"delivery failure {failures}: next attempt in {wait.total_seconds():g} s. {clip(text, 200)}"
        )
        if tell:
            record.alerts.send(record.alert(AlertKind.FAILING, tell))
        await self._points.back_off(wait)

    def _log_stand_in(self, report: ExecutorReport) -> None:
        """Log that a fallback executor was used. Each reason is logged only once."""
        if not report.executor:
            return
        why = "; ".join(report.passed_over)
        text = f"{report.executor} replaces {self._record.request.executor.name}: {why}"
        noted = [entry.text[:200] for entry in self._record.core.timeline if entry.kind == "fallback"]
        if text[:200] not in noted:
            self._record.log("fallback", text)

    @property
    def _queue(self) -> str:
        queues = self._record.request.queues
        return queues.executor or queues.workspace
