"""Questions: everything that waits for a person, in one shape, and the rules on answers.

Status, details, alerts and the update `answer` of episodes and plans show and take the same object.
Prose never decides: an answer names an option.
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
TELL_THE_PLANNER = "To tell the planner something: respond"


class QuestionKind(StrEnum):
    """Why a workflow waits for a person."""

    OPERATOR = "operator"
    """Somebody asked for a pause."""
    BUDGET = "budget"
    REPEATED_ERROR = "repeated_error"
    FATAL = "fatal"
    """An activity or the executor cannot work as things are set up."""
    LIMIT = "limit"
    DEVIATION = "deviation"
    ALIGNMENT = "alignment"
    PROOF = "proof"
    """The checks are green, and something speaks against them."""
    PLANNER_GAVE_UP = "planner_gave_up"
    PERMISSION = "permission"
    """An agent asks before it does something."""
    WORK = "work"
    """The person is the executor."""
    CRASH = "crash"
    """A delivery broke off, as with a worker that died; it may have been made in part."""
    DRIFT = "drift"
    """Somebody else changed files outside a pause."""
    GATE = "gate"
    POLICY = "policy"
    """The policy of a plan wants a person's approval before a step acts."""
    FAILED_STEP = "failed_step"
    UNMET = "unmet"
    """All steps are done and the definition of done does not hold."""
    CLARIFICATION = "clarification"


class Option(Value):
    """One way to answer."""

    name: str
    effect: str = ""
    """What choosing it does, in one sentence."""
    pros: str = ""
    cons: str = ""
    cost: str = ""
    at_once: bool = False
    """One person decides with it, also where several have to agree."""
    takes_paths: bool = False
    """The text of the answer names the files that it holds for; without a text all of the question's `paths`."""


class Answer(Value):
    """What a person chose."""

    question: str
    """Id of the question."""
    option: str
    """Name of an option."""
    text: str = ""
    """What was done, or why. It is read by the planner and by people; it never decides."""
    paths: tuple[str, ...] = ()
    """Files and patterns that an option with `takes_paths` holds for; empty: all. The note of a `resume` names none."""
    by: str = "operator"
    at: datetime | None = None


