"""Refuses what people send: a failure with one sentence, which Temporal hands back to whoever sent it."""

from collections.abc import Iterator
from contextlib import contextmanager

from temporalio.exceptions import ApplicationError

from tightloop.errors import InvalidRequestError
from tightloop.value import shorten

MESSAGE_CHARACTERS = 2_000


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
