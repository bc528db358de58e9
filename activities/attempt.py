"""Whether an activity should stop, as it asks itself while it works."""

from collections.abc import Callable
from contextvars import ContextVar

from temporalio import activity
from temporalio.activity import ActivityCancellationDetails

Cancellation = Callable[[], ActivityCancellationDetails | None]

current_cancellation: ContextVar[Cancellation] = ContextVar("current_cancellation")
"""Set by a worker, for which an activity may live longer than one attempt: returns why it should stop, None if not."""


def should_stop() -> bool:
    """Return whether the activity should end: it was cancelled, its worker stops, or nothing waits for its result.

    That Temporal gave up the attempt is no reason: its next attempt joins the work that still runs.
    """
    cancellation = current_cancellation.get(None)
    return activity.is_cancelled() if cancellation is None else cancellation() is not None


def is_unwanted() -> bool:
    """Return whether the workflow itself cancelled the activity."""
    cancellation = current_cancellation.get(activity.cancellation_details)
    details = cancellation()
    return details is not None and details.cancel_requested
