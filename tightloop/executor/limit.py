"""Limits that stop an agent or a provider: kinds, what was said, and what to do about each."""

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any

from pydantic import Field

from tightloop.executor.model import LimitHit
from tightloop.value import Value

LONGEST_UNASKED_WAIT = timedelta(hours=6)
"""A person is asked at once where the reset is farther away: longer than any 5-hour window of a subscription."""


class LimitKind(StrEnum):
    """What stopped the agent."""

    TOOL_CALL_LIMIT = "tool_call_limit"
    RATE_LIMITED = "rate_limited"
    USAGE_EXHAUSTED = "usage_exhausted"
    OVERLOADED = "overloaded"
    AUTH = "auth"
    CONTEXT_FULL = "context_full"
    OFFLINE = "offline"
    UNKNOWN = "unknown"


class LimitSource(StrEnum):
    """Where the kind was read."""

    TEXT = "text"
    TYPED = "typed"
    HEADER = "header"
    SCREEN = "screen"
    """A notice that a window shows; a repository can quote one."""
    REPORT = "report"
    """The agent's own word."""


class LimitAction(StrEnum):
    """What a limit calls for."""

    WAIT = "wait"
    """Back off, then continue."""
    PERSON = "person"
    """Waiting does not help, or not soon."""
    REPLAN = "replan"
    """The same order would fail again: a smaller one is needed."""


class LimitSignal(Value):
    """What an agent or a provider said when it stopped; unknown parts are left out."""

    text: str = ""
    """Status lines, newest last; never the words of a model or the output of a tool."""
    status_code: int | None = None
    error_type: str = ""
    error_code: str = ""
    body: Any = None
    """Decoded JSON of the error."""
    headers: Mapping[str, str] = Field(default_factory=dict)


def choose_action(limit: LimitHit) -> LimitAction:
    """Return what to do about a limit. An unknown kind is waited for: strikes are counted elsewhere."""
    # A used-up window without a reset time is not waited for: nobody could say until when.
    far = limit.retry_after is not None and limit.retry_after > LONGEST_UNASKED_WAIT
    exhausted = limit.kind == LimitKind.USAGE_EXHAUSTED and limit.retry_after is None
    if far or exhausted or limit.monthly or limit.kind == LimitKind.AUTH:
        return LimitAction.PERSON
    return LimitAction.REPLAN if limit.kind == LimitKind.CONTEXT_FULL else LimitAction.WAIT


def explain(limit: LimitHit) -> str:
    """Return a sentence for the person: what stopped the agent, then what to do."""
    said = f"it said {limit.evidence!r}" if limit.evidence else "it gave no text"
    if limit.kind == LimitKind.AUTH:
        return (
            f"the agent's provider refuses its key or login ({said}). Check on the worker's host that it is valid, has "
            "not expired and belongs to the base URL and model in use, then resume"
        )
    if limit.kind == LimitKind.CONTEXT_FULL:
        return f"the context of the agent's model is full ({said}). Plan smaller steps"
    reset = "at an unknown time" if limit.retry_after is None else f"in {limit.retry_after}"
    return (
        f"the agent's provider stopped it: {limit.kind}, which ends {reset} ({said}). "
        "Add credit, use another key, model or agent, or resume after the reset"
    )
