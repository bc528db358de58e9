"""Authentication of messages to a workflow."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from tightloop.errors import InvalidRequestError
from tightloop.safety.seal import SKEW_SECONDS, Heard, Seal, SealedMessage, check_id, check_start
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


def check_seal(seal: Seal | None) -> None:
    """Refuse the start of this workflow where its input was sealed for something else.

    Raises:
        InvalidRequestError: the workflow must not do anything.
    """
    if seal is not None:
        info = workflow.info()
        check_start(
            seal,
            started=_milliseconds(info.workflow_start_time),
            is_child=info.parent is not None,
            is_continued=info.continued_run_id is not None,
        )


class Inbox:
    """Takes messages off their seals, and refuses copies. Without authentication messages have no seals: all count.

    Attributes:
        heard: the messages taken so far; the run that follows needs it.
        last_heard: when the last one was taken in this run.
    """

    def __init__(self, seal: Seal | None, heard: Heard) -> None:
        """Take the seal of the input, and what the runs before have heard."""
        self._seal = seal
        # Messages to an earlier workflow with this id were issued before this one was started.
        since = 0 if seal is None else seal.issued - SKEW_SECONDS * 1000
        self.heard = heard if heard != Heard() else Heard(since=since)
        self.last_heard: datetime | None = None

    def check_start(self) -> None:
        """Refuse a start under an id that is not one of ours, or with a seal for something else.

        Raises:
            InvalidRequestError: the workflow must not do anything.
        """
        check_id(workflow.info().workflow_id)
        check_seal(self._seal)

    def read(self, message: Any) -> Any:
        """Return the content of an update's argument; nothing changes.

        Raises:
            ApplicationError: it is a copy, or was sealed for something else.
        """
        with refusals():
            if isinstance(message, SealedMessage):
                refusal = self.heard.refusal(message.seal, _milliseconds(workflow.now()))
                if refusal:
                    raise InvalidRequestError(f"the message is refused: {refusal}")
                return message.content
            if self._seal is not None and message is not None:
                raise InvalidRequestError("the message is refused: a workflow sealed it, not a client")
        return message

    def take(self, message: Any) -> Any:
        """Return the content of an argument, which is never taken again.

        Raises:
            ApplicationError: as `read` does.
        """
        content = self.read(message)
        self.last_heard = workflow.now()
        if isinstance(message, SealedMessage):
            self.heard = self.heard.with_message(message.seal)
        return content

    def take_signal(self, message: Any) -> tuple[Any, ...]:
        """Return the content of a signal's argument; nothing where it is refused, for nobody waits for an answer."""
        try:
            return (self.take(message),)
        except ApplicationError as error:
            workflow.logger.warning("a signal was dropped: %s", error.message)
            return ()


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
