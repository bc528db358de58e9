"""Questions: the single model for everything that waits for a person, and the rules for answers.

Status, details, alerts and the update `answer` of episodes and plans use the same object.
Free text never decides: an answer names an option.
"""

import json
import shlex
from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import ValidationError

from tightloop.errors import InvalidRequestError, did_you_mean, followed_by
from tightloop.value import Document, Value, first_problem, is_path_named, shorten, split, unknown_fields

TEXT_CHARACTERS = 4_000
NAME_CHARACTERS = 80
TITLE_CHARACTERS = 600
EVIDENCE_LINES = 20
EVIDENCE_CHARACTERS = 300
TELL_THE_PLANNER = "To send the planner a message, use respond"


class QuestionKind(StrEnum):
    """Reason why a workflow waits for a person."""

    OPERATOR = "operator"
    """A person requested a pause."""
    BUDGET = "budget"
    REPEATED_ERROR = "repeated_error"
    FATAL = "fatal"
    """An activity or the executor cannot work with the current setup."""
    LIMIT = "limit"
    DEVIATION = "deviation"
    ALIGNMENT = "alignment"
    PROOF = "proof"
    """The checks are green, but proof findings contradict them."""
    PLANNER_GAVE_UP = "planner_gave_up"
    PERMISSION = "permission"
    """An agent asks for approval before an action."""
    WORK = "work"
    """The person is the executor."""
    CRASH = "crash"
    """A delivery was interrupted, for example by the death of a worker, and may be partly done."""
    DRIFT = "drift"
    """Files changed outside a pause, not by the run."""
    GATE = "gate"
    POLICY = "policy"
    """The plan's policy requires a person's approval before a step acts."""
    FAILED_STEP = "failed_step"
    UNMET = "unmet"
    """All steps are done, but the definition of done is not met."""
    CLARIFICATION = "clarification"


class Option(Value):
    """Possible answer to a question."""

    name: str
    effect: str = ""
    """Consequence of choosing it, in one sentence."""
    pros: str = ""
    cons: str = ""
    cost: str = ""
    at_once: bool = False
    """True if one person can choose it alone even when the question needs several people."""
    takes_paths: bool = False
    """True if the answer's text selects files; without a text it applies to all `paths` of the question."""


class Answer(Value):
    """Choice of a person."""

    question: str
    """Id of the question."""
    option: str
    """Name of an option."""
    text: str = ""
    """Remark or report for the planner and for people; never decides."""
    paths: tuple[str, ...] = ()
    """Selected files and patterns of an option with `takes_paths`; empty for all. The note of a `resume` selects none.
    """
    by: str = "operator"
    at: datetime | None = None


