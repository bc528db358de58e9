"""What a workflow shows in Temporal: its current details, and the search attributes of its list."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate

from tightloop.episode.model import REFUSED

# Search attributes are plaintext even where payloads are encrypted: they hold enum values only.
STATUS = SearchAttributeKey.for_keyword("TightloopStatus")
PAUSE_KIND = SearchAttributeKey.for_keyword("TightloopPauseKind")


def is_first_use() -> bool:
    """Return whether nobody but this run may have used its id: not a child of a plan, not a run that follows one."""
    info = workflow.info()
    return info.parent is None and info.continued_run_id is None


class Reporter:
    """Shows the state of a workflow, no more often than needed."""

    def __init__(
        self,
        details: Callable[[], str],
        *,
        called_for: str = "",
        paused: bool = True,
        every: timedelta = timedelta(),
        now: Callable[[], datetime] = workflow.now,
        show: Callable[[str], None] = workflow.set_current_details,
        upsert: Callable[[Sequence[SearchAttributeUpdate[Any]]], None] = workflow.upsert_search_attributes,
    ) -> None:
        """Begin with what the previous run left in the search attributes.

        Args:
            details: the current details as Markdown.
            called_for: kind of the question that the attributes show; empty: none waits.
            paused: whether they show that the workflow goes on only with an answer.
            every: shortest time between two of the details that do not follow at once.
            now: the time.
            show: shows the details.
            upsert: changes search attributes, which costs one event.
        """
        self._details, self._every = details, every
        self._now, self._show, self._upsert = now, show, upsert
        self._called_for = (called_for, paused and bool(called_for))
        self._shown_at: datetime | None = None

    def show(self, *, at_once: bool = True) -> None:
        """Refresh the current details; where that can wait, only once in a while."""
        now = self._now()
        if at_once or self._shown_at is None or now - self._shown_at >= self._every:
            self._shown_at = now
            # Unlike search attributes, current details add no event to the history.
            self._show(self._details())

    def call_for(self, kind: str, *, paused: bool = True) -> None:
        """Show in the list of workflows for what a person is needed.

        Args:
            kind: of the question that waits; empty: none does.
            paused: whether the workflow goes on only with an answer.
        """
        if (kind, paused and bool(kind)) != self._called_for:
            self._called_for = (kind, paused and bool(kind))
            shown = PAUSE_KIND.value_set(kind) if kind else PAUSE_KIND.value_unset()
            self._upsert([STATUS.value_set("paused" if kind and paused else "running"), shown])
        self.show()

    def close(self, status: str) -> None:
        """Show how the workflow ended."""
        self._upsert([STATUS.value_set(status), PAUSE_KIND.value_unset()])
        self.show()

    def refuse(self, *, is_new: bool) -> None:
        """Show that nothing began; a run that is the first under its id leaves it free, and hides no earlier one."""
        self.close(REFUSED if is_new else "failed")
