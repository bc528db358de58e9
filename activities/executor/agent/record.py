"""What an agent did in a delivery, and the bounds of what is recorded."""

import json
import os
import re
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

from pydantic import ValidationError

from activities.artifacts.port import file_stem
from activities.executor.delivery import (
    cancelled_outcome,
    failed_outcome,
    idle_outcome,
    limited_outcome,
    remove_old,
    timeout_outcome,
)
from activities.model.gateway.wire import Gateway
from activities.process.output import BoundedOutput
from activities.workspace.ownership import write_atomically
from tightloop.executor.limit import LimitKind
from tightloop.executor.model import (
    SUMMARY_CHARACTERS,
    ErrorKind,
    EventKind,
    ExecutorChoice,
    ExecutorEvent,
    ExecutorOutcome,
    LimitHit,
)
from tightloop.host import private_folder
from tightloop.value import clip, shorten

EVENTS_FILE = "events.jsonl"
RECORD_BYTES = 20_000_000
LINE_CHARACTERS = 4_000
"""Of one message in the transcript."""
RUNS_KEPT = timedelta(days=7)
"""What a person may want to see is in the artifact store."""
RUNS_AT_MOST = 100
RUN_LASTS = timedelta(days=1)
"""Among more than `RUNS_AT_MOST` runs, the oldest are removed earlier: but none that may still be at work."""
SHORTEST_SECRET = 6
"""Shorter ones are not replaced: they would be found in every other word."""

NEEDED = frozenset({EventKind.SESSION, EventKind.FINISHED})
"""Events without which an attempt after a crash could not tell how the run ended."""
_OUTCOME = "outcome.json"
_TRANSCRIPT = "transcript.txt"
_CUT = re.compile(r"\n\[\.\.\. \d+ bytes cut \.\.\.\]\n")
_LOOKS_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)


def run_folder(state_folder: Path, key: str) -> Path:
    """Return where a delivery keeps its files: `<state_folder>/runs/<16 hex digits of its key>`."""
    return state_folder / "runs" / file_stem(key)


def sweep_runs(state_folder: Path) -> int:
    """Remove what runs of more than `RUNS_KEPT` ago left, and the oldest of too many; return how many."""
    return remove_old(state_folder / "runs", lambda newer: RUNS_KEPT if newer < RUNS_AT_MOST else RUN_LASTS)


def looks_secret(variable: str) -> bool:
    """Return whether the name of a variable says that its value is a secret."""
    return _LOOKS_SECRET.search(variable) is not None


class Redaction:
    """Replaces secrets in text, as they are and as they stand in JSON."""

    def __init__(self, secrets: Iterable[str]) -> None:
        plain = {secret for secret in secrets if len(secret) >= SHORTEST_SECRET}
        # Agents print JSON with and without escapes for characters beyond ASCII.
        quoted = {json.dumps(secret, ensure_ascii=ascii_only)[1:-1] for secret in plain for ascii_only in (True, False)}
        # The longest first: one secret may be a part of another.
        self._secrets = sorted(plain | quoted, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "[secret]")
        return text

    def end_of(self, output: bytes, limit: int) -> str:
        """Return the last `limit` characters or so of output that may have lost its beginning in a secret."""
        whole = output.decode("utf-8", "replace")
        cut = _CUT.match(whole)
        text = self(whole[cut.end() :] if cut else whole)
        for secret in self._secrets:
            # The cut may have gone through a secret, whose rest no comparison with the whole would find.
            sizes = range(len(secret) - 1, SHORTEST_SECRET - 1, -1)
            rest = next((size for size in sizes if text.startswith(secret[-size:])), 0)
            text = f"[secret]{text[rest:]}" if rest else text
        return text[-limit:]


class Record:
    """The event file of a run. Lines are appended at once, so that a crash of the worker loses none."""

    def __init__(self, path: Path) -> None:
        """Truncate the file: what an earlier attempt left has been read."""
        private_folder(path.parent)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        self._left = RECORD_BYTES
        self._full = False

    def add(self, line: str, *, needed: bool) -> None:
        """Append a line; one that is `needed` to tell how the run ended is kept even beyond the bound."""
        content = f"{line}\n".encode("utf-8", "replace")
        if len(content) > self._left and not needed:
            if not self._full:
                self._full = True
                self._write(b'{"type":"tightloop.record_full"}\n')
            return
        self._left -= len(content)
        self._write(content)

    def close(self) -> None:
        os.close(self._descriptor)

    def _write(self, content: bytes) -> None:
        view = memoryview(content)
        # write(2) may take less than it is given.
        while view:
            view = view[os.write(self._descriptor, view) :]