class Question(Value):
    """Decision or report that a run waits for."""

    id: str
    """Id, unique within the workflow and never reused, such as `q3`."""
    kind: QuestionKind
    title: str
    """Question text, one line of at most 600 characters."""
    evidence: tuple[str, ...] = ()
    """Supporting lines; at most 20 lines of 300 characters."""
    options: tuple[Option, ...]
    default: str = ""
    """Option chosen by a plain `resume`; empty if a person has to decide."""
    blocks: str = ""
    """Blocked part: `the episode` or a step; empty if everything continues meanwhile."""
    by: str = "tightloop"
    """Author of the question."""
    since: datetime | None = None
    role: str = ""
    """Role required to answer; empty for anyone."""
    count: int = 1
    """Number of different people who have to agree."""
    step: str = ""
    """Plan step that the question belongs to."""
    window: str = ""
    """Review window; its questions are answered together."""
    fingerprint: str = ""
    """Fingerprint of an agent's request, so that it is asked once; for a drift, the tree that was found."""
    paths: tuple[str, ...] = ()
    """Files that an answer's text may select."""
    answers: tuple[Answer, ...] = ()
    """Answers so far if several people have to agree."""
    command: str = ""
    """Update that answers it instead of `answer`: `dispatch` or `verify` of a project plan."""

    @property
    def bounded(self) -> "Question":
        """Copy with a one-line title and all texts within their bounds."""
        return self.evolve(
            title=shorten(" ".join(self.title.split()), TITLE_CHARACTERS) or "a question without text",
            evidence=tuple(shorten(line, EVIDENCE_CHARACTERS) for line in self.evidence[:EVIDENCE_LINES]),
        )

    @property
    def needs_person(self) -> bool:
        """True if a person has to act; an agent's report arrives without one."""
        return not self.command and (bool(self.blocks) or self.kind is not QuestionKind.WORK)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the options."""
        return tuple(option.name for option in self.options)

    def json_for(self, option: str) -> str:
        """Return the JSON argument of the update `answer` for an option."""
        return json.dumps({"question": self.id, "option": option})

    @property
    def example(self) -> str:
        """JSON argument of the update `answer` with the first option."""
        return self.json_for(self.names[0])

    @property
    def chosen(self) -> str:
        """Agreed option; empty while more people have to agree."""
        last = self.answers[-1].option if self.answers else ""
        # Distinct names: two answers of one person are one vote.
        people = {answer.by for answer in self.answers if answer.option == last}
        is_enough = len(people) >= self.count or any(option.at_once for option in self.options if option.name == last)
        return last if last and is_enough else ""


def read_paths(question: Question, text: str) -> tuple[str, ...]:
    """Split an answer's text into paths and patterns; a single path may contain spaces."""
    if text in question.paths:
        return (text,)
    try:
        return tuple(shlex.split(text))
    # `shlex` takes the apostrophe in `it's.txt` for an open quote.
    except ValueError:
        return tuple(text.split())


def evidence_of(text: str) -> tuple[str, ...]:
    """Split a text into evidence lines; long lines become several, so that no part of a line is hidden."""
    lines = [line for line in text.splitlines() if line.strip()]
    return tuple(piece for line in lines for piece in split(line, EVIDENCE_CHARACTERS))[:EVIDENCE_LINES]


class AnswerCommand(Document):
    """Argument of the update `answer`."""

    question: str = ""
    """Id, step, or window (for all of its questions); empty for the only question, or the only window, with the option.
    """
    option: str = ""
    text: str = ""
    by: str = "operator"


Answers = tuple[tuple[Question, Answer], ...]
"""Questions paired with their answers."""


class Questions(Value):
    """Open questions of a run, oldest first. Ids are never reused, not even by a later run."""

    waiting: tuple[Question, ...] = ()
    asked: int = 0
    """Number of questions asked so far; numbers the next one."""

    def find(self, *kinds: QuestionKind) -> tuple[Question, ...]:
        """Return the open questions of these kinds."""
        return tuple(question for question in self.waiting if question.kind in kinds)

    def is_open(self, question_id: str) -> bool:
        """Return whether a question still waits for an answer."""
        return any(question.id == question_id for question in self.waiting)

    def defaults(self, text: str = "", by: str = "operator") -> Answers:
        """Return the default answer of every question that has one."""
        return tuple(
            (question, Answer(question=question.id, option=question.default, text=text, by=by))
            for question in self.waiting
            if question.default
        )

    def open(self, question: Question, now: datetime) -> tuple["Questions", Question]:
        """Add a question. Also return it with its id, its time and bounded texts."""
        # Numbered by all questions ever asked, so that a late answer to `q3` never reaches another question.
        number = self.asked + 1
        opened = question.bounded.evolve(id=f"q{number}", since=now)
        return self.evolve(waiting=(*self.waiting, opened), asked=number), opened

    def close(self, *ids: str) -> "Questions":
        """Remove questions that no longer need an answer."""
        left = tuple(question for question in self.waiting if question.id not in ids)
        return self.evolve(waiting=left) if len(left) < len(self.waiting) else self

    def answer(self, answers: Answers, now: datetime) -> tuple["Questions", Answers]:
        """Record answers. Also return the updated questions; those with a `chosen` option are closed."""
        accepted = []
        waiting = {question.id: question for question in self.waiting}
        for question, new_answer in answers:
            answer = new_answer.evolve(at=now)
            answered = question.evolve(answers=(*question.answers, answer))
            waiting[question.id] = answered
            if answered.chosen:
                del waiting[question.id]
            accepted.append((answered, answer))
        return self.evolve(waiting=tuple(waiting.values())), tuple(accepted)


