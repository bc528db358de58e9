"""Runs without a server."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from activities.workspace.scope import EpisodeScope
from tightloop.run.core import Queues, RunInput
from tightloop.run.question import Answers
from workflows.run.kernel import Meter, Run


class KeptMeter(Meter):
    """Keeps what is counted."""

    def __init__(self) -> None:
        self.counted: list[tuple[str, dict[str, str]]] = []
        self.recorded: list[tuple[str, float, dict[str, str]]] = []

    def count(self, name: str, **labels: str) -> None:
        self.counted.append((name, labels))

    def record(self, name: str, value: float, **labels: str) -> None:
        self.recorded.append((name, value, labels))


class BareRun(Run):
    """A run without a policy."""

    def __init__(self, *, now: Callable[[], datetime], given: RunInput | None = None) -> None:
        self.kept = KeptMeter()
        super().__init__(given or RunInput(), run_id="r", now=now, meter=self.kept)

    @property
    def scope(self) -> EpisodeScope:
        return EpisodeScope(episode_id=self.id, workspace="/w")

    @property
    def queues(self) -> Queues:
        return Queues()

    @property
    def project(self) -> str:
        return "w"

    def enter_closed_phase(self) -> None:
        """There is no policy whose state could end."""

    def take(self, value: Any) -> Answers:
        """Take the argument of the update `answer`."""
        return self.answer(self.match(self.read_answer(value)))