class RunRecord:
    """The traces of one delivery, without the secrets that the agent was given."""

    def __init__(self, state_folder: Path, key: str, secrets: Iterable[str]) -> None:
        """Remove the traces of an earlier attempt of the same delivery."""
        self.clean = Redaction(secrets)
        self._folder = run_folder(state_folder, key)
        self._transcript = BoundedOutput()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._events = Record(self._folder / EVENTS_FILE)

    def line(self, arrow: str, text: str) -> None:
        """Add a line that passed between us and the agent to the transcript."""
        self._transcript.add(f"{arrow} {shorten(self.clean(text), LINE_CHARACTERS)}\n".encode("utf-8", "replace"))

    def event(self, event: ExecutorEvent) -> None:
        """Append an event to the file, so that it is there should this worker die."""
        cleaned = event.evolve(text=self.clean(event.text))
        self._events.add(cleaned.model_dump_json(exclude_defaults=True), needed=event.kind in NEEDED)

    def close(self, outcome: ExecutorOutcome, errors: str, *, keep: bool) -> ExecutorOutcome:
        """Return the outcome with its transcript and without secrets.

        Args:
            outcome: how the delivery ended.
            errors: end of the agent's standard error.
            keep: the outcome is also kept for an attempt that asks for it.
        """
        self._events.close()
        if errors.strip():
            end = self.clean.end_of(errors.encode("utf-8", "replace"), len(errors))
            self._transcript.add(f"! standard error:\n{end}\n".encode("utf-8", "replace"))
        denied = tuple(self.clean(line) for line in outcome.denied)
        limit = outcome.limit and outcome.limit.evolve(evidence=self.clean(outcome.limit.evidence))
        question = outcome.question and outcome.question.evolve(
            title=self.clean(outcome.question.title), evidence=tuple(map(self.clean, outcome.question.evidence))
        )
        done = outcome.evolve(
            summary=self.clean(outcome.summary),
            error=self.clean(outcome.error),
            denied=denied,
            limit=limit,
            question=question,
            transcript=self._transcript.value(),
        )
        if keep:
            # The outcome last: where it is, the transcript is.
            write_atomically(self._folder / _TRANSCRIPT, done.transcript, durable=True)
            kept = done.model_dump_json(exclude={"transcript"}).encode()
            write_atomically(self._folder / _OUTCOME, kept, durable=True)
        return done


def kept_outcome(state_folder: Path, key: str) -> ExecutorOutcome | None:
    """Return the outcome that an attempt kept before it died; None where it did not come so far."""
    folder = run_folder(state_folder, key)
    try:
        outcome = ExecutorOutcome.model_validate_json((folder / _OUTCOME).read_bytes())
        return outcome.evolve(transcript=(folder / _TRANSCRIPT).read_bytes())
    except (OSError, ValidationError):
        return None


def kept_session(state_folder: Path, key: str) -> str:
    """Return the session that an attempt recorded before it died; empty where it recorded none."""
    try:
        lines = (run_folder(state_folder, key) / EVENTS_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        with suppress(ValidationError):
            event = ExecutorEvent.model_validate_json(line)
            if event.kind is EventKind.SESSION:
                return event.session_id
    return ""


LONGEST_WAIT_S = 20.0
"""An agent that waits longer for its provider is ended: the workflow waits for less, and can be paused."""


class Stop(StrEnum):
    """Why we ended an agent."""

    CANCELLED = "cancelled"
    WALL_LIMIT = "wall_limit"
    IDLE_LIMIT = "idle_limit"
    LIMIT = "limit"
    EVENTS = "events"
    MODEL_CALLS = "model_calls"
    QUESTION = "question"
    """A person has to be asked first."""
    FINISHED = "finished"
    """It said that it is done, and did not go."""
    GONE = "gone"
    """It went in the middle of its turn."""


class Bounds:
    """Keeps the time, silence, events, model calls and provider waits of a delivery within its bounds."""

    def __init__(self, choice: ExecutorChoice, gateway: Gateway | None) -> None:
        self.events = 0
        self.limit: LimitHit | None = None
        """The limit for which it was ended."""
        self._choice = choice
        self._gateway = gateway
        self._begun = self._alive = time.monotonic()

    def note_life(self) -> None:
        """Note that the agent is at work: it said or computed something."""
        self._alive = time.monotonic()

    def check(self) -> Stop | None:
        """Return which bound is reached, if any."""
        now = time.monotonic()
        if now - self._begun >= self._choice.wall_limit_s:
            return Stop.WALL_LIMIT
        if self.events > self._choice.max_events:
            return Stop.EVENTS
        if self._gateway is not None:
            seen = self._gateway.seen()
            if seen.budget_spent:
                return Stop.MODEL_CALLS
            # An answer of the model is a sign of life, too: agents are silent while it comes.
            self._alive = max(self._alive, seen.moved)
            if (limit := seen.limit) is not None:
                wait = limit.retry_after
                is_spent = wait is None and limit.kind == LimitKind.USAGE_EXHAUSTED
                if is_spent or (wait is not None and wait.total_seconds() > LONGEST_WAIT_S):
                    self.limit = limit
                    return Stop.LIMIT
        # opencode waits in silence when a quota is spent or for a retry-after of an hour: nothing else ends that.
        return Stop.IDLE_LIMIT if now - self._alive >= self._choice.idle_limit_s else None


def stopped_outcome(stop: Stop, choice: ExecutorChoice, limit: LimitHit | None) -> ExecutorOutcome | None:
    """Return the outcome of a delivery that we ended; None where what the agent said decides."""
    match stop:
        case Stop.CANCELLED:
            return cancelled_outcome()
        case Stop.WALL_LIMIT:
            return timeout_outcome(choice)
        case Stop.IDLE_LIMIT:
            return idle_outcome(choice, "sign of life")
        case Stop.LIMIT if limit is not None:
            return limit_outcome(limit, "ended: the agent would have waited for its provider without a word")
        case Stop.EVENTS:
            events = f"more than {choice.max_events} events, as if it ran in circles"
            return failed_outcome(f"{events}: ended. Raise executor.max_events or plan less.", ErrorKind.BUDGET)
        case Stop.MODEL_CALLS:
            calls = f"all {choice.max_model_calls} model calls of this delivery are spent"
            return failed_outcome(f"{calls}: ended. Raise executor.max_model_calls or plan less.", ErrorKind.BUDGET)
        case _:
            return None


def limit_outcome(limit: LimitHit, said: str) -> ExecutorOutcome:
    """Return the outcome of a delivery that a limit ended."""
    text = f"{limit.evidence}: {said}" if limit.evidence and limit.evidence not in said else said
    return limited_outcome(limit, clip(text, SUMMARY_CHARACTERS))
