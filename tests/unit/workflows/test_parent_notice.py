"""What the plan around a workflow is told."""

import asyncio

from temporalio.exceptions import FailureError

from tightloop.run.question import Question, QuestionKind, waits_of
from workflows.run.reporting import ParentReporter, Waits

ONE = waits_of("w", (Question(id="q1", kind=QuestionKind.BUDGET, title="spent", options=()),))
TWO = waits_of("w", (Question(id="q2", kind=QuestionKind.FATAL, title="broken", options=()),))


class Parent:
    """Takes its time to hear."""

    def __init__(self) -> None:
        self.heard: list[Waits] = []
        self.has_ended = False

    async def hear(self, waits: Waits) -> None:
        await asyncio.sleep(0)
        if self.has_ended:
            raise FailureError("it has ended")
        self.heard.append(waits)


async def until_told() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_only_what_is_new_is_told_and_the_newest_word_comes_last() -> None:
    parent = Parent()
    notice = ParentReporter(is_child=True, is_first_run=True, send=parent.hear)
    notice.report(())
    await until_told()
    assert parent.heard == []
    for waits in (ONE, TWO, (), TWO):
        notice.report(waits)
    await until_told()
    assert parent.heard == [TWO]
    notice.report(TWO)
    await until_told()
    assert parent.heard[-1] == TWO


async def test_a_run_that_follows_another_tells_also_that_nothing_waits() -> None:
    parent = Parent()
    ParentReporter(is_child=True, is_first_run=False, send=parent.hear).report(())
    await until_told()
    assert parent.heard == [()]


async def test_after_a_reset_it_is_told_again() -> None:
    parent = Parent()
    notice = ParentReporter(is_child=True, is_first_run=True, send=parent.hear)
    notice.report(ONE)
    await until_told()
    notice.report_again()
    notice.report(ONE)
    await until_told()
    assert parent.heard == [ONE, ONE]


async def test_without_a_parent_and_after_its_end_nothing_is_told() -> None:
    parent = Parent()
    ParentReporter(is_child=False, is_first_run=True, send=parent.hear).report(ONE)
    parent.has_ended = True
    ParentReporter(is_child=True, is_first_run=True, send=parent.hear).report(ONE)
    await until_told()
    assert parent.heard == []
