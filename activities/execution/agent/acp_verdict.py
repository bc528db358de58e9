"""What the end of a turn over the Agent Client Protocol means for a delivery."""

from datetime import datetime
from typing import Any

from acp.exceptions import RequestError

from activities.execution.agent.acp_events import Turn, mapping
from activities.execution.agent.judgement import hit
from tightloop.executor import SUMMARY_CHARACTERS, ErrorKind, ExecutorOutcome, ExecutorStatus, LimitHit
from tightloop.limit import LimitKind, LimitSignal, LimitSource, detect
from tightloop.value import clip, shorten

AUTH_REQUIRED = -32000
"""In the Agent Client Protocol; elsewhere in JSON-RPC any error of a server."""
_ERROR_FIELDS = ("errorKind", "error_kind", "codex_error_info", "codexErrorInfo", "type", "code")
_ERROR_LINES = 20


def stopped(reason: str, turn: Turn, denied: tuple[str, ...], *, now: datetime, reads_text: bool) -> ExecutorOutcome:
    """Return what a turn that came to its end means.

    Args:
        reason: the protocol's `stopReason`.
        turn: what happened in it.
        denied: what the agent was not allowed to do.
        now: when it ended, with the zone of the times in its texts.
        reads_text: the agent reports limits as its last message; that is read where it used no tool.
    """
    match reason:
        case "end_turn":
            limit = detect(turn.message, now=now) if reads_text and not turn.tools else None
            return _done(turn, denied) if limit is None else hit(limit, turn.message)
        case "max_tokens":
            return hit(_typed(LimitKind.CONTEXT_FULL, reason), "the agent stopped with max_tokens")
        case "max_turn_requests":
            return hit(_typed(LimitKind.TOOL_CALL_LIMIT, reason), "the agent stopped with max_turn_requests")
        case "refusal":
            said = clip(turn.message or "it gave no text", 300)
            return ExecutorOutcome(status=ExecutorStatus.REFUSED, error=f"the agent refused the task: {said}")
        case "cancelled":
            return ExecutorOutcome(status=ExecutorStatus.FAILED, error="the agent cancelled the turn by itself")
        case _:
            return ExecutorOutcome(
                status=ExecutorStatus.FAILED,
                error=f"the agent stopped with {shorten(reason, 80)!r}, which this version does not know",
                error_kind=ErrorKind.PROTOCOL,
            )


def failed(error: RequestError, *, now: datetime) -> ExecutorOutcome:
    """Return what an error that the agent answered with means."""
    data: Any = error.data
    said = _words(error)
    code = next((str(mapping(data)[name]) for name in _ERROR_FIELDS if mapping(data).get(name)), "")
    signal = LimitSignal(
        text=said,
        status_code=error.code if 400 <= error.code < 600 else None,
        error_type=code,
        body={"message": str(error), "error": data},
    )
    if limit := detect(signal, now=now):
        return hit(limit, said)
    if error.code == AUTH_REQUIRED and "auth" in said.lower():
        return ExecutorOutcome(
            status=ExecutorStatus.FATAL, error=f"the agent is not signed in: {said}", error_kind=ErrorKind.AUTH
        )
    kind = ErrorKind.PROTOCOL if error.code in (-32700, -32600, -32601, -32602) else None
    return ExecutorOutcome(status=ExecutorStatus.FAILED, error=f"the agent reports: {said}", error_kind=kind)


def died(exit_code: int | None, errors: str, *, now: datetime) -> ExecutorOutcome:
    """Return what it means that the agent went away in the middle; `errors` is what it wrote to standard error."""
    end = "\n".join(errors.rstrip().splitlines()[-_ERROR_LINES:])
    if limit := detect(end, now=now):
        return hit(limit, clip(end, SUMMARY_CHARACTERS))
    how = "closed the connection" if exit_code is None else f"exited with {exit_code}"
    said = f": {clip(end, 400)}" if end else " and said nothing"
    return ExecutorOutcome(
        status=ExecutorStatus.FAILED,
        error=f"the agent {how} in the middle of its work{said}",
        error_kind=ErrorKind.CRASHED,
    )


def _done(turn: Turn, denied: tuple[str, ...]) -> ExecutorOutcome:
    if denied and not turn.done:
        said = clip("; ".join(denied), 300)
        return ExecutorOutcome(
            status=ExecutorStatus.REFUSED, error=f"the agent did nothing: it was not allowed to: {said}"
        )
    return ExecutorOutcome(status=ExecutorStatus.COMPLETED)


def _typed(kind: LimitKind, evidence: str) -> LimitHit:
    return LimitHit(kind=kind.value, evidence=f"stopReason {evidence}", source=LimitSource.TYPED.value)


def _words(error: RequestError) -> str:
    """Return the sentence of an error; agents put theirs into `data` under a plain "Internal error"."""
    data = mapping(error.data)
    parts = [str(error), *(str(data[name]) for name in ("message", "details", "errorName") if data.get(name))]
    if isinstance(error.data, str):
        parts.append(error.data)
    words = list(dict.fromkeys(part for part in parts if part))
    return clip(": ".join(words[1:] or words), SUMMARY_CHARACTERS)
