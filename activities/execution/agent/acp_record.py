"""What a delivery leaves in the state folder: its events as they come, and at the end its outcome."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from activities.execution.agent.record import Record, Redaction, run_folder
from activities.process_output import BoundedOutput
from tightloop.executor import EventKind, ExecutorEvent, ExecutorOutcome
from tightloop.value import shorten

LINE_CHARACTERS = 4_000
"""Of one message in the transcript."""
_NEEDED = frozenset({EventKind.SESSION, EventKind.FINISHED})
_OUTCOME = "outcome.json"
_TRANSCRIPT = "transcript.txt"


class RunRecord:
    """The traces of one delivery, without the secrets that the agent was given."""

    def __init__(self, state_folder: Path, key: str, secrets: Iterable[str]) -> None:
        """Begin anew: traces of an earlier attempt of the same delivery are removed."""
        self.clean = Redaction(secrets)
        self._folder = run_folder(state_folder, key)
        self._transcript = BoundedOutput()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._events = Record(self._folder / "events.jsonl")

    def line(self, arrow: str, text: str) -> None:
        """Add a line that passed between us and the agent to the transcript."""
        self._transcript.add(f"{arrow} {shorten(self.clean(text), LINE_CHARACTERS)}\n".encode("utf-8", "replace"))

    def event(self, event: ExecutorEvent) -> None:
        """Append an event to the file, so that it is there should this worker die."""
        cleaned = event.model_copy(update={"text": self.clean(event.text)})
        self._events.add(cleaned.model_dump_json(exclude_defaults=True), needed=event.kind in _NEEDED)

    def close(self, outcome: ExecutorOutcome, errors: str, *, keep: bool) -> ExecutorOutcome:
        """Return the outcome with its transcript and without secrets.

        Args:
            outcome: how the delivery ended.
            errors: end of the agent's standard error.
            keep: the outcome is also kept for an attempt that asks for it.
        """
        self._events.close()
        if errors.strip():
            told = self.clean.end_of(errors.encode("utf-8", "replace"), len(errors))
            self._transcript.add(f"! standard error:\n{told}\n".encode("utf-8", "replace"))
        texts = {name: self.clean(getattr(outcome, name)) for name in ("summary", "error")}
        denied = tuple(self.clean(line) for line in outcome.denied)
        limit = outcome.limit and outcome.limit.model_copy(update={"evidence": self.clean(outcome.limit.evidence)})
        question = outcome.question and outcome.question.model_copy(
            update={name: self.clean(getattr(outcome.question, name)) for name in ("title", "detail")}
        )
        facts = {"denied": denied, "limit": limit, "question": question, "transcript": self._transcript.value()}
        done = outcome.model_copy(update={**texts, **facts})
        if keep:
            self._keep(done)
        return done

    def _keep(self, outcome: ExecutorOutcome) -> None:
        _write(self._folder / _TRANSCRIPT, outcome.transcript)
        _write(self._folder / _OUTCOME, outcome.model_dump_json(exclude={"transcript"}).encode())


def kept_outcome(state_folder: Path, key: str) -> ExecutorOutcome | None:
    """Return the outcome that an attempt kept before it died; None where it did not come so far."""
    folder = run_folder(state_folder, key)
    try:
        outcome = ExecutorOutcome.model_validate_json((folder / _OUTCOME).read_bytes())
        return outcome.model_copy(update={"transcript": (folder / _TRANSCRIPT).read_bytes()})
    except (OSError, ValidationError):
        return None


def _write(target: Path, content: bytes) -> None:
    """Write a file at once: it is there whole or not at all."""
    new = target.with_suffix(".new")
    with os.fdopen(os.open(new, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(target)
