"""What only a workflow knows to count: its pauses and its end. Nothing is counted in replay."""

from temporalio import workflow

from tightloop.episode.budget import Spent
from tightloop.episode.model import EpisodeOutcome
from tightloop.question import QuestionKind
from tightloop.telemetry import METRICS


def count_pause(kind: QuestionKind) -> None:
    """Count a wait for a person."""
    name = "tightloop_pauses"
    workflow.metric_meter().create_counter(name, METRICS[name]).add(1, {"kind": kind.value})


def count_episode(outcome: EpisodeOutcome, spent: Spent) -> None:
    """Count an episode that ends, and what it spent."""
    name, labels = "tightloop_episodes", {"outcome": outcome.value}
    workflow.metric_meter().create_counter(name, METRICS[name]).add(1, labels)
    values = {
        "tightloop_episode_tokens": float(spent.tokens),
        "tightloop_episode_cost_usd": spent.cost_usd,
        "tightloop_episode_minutes": spent.wall_time.total_seconds() / 60,
        "tightloop_episode_iterations": float(spent.iterations),
    }
    for name, value in values.items():
        workflow.metric_meter().create_histogram_float(name, METRICS[name]).record(value, labels)
