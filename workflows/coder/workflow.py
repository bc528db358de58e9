"""The coder workflow: plan, code, test, reflect - until the checks are green or a bound is reached.

It is the executor `coder`: a child of the episode whose plan it carries out. What a turn and a tool call do is in
`activities/coder/`; the episode concludes the delivery with what this returns.
"""

from datetime import timedelta
from typing import Any, ClassVar, NoReturn

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from activities.coder.activity import CoderActivities
from activities.coder.requests import BeginRequest, Checked, CheckRequest, Judged, JudgeRequest
from activities.workspace.scope import EpisodeScope
from tightloop.coder import course
from tightloop.coder.display import details_markdown
from tightloop.coder.input import CoderInput
from tightloop.coder.model import (
    CODER,
    PLANNER,
    REFLECTOR,
    TESTER,
    CoderResult,
    CoderState,
    CoderStatus,
)
from tightloop.episode.model import Queues
from tightloop.episode.timeline import TimelineLine
from tightloop.executor.model import ExecutorStatus
from tightloop.safety.seal import check_start
from tightloop.value.artifact import ArtifactRef
from workflows.coder.conversations import Conversations, Ended, RunOver, Why
from workflows.shared.activities import GRACE, ActivityFailedError, ActivityOptions, ActivityRunner
from workflows.shared.refusal import refusals
from workflows.shared.reporter import STATUS
from workflows.shared.versioning import continue_as_new

BEGIN_TIMEOUT = timedelta(minutes=2)
CHECK_TIMEOUT = timedelta(hours=2)
"""For the whole definition of done; each check has a limit of its own."""
_STATUS_OF = {Why.STUCK: ExecutorStatus.FAILED, Why.BOUND: ExecutorStatus.FAILED}


class _Over(Exception):  # noqa: N818 - it ends the delivery, it is not an error
    """The delivery has ended."""

    def __init__(self, ended: Ended) -> None:
        super().__init__(ended.reason)
        self.ended = ended