class Question(Value):
    """What waits for a person."""

    id: str
    """Unique within its workflow and never used again, such as `q3`."""
    kind: QuestionKind
    title: str
    """What is asked, in one line of at most 600 characters."""
    evidence: tuple[str, ...] = ()
    """Why it is asked, a line each; at most 20 lines of 300 characters."""
    options: tuple[Option, ...]
    default: str = ""
    """The option that a bare `resume` chooses; empty where a person has to decide."""
    blocks: str = ""
    """What cannot go on without an answer: `the episode`, or a step; empty: all goes on meanwhile."""
    by: str = "tightloop"
    """Who asks."""
    since: datetime | None = None
    role: str = ""
    """Who may answer; empty: anybody."""
    count: int = 1
    """How many different people have to agree."""
    step: str = ""
    """The step of a plan that it is about."""
    window: str = ""
    """Questions of one review window are answered together."""
    fingerprint: str = ""
    """Of what an agent asks for, so that it is not asked again; for a drift the tree that was found."""
    paths: tuple[str, ...] = ()
    """Files that the text of an answer may name."""
    answers: tuple[Answer, ...] = ()
    """Answers so far, where several people have to agree."""
    command: str = ""
    """The update that answers it, where `answer` does not: `dispatch` or `verify` of a project's plan."""

    @property
    def bounded(self) -> "Question":
        """The question with the title on one line, and all texts within their bounds."""
        return self.evolve(
            title=shorten(" ".join(self.title.split()), TITLE_CHARACTERS) or "a question without a text",
            evidence=tuple(shorten(line, EVIDENCE_CHARACTERS) for line in self.evidence[:EVIDENCE_LINES]),
        )

    @property
    def needs_person(self) -> bool:
        """Whether a person has to look: the report of an agent comes by itself."""
        return not self.command and (bool(self.blocks) or self.kind is not QuestionKind.WORK)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the options."""
        return tuple(option.name for option in self.options)

    def json_for(self, option: str) -> str:
        """Return the JSON that the update `answer` takes for an option."""
        return json.dumps({"question": self.id, "option": option})

    @property
    def example(self) -> str:
        """JSON that the update `answer` takes, with the first option."""
        return self.json_for(self.names[0])

    @property
    def chosen(self) -> str:
        """The option that was decided on; empty while people still have to agree."""
        last = self.answers[-1].option if self.answers else ""
        people = {answer.by for answer in self.answers if answer.option == last}
        is_enough = len(people) >= self.count or any(option.at_once for option in self.options if option.name == last)
        return last if last and is_enough else ""


def read_paths(question: Question, text: str) -> tuple[str, ...]:
    """Return the paths and patterns in the text of an answer; a single path may have spaces."""
    if text in question.paths:
        return (text,)
    try:
        return tuple(shlex.split(text))
    except ValueError:
        return tuple(text.split())


def evidence_of(text: str) -> tuple[str, ...]:
    """Return a text as evidence: its lines, long ones in several pieces, so that nothing of a line is hidden."""
    lines = [line for line in text.splitlines() if line.strip()]
    return tuple(piece for line in lines for piece in split(line, EVIDENCE_CHARACTERS))[:EVIDENCE_LINES]


class AnswerCommand(Document):
    """Argument of the update `answer`."""

    question: str = ""
    """An id, a step, or a window for all of its questions; empty: the one question, or window, with the option."""
    option: str = ""
    text: str = ""
    by: str = "operator"


Answers = tuple[tuple[Question, Answer], ...]
"""Questions with an answer to each."""


class Questions(Value):
    """Open questions of a run, oldest first. A later run never uses an id again."""

    waiting: tuple[Question, ...] = ()
    asked: int = 0
    """Questions asked so far, which numbers the next one."""

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
        """Add a question. Returns it, too, with its id and time and with bounded texts."""
        number = self.asked + 1
        opened = question.bounded.evolve(id=f"q{number}", since=now)
        return self.evolve(waiting=(*self.waiting, opened), asked=number), opened

    def close(self, *ids: str) -> "Questions":
        """Remove questions that need no answer any more."""
        left = tuple(question for question in self.waiting if question.id not in ids)
        return self.evolve(waiting=left) if len(left) < len(self.waiting) else self

    def answer(self, answers: Answers, now: datetime) -> tuple["Questions", Answers]:
        """Record answers. Returns the questions as they are then: one with a `chosen` option is closed."""
        taken = []
        waiting = {question.id: question for question in self.waiting}
        for question, given in answers:
            answer = given.evolve(at=now)
            answered = question.evolve(answers=(*question.answers, answer))
            waiting[question.id] = answered
            if answered.chosen:
                del waiting[question.id]
            taken.append((answered, answer))
        return self.evolve(waiting=tuple(waiting.values())), tuple(taken)


def is_paused(waiting: Iterable[Question]) -> bool:
    """Return whether something cannot go on without an answer."""
    return any(question.blocks for question in waiting)


def parse_answer(value: Any, example: str = '{"question": "q1", "option": "allow"}') -> AnswerCommand:
    """Parse the argument of the update `answer`: the name of an option, `option: text`, or an object.

    Raises:
        InvalidRequestError: a field is unknown or invalid; the message shows the example.
    """
    # Temporal's Web UI sends any JSON; a bare string is the shortest that a person can type there.
    if isinstance(value, str):
        option, _, text = value.partition(":")
        value = {"option": option, "text": text}
    try:
        return AnswerCommand.model_validate(value)
    except ValidationError as error:
        said = next(unknown_fields(AnswerCommand, value), "") or first_problem(error)
        raise InvalidRequestError(f"answer: {followed_by(said, f'Send for example: {example}')}") from None


def match_answers(command: AnswerCommand, waiting: tuple[Question, ...], otherwise: str = TELL_THE_PLANNER) -> Answers:
    """Return the questions that a command answers, with the answer to each.

    Args:
        command: what a person sent.
        waiting: the open questions.
        otherwise: a sentence that says what to do where nothing waits.

    Raises:
        InvalidRequestError: nothing waits, the question is unknown or ambiguous, the option does not exist, or this
            person's answer cannot count; the message shows a valid answer.
    """
    wanted = command.option.strip().lower()
    answered: list[tuple[Question, Answer]] = []
    refusal: InvalidRequestError | None = None
    for question in _find_questions(command.question.strip(), wanted, waiting, otherwise):
        answer = Answer(
            question=question.id,
            option=next((name for name in question.names if name.lower() == wanted), command.option),
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
    """Refuse an option that does not exist, and an agreement that cannot count."""
    option = next((option for option in question.options if option.name == answer.option), None)
    if option is None:
        raise InvalidRequestError(
            f"answer: {shorten(repr(answer.option), 60)} is not an option of {question.id} "
            f"({shorten(question.title, 120)!r}). Options: {', '.join(question.names)}. "
            f"Send for example: {question.example}"
        )
    # A first answer, and one that decides alone, always counts.
    if not question.answers or option.at_once:
        return
    if any(given.by == answer.by for given in question.answers):
        raise InvalidRequestError(
            f"answer: {answer.by} has answered {question.id} already; it needs {question.count} different people"
        )
    first = question.answers[0]
    if first.option != answer.option:
        raise InvalidRequestError(
            f"answer: {first.by} chose {first.option!r} for {question.id}, not {answer.option!r}. "
            f"Agree, or choose one of: {', '.join(each.name for each in question.options if each.at_once) or 'none'}"
        )


def _with_paths(question: Question, answer: Answer) -> Answer:
    """Read the text of an answer whose option takes paths; refuse one that names none of the question's files."""
    if not any(option.takes_paths for option in question.options if option.name == answer.option):
        return answer
    paths = read_paths(question, answer.text)
    for word in paths:
        if not any(is_path_named(word, path) for path in question.paths):
            near = did_you_mean(word, question.paths)
            raise InvalidRequestError(
                f"answer: {shorten(repr(word), 120)} is none of the files of {question.id}. "
                f"{near}{'' if near.endswith('?') else '.'} Patterns such as 'src/*' name several; no text means all"
            )
    return answer.evolve(paths=paths)


