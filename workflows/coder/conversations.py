"""The conversation with one role: turns of a model, and the calls that it proposes, until it is done."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import NamedTuple

from temporalio import workflow

from activities.coder.activity import CoderActivities
from activities.coder.requests import ToolRequest, TurnRequest
from activities.workspace.scope import EpisodeScope
from tightloop.coder import course
from tightloop.coder.input import CoderInput
from tightloop.coder.model import CODER, CallHead, CallResult, CoderProgress, Talk, Turn
from tightloop.executor.usage import total
from tightloop.question import Question
from tightloop.value.artifact import ArtifactRef
from workflows.shared.activities import ActivityOptions, ActivityRunner
from workflows.shared.versioning import is_other_build_wanted

Calls = Sequence[tuple[int, CallHead]]

TURN_TIMEOUT = timedelta(minutes=15)
"""Above the longest `coder.timeout_s`, which bounds one answer."""
TOOL_TIMEOUT = timedelta(seconds=50)
"""For a tool on files; a local activity, which a worker that dies must not hold up for long."""
RUN_TIMEOUT = timedelta(hours=2)
"""For a tool that runs a program, which has a shorter limit of its own."""


class Why(StrEnum):
    """Why a conversation ended."""

    FINISHED = "finished"
    BOUND = "bound"
    STUCK = "stuck"
    QUESTION = "question"
    PAUSED = "paused"


class Ended(NamedTuple):
    """How a conversation ended."""

    why: Why
    result: ArtifactRef | None = None
    """What the model said when it finished."""
    reason: str = ""
    question: Question | None = None


class RunOver(Exception):  # noqa: N818 - it ends the run, it is not an error
    """The coder continues as a new run."""


class Conversations:
    """Talks with the roles.

    Attributes:
        progress: how far the delivery has come; nobody else changes its turns, usage and talks.
        pause_wanted: stop before the next turn.
    """

    def __init__(
        self, given: CoderInput, scope: EpisodeScope, runner: ActivityRunner, show: Callable[[], None]
    ) -> None:
        self._given, self._scope, self._runner, self._show = given, scope, runner, show
        self.session, self.bounds = given.session, given.bounds
        self.progress: CoderProgress = given.progress
        self.pause_wanted = False

    def say(self, role: str, message: ArtifactRef) -> None:
        """Tell a role something with its next turn; whatever it ended with before, this is news to the model."""
        self._keep(role, course.told(self._talk(role), message))

    async def talk(self, role: str) -> Ended:
        """Go on with a role until it finishes, a bound is reached, it leads nowhere or a person is needed.

        Raises:
            RunOver: the history is long; what is under way is in `progress`.
            ActivityFailedError: an activity failed for good.
        """
        talk = self._talk(role)
        while True:
            if calls := _left(talk):
                talk = await self._make_calls(role, talk, calls)
                if ended := _ended(talk):
                    return ended
            if self.pause_wanted:
                return Ended(Why.PAUSED)
            if workflow.info().is_continue_as_new_suggested() or self._may_change_build():
                raise RunOver
            if reason := course.bound_reached(role, self.progress, self.bounds) or self._out_of_time():
                return Ended(Why.BOUND, reason=reason)
            talk = course.after_turn(talk, await self._take_turn(role, talk))
            self._keep(role, talk)
            if reason := course.why_stuck(talk):
                return Ended(Why.STUCK, reason=reason)

    def close(self, role: str) -> None:
        """Begin a new conversation the next time."""
        self.progress = self.progress.evolve(
            talks={name: talk for name, talk in self.progress.talks.items() if name != role}
        )

    def _talk(self, role: str) -> Talk:
        return self.progress.talks.get(role, Talk())

    def _keep(self, role: str, talk: Talk) -> None:
        self.progress = self.progress.evolve(talks={**self.progress.talks, role: talk})

    def _may_change_build(self) -> bool:
        # After a turn at least: a run that is held on its build by an operator would do nothing else.
        return self.progress.turns > self._given.progress.turns and is_other_build_wanted()

    def _out_of_time(self) -> str:
        worked = self._given.worked_s + (workflow.now() - workflow.info().start_time).total_seconds()
        limit = self._given.wall_limit_s
        return f"the delivery took its limit of {limit:g} s" if worked >= limit else ""

    async def _take_turn(self, role: str, talk: Talk) -> Turn:
        number = self.progress.turns + 1
        self._show()
        turn = await self._runner.run(
            CoderActivities.take_turn,
            TurnRequest(
                scope=self._scope,
                key=self._given.key,
                session=self.session,
                role=role,
                number=number,
                node=talk.node,
                results=tuple(result.result for result in talk.results),
                said=talk.said,
                correction=talk.correction,
            ),
            ActivityOptions(f"{role}: turn {number}", TURN_TIMEOUT),
        )
        # A field that a service does not report is unknown in the sum, which is not zero.
        usage = total((self.progress.usage, turn.usage))
        model = turn.model if role == CODER else self.progress.model
        self.progress = self.progress.evolve(turns=number, usage=usage, model=model)
        return turn

    async def _make_calls(self, role: str, talk: Talk, left: Calls) -> Talk:
        turn = talk.turn
        assert turn is not None
        # Calls that only read may come in any order; one that changes something waits for those before it.
        if all(call.reads for _, call in left):
            results = await asyncio.gather(*(self._use_tool(turn, index, call) for index, call in left))
            talk = talk.evolve(results=(*talk.results, *results))
        else:
            for index, call in left:
                result = await self._use_tool(turn, index, call)
                talk = talk.evolve(results=(*talk.results, result))
                self._keep(role, talk)
                if result.question is not None or result.finished:
                    break
        talk = course.after_results(talk, talk.results)
        self._keep(role, talk)
        return talk

    async def _use_tool(self, turn: Turn, index: int, call: CallHead) -> CallResult:
        request = ToolRequest(
            scope=self._scope,
            key=self._given.key,
            session=self.session,
            base_tree=self._given.base_tree,
            turn=turn.number,
            index=index,
        )
        if call.runs:
            return await self._runner.run(CoderActivities.use_tool, request, ActivityOptions(call.tool, RUN_TIMEOUT))
        # Two events fewer than an ordinary activity; the journal makes it happen once either way.
        return await self._runner.run_local(CoderActivities.use_tool, request, TOOL_TIMEOUT)


def _left(talk: Talk) -> Calls:
    """Return the calls of the last answer that were not made yet."""
    turn = talk.turn
    return [] if turn is None or turn.problem else list(enumerate(turn.calls))[len(talk.results) :]


def _ended(talk: Talk) -> Ended | None:
    """Return how the results of the last answer end a conversation; None: they do not."""
    for result in talk.results:
        if result.question is not None:
            return Ended(Why.QUESTION, question=result.question)
        if result.finished:
            return Ended(Why.FINISHED, result=result.result)
    reason = course.why_stuck(talk)
    return Ended(Why.STUCK, reason=reason) if reason else None
