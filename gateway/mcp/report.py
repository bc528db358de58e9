"""What an agent tells the planner: the report on its work where that is waited for, else a note."""

from tightloop.episode.control import TEXT_CHARACTERS
from tightloop.episode.model import EpisodeStatus
from tightloop.errors import InvalidRequestError, MessageError
from tightloop.executor.asking import DONE, FAILED, LIMIT, REFUSED
from tightloop.executor.messages.message import PlanRequestMessage, parse_plan_request
from tightloop.executor.model import SUMMARY_CHARACTERS, ExecutorStatus
from tightloop.question import Question, QuestionKind
from tightloop.value import Value, shorten

OUTCOMES = {
    ExecutorStatus.COMPLETED: DONE,
    ExecutorStatus.NO_CHANGE: DONE,
    ExecutorStatus.FAILED: FAILED,
    ExecutorStatus.REFUSED: REFUSED,
    ExecutorStatus.LIMIT_HIT: LIMIT,
}
"""What the section OUTCOME of a report says, and the option of the question that it answers."""


class Report(Value):
    """The report on a delivery, as the answer to the question that waits for the work."""

    question: str
    option: str
    text: str

    @property
    def is_long(self) -> bool:
        """Whether the report of the delivery keeps only the beginning of it."""
        return len(self.text) > SUMMARY_CHARACTERS


def awaited_work(status: EpisodeStatus) -> Question | None:
    """Return the question that is answered by doing the work."""
    return next((each for each in status.questions if each.kind is QuestionKind.WORK), None)


def is_report(message: str, *, before: int | None = None) -> bool:
    """Return whether a message is a report, such as one that comes a second time; `before`: on an earlier iteration."""
    try:
        iteration = parse_plan_request(message).iteration
    except MessageError:
        return False
    return before is None or 0 < iteration < before


def read_report(message: str, status: EpisodeStatus, question: Question) -> Report:
    """Read a message as the report on the work of the current iteration.

    Raises:
        MessageError: a section is missing or wrong; the sentence has a right example.
        InvalidRequestError: it is about another iteration or none, or its outcome is not one.
    """
    said = parse_plan_request(message)
    if said.iteration != status.iteration:
        which = f"is on iteration {said.iteration}" if said.iteration else "does not say on which [🔁 ITERATION] it is"
        raise InvalidRequestError(
            f"the report {which}, and {status.episode_id} is in iteration {status.iteration}. "
            "Report on the plan that is waited for; the tool status shows it"
        )
    return Report(question=question.id, option=_option(said), text=_text(said))


def _option(said: PlanRequestMessage) -> str:
    # Who finds its own work wrong does not claim that it is done.
    if said.alignment.answer == "no":
        return REFUSED
    outcome = said.outcome.strip().lower().replace(" ", "_")
    for status, option in OUTCOMES.items():
        if outcome == status.value:
            return option
    raise InvalidRequestError(
        f"[📨 OUTCOME] says {said.outcome[:60]!r}: it must be one of {', '.join(status.value for status in OUTCOMES)}"
    )


def _text(said: PlanRequestMessage) -> str:
    parts = [
        said.report,
        f"Diagnosis: {said.reflection.diagnosis}",
        *(f"To do: {item}" for item in said.reflection.action_items),
        *(f"Question: {question}" for question in said.questions),
        *([f"Not aligned: {said.alignment.rationale}"] if said.alignment.answer == "no" else []),
    ]
    return shorten("\n".join(filter(None, parts)), TEXT_CHARACTERS)
