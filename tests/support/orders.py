"""Orders and supervision for the tests of executors."""

from pathlib import Path
from typing import Any

from tightloop.executor.message import PlanMessage, PlannedStep
from tightloop.executor.model import ExecutorChoice, Progress, WorkOrder


class Supervision:
    """A control that the test turns: cancelled from the n-th question on."""

    def __init__(self, cancel_after: int | None = None) -> None:
        self.cancel_after = cancel_after
        self.asked = 0
        self.pids: list[int] = []
        self.told: list[Progress] = []

    def is_cancelled(self) -> bool:
        self.asked += 1
        return self.cancel_after is not None and self.asked > self.cancel_after

    def own_process(self, pid: int) -> None:
        self.pids.append(pid)

    def progress(self, progress: Progress) -> None:
        self.told.append(progress)


def order(
    root: Path,
    *steps: PlannedStep,
    key: str = "run/1/1",
    iteration: int = 1,
    options: dict[str, Any] | None = None,
    **limits: float,
) -> WorkOrder:
    return WorkOrder(
        key=key,
        episode_id="episode-1",
        iteration=iteration,
        root=str(root),
        plan=PlanMessage(goal="tidy up", steps=steps),
        prompt="the plan: ordentlich aufräumen",
        executor=ExecutorChoice.model_validate({"name": "any", "options": options or {}, **limits}),
    )


def step(*run: str, title: str = "a step") -> PlannedStep:
    return PlannedStep(title=title, run=run)
