"""The coder's activities."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError
from temporalio import activity
from temporalio.exceptions import CancelledError

from activities.artifacts.port import ArtifactStores, get_model, put_text, write_durably
from activities.attempt import should_stop
from activities.checks.activity import run_check
from activities.coder.port import (
    Brief,
    CheckWorkResult,
    CoderMemory,
    CoderRequest,
    CoderScope,
    JudgeRequest,
    JudgeResult,
    ToolContext,
    ToolRequest,
    TryCheckRequest,
    TryCheckResult,
    TurnRequest,
)
from activities.executor.port import Outboxes
from activities.model.observed import operation
from activities.workspace.folders import root_of, state_folder_of
from activities.workspace.scope import EpisodeScope
from tightloop import telemetry
from tightloop.coder import course
from tightloop.coder.model import CODER, Bounds, CallResult, CoderProgress, Turn, known_tools, session_of, session_path
from tightloop.episode.model import EpisodeRequest
from tightloop.episode.planning import ProposedCheck
from tightloop.errors import ExecutorError
from tightloop.executor.model import WorkOrder
from tightloop.host import private_folder
from tightloop.safety.drift import DriftCause
from tightloop.value import LruCache, clip, format_count, shorten
from tightloop.value.scrub import scrub

if TYPE_CHECKING:
    # Workflows import this module, but must not import these.
    from activities.checks.runner import CheckRunner
    from activities.coder.calls import ToolExecutor
    from activities.coder.reviewing import ChangedTests, CodeReviewer
    from activities.coder.turns import TurnTaker
    from activities.workspace.working_tree import WorkingTree, Workspaces


def keep_progress(state_folder: Path, session: str, progress: CoderProgress) -> None:
    """Store a session's progress, so that a later delivery can continue the session."""
    folder = state_folder / session_path(session)
    private_folder(folder)
    write_durably(folder / "progress.json", progress.model_dump_json().encode())


def read_progress(state_folder: Path, session: str) -> CoderProgress:
    """Return the stored progress of a session, or empty progress if none is stored."""
    path = state_folder / session_path(session) / "progress.json"
    # An unreadable file only means reading the journal from its start.
    with contextlib.suppress(OSError, ValidationError):
        return CoderProgress.model_validate_json(path.read_bytes())
    return CoderProgress()


