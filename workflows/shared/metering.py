"""What only a workflow knows to count: its pauses, what people do, and its end. Nothing is counted in replay."""

from datetime import timedelta

from temporalio import workflow

from tightloop.episode.budget import Spent
from tightloop.episode.model import EpisodeOutcome
from tightloop.question import QuestionKind
from tightloop.telemetry import METRICS


def count_pause(kind: QuestionKind) -> None:
    """Count a wait for a person."""
    name = "tightloop_pauses"
    workflow.metric_meter().create_counter(name, METRICS[name]).add(1, {"kind": kind.value})


def count_answer(kind: QuestionKind, waited: timedelta) -> None:
    """Count how long a question waited for its answer."""
    name = "tightloop_answer_seconds"
    made = workflow.metric_meter().create_histogram_float(name, METRICS[name])
    made.record(waited.total_seconds(), {"kind": kind.value})


def count_intervention(message: str) -> None:
    """Count a message of a person that was accepted, by its name."""
    name = "tightloop_interventions"
    workflow.metric_meter().create_counter(name, METRICS[name]).add(1, {"message": message})


def count_episode(outcome: EpisodeOutcome, spent: Spent) -> None:
    """Count an episode that ends, and what it spent."""
    name, labels = "tightloop_episodes", {"outcome": outcome.value}
    workflow.metric_meter().create_counter(name, METRICS[name]).add(1, labels)
    values = {
        # A lower bound would pass for the whole.
        **({} if spent.unreported_calls else {"tightloop_episode_tokens": float(spent.tokens)}),
        **({} if spent.unpriced_calls else {"tightloop_episode_cost_usd": spent.cost_usd}),
        "tightloop_episode_minutes": spent.wall_time.total_seconds() / 60,
        "tightloop_episode_iterations": float(spent.iterations),
    }
    for name, value in values.items():
        workflow.metric_meter().create_histogram_float(name, METRICS[name]).record(value, labels)
