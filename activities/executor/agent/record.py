"""A delivery's recorded traces and its limits."""

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
    remove_old,
    timeout_outcome,
)
from activities.model.gateway.server import GatewayServer
from activities.process.output import BoundedOutput
from activities.workspace.ownership import write_atomically
from tightloop.executor.limit import LimitKind, limited_outcome
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
"""Maximum length of one message in the transcript."""
RUNS_KEPT = timedelta(days=7)
"""Time for which runs are kept. It is short because artifacts for people are in the artifact store."""
RUNS_AT_MOST = 100
RUN_LASTS = timedelta(days=1)
"""Time for which a run may still be active. If there are more than `RUNS_AT_MOST` runs, the oldest ones are removed
early, but never runs that may be active."""
SHORTEST_SECRET = 6
"""Minimum length of secrets to redact. Shorter ones would match parts of ordinary words."""

NEEDED = frozenset({EventKind.SESSION, EventKind.FINISHED})
"""Events that are needed after a crash to determine how the run ended."""
_OUTCOME = "outcome.json"
_TRANSCRIPT = "transcript.txt"
_CUT = re.compile(r"\n\[\.\.\. \d+ bytes cut \.\.\.\]\n")
_LOOKS_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)


def run_folder(state_folder: Path, key: str) -> Path:
    """Return the folder for a delivery's files: `<state_folder>/runs/<16 hex digits of its key>`."""
    return state_folder / "runs" / file_stem(key)


def sweep_runs(state_folder: Path) -> int:
    """Remove runs that are older than `RUNS_KEPT`, and the oldest runs if there are too many.

    Returns:
        The number of runs removed.
    """
    return remove_old(state_folder / "runs", lambda newer: RUNS_KEPT if newer < RUNS_AT_MOST else RUN_LASTS)


def looks_secret(variable: str) -> bool:
    """Return whether a variable's name suggests that its value is secret."""
    return _LOOKS_SECRET.search(variable) is not None


class Redaction:
    """Replaces secrets in text, both plain and JSON-quoted."""

    def __init__(self, secrets: Iterable[str]) -> None:
        plain = {secret for secret in secrets if len(secret) >= SHORTEST_SECRET}
        # Agents print JSON both with and without escapes for non-ASCII characters.
        quoted = {json.dumps(secret, ensure_ascii=ascii_only)[1:-1] for secret in plain for ascii_only in (True, False)}
        # Longest first: one secret may contain another.
        self._secrets = sorted(plain | quoted, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "[secret]")
        return text

    def end_of(self, output: bytes, limit: int) -> str:
        """Return roughly the last `limit` characters of the output.

        The result may start in the middle of a secret.
        """
        whole = output.decode("utf-8", "replace")
        cut = _CUT.match(whole)
        # With the remark in front, the start of the text could not be compared with the rest of a secret.
        text = self(whole[cut.end() :] if cut else whole)
        for secret in self._secrets:
            # The cut may have split a secret, whose rest would not match the full text.
            sizes = range(len(secret) - 1, SHORTEST_SECRET - 1, -1)
            rest = next((size for size in sizes if text.startswith(secret[-size:])), 0)
            text = f"[secret]{text[rest:]}" if rest else text
        return text[-limit:]


class Record:
    """The event file of a run. Each line is written immediately, so that a worker crash loses nothing."""

    def __init__(self, path: Path) -> None:
        """Truncate the file. The events of an earlier attempt have already been read."""
        private_folder(path.parent)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        self._left = RECORD_BYTES
        self._full = False

    def add(self, line: str, *, needed: bool) -> None:
        """Append a line.

        Lines marked `needed` show how the run ended. They are written even if the file exceeds its limit.
        """
        content = f"{line}\n".encode("utf-8", "replace")
        # A talkative agent must not fill the disk; the end of the run still has to be found after a crash.
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
        # write(2) may write less than requested.
        while view:
            view = view[os.write(self._descriptor, view) :]


