"""One process of an agent over the Agent Client Protocol, from its start to what came of it."""

import asyncio
from typing import Any

from acp.exceptions import RequestError

from activities.execution.agent.acp_agents import AcpAgent
from activities.execution.agent.acp_client import SignInError
from activities.execution.agent.acp_delivery import Delivery, Stop, Talk, Watched
from activities.execution.agent.acp_events import usage_of
from activities.execution.agent.acp_record import RunRecord
from activities.execution.agent.acp_verdict import died, failed, stopped
from activities.execution.agent.judgement import hit
from activities.execution.agent.stream_json import denied_lines, local_now
from activities.execution.ending import ended_early, timed_out
from activities.execution.port import Control
from activities.process import ProcessRequest, ProcessResult, Reason
from activities.process_session import ProcessSession, open_process
from tightloop.budget import Usage
from tightloop.executor import (
    SUMMARY_CHARACTERS,
    ErrorKind,
    EventKind,
    ExecutorEvent,
    ExecutorOutcome,
    ExecutorStatus,
    Question,
    QuestionKind,
    ResumeToken,
    WorkOrder,
)
from tightloop.host import host_name
from tightloop.value import clip, shorten

_REASONS = {
    Stop.WALL_LIMIT: Reason.WALL_LIMIT,
    Stop.IDLE_LIMIT: Reason.IDLE_LIMIT,
    Stop.QUESTION: Reason.EXITED,
    Stop.GONE: Reason.EXITED,
}
"""How the process is ended where the turn was; otherwise as cancelled."""
_OUT_OF_BOUNDS = frozenset({Reason.NOT_STARTED, Reason.MEMORY_LIMIT, Reason.PROCESS_LIMIT, Reason.OUTPUT_LIMIT})
_RESUMABLE = frozenset(
    {
        ExecutorStatus.LIMIT_HIT,
        ExecutorStatus.TIMED_OUT,
        ExecutorStatus.FAILED,
        ExecutorStatus.CANCELLED,
        ExecutorStatus.NEEDS_PERSON,
    }
)
_QUESTION_CHARACTERS = 1_000


