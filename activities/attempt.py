"""Conditions for stopping the current activity."""

from collections.abc import Callable
from contextvars import ContextVar

from temporalio import activity
from temporalio.activity import ActivityCancellationDetails

Cancellation = Callable[[], ActivityCancellationDetails | None]

current_cancellation: ContextVar[Cancellation] = ContextVar("current_cancellation")
"""Function that returns the reason to stop, or None. Set by workers whose activities may outlive an attempt."""


def should_stop() -> bool:
    """Return whether the activity should stop.

    An activity should stop if it is cancelled, if its worker shuts down, or if nothing awaits its result.
    It should not stop when an attempt times out, because the next attempt joins the running work.
    """
    cancellation = current_cancellation.get(None)
    return activity.is_cancelled() if cancellation is None else cancellation() is not None


def is_cancelled_by_workflow() -> bool:
    """Return whether the workflow itself cancelled the activity."""
    # A worker that shuts down cancels its activities too, but another attempt follows then.
    cancellation = current_cancellation.get(activity.cancellation_details)
    details = cancellation()
    return details is not None and details.cancel_requested
