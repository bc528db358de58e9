"""What a workflow shows, and how often."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.common import SearchAttributeUpdate

from workflows.run.reporting import Reporter


class Shown:
    """What a workflow showed, in place of Temporal."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.details: list[str] = []
        self.attributes: list[dict[str, object]] = []

    def upsert(self, updates: Sequence[SearchAttributeUpdate[Any]]) -> None:
        self.attributes.append({update.key.name.removeprefix("Tightloop"): update.value for update in updates})

    def reporter(self, **more: Any) -> Reporter:
        return Reporter(
            lambda: f"at {self.now:%S}", now=lambda: self.now, show=self.details.append, upsert=self.upsert, **more
        )


def test_details_that_can_wait_are_shown_once_in_a_while() -> None:
    shown = Shown()
    reporter = shown.reporter(every=timedelta(seconds=2))
    for _ in range(5):
        reporter.show(at_once=False)
        shown.now += timedelta(seconds=1)
    reporter.show()
    assert shown.details == ["at 00", "at 02", "at 04", "at 05"]


def test_the_attributes_change_only_when_what_is_needed_changes() -> None:
    shown = Shown()
    reporter = shown.reporter()
    for kind in ("", "budget", "budget", ""):
        reporter.call_for(kind)
    reporter.call_for("gate", paused=False)
    reporter.close("failed")
    assert shown.attributes == [
        {"Status": "paused", "PauseKind": "budget"},
        {"Status": "running", "PauseKind": None},
        {"Status": "running", "PauseKind": "gate"},
        {"Status": "failed", "PauseKind": None},
    ]


def test_a_run_that_begins_in_a_pause_leaves_the_attributes_as_they_are() -> None:
    shown = Shown()
    shown.reporter(called_for="fatal").call_for("fatal")
    assert (shown.attributes, len(shown.details)) == ([], 1)