def is_paused(waiting: Iterable[Question]) -> bool:
    """Return whether some work cannot continue without an answer."""
    return any(question.blocks for question in waiting)


def parse_answer(value: Any, example: str = '{"question": "q1", "option": "allow"}') -> AnswerCommand:
    """Parse the argument of the update `answer`: the name of an option, `option: text`, or an object.

    Raises:
        InvalidRequestError: a field is unknown or invalid; the message shows the example.
    """
    # Temporal's Web UI accepts any JSON; a plain string is the shortest to type there.
    if isinstance(value, str):
        option, _, text = value.partition(":")
        value = {"option": option, "text": text}
    try:
        return AnswerCommand.model_validate(value)
    except ValidationError as error:
        message = next(unknown_fields(AnswerCommand, value), "") or first_problem(error)
        raise InvalidRequestError(f"answer: {followed_by(message, f'Send for example: {example}')}") from None


def match_answers(command: AnswerCommand, waiting: tuple[Question, ...], otherwise: str = TELL_THE_PLANNER) -> Answers:
    """Match a command to the questions that it answers.

    Args:
        command: sent by a person.
        waiting: open questions.
        otherwise: advice for the error when no question is open.

    Raises:
        InvalidRequestError: no question is open, the question is unknown or ambiguous, the option does not exist, or
            the answer of this person cannot count; the message shows a valid answer.
    """
    option_name = command.option.strip().lower()
    answered: list[tuple[Question, Answer]] = []
    # Answers to a window are for several questions: those that count are recorded even if another one is refused.
    refusal: InvalidRequestError | None = None
    for question in _find_questions(command.question.strip(), option_name, waiting, otherwise):
        answer = Answer(
            question=question.id,
            # In the question's own spelling, because options are compared literally from here on.
            option=next((name for name in question.names if name.lower() == option_name), command.option),
            text=shorten(command.text.strip(), TEXT_CHARACTERS),
            by=shorten(command.by.strip() or "operator", NAME_CHARACTERS),
        )
        try:
            _check_answer(question, answer)
            answered.append((question, _with_paths(question, answer)))
        except InvalidRequestError as error:
            refusal = refusal or error
    if refusal is not None and not answered:
        raise refusal
    return tuple(answered)


def _check_answer(question: Question, answer: Answer) -> None:
    """Reject an unknown option and an answer that cannot count."""
    option = next((option for option in question.options if option.name == answer.option), None)
    if option is None:
        raise InvalidRequestError(
            f"answer: {shorten(repr(answer.option), 60)} is not an option of {question.id} "
            f"({shorten(question.title, 120)!r}). Options: {', '.join(question.names)}. "
            f"Send for example: {question.example}"
        )
    # The first answer, and an option that one person can choose alone, always count.
    if not question.answers or option.at_once:
        return
    if any(previous.by == answer.by for previous in question.answers):
        raise InvalidRequestError(
            f"answer: {answer.by} has answered {question.id} already; it needs {question.count} different people"
        )
    first = question.answers[0]
    if first.option != answer.option:
        raise InvalidRequestError(
            f"answer: {first.by} chose {first.option!r} for {question.id}, not {answer.option!r}. "
            f"Agree, or choose one of: "
            f"{', '.join(choice.name for choice in question.options if choice.at_once) or 'none'}"
        )


def _with_paths(question: Question, answer: Answer) -> Answer:
    """Add the selected paths if the option takes paths; reject a text that matches none of the question's files."""
    if not any(option.takes_paths for option in question.options if option.name == answer.option):
        return answer
    paths = read_paths(question, answer.text)
    for pattern in paths:
        if not any(is_path_named(pattern, path) for path in question.paths):
            hint = did_you_mean(pattern, question.paths)
            raise InvalidRequestError(
                f"answer: {shorten(repr(pattern), 120)} is not a file of {question.id}. "
                f"{hint}{'' if hint.endswith('?') else '.'} A pattern such as 'src/*' selects several; "
                "no text selects all"
            )
    return answer.evolve(paths=paths)


