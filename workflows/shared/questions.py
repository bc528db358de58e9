"""What waits for a person in a workflow, and how people answer."""

from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from typing import Any

from temporalio import workflow

from tightloop.question import TELL_THE_PLANNER, Answer, Question, QuestionKind, read_answers
from workflows.shared.reporting import count_answer, count_pause

Answered = tuple[tuple[Question, Answer], ...]


class Questions:
    """The open questions of one workflow, oldest first. Ids are never used again, also not by the runs that follow.

    Attributes:
        asked: how many questions were asked so far; the next run needs it.
    """

    def __init__(
        self,
        waiting: tuple[Question, ...] = (),
        asked: int = 0,
        *,
        otherwise: Callable[[], str] = lambda: TELL_THE_PLANNER,
        now: Callable[[], datetime] = workflow.now,
        count: Callable[[QuestionKind], None] = count_pause,
        count_wait: Callable[[QuestionKind, timedelta], None] = count_answer,
    ) -> None:
        """Restore the questions of the previous run: those that were open, and how many had been asked.

        `otherwise` says what to do in place of an answer where nothing waits.
        """
        self._waiting = {question.id: question for question in waiting}
        self.asked = asked
        self._otherwise, self._now, self._count, self._count_wait = otherwise, now, count, count_wait

    @property
    def waiting(self) -> tuple[Question, ...]:
        """What waits for an answer."""
        return tuple(self._waiting.values())

    def ask(self, question: Question) -> Question:
        """Open a question. Return it with its id and its time, and within the bounds of its texts."""
        self.asked += 1
        opened = question.bounded.evolve(id=f"q{self.asked}", since=self._now())
        self._waiting[opened.id] = opened
        if opened.blocks:
            self._count(opened.kind)
        return opened

    def is_open(self, question_id: str) -> bool:
        """Return whether a question still waits."""
        return question_id in self._waiting

    def close(self, question_id: str) -> None:
        """Take back a question that nobody needs to answer any more."""
        self._waiting.pop(question_id, None)

    def settle(self, question: Question) -> None:
        """Close a question that a person settled in another way than by an answer."""
        self.close(question.id)
        self._measure(question)

    def read(self, value: Any) -> Answered:
        """Return which questions the argument of the update `answer` is about, with its answers; nothing changes.

        Raises:
            InvalidRequestError: it answers nothing; the sentence shows a right answer.
        """
        return read_answers(value, self.waiting, self._otherwise())

    def answer(self, value: Any) -> Answered:
        """Take the argument of the update `answer`.

        Returns:
            The questions that it answers, with their answers. One that was decided on has an option that was
            `chosen` and stops waiting; the others need more people.

        Raises:
            InvalidRequestError: as `read` does.
        """
        return tuple(self._take(question, answer) for question, answer in self.read(value))

    def answer_by_default(
        self, only: Collection[str] | None = None, *, text: str = "", by: str = "operator"
    ) -> Answered:
        """Choose the default option of each question that has one, or of those with the ids in `only`."""
        return tuple(
            self._take(question, Answer(question=question.id, option=question.default, text=text, by=by))
            for question in self.waiting
            if question.default and (only is None or question.id in only)
        )

    def _take(self, question: Question, answer: Answer) -> tuple[Question, Answer]:
        answer = answer.evolve(at=self._now())
        question = question.evolve(answers=(*question.answers, answer))
        if question.chosen:
            del self._waiting[question.id]
            self._measure(question)
        else:
            self._waiting[question.id] = question
        return question, answer

    def _measure(self, question: Question) -> None:
        """Count how long a person took; an operator's own pause is not a question."""
        if question.since is not None and question.needs_person and question.kind is not QuestionKind.OPERATOR:
            self._count_wait(question.kind, self._now() - question.since)
