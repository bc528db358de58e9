"""Counts the calls and tokens of one gateway and enforces its budget."""

import functools
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from activities.model.gateway.answer_reader import AnswerReader
from activities.model.gateway.port import GatewaySeen, GatewaySpec
from tightloop.executor.limit import LimitSignal
from tightloop.executor.limit_matcher import detect
from tightloop.executor.usage import Usage

UNREACHED = 0
"""Counted in place of a status where the provider gave none."""
FAILED_FROM = 400


class Meter:
    """Counts of one gateway. Safe to use from any thread."""

    def __init__(self, spec: GatewaySpec) -> None:
        self._spec = spec
        self._lock = threading.Lock()
        self._seen = GatewaySeen()
        self._statuses: Counter[int] = Counter()
        self._finished = Usage()
        self._running: dict[int, Usage] = {}
        self._tokens = 0

    def seen(self) -> GatewaySeen:
        """Return what passed through so far."""
        with self._lock:
            return self._seen

    def begin(self) -> int:
        """Count a model call and return its number, from 1; 0 where the budget is spent, and nothing is counted."""
        with self._lock:
            if self._spent():
                self._note(budget_spent=True)
                return 0
            number = self._seen.calls + 1
            self._running[number] = Usage()
            self._note(calls=number, waiting=True, moved=time.monotonic())
            return number

    def spent(self) -> str:
        """Return which budget is spent, in a sentence; empty: none."""
        with self._lock:
            return self._spent()

    def headers(self, status: int, headers: Mapping[str, str]) -> None:
        """Note the begin of an answer; a limit in it is seen from here on, before the agent learns of it."""
        with self._lock:
            self._count(status)
            self._note(moved=time.monotonic())
            if status >= FAILED_FROM:
                self._limited(LimitSignal(status_code=status, headers=headers))

    def failed(self, status: int, headers: Mapping[str, str], body: Any) -> None:
        """Note what the body of an error says; it tells more than its headers."""
        with self._lock:
            self._limited(LimitSignal(status_code=status, headers=headers, body=body))

    def unreached(self) -> None:
        """Note that the provider gave no answer."""
        with self._lock:
            self._count(UNREACHED)

    def heard(self, number: int, reader: AnswerReader, headers: Mapping[str, str], *, ended: bool = False) -> None:
        """Note what an answer says so far: before the agent gets that part of it, as it may act on it at once."""
        usage = reader.usage()
        with self._lock:
            self._note(moved=time.monotonic())
            # Most pieces of an answer report nothing new: the sum is made only when one does.
            if usage != self._running[number]:
                self._running[number] = usage
                self._note(usage=functools.reduce(added, self._running.values(), self._finished))
            if reader.error is not None:
                self._limited(LimitSignal(headers=headers, body=reader.error))
            elif (ended or reader.finished) and self._seen.limit is not None:
                self._note(limit=None)

    def end(self, number: int, tokens: int) -> None:
        """Note that a call is over, well or not, and what it takes from the budget of tokens."""
        with self._lock:
            self._tokens += tokens
            self._finished = added(self._finished, self._running.pop(number))
            self._note(waiting=bool(self._running), moved=time.monotonic())

    def _count(self, status: int) -> None:
        self._statuses[status] += 1
        self._note(statuses=dict(self._statuses))

    def _spent(self) -> str:
        for used, most, what in (
            (self._seen.calls, self._spec.max_calls, "model calls"),
            (self._tokens, self._spec.max_tokens, "tokens"),
        ):
            if most is not None and used >= most:
                return (
                    f"the budget of this delivery is spent: {used} of {most} {what}. Raise the budget or end the work"
                )
        return ""

    def _limited(self, signal: LimitSignal) -> None:
        limit = detect(signal, now=datetime.now(UTC))
        if limit is None:
            return
        if self._spec.key:
            limit = limit.evolve(evidence=limit.evidence.replace(self._spec.key, "***"))
        self._note(limit=limit)

    def _note(self, **changes: Any) -> None:
        self._seen = replace(self._seen, **changes)


def added(total: Usage, more: Usage) -> Usage:
    """Return the sum; a part that was never reported stays None."""
    first, second = (usage.model_dump(exclude_none=True) for usage in (total, more))
    return Usage(**{name: first.get(name, 0) + second.get(name, 0) for name in first | second})