class AcpRun:
    """Runs the process; use it once."""

    def __init__(self, agent: AcpAgent, order: WorkOrder, delivery: Delivery, record: RunRecord) -> None:
        """Take the agent, what to do, the talk, and where it is recorded."""
        self._agent = agent
        self._order = order
        self._delivery = delivery
        self._record = record

    def deliver(self, request: ProcessRequest, control: Control, fence: str) -> ExecutorOutcome:
        """Start the agent, talk, end it and all that it started, and say what came of it."""
        outcome, errors = ExecutorOutcome(status=ExecutorStatus.OUTCOME_UNKNOWN), ""
        try:
            talk, result = self._process(request, control)
            errors = result.errors.decode("utf-8", "replace")
            outcome = self._outcome(talk, result, cancelled=control.cancelled())
            outcome = outcome.model_copy(update={**self._facts(talk, outcome, fence), "cpu_s": result.cpu_s})
        finally:
            # A worker that has to stop cancels, and the work goes on elsewhere: that outcome is not for later.
            keep = outcome.status not in (ExecutorStatus.CANCELLED, ExecutorStatus.OUTCOME_UNKNOWN)
            outcome = self._record.close(outcome, errors, keep=keep)
        return outcome

    def _process(self, request: ProcessRequest, control: Control) -> tuple[Talk | None, ProcessResult]:
        pids: list[int] = []

        def started(pid: int) -> None:
            pids.append(pid)
            control.own_process(pid)

        with open_process(request, started=started) as session:
            if not pids:
                return None, session.end(Reason.EXITED)
            self._record.event(ExecutorEvent(kind=EventKind.STARTED))
            talk = asyncio.run(self._talk(session, pids[0]))
            polite = Reason.EXITED if self._agent.ends_at_eof else Reason.CANCELLED
            return talk, session.end(polite if talk.stop is None else _REASONS.get(talk.stop, Reason.CANCELLED))

    async def _talk(self, session: ProcessSession, pid: int) -> Talk:
        watched = Watched(pid, poll=session.poll, token=self._token)
        mode = self._agent.modes.get(self._order.executor.mode, "")
        token = self._resume()
        pipes = (session.stdin_fd, session.stdout_fd)
        return await self._delivery.run(pipes, watched, resume=token.session_id if token else "", mode=mode)

    def _resume(self) -> ResumeToken | None:
        """Return the token of the order, if it is for this agent on this host."""
        token = self._order.resume
        ours = token is not None and token.adapter == self._agent.name and token.host in ("", host_name())
        return token if ours else None

    def _token(self) -> ResumeToken | None:
        client = self._delivery.client
        if not client.session_id:
            return self._resume()
        return ResumeToken(
            adapter=self._agent.name, session_id=client.session_id, host=host_name(), version=client.version
        )

    def _outcome(self, talk: Talk | None, result: ProcessResult, *, cancelled: bool) -> ExecutorOutcome:
        if cancelled or (talk is not None and talk.stop is Stop.CANCELLED):
            return ExecutorOutcome(status=ExecutorStatus.CANCELLED, error="stopped on request")
        ended = ended_early(result, self._order.executor) if result.reason in _OUT_OF_BOUNDS else None
        if talk is None or ended is not None:
            return ended or died(result.exit_code, result.errors.decode("utf-8", "replace"), now=local_now())
        if talk.stop is not None:
            return self._stopped(talk.stop, result)
        outcome = self._said(talk, result)
        seen = self._delivery.seen
        turn = self._delivery.client.turn
        if outcome.status is ExecutorStatus.COMPLETED and turn.done and not self._agent.reads_text:
            return outcome
        if seen.budget_spent:
            return self._stopped(Stop.CALLS, result)
        return outcome if seen.limit is None else hit(seen.limit, outcome.error or turn.message)

    def _said(self, talk: Talk, result: ProcessResult) -> ExecutorOutcome:
        """Return what the agent itself made of it."""
        delivery = self._delivery
        match talk.error:
            case None:
                reason = str((talk.answer or {}).get("stopReason", ""))
                denied = denied_lines(delivery.denied)
                reads_text = self._agent.reads_text
                return stopped(reason, delivery.client.turn, denied, now=local_now(), reads_text=reads_text)
            case RequestError() as error:
                return failed(error, now=local_now())
            case ConnectionError():
                return died(result.exit_code, result.errors.decode("utf-8", "replace"), now=local_now())
            case SignInError() as error:
                return ExecutorOutcome(
                    status=ExecutorStatus.FATAL, error=f"{self._agent.name}: {error}", error_kind=ErrorKind.AUTH
                )
            case error:
                said = f"{self._agent.name}: {error}"
                return ExecutorOutcome(status=ExecutorStatus.FAILED, error=said, error_kind=ErrorKind.PROTOCOL)

    def _stopped(self, stop: Stop, result: ProcessResult) -> ExecutorOutcome:
        """Return what our own reason to end the turn means."""
        choice = self._order.executor
        seen = self._delivery.seen
        match stop:
            case Stop.QUESTION:
                return self._question()
            case Stop.LIMIT if seen.limit is not None:
                return hit(seen.limit, "the provider asks to wait")
            case Stop.WALL_LIMIT:
                return timed_out(choice).model_copy(update={"error_kind": ErrorKind.TIMEOUT})
            case Stop.IDLE_LIMIT:
                return ExecutorOutcome(
                    status=ExecutorStatus.TIMED_OUT,
                    error=f"no sign of life for {choice.idle_limit_s:g} s: ended. Raise idle_limit_s if it worked.",
                    error_kind=ErrorKind.TIMEOUT,
                )
            case Stop.EVENTS:
                return _over_budget(
                    f"more than {choice.max_events} events: ended, as it seems to run in circles. Raise"
                )
            case Stop.CALLS:
                return _over_budget(
                    f"all {choice.max_model_calls} model calls of this delivery are spent: ended. Raise"
                )
            case _:
                return died(result.exit_code, result.errors.decode("utf-8", "replace"), now=local_now())

    def _question(self) -> ExecutorOutcome:
        asked = self._delivery.question
        assert asked is not None
        named = asked.title if asked.command else ""
        parts = {"kind": asked.kind, "command": asked.command, "named by the agent": named}
        lines = [f"{name}: {value}" for name, value in parts.items() if value] + [
            f"path: {path}" for path in asked.paths
        ]
        question = Question(
            kind=QuestionKind.PERMISSION,
            # What a model calls its command can be anything.
            title=shorten(" ".join(self._record.clean(asked.command or asked.title).split()), 200),
            detail=shorten(self._record.clean("\n".join(lines)), _QUESTION_CHARACTERS),
            fingerprint=asked.fingerprint,
        )
        return ExecutorOutcome(status=ExecutorStatus.NEEDS_PERSON, question=question)

    def _facts(self, talk: Talk | None, outcome: ExecutorOutcome, fence: str) -> dict[str, Any]:
        """Return what belongs to an outcome whatever it is."""
        client = self._delivery.client
        summary = "; ".join([*self._delivery.warnings[:2], clip(client.turn.message, SUMMARY_CHARACTERS - 200)])
        return {
            "summary": clip(summary.strip("; "), SUMMARY_CHARACTERS),
            "denied": denied_lines(self._delivery.denied),
            "usage": self._usage(talk),
            "resume": self._token() if outcome.status in _RESUMABLE else None,
            "versions": {self._agent.name: client.version, "fence": fence},
        }

    def _usage(self, talk: Talk | None) -> Usage:
        seen = self._delivery.seen
        if seen.calls:
            return seen.usage
        return usage_of(talk.answer) if talk is not None and talk.answer is not None else Usage()


def _over_budget(said: str) -> ExecutorOutcome:
    field = "executor.max_events" if "events" in said else "executor.max_model_calls"
    return ExecutorOutcome(
        status=ExecutorStatus.FAILED, error=f"{said} {field} or plan less.", error_kind=ErrorKind.BUDGET
    )