def _find_questions(name: str, option: str, questions: tuple[Question, ...], otherwise: str) -> tuple[Question, ...]:
    """Return the question with an id or about a step, or all of a window; without a name those that have the option.

    Raises:
        InvalidRequestError: none is meant, or more than one is meant and they are not of one window.
    """
    if not questions:
        raise InvalidRequestError(f"answer: nothing waits for an answer now. {otherwise}")
    if name:
        meant = tuple(each for each in questions if name in (each.id, each.step))
        found = meant or tuple(each for each in questions if name == each.window)
    else:
        found = tuple(each for each in questions if option in map(str.lower, each.names)) or questions
    if len(found) == 1 or (found and found[0].window and len({each.window for each in found}) == 1):
        return found
    waiting = found or questions
    known = ", ".join(f"{each.id} ({each.step or each.kind.value})" for each in waiting[:12])
    problem = f"{name!r} is not a question that waits" if not found else "more than one question waits, name one"
    raise InvalidRequestError(f"answer: {problem}. Waiting: {known}. Send for example: {waiting[0].example}")


# These travel as a signal into the history of the outer plan each time that they change.
WAITS_LIMIT = 20
"""Questions that one workflow passes on, its own and those further within."""


NOTE_CHARACTERS = 300


NOTE_EVIDENCE_LINES = 3
"""The rest is in the details of the workflow that asks."""


OPTIONS_LIMIT = 12


CHILD_WAITS = "child_waits"
"""The signal that a workflow sends to the plan around it."""


class ChildWait(Value):
    """One question in a workflow that a step started, or in one further within."""

    workflow_id: str
    """The workflow that takes the answer."""
    question: Question
    """Bounded: its evidence may be cut."""
    step: str = ""
    """The step of the plan that shows it."""

    @property
    def where(self) -> str:
        """The asking workflow and step, such as `nightly.build.1 at release`."""
        return f"{self.workflow_id} at {self.question.step}" if self.question.step else self.workflow_id

    @property
    def what(self) -> str:
        """Kind and title of the question, such as `gate: may it go on?`."""
        return f"{self.question.kind.value}: {' '.join(self.question.title.split())}"

    @property
    def command(self) -> str:
        """The command that shows how to answer."""
        return f"tightloop status {self.workflow_id}"


class ChildNote(Value):
    """Open questions of a child workflow, for its parent plan."""

    workflow_id: str
    """The workflow that the step started."""
    waits: tuple[ChildWait, ...] = ()
    """All that waits there; empty: nothing waits any more."""


def waits_of(workflow_id: str, questions: Iterable[Question]) -> tuple[ChildWait, ...]:
    """Return the questions of a workflow for the plan around it."""
    return tuple(_shortened(ChildWait(workflow_id=workflow_id, question=question)) for question in questions)[
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
    return note.evolve(waits=tuple(map(_shortened, note.waits[:WAITS_LIMIT])))


def _shortened(wait: ChildWait) -> ChildWait:
    question = wait.question
    return wait.evolve(
        question=question.evolve(
            title=shorten(question.title, NOTE_CHARACTERS),
            evidence=tuple(shorten(line, NOTE_CHARACTERS) for line in question.evidence[:NOTE_EVIDENCE_LINES]),
            options=question.options[:OPTIONS_LIMIT],
        )
    )
