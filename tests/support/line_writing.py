"""Episodes that write a line in each iteration, until the log has so many: what is lost or doubled shows there."""

from collections import Counter
from pathlib import Path
from typing import Any

from tests.support.episodes import scripted
from tightloop.episode.budget import Budget
from tightloop.episode.model import EpisodeRequest

PLAN = {
    "diagnosis": "there are too few lines",
    "action_items": ["append a line"],
    "steps": [{"title": "append a line", "run": None}],
    "scope": ["log.txt", "data"],
    "context": "",
    "claims_done": False,
    "gave_up": False,
    "impossible": False,
    "reason": "",
    "alignment": {"answer": "yes", "rationale": "adds a line"},
}
"""What the model answers every time."""
APPEND_NUMBER = [{"path": "log.txt", "text": "{n}\n"}]


def line_request(workspace: Path, lines: int, step: dict[str, Any], **changes: Any) -> EpisodeRequest:
    """An episode that goes on until the log has all its lines; `step` is what each iteration does besides."""
    fields: dict[str, Any] = {
        "goal": "write lines",
        "workspace": str(workspace),
        "planner": "openai",
        "definition_of_done": [f"test $(wc -l < log.txt) -ge {lines}"],
        "executor": scripted({"append": APPEND_NUMBER, **step}),
        "budget": Budget(max_iterations=None, warn_at_iteration=None, max_executor_failures=None),
        "pause_after": 10_000,
        # Its model answers every question with the same plan.
        "drafts": 0,
    }
    return EpisodeRequest.model_validate({**fields, **changes})


def lines_written(workspace: Path) -> set[str]:
    """Return the iterations that left a line; none may have left two."""
    lines = Counter((workspace / "log.txt").read_text().split())
    assert max(lines.values()) == 1, f"an iteration took effect more than once: {lines}"
    return set(lines)