FAILING_CHARACTERS = 4_000
"""Output limit for one failing check in the model's prompt."""
FAILING_CHECKS = 5
PROBLEM_CHARACTERS = 1_500
"""Maximum length of the reason why a check by the planner does not count, including the end of its output."""
UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class CoderActivities:
    """The coder's activities: turns, tools and checks."""

    workspaces: "Workspaces"
    stores: ArtifactStores
    outboxes: Outboxes
    turns: "TurnTaker"
    tool_executor: "ToolExecutor"
    tests: "ChangedTests"
    reviewer: "CodeReviewer"
    checks: "CheckRunner"
    memory_of: Callable[[EpisodeScope], CoderMemory | None]
    bounds: Bounds
    orders: LruCache[tuple[str, str], WorkOrder] = field(default_factory=lambda: LruCache(16))
    """Recently used work orders, by workspace and key. The outbox never changes one."""

    # An exception that the SDK injects into the thread could interrupt the write of a journal entry.
    @activity.defn(no_thread_cancel_exception=True)
    def begin_coding(self, request: CoderRequest) -> Brief:
        """Return the session of a delivery and the progress made so far. This has no side effects."""
        resume = self._order(request.scope).resume
        if resume is None or resume.adapter != CODER:
            return Brief(session=session_of(request.scope.key), bounds=self.bounds)
        progress = course.resume_progress(read_progress(state_folder_of(request.scope), resume.session_id))
        return Brief(session=resume.session_id, bounds=self.bounds, progress=progress)

    @activity.defn
    async def take_turn(self, request: TurnRequest) -> Turn:
        """Ask a model for its next turn. A turn that is already in the journal is reused and not paid for again.

        Raises:
            PlannerError: the service refuses. Not retryable.
            PlannerUnavailableError: the service is busy or down. Retryable.
        """
        order = self._order(request.scope)
        # Only the first turn of a conversation includes the task; later ones have it in the conversation.
        task = order.prompt if request.node is None else ""
        store = self.stores(Path(request.scope.workspace))
        return await self.turns.take(request, task, store, model=order.executor.model, beat=activity.heartbeat)

    @activity.defn(no_thread_cancel_exception=True)
    def use_tool(self, request: ToolRequest) -> CallResult:
        """Carry out one tool call of a turn. Idempotent, because a call in the journal is not repeated."""
        folder = state_folder_of(request.scope) / session_path(request.scope.session)
        call = self.turns.read(folder, request.turn).calls[request.index]

        def use(tree: "WorkingTree | None") -> CallResult:
            context = self._context(request.scope, tree)
            # A model may invent arbitrary tool names.
            name = call.tool if call.tool in known_tools() else UNKNOWN
            attributes = {
                telemetry.TOOL: name,
                telemetry.TOOL_CALL: call.id,
                telemetry.CONVERSATION: request.scope.session,
            }
            with operation(telemetry.EXECUTE_TOOL, name, attributes) as span:
                result = self.tool_executor.use(request.turn, request.index, call, context, folder)
                span.note({telemetry.ERROR: "ToolError" if result.failed else None})
            return result

        # Reading needs no exclusive tree, so such calls run side by side.
        if self.tool_executor.heads([call])[0].reads:
            return use(None)
        with self.workspaces.hold(request.scope) as tree:
            result = use(tree)
        # Nothing is injected into this thread, so the activity reports its cancellation itself.
        if should_stop():
            raise CancelledError(f"{call.tool} was stopped")
        return result

    @activity.defn(no_thread_cancel_exception=True)
    def check_work(self, request: CoderRequest) -> CheckWorkResult:
        """Run the definition of done on the current files. Idempotent.

        Changes that the checks make to the files are reverted.
        """
        store = self.stores(Path(request.scope.workspace))
        checks = get_model(store, request.scope.stored_request, EpisodeRequest).definition_of_done
        with self.workspaces.hold(request.scope) as tree:
            context = self._context(request.scope, tree)
            snapshot = tree.snapshot()
            # The checks execute the code of the coder, so it is reviewed first.
            if (refusal := self.reviewer.review(context)) is not None:
                return CheckWorkResult(
                    tree=snapshot,
                    said=put_text(store, refusal.text.encode(), name="safety"),
                    summary="the checks did not run, because the safety layers rejected the code",
                    question=refusal.question,
                )
            results = []
            try:
                for check in checks:
                    results.append(
                        run_check(self.checks, check, tree, store, expected_tree=snapshot, cancelled=should_stop)
                    )
            finally:
                # Also after a cancellation: what a check wrote must not become part of the delivery.
                tree.ensure(snapshot, DriftCause.DURING_CHECKS)
            bandit_findings = self.reviewer.bandit_findings(context)
        red = [result for result in results if not result.passed]
        if not red:
            summary = f"{format_count(len(results), 'check')} passed"
            return CheckWorkResult(green=True, tree=snapshot, bandit_findings=bandit_findings, summary=summary)
        parts = [
            f"The check `{result.name}` failed ({result.status.value}):\n{clip(scrub(result.tail), FAILING_CHARACTERS)}"
            for result in red[:FAILING_CHECKS]
        ]
        if len(red) > FAILING_CHECKS:
            parts.append(f"{format_count(len(red) - FAILING_CHECKS, 'further check')} failed.")
        report = put_text(store, "\n\n".join(parts).encode(), name="red checks")
        return CheckWorkResult(
            tree=snapshot, said=report, summary=f"{len(red)} of {format_count(len(results), 'check')} failed"
        )

    @activity.defn(no_thread_cancel_exception=True)
    def judge_tests(self, request: JudgeRequest) -> JudgeResult:
        """Verify that new tests can fail. Delete test files that contain no such test.

        Apart from the deletion, this is idempotent.
        """
        with self.workspaces.hold(request.scope) as tree:
            return self.tests.judge(self._context(request.scope, tree), request.coded_tree)

    @activity.defn(no_thread_cancel_exception=True)
    def try_check(self, request: TryCheckRequest) -> TryCheckResult:
        """Try a check on the tree as it was before any work. Idempotent.

        If the check fails with an assertion, its test file is added to the tree.
        """
        store = self.stores(Path(request.scope.workspace))
        proposed = get_model(store, request.check, ProposedCheck)
        with self.workspaces.hold(request.scope) as tree:
            drift = tree.expect(request.expected_tree)
            context = ToolContext(
                root=root_of(request.scope),
                base_tree=request.expected_tree,
                store=store,
                cancelled=should_stop,
                started=tree.own_process,
                tree=tree,
            )
            after, problem = request.expected_tree, ""
            try:
                after, problem = self.tests.try_check(context, proposed, self.checks)
            finally:
                # Also after a cancellation: what the check wrote must not be taken for a person's edits.
                tree.ensure(after, DriftCause.DURING_CHECKS)
        return TryCheckResult(
            tree=after,
            run="" if problem else proposed.run,
            problem=shorten(scrub(problem), PROBLEM_CHARACTERS),
            drift=drift,
            attempt=activity.info().attempt,
        )

    def _context(self, scope: CoderScope, tree: "WorkingTree | None") -> ToolContext:
        order = self._order(scope)
        return ToolContext(
            root=root_of(scope),
            base_tree=scope.base_tree,
            store=self.stores(Path(scope.workspace)),
            checks=order.plan.definition_of_done,
            grants=order.grants,
            cancelled=should_stop,
            started=tree.own_process if tree is not None else lambda _pid: None,
            tree=tree,
            memory=self.memory_of(scope),
        )

    def _order(self, scope: CoderScope) -> WorkOrder:
        workspace = Path(scope.workspace)
        if (order := self.orders.get((scope.workspace, scope.key))) is not None:
            return order
        delivery = self.outboxes(workspace).get(scope.key)
        if delivery is None:
            raise ExecutorError(
                f"delivery {scope.key} not found in the outbox of {workspace}. Check whether the state folder was "
                "removed"
            )
        order = get_model(self.stores(workspace), delivery.order, WorkOrder)
        self.orders.put((scope.workspace, scope.key), order)
        return order
