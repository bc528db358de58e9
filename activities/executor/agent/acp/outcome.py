"""Maps the end of a turn over the Agent Client Protocol to the outcome of a delivery."""

import re
from datetime import datetime
from typing import Any

from acp.exceptions import RequestError

from activities.executor.agent.acp.events import Turn
from activities.executor.agent.bounds import limit_outcome
from activities.executor.agent.lenient import mapping
from activities.executor.ending import failed_outcome, fatal_outcome
from tightloop.executor.limit import LimitKind, LimitSignal, LimitSource
from tightloop.executor.limit_matcher import detect
from tightloop.executor.model import SUMMARY_CHARACTERS, ErrorKind, ExecutorOutcome, ExecutorStatus, LimitHit
from tightloop.value import clip, shorten

AUTH_REQUIRED = -32000
"""In the Agent Client Protocol; elsewhere in JSON-RPC any error of a server."""
# claude-agent-acp says errorKind, codex-acp codex_error_info; gemini puts the HTTP status into the code of the error.
_ERROR_FIELDS = ("errorKind", "error_kind", "codex_error_info", "codexErrorInfo", "type", "code")
_ERROR_LINES = 20
_SPENT = re.compile(r"reached maximum (number of turns|budget)", re.IGNORECASE)
_BUDGETS = {"number of turns": "max_turns (or max_model_calls)", "budget": "max_budget_usd"}


def turn_outcome(
    reason: str, turn: Turn, denied: tuple[str, ...], *, now: datetime, reads_text: bool
) -> ExecutorOutcome:
    """Return the outcome of a turn that ended by itself.

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
            return _done(turn, denied) if limit is None else limit_outcome(limit, turn.message)
        case "max_tokens":
            return limit_outcome(_typed(LimitKind.CONTEXT_FULL, reason), "the agent stopped with max_tokens")
        case "max_turn_requests":
            return limit_outcome(_typed(LimitKind.TOOL_CALL_LIMIT, reason), "the agent stopped with max_turn_requests")
        case "refusal":
            said = clip(turn.message or "it gave no text", 300)
            return ExecutorOutcome(status=ExecutorStatus.REFUSED, error=f"the agent refused the task: {said}")
        case "cancelled":
            return failed_outcome("the agent cancelled the turn by itself")
        case _:
            error = f"the agent stopped with {shorten(reason, 80)!r}, which this version does not know"
            return failed_outcome(error, ErrorKind.PROTOCOL)


def error_outcome(error: RequestError, *, now: datetime) -> ExecutorOutcome:
    """Return the outcome of a turn that the agent answered with an error."""
    data: Any = error.data
    said = _words(error)
    code = next((str(mapping(data)[name]) for name in _ERROR_FIELDS if mapping(data).get(name)), "")
    signal = LimitSignal(
        text=said,
        status_code=error.code if 400 <= error.code < 600 else None,
        error_type=code,
        body={"message": str(error), "error": data},
    )
    if budget := _SPENT.search(said):
        field = _BUDGETS[budget[1].lower()]
        return failed_outcome(f"{said}: ended. Raise {field} of the executor or plan less", ErrorKind.BUDGET)
    if limit := detect(signal, now=now):
        return limit_outcome(limit, said)
    if code == "model_not_found":
        return fatal_outcome(f"{said}. Set another model", ErrorKind.CONFIG)
    if error.code == AUTH_REQUIRED and "auth" in said.lower():
        return fatal_outcome(f"the agent is not signed in: {said}", ErrorKind.AUTH)
    # JSON-RPC: parse error, invalid request, unknown method, invalid parameters.
    kind = ErrorKind.PROTOCOL if error.code in (-32700, -32600, -32601, -32602) else None
    return failed_outcome(f"the agent reports: {said}", kind)


def crash_outcome(exit_code: int | None, errors: str, *, now: datetime) -> ExecutorOutcome:
    """Return the outcome where the agent exited during its turn; `errors` is its standard error."""
    end = "\n".join(errors.rstrip().splitlines()[-_ERROR_LINES:])
    if limit := detect(end, now=now):
        return limit_outcome(limit, clip(end, SUMMARY_CHARACTERS))
    how = "closed the connection" if exit_code is None else f"exited with {exit_code}"
    said = f": {clip(end, 400)}" if end else " and said nothing"
    return failed_outcome(f"the agent {how} in the middle of its work{said}", ErrorKind.CRASHED)


def _done(turn: Turn, denied: tuple[str, ...]) -> ExecutorOutcome:
    # After a refusal claude goes on with its turn and copilot ends it; both give `end_turn` as the reason.
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
