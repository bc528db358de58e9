"""Refuses what people send: a failure with one sentence, which Temporal hands back to whoever sent it."""

from collections.abc import Iterator
from contextlib import contextmanager

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from tightloop.errors import InvalidRequestError
from tightloop.value import shorten

MESSAGE_CHARACTERS = 2_000
_SETUP_PATCH = "refuse-wrong-setup"


@contextmanager
def refusals() -> Iterator[None]:
    """Turn an `InvalidRequestError` of the block into a failure that is not retried.

    Any other exception would fail the workflow task, which Temporal repeats until the worker's code changes.
    """
    try:
        yield
    except InvalidRequestError as error:
        # The sentence may quote what was sent, and the answer to an update goes into the history.
        message = shorten(error.message, MESSAGE_CHARACTERS)
        raise ApplicationError(message, type="InvalidRequestError", non_retryable=True) from None


def refuse_setup(problem: str) -> None:
    """Refuse a start with a misspelt name or a command that cannot run; empty: there is nothing to refuse.

    Raises:
        InvalidRequestError: with the problem.
    """
    # Asked only where there is a problem: a workflow that an older release let pass goes on, in replay, too.
    if problem and workflow.patched(_SETUP_PATCH):
        raise InvalidRequestError(problem)