def _find_questions(name: str, option: str, questions: tuple[Question, ...], otherwise: str) -> tuple[Question, ...]:
    """Find questions by id, step or window; without a name, those that have the option.

    Raises:
        InvalidRequestError: no match, or several that are not in one window.
    """
    if not questions:
        raise InvalidRequestError(f"answer: no question is open. {otherwise}")
    if name:
        # Ids and steps before windows: a window may have the same name as a step.
        by_name = tuple(question for question in questions if name in (question.id, question.step))
        matches = by_name or tuple(question for question in questions if name == question.window)
    else:
        # If no question has the option, all of them match, so that the refusal lists the options.
        matches = tuple(question for question in questions if option in map(str.lower, question.names)) or questions
    if len(matches) == 1 or (matches and matches[0].window and len({question.window for question in matches}) == 1):
        return matches
    waiting = matches or questions
    listing = ", ".join(f"{question.id} ({question.step or question.kind.value})" for question in waiting[:12])
    problem = f"{name!r} is not an open question" if not matches else "several questions are open; name one"
    raise InvalidRequestError(f"answer: {problem}. Open: {listing}. Send for example: {waiting[0].example}")


# Notes to the outer plan are sent as a signal at each change and stay in its history, hence the bounds.
WAITS_LIMIT = 20
"""Maximum number of questions that a workflow forwards, including those of its descendants."""


NOTE_CHARACTERS = 300


NOTE_EVIDENCE_LINES = 3
"""Lines forwarded; the details of the asking workflow have the rest."""


OPTIONS_LIMIT = 12


CHILD_WAITS = "child_waits"
"""Signal that a workflow sends to its parent plan."""


class ChildWait(Value):
    """Open question of a child workflow or of one of its descendants."""

    workflow_id: str
    """Workflow that receives the answer."""
    question: Question
    """The question, bounded; evidence may be cut."""
    step: str = ""
    """Plan step that shows it."""

    @property
    def where(self) -> str:
        """Asking workflow and step, such as `nightly.build.1 at release`."""
        return f"{self.workflow_id} at {self.question.step}" if self.question.step else self.workflow_id

    @property
    def what(self) -> str:
        """Kind and title, such as `gate: may it continue?`."""
        return f"{self.question.kind.value}: {' '.join(self.question.title.split())}"

    @property
    def command(self) -> str:
        """Command that shows the ways to answer."""
        return f"tightloop status {self.workflow_id}"


class ChildNote(Value):
    """Open questions of a child workflow, for its parent plan."""

    workflow_id: str
    """Workflow that the step started."""
    waits: tuple[ChildWait, ...] = ()
    """All open questions there; empty if none is left."""


def waits_of(workflow_id: str, questions: Iterable[Question]) -> tuple[ChildWait, ...]:
    """Return the questions of a workflow in the form for its parent plan, bounded."""
    return tuple(_shorten_wait(ChildWait(workflow_id=workflow_id, question=question)) for question in questions)[
        :WAITS_LIMIT
    ]


def read_child_note(value: Any) -> ChildNote:
    """Read the argument of `child_waits`, bounded.

    Raises:
        InvalidRequestError: it is not a note.
    """
    try:
        note = ChildNote.model_validate(value)
    except ValidationError as error:
        raise InvalidRequestError(f"{CHILD_WAITS}: {shorten(first_problem(error), 200)}") from None
    # Bounded again: a child may run another version, and its bounds protect only its own history.
    return note.evolve(waits=tuple(map(_shorten_wait, note.waits[:WAITS_LIMIT])))


def _shorten_wait(wait: ChildWait) -> ChildWait:
    question = wait.question
    return wait.evolve(
        question=question.evolve(
            title=shorten(question.title, NOTE_CHARACTERS),
            evidence=tuple(shorten(line, NOTE_CHARACTERS) for line in question.evidence[:NOTE_EVIDENCE_LINES]),
            options=question.options[:OPTIONS_LIMIT],
        )
    )
