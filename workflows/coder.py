"""Coder workflow."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple, NoReturn

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from activities.coder.activity import CoderActivities
from activities.coder.port import (
    CheckWorkResult,
    CoderRequest,
    CoderScope,
    JudgeRequest,
    JudgeResult,
    ToolRequest,
    TurnRequest,
)
from tightloop.coder import course
from tightloop.coder.model import (
    CODER,
    PLANNER,
    REFLECTOR,
    TESTER,
    CallHead,
    CallResult,
    CoderInput,
    CoderResult,
    CoderState,
    CoderStatus,
    ConversationState,
    Turn,
    details_markdown,
)
from tightloop.executor.model import ExecutorStatus, total
from tightloop.run.core import Queues, TimelineLine
from tightloop.run.question import Question
from tightloop.value import ArtifactRef
from workflows.run.activities import GRACE, ActivityFailedError, ActivityOptions, ActivityRunner, Routing
from workflows.run.kernel import ContinueAsNew, check_seal, refusals
from workflows.run.reporting import STATUS
from workflows.run.workflow import continue_as_new, is_other_build_wanted

Calls = Sequence[tuple[int, CallHead]]

TURN_TIMEOUT = timedelta(minutes=15)
"""Timeout of a turn. It exceeds the maximum of `coder.timeout_s`, which limits a single model response."""
TOOL_TIMEOUT = timedelta(seconds=50)
"""Timeout of file tools. They are local activities, so a worker that dies must not block the workflow for long."""
RUN_TIMEOUT = timedelta(hours=2)
"""Timeout of tools that run a program. Each program has its own, shorter limit."""


class EndReason(StrEnum):
    """Reasons why a conversation ends."""

    FINISHED = "finished"
    BOUND = "bound"
    STUCK = "stuck"
    QUESTION = "question"
    PAUSED = "paused"


class ConversationEnd(NamedTuple):
    """The end of a conversation, with the reason."""

    cause: EndReason
    result: ArtifactRef | None = None
    """The model's final message."""
    reason: str = ""
    question: Question | None = None


def _pending_calls(talk: ConversationState) -> Calls:
    """Return the tool calls of the last response that have not run yet, with their indexes."""
    turn = talk.turn
    return [] if turn is None or turn.problem else list(enumerate(turn.calls))[len(talk.results) :]


def _find_end(talk: ConversationState) -> ConversationEnd | None:
    """Return the end of the conversation, or None if it continues after the last tool results."""
    for result in talk.results:
        if result.question is not None:
            return ConversationEnd(EndReason.QUESTION, question=result.question)
        if result.finished:
            return ConversationEnd(EndReason.FINISHED, result=result.result)
    reason = course.why_stuck(talk)
    return ConversationEnd(EndReason.STUCK, reason=reason) if reason else None


BEGIN_TIMEOUT = timedelta(minutes=2)
CHECK_TIMEOUT = timedelta(hours=2)
"""Timeout of the whole definition of done. Each check also has its own limit."""
_STATUS_OF = {EndReason.STUCK: ExecutorStatus.FAILED, EndReason.BOUND: ExecutorStatus.FAILED}


class _DeliveryOver(Exception):  # noqa: N818 - it ends the delivery, it is not an error
    """Raised to end the delivery."""

    def __init__(self, ended: ConversationEnd) -> None:
        super().__init__(ended.reason)
        self.ended = ended