@workflow.defn
class CoderWorkflow:
    """One delivery to the built-in coder. Its history has one activity for each answer of a model."""

    timeline_limit: ClassVar[int] = 100

    @workflow.init
    def __init__(self, given: CoderInput) -> None:
        """Restore what the previous run left."""
        self._given = given
        self._scope = EpisodeScope(
            episode_id=workflow.info().workflow_id,
            workspace=given.workspace,
            worktree=given.worktree,
            request=given.request,
            home=given.home,
            within=given.within,
        )
        self._runner = ActivityRunner(lambda: Queues(home=given.home, absence_s=given.absence_s))
        self._conversations = Conversations(given, self._scope, self._runner, self._show)
        self._timeline: list[TimelineLine] = []

    @workflow.run
    async def run(self, given: CoderInput) -> CoderResult:
        """Carry the delivery out. It never fails for what a model or a tool does: the result says how it ended."""
        with refusals():
            if given.sealed_as is not None:
                info = workflow.info()
                started = int(info.workflow_start_time.timestamp() * 1000)
                check_start(
                    given.sealed_as,
                    started=started,
                    is_child=info.parent is not None,
                    is_continued=info.continued_run_id is not None,
                )
        try:
            await self._begin()
            while True:
                await self._step()
        except _Over as over:
            return self._end(over.ended)
        except ActivityFailedError as failure:
            # As it was: once a person has mended what is wrong, it goes on from there.
            progress = self._conversations.progress
            self._enter(CoderState.FAILED)
            return self._result(ExecutorStatus.FATAL, error=failure.reason).evolve(progress=progress)
        except RunOver:
            self._continue_as_new()

    # -- the order of things ------------------------------------------------------------------------

    async def _begin(self) -> None:
        if self._given.session:
            return
        brief = await self._runner.run(
            CoderActivities.begin_coding,
            BeginRequest(scope=self._scope, key=self._given.key),
            ActivityOptions("begin", BEGIN_TIMEOUT),
        )
        self._conversations.session, self._conversations.bounds = brief.session, brief.bounds
        self._conversations.progress = brief.progress
        if brief.progress.state is CoderState.INIT:
            self._enter(CoderState.PLANNING if brief.bounds.planning else CoderState.CODING)
        else:
            self._enter(brief.progress.state)

    async def _step(self) -> None:
        """Do what the state says, and enter the next one."""
        match self._conversations.progress.state:
            case CoderState.PLANNING:
                await self._plan()
            case CoderState.CODING:
                await self._code()
            case CoderState.TESTING:
                await self._test()
            case CoderState.REFLECTING:
                await self._reflect()
            case state:
                raise ApplicationError(f"a coder cannot be in state {state.value} here", non_retryable=True)

    async def _plan(self) -> None:
        ended = await self._talk(PLANNER)
        # Without a plan of its own it works by that of the episode.
        self._enter(CoderState.CODING, said=ended.result)

    async def _code(self) -> None:
        ended = await self._talk(CODER)
        if ended.why is not Why.FINISHED:
            raise _Over(ended)
        self._enter(CoderState.TESTING)

    async def _test(self) -> None:
        """Run the definition of done; once it is green, have tests written that can fail."""
        checked = await self._check()
        if not checked.green:
            if not course.may_reflect(self._conversations.progress, self._conversations.bounds):
                raise _Over(Ended(Why.BOUND, reason=f"the checks are still red: {checked.summary}"))
            self._enter(CoderState.REFLECTING, said=checked.said, role=REFLECTOR)
            return
        found = checked.bandit_findings
        self._conversations.progress = self._conversations.progress.evolve(bandit_findings=found)
        if course.wants_tests(self._conversations.progress, self._conversations.bounds):
            await self._write_tests(checked)
            return
        raise _Over(Ended(Why.FINISHED))

    async def _write_tests(self, checked: Checked) -> None:
        await self._talk(TESTER)
        self._conversations.progress = self._conversations.progress.evolve(tested=True)
        judged: Judged = await self._runner.run(
            CoderActivities.judge_tests,
            JudgeRequest(
                scope=self._scope,
                key=self._given.key,
                base_tree=self._given.base_tree,
                coded_tree=checked.tree,
            ),
            ActivityOptions("prove that the new tests can fail", CHECK_TIMEOUT),
        )
        self._log("tests", judged.summary)
        if judged.changed:
            coverage = judged.covered / judged.changed
            self._conversations.progress = self._conversations.progress.evolve(coverage=coverage)
        if not judged.accepted and not judged.refused:
            raise _Over(Ended(Why.FINISHED))
        # Mutants that survive are work for the coder; without any the checks are run once more, with the new tests.
        self._enter(CoderState.CODING if judged.survived else CoderState.TESTING, said=judged.said)

    async def _reflect(self) -> None:
        ended = await self._talk(REFLECTOR)
        self._conversations.close(REFLECTOR)
        self._conversations.progress = self._conversations.progress.evolve(round=self._conversations.progress.round + 1)
        self._enter(CoderState.CODING, said=ended.result)

    async def _talk(self, role: str) -> Ended:
        """Go on with a role; what only a person can decide ends the delivery, and so does the last bound."""
        ended = await self._conversations.talk(role)
        if ended.why in (Why.QUESTION, Why.PAUSED) or (ended.why is Why.BOUND and role == CODER):
            raise _Over(ended)
        if ended.why is not Why.FINISHED:
            self._log(role, ended.reason)
        return ended

    async def _check(self) -> Checked:
        request = CheckRequest(
            scope=self._scope, key=self._given.key, session=self._conversations.session, base_tree=self._given.base_tree
        )
        options = ActivityOptions("run the definition of done", CHECK_TIMEOUT + GRACE)
        checked: Checked = await self._runner.run(CoderActivities.check_work, request, options)
        if checked.question is not None:
            raise _Over(Ended(Why.QUESTION, question=checked.question))
        self._log("checks", checked.summary)
        return checked

    # -- how it ends ----------------------------------------------------------------------------------

    def _end(self, ended: Ended) -> CoderResult:
        if ended.question is not None:
            return self._result(ExecutorStatus.NEEDS_PERSON).evolve(question=ended.question)
        if ended.why is Why.PAUSED:
            return self._result(ExecutorStatus.PAUSED)
        status = _STATUS_OF.get(ended.why, ExecutorStatus.COMPLETED)
        self._enter(CoderState.SUCCESS if status is ExecutorStatus.COMPLETED else CoderState.FAILED)
        return self._result(status, error=ended.reason)

    def _result(self, status: ExecutorStatus, *, error: str = "") -> CoderResult:
        return CoderResult(
            status=status, session=self._conversations.session, progress=self._conversations.progress, error=error
        )

    def _continue_as_new(self) -> NoReturn:
        worked = (workflow.now() - workflow.info().start_time).total_seconds()
        continue_as_new(
            self._given.evolve(
                session=self._conversations.session,
                bounds=self._conversations.bounds,
                progress=self._conversations.progress,
                worked_s=self._given.worked_s + worked,
            )
        )

    @workflow.signal(description="Stop before the next turn. The episode pauses, and goes on from there.")
    def pause(self, *_reason: Any) -> None:
        """Ask for a pause; asking twice is harmless."""
        self._conversations.pause_wanted = True

    # -- what people see --------------------------------------------------------------------------------

    def _enter(self, state: CoderState, *, said: ArtifactRef | None = None, role: str = CODER) -> None:
        """Go on with a state, and show it; `said` is for the next turn of a role."""
        if said is not None:
            self._conversations.say(role, said)
        self._conversations.progress = self._conversations.progress.entering(state)
        self._log(state.value.lower())
        # Search attributes are plain text for everybody: an enum value, and nothing else.
        workflow.upsert_search_attributes([STATUS.value_set(state.value.lower())])
        self._show()

    def _log(self, kind: str, text: str = "") -> None:
        place = f"turn {self._conversations.progress.turns}"
        entry = TimelineLine(at=workflow.now(), kind=kind, text=f"{text} ({place})" if text else place)
        self._timeline = [*self._timeline, entry][-self.timeline_limit :]

    def _show(self) -> None:
        workflow.set_current_details(details_markdown(self.status()))

    @property
    def place(self) -> str:
        """Where it is, for a replay."""
        return f"{self._conversations.progress.state.value}, turn {self._conversations.progress.turns}"

    @workflow.query(description="State, turns and tokens of the delivery")
    def status(self) -> CoderStatus:
        """Return a snapshot."""
        return CoderStatus.of(
            self._conversations.progress,
            title=self._given.title,
            session=self._conversations.session,
            max_turns=self._conversations.bounds.max_turns,
        )

    @workflow.query(description="What happened in this run, newest last")
    def timeline(self) -> list[TimelineLine]:
        """Return the last lines."""
        return list(self._timeline)