class RunRecord:
    """The files that a delivery leaves behind. The agent's secrets are redacted."""

    def __init__(self, state_folder: Path, key: str, secrets: Iterable[str]) -> None:
        """Delete the files of an earlier attempt at the same delivery."""
        self.clean = Redaction(secrets)
        self._folder = run_folder(state_folder, key)
        self._transcript = BoundedOutput()
        # An outcome left from the earlier attempt would be taken for this one's after the next crash.
        shutil.rmtree(self._folder, ignore_errors=True)
        self._events = Record(self._folder / EVENTS_FILE)

    def line(self, arrow: str, text: str) -> None:
        """Add a line of the agent's conversation to the transcript."""
        self._transcript.add(f"{arrow} {shorten(self.clean(text), LINE_CHARACTERS)}\n".encode("utf-8", "replace"))

    def event(self, event: ExecutorEvent) -> None:
        """Append an event durably, so that it survives a worker crash."""
        cleaned = event.evolve(text=self.clean(event.text))
        self._events.add(cleaned.model_dump_json(exclude_defaults=True), needed=event.kind in NEEDED)

    def close(self, outcome: ExecutorOutcome, errors: str, *, keep: bool) -> ExecutorOutcome:
        """Redact the outcome, add the redacted transcript, and return the result.

        Args:
            outcome: the delivery's outcome.
            errors: the tail of the agent's standard error.
            keep: whether to also store the outcome for later attempts.
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
        redacted = outcome.evolve(
            summary=self.clean(outcome.summary),
            error=self.clean(outcome.error),
            denied=denied,
            limit=limit,
            question=question,
            transcript=self._transcript.value(),
        )
        if keep:
            # The outcome last: its existence implies the transcript's.
            write_atomically(self._folder / _TRANSCRIPT, redacted.transcript, durable=True)
            content = redacted.model_dump_json(exclude={"transcript"}).encode()
            write_atomically(self._folder / _OUTCOME, content, durable=True)
        return redacted


def read_stored_outcome(state_folder: Path, key: str) -> ExecutorOutcome | None:
    """Return the outcome that a dead attempt stored, or None if it stored none."""
    folder = run_folder(state_folder, key)
    try:
        outcome = ExecutorOutcome.model_validate_json((folder / _OUTCOME).read_bytes())
        return outcome.evolve(transcript=(folder / _TRANSCRIPT).read_bytes())
    except (OSError, ValidationError):
        return None


def read_stored_session(state_folder: Path, key: str) -> str:
    """Return the session id that a dead attempt recorded, or "" if it recorded none."""
    try:
        lines = (run_folder(state_folder, key) / EVENTS_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    # The last session counts: a lost one is replaced by a new one within the same delivery.
    for line in reversed(lines):
        with suppress(ValidationError):
            event = ExecutorEvent.model_validate_json(line)
            if event.kind is EventKind.SESSION:
                return event.session_id
    return ""


LONGEST_WAIT_S = 20.0
"""Maximum time in seconds that an agent may wait for its provider before it is stopped. Waiting in the workflow is
cheaper and can be paused.
"""


class Stop(StrEnum):
    """The reason for stopping an agent."""

    CANCELLED = "cancelled"
    WALL_LIMIT = "wall_limit"
    IDLE_LIMIT = "idle_limit"
    LIMIT = "limit"
    EVENTS = "events"
    MODEL_CALLS = "model_calls"
    QUESTION = "question"
    """A person must be asked first."""
    FINISHED = "finished"
    """The agent reported that its work was done but kept running."""
    GONE = "gone"
    """The agent exited in the middle of a turn."""


class Bounds:
    """Enforces a delivery's limits on time, silence, events, model calls and waiting for the provider."""

    def __init__(self, choice: ExecutorChoice, gateway: GatewayServer | None) -> None:
        self.events = 0
        self.limit: LimitHit | None = None
        """The provider limit that stopped the agent."""
        self._choice = choice
        self._gateway = gateway
        self._begun = self._alive = time.monotonic()

    def note_life(self) -> None:
        """Record a sign of activity, such as output or CPU use."""
        self._alive = time.monotonic()

    def check(self) -> Stop | None:
        """Return the limit that was exceeded, or None."""
        now = time.monotonic()
        if now - self._begun >= self._choice.wall_limit_s:
            return Stop.WALL_LIMIT
        if self.events > self._choice.max_events:
            return Stop.EVENTS
        if self._gateway is not None:
            counters = self._gateway.read_counters()
            if counters.budget_spent:
                return Stop.MODEL_CALLS
            # A model answer is a sign of life as well: agents are silent while they receive it.
            self._alive = max(self._alive, counters.moved)
            if (limit := counters.limit) is not None:
                wait = limit.retry_after
                # A usage limit without a time lasts for hours; other limits without one pass in seconds.
                is_spent = wait is None and limit.kind == LimitKind.USAGE_EXHAUSTED
                if is_spent or (wait is not None and wait.total_seconds() > LONGEST_WAIT_S):
                    self.limit = limit
                    return Stop.LIMIT
        # opencode waits silently for a spent quota or a retry-after of an hour; nothing else would stop it.
        return Stop.IDLE_LIMIT if now - self._alive >= self._choice.idle_limit_s else None


def stopped_outcome(stop: Stop, choice: ExecutorChoice, limit: LimitHit | None) -> ExecutorOutcome | None:
    """Return the outcome of a delivery that was stopped.

    Return None if the outcome depends on the agent's own report.
    """
    match stop:
        case Stop.CANCELLED:
            return cancelled_outcome()
        case Stop.WALL_LIMIT:
            return timeout_outcome(choice)
        case Stop.IDLE_LIMIT:
            return idle_outcome(choice, "any sign of activity")
        case Stop.LIMIT if limit is not None:
            return limit_outcome(
                limit,
                "stopped because the agent hit a provider limit and would have waited without producing any output",
            )
        case Stop.EVENTS:
            events = f"stopped after {choice.max_events} events because the agent appears to be looping"
            return failed_outcome(f"{events}. Raise executor.max_events or plan smaller steps.", ErrorKind.BUDGET)
        case Stop.MODEL_CALLS:
            calls = f"this delivery used all of its {choice.max_model_calls} model calls"
            return failed_outcome(f"{calls}. Raise executor.max_model_calls or plan smaller steps.", ErrorKind.BUDGET)
        case _:
            return None


def limit_outcome(limit: LimitHit, message: str) -> ExecutorOutcome:
    """Return the outcome of a delivery that ended because of a provider limit."""
    text = f"{limit.evidence}: {message}" if limit.evidence and limit.evidence not in message else message
    return limited_outcome(limit, clip(text, SUMMARY_CHARACTERS))