@workflow.defn
class CoderWorkflow:
    """One delivery to the built-in coder. The history contains one activity per model response."""

    timeline_limit: ClassVar[int] = 100

    @workflow.init
    def __init__(self, coder_input: CoderInput) -> None:
        """Restore the progress of the previous Temporal run."""
        self._given = coder_input
        self._scope = CoderScope.of(coder_input, episode_id=workflow.info().workflow_id)
        self._runner = ActivityRunner(Routing(Queues(home=coder_input.home, absence_s=coder_input.absence_s)))
        self._bounds, self._progress = coder_input.bounds, coder_input.progress
        self._pause_wanted = False
        self._timeline: list[TimelineLine] = []

    @workflow.run
    async def run(self, coder_input: CoderInput) -> CoderResult:
        """Run the delivery.

        Errors from the model or the tools never fail the workflow. They are reported in the result's status.
        """
        # An `ApplicationError` fails the workflow; any other error would only fail the task, again and again.
        with refusals():
            check_seal(coder_input.sealed_as)
        try:
            await self._begin()
            while True:
                await self._step()
        except _DeliveryOver as over:
            return self._end(over.ended)
        except ActivityFailedError as failure:
            # Keep the progress unchanged, so that the delivery resumes once a person has fixed the cause.
            progress = self._progress
            self._enter(CoderState.FAILED)
            return self._result(ExecutorStatus.FATAL, error=failure.reason).evolve(progress=progress)
        except ContinueAsNew:
            self._continue_as_new()

    # -- states -------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        if self._given.session:
            return
        brief = await self._runner.run(
            CoderActivities.begin_coding,
            CoderRequest(scope=self._scope),
            ActivityOptions("begin", BEGIN_TIMEOUT),
        )
        self._scope = self._scope.evolve(session=brief.session)
        self._bounds, self._progress = brief.bounds, brief.progress
        if brief.progress.state is CoderState.INIT:
            self._enter(CoderState.PLANNING if brief.bounds.planning else CoderState.CODING)
        else:
            self._enter(brief.progress.state)

    async def _step(self) -> None:
        """Carry out the current state and enter the next state."""
        match self._progress.state:
            case CoderState.PLANNING:
                await self._plan()
            case CoderState.CODING:
                await self._code()
            case CoderState.TESTING:
                await self._test()
            case CoderState.REFLECTING:
                await self._reflect()
            case state:
                raise ApplicationError(f"the coder cannot continue from state {state.value}", non_retryable=True)

    async def _plan(self) -> None:
        ended = await self._converse(PLANNER)
        # Without a plan of its own the coder follows the plan of the episode.
        self._enter(CoderState.CODING, message=ended.result)

    async def _code(self) -> None:
        ended = await self._converse(CODER)
        if ended.cause is not EndReason.FINISHED:
            raise _DeliveryOver(ended)
        self._enter(CoderState.TESTING)

    async def _test(self) -> None:
        """Run the definition of done. If it passes and new tests are wanted, ask the tester to write them."""
        checked = await self._check()
        if not checked.green:
            if not course.may_reflect(self._progress, self._bounds):
                raise _DeliveryOver(ConversationEnd(EndReason.BOUND, reason=f"checks still fail: {checked.summary}"))
            self._enter(CoderState.REFLECTING, message=checked.said, role=REFLECTOR)
            return
        self._progress = self._progress.evolve(bandit_findings=checked.bandit_findings)
        if course.wants_tests(self._progress, self._bounds):
            await self._write_tests(checked)
            return
        raise _DeliveryOver(ConversationEnd(EndReason.FINISHED))

    async def _write_tests(self, checked: CheckWorkResult) -> None:
        await self._converse(TESTER)
        # Set before the tests are judged: rejected ones must not send the delivery back to the tester forever.
        self._progress = self._progress.evolve(tested=True)
        judged: JudgeResult = await self._runner.run(
            CoderActivities.judge_tests,
            JudgeRequest(scope=self._scope, coded_tree=checked.tree),
            ActivityOptions("prove that the new tests can fail", CHECK_TIMEOUT),
        )
        self._log("tests", judged.summary)
        if judged.changed:
            self._progress = self._progress.evolve(coverage=judged.covered / judged.changed)
        if not judged.accepted and not judged.refused:
            raise _DeliveryOver(ConversationEnd(EndReason.FINISHED))
        # Surviving mutants go to the coder. Without any, run the checks once more with the new tests.
        self._enter(CoderState.CODING if judged.survived else CoderState.TESTING, message=judged.said)

    async def _reflect(self) -> None:
        ended = await self._converse(REFLECTOR)
        # The next round has another failure to explain; the old conversation would bias it and cost tokens.
        talks = {role: talk for role, talk in self._progress.talks.items() if role != REFLECTOR}
        self._progress = self._progress.evolve(talks=talks, round=self._progress.round + 1)
        self._enter(CoderState.CODING, message=ended.result)

    async def _converse(self, role: str) -> ConversationEnd:
        """Continue a role's conversation.

        The delivery ends at a question, at a pause, or when the coder reaches a limit.
        """
        ended = await self._take_turns(role)
        if ended.cause in (EndReason.QUESTION, EndReason.PAUSED) or (ended.cause is EndReason.BOUND and role == CODER):
            raise _DeliveryOver(ended)
        if ended.cause is not EndReason.FINISHED:
            self._log(role, ended.reason)
        return ended

    async def _check(self) -> CheckWorkResult:
        request = CoderRequest(scope=self._scope)
        options = ActivityOptions("run the definition-of-done checks", CHECK_TIMEOUT + GRACE)
        checked: CheckWorkResult = await self._runner.run(CoderActivities.check_work, request, options)
        if checked.question is not None:
            raise _DeliveryOver(ConversationEnd(EndReason.QUESTION, question=checked.question))
        self._log("checks", checked.summary)
        return checked

    # -- conversation ---------------------------------------------------------------------------------

    def _state_of(self, role: str) -> ConversationState:
        return self._progress.talks.get(role, ConversationState())

    def _set_state(self, role: str, talk: ConversationState) -> None:
        self._progress = self._progress.evolve(talks={**self._progress.talks, role: talk})

    async def _take_turns(self, role: str) -> ConversationEnd:
        """Continue a role's conversation until it is finished, limited, stuck, paused or waiting for a person.

        Raises:
            ContinueAsNew: the history is long, or the run should move to another build. `_progress` contains
                the open conversation.
            ActivityFailedError: an activity failed after all retries.
        """
        talk = self._state_of(role)
        while True:
            # First the calls of the last answer: a run that continues another one may start with some left.
            if calls := _pending_calls(talk):
                talk = await self._make_calls(role, talk, calls)
                if ended := _find_end(talk):
                    return ended
            # Only here, after the calls: model services refuse a conversation in which a call has no result.
            if self._pause_wanted:
                return ConversationEnd(EndReason.PAUSED)
            if workflow.info().is_continue_as_new_suggested() or self._may_change_build():
                raise ContinueAsNew
            if reason := course.find_reached_bound(role, self._progress, self._bounds) or self._out_of_time():
                return ConversationEnd(EndReason.BOUND, reason=reason)
            talk = course.after_turn(talk, await self._take_turn(role, talk))
            self._set_state(role, talk)
            if reason := course.why_stuck(talk):
                return ConversationEnd(EndReason.STUCK, reason=reason)

    def _may_change_build(self) -> bool:
        # Only after at least one turn: an operator who pins this run to its build would otherwise cause an endless loop
        # of new runs.
        return self._progress.turns > self._given.progress.turns and is_other_build_wanted()

    @property
    def _worked_s(self) -> float:
        """Working time of the delivery in seconds, including previous Temporal runs."""
        return self._given.worked_s + (workflow.now() - workflow.info().start_time).total_seconds()

    def _out_of_time(self) -> str:
        limit = self._given.wall_limit_s
        return f"the delivery reached its time limit of {limit:g} s" if self._worked_s >= limit else ""

    async def _take_turn(self, role: str, talk: ConversationState) -> Turn:
        number = self._progress.turns + 1
        self._show()
        turn = await self._runner.run(
            CoderActivities.take_turn,
            TurnRequest.of(
                talk,
                scope=self._scope,
                role=role,
                number=number,
                results=tuple(result.result for result in talk.results),
            ),
            ActivityOptions(f"{role}: turn {number}", TURN_TIMEOUT),
        )
        # A field that a service does not report stays unknown in the sum; it must not count as zero.
        usage = total((self._progress.usage, turn.usage))
        # The result names the model that wrote the code, not those of the other roles.
        model = turn.model if role == CODER else self._progress.model
        self._progress = self._progress.evolve(turns=number, usage=usage, model=model)
        return turn

    async def _make_calls(self, role: str, talk: ConversationState, left: Calls) -> ConversationState:
        turn = talk.turn
        assert turn is not None
        # Read-only calls run concurrently; a call that changes something waits for those before it.
        if all(call.reads for _, call in left):
            results = await asyncio.gather(*(self._use_tool(turn, index, call) for index, call in left))
            talk = talk.evolve(results=(*talk.results, *results))
        else:
            for index, call in left:
                result = await self._use_tool(turn, index, call)
                talk = talk.evolve(results=(*talk.results, result))
                # After each call: if the next one fails, the workflow's result still holds those that were made.
                self._set_state(role, talk)
                # The calls after a question or the end were planned without knowing the outcome, so they are dropped.
                if result.question is not None or result.finished:
                    break
        talk = course.after_results(talk, talk.results)
        self._set_state(role, talk)
        return talk

    async def _use_tool(self, turn: Turn, index: int, call: CallHead) -> CallResult:
        request = ToolRequest(scope=self._scope, turn=turn.number, index=index)
        if call.runs:
            return await self._runner.run(CoderActivities.use_tool, request, ActivityOptions(call.tool, RUN_TIMEOUT))
        # A local activity adds two events fewer to the history. The journal prevents a second execution either way.
        return await self._runner.run_local(CoderActivities.use_tool, request, TOOL_TIMEOUT)

    # -- end ------------------------------------------------------------------------------------------

    def _end(self, ended: ConversationEnd) -> CoderResult:
        # No final state is entered for a question or a pause, because the delivery resumes from the present one.
        if ended.question is not None:
            return self._result(ExecutorStatus.NEEDS_PERSON).evolve(question=ended.question)
        if ended.cause is EndReason.PAUSED:
            return self._result(ExecutorStatus.PAUSED)
        status = _STATUS_OF.get(ended.cause, ExecutorStatus.COMPLETED)
        self._enter(CoderState.SUCCESS if status is ExecutorStatus.COMPLETED else CoderState.FAILED)
        return self._result(status, error=ended.reason)

    def _result(self, status: ExecutorStatus, *, error: str = "") -> CoderResult:
        return CoderResult(status=status, session=self._scope.session, progress=self._progress, error=error)

    def _continue_as_new(self) -> NoReturn:
        continue_as_new(
            self._given.evolve(
                session=self._scope.session,
                bounds=self._bounds,
                progress=self._progress,
                worked_s=self._worked_s,
            )
        )

    @workflow.signal(description="Stop before the next turn. The episode pauses, and later resumes from that turn.")
    def pause(self, *_reason: Any) -> None:
        """Request a pause. Repeated requests have no effect."""
        self._pause_wanted = True

    # -- status -----------------------------------------------------------------------------------------

    def _enter(self, state: CoderState, *, message: ArtifactRef | None = None, role: str = CODER) -> None:
        """Enter a state and publish it. If `message` is given, queue it for the next turn of `role`."""
        if message is not None:
            self._set_state(role, course.add_message(self._state_of(role), message))
        self._progress = self._progress.entering(state)
        self._log(state.value.lower())
        # Search attributes are not encrypted, so only enum values go there.
        workflow.upsert_search_attributes([STATUS.value_set(state.value.lower())])
        self._show()

    def _log(self, kind: str, text: str = "") -> None:
        position = f"turn {self._progress.turns}"
        entry = TimelineLine(at=workflow.now(), kind=kind, text=f"{text} ({position})" if text else position)
        self._timeline = [*self._timeline, entry][-self.timeline_limit :]

    def _show(self) -> None:
        workflow.set_current_details(details_markdown(self.status()))

    @property
    def place(self) -> str:
        """Current state and turn, as shown by the replay tool."""
        return f"{self._progress.state.value}, turn {self._progress.turns}"

    @workflow.query(description="The delivery's state, turn count and token usage")
    def status(self) -> CoderStatus:
        """Return a snapshot of the delivery."""
        return CoderStatus.of(
            self._progress,
            title=self._given.title,
            session=self._scope.session,
            max_turns=self._bounds.max_turns,
        )

    @workflow.query(description="What happened in this run, newest last")
    def timeline(self) -> list[TimelineLine]:
        """Return the most recent entries, newest last."""
        return list(self._timeline)
