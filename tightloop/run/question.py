"""Questions: the common model for everything that waits for a person, and the rules for answers.

The status, details, alerts and `answer` update of episodes and plans all use the same object. Free text never makes a
decision: an answer always names an option.
"""

import json
import shlex
from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import ValidationError

from tightloop.errors import InvalidRequestError, did_you_mean
from tightloop.run.commands import read_argument
from tightloop.safety.approval import Approval, FileVersion, ShownChange
from tightloop.safety.seal import Role
from tightloop.value import Document, Value, first_problem, is_path_named, shorten, split

TEXT_CHARACTERS = 4_000
NAME_CHARACTERS = 80
TITLE_CHARACTERS = 600
EVIDENCE_LINES = 20
EVIDENCE_CHARACTERS = 300
TELL_THE_PLANNER = "To send the planner a message, use respond"


class QuestionKind(StrEnum):
    """The reason why a workflow is waiting for a person."""

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
    """The checks passed, but findings of the proof contradict them."""
    ALREADY_GREEN = "already_green"
    """Every check passes before the first plan, so none of them can show that the goal is reached."""
    PLANNER_GAVE_UP = "planner_gave_up"
    IMPOSSIBLE = "impossible"
    """The executor or the planner says that the work cannot be done, and gives a reason."""
    PERMISSION = "permission"
    """An agent asks for permission to perform an action."""
    WORK = "work"
    """The executor is a person, who has to do the work."""
    CRASH = "crash"
    """A delivery was interrupted, for example because a worker died, and may be partly done."""
    DRIFT = "drift"
    """Files were changed outside a pause, but not by the run."""
    GATE = "gate"
    POLICY = "policy"
    """The plan's policy requires that a person approves a step before it acts."""
    FAILED_STEP = "failed_step"
    UNMET = "unmet"
    """All steps are done, but the definition of done has not been met."""
    CLARIFICATION = "clarification"
    SETUP = "setup"
    """The project's packages are not installed, and nobody has allowed the command that installs them."""


ABOUT_WORK = frozenset(
    {
        QuestionKind.BUDGET,
        QuestionKind.REPEATED_ERROR,
        QuestionKind.DEVIATION,
        QuestionKind.ALIGNMENT,
        QuestionKind.PLANNER_GAVE_UP,
        QuestionKind.IMPOSSIBLE,
        QuestionKind.PROOF,
    }
)
"""Question kinds for which the causes of failing checks and the executor's last words are relevant."""


class OptionGroup(StrEnum):
    """Groups of options, in display order."""

    GO_ON = "go_on"
    """The work continues. Nothing is accepted, and nothing ends."""
    ACCEPT = "accept"
    """The subject of the question is accepted, allowed or left out."""
    STOP = "stop"
    """Something ends, or the subject of the question is rejected."""


class Option(Value):
    """Possible answer to a question."""

    name: str
    effect: str = ""
    """Consequence of choosing the option, in one sentence."""
    group: OptionGroup = OptionGroup.GO_ON
    pros: str = ""
    cons: str = ""
    cost: str = ""
    at_once: bool = False
    """True if a single person can choose the option, even if several people normally have to agree."""
    needs_text: str = ""
    """Kind of content that the text of the answer must have, such as `COMMAND`. Empty if the text is only a comment."""
    takes_paths: bool = False
    """True if the text of the answer selects files. Without a text, the answer applies to all `paths` of the question.
    """


def in_order(options: Iterable[Option]) -> tuple[Option, ...]:
    """Sort the options by group. The order within a group does not change."""
    groups = tuple(OptionGroup)
    return tuple(sorted(options, key=lambda option: groups.index(option.group)))


class Answer(Value):
    """A person's choice."""

    question: str
    """ID of the question."""
    option: str
    """Name of the chosen option."""
    text: str = ""
    """Comment or report for the planner and for people. It never selects an option."""
    paths: tuple[str, ...] = ()
    """Files and patterns that were selected for an option with `takes_paths`. If empty, all are selected. The note of a
    `resume` does not select any.
    """
    by: str = "operator"
    at: datetime | None = None


class Question(Value):
    """A decision or a report that a run is waiting for."""

    id: str
    """ID, such as `q3`. It is unique within the workflow and never reused."""
    kind: QuestionKind
    title: str
    """Text of the question: one line of at most 600 characters."""
    evidence: tuple[str, ...] = ()
    """Supporting information, at most 20 lines of 300 characters each."""
    options: tuple[Option, ...]
    default: str = ""
    """Option that a plain `resume` chooses. It is empty if a person has to decide."""
    blocks: str = ""
    """Blocked part of the run: `the episode` or a step. It is empty if everything else continues."""
    by: str = "tightloop"
    """Author of the question."""
    since: datetime | None = None
    role: str = ""
    """Role that is required to answer. If empty, anyone can answer."""
    count: int = 1
    """Number of different people who have to agree."""
    step: str = ""
    """Plan step to which the question belongs."""
    window: str = ""
    """Review window. All questions of a window are answered together."""
    fingerprint: str = ""
    """Fingerprint of an agent's request, which ensures that it is only asked once. For a drift, it is the tree that was
    found.
    """
    paths: tuple[str, ...] = ()
    """Files that the text of an answer may select."""
    change: ShownChange | None = None
    """Change to which the question refers."""
    answers: tuple[Answer, ...] = ()
    """Answers so far, if several people have to agree."""
    command: str = ""
    """Update that answers the question instead of `answer`: `dispatch` or `verify` of a project plan."""

    @property
    def bounded(self) -> "Question":
        """Copy of the question with its text shortened, a one-line title and sorted options."""
        return self.evolve(
            title=shorten(" ".join(self.title.split()), TITLE_CHARACTERS) or "a question without text",
            options=in_order(self.options),
            evidence=tuple(shorten(line, EVIDENCE_CHARACTERS) for line in self.evidence[:EVIDENCE_LINES]),
        )

    @property
    def markdown(self) -> tuple[str, ...]:
        """Evidence and diff of the change, as lines of Markdown."""
        diff = tuple(f"    {line}" for line in self.change.text) if self.change is not None else ()
        return (*(f"- {line}" for line in self.evidence), *(("", *diff) if diff else ()))

    def approval(self, answer: Answer, *, asked: bool, files: Iterable[FileVersion] | None = None) -> Approval:
        """Convert the answer to an approval of the change.

        If `files` is given, the approval only covers these files.
        """
        shown = self.change.files if self.change is not None else ()
        return Approval(files=tuple(shown if files is None else files), by=answer.by, at=answer.at, asked=asked)

    @property
    def required_role(self) -> Role:
        """The role that is required to answer. The person who requested work cannot approve it."""
        is_approval = self.role or self.kind in (QuestionKind.GATE, QuestionKind.POLICY)
        return Role.APPROVER if is_approval else Role.OPERATOR

    @property
    def needs_person(self) -> bool:
        """True if a person has to act. An agent's report does not need a person."""
        return not self.command and (bool(self.blocks) or self.kind is not QuestionKind.WORK)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the options."""
        return tuple(option.name for option in self.options)

    def json_for(self, option: str) -> str:
        """Return the JSON argument for an `answer` update with the given option."""
        needed = next((choice.needs_text for choice in self.options if choice.name == option), "")
        return json.dumps({"question": self.id, "option": option} | ({"text": needed} if needed else {}))

    @property
    def example(self) -> str:
        """JSON argument of the `answer` update that chooses the first option."""
        return self.json_for(self.names[0])

    @property
    def chosen(self) -> str:
        """Option that was agreed on. Empty until enough people have agreed."""
        last = self.answers[-1].option if self.answers else ""
        # Distinct names: two answers of one person are one vote.
        people = {answer.by for answer in self.answers if answer.option == last}
        is_enough = len(people) >= self.count or any(option.at_once for option in self.options if option.name == last)
        return last if last and is_enough else ""


def read_paths(question: Question, text: str) -> tuple[str, ...]:
    """Split the text of an answer into paths and patterns. A single path may contain spaces."""
    if text in question.paths:
        return (text,)
    try:
        return tuple(shlex.split(text))
    # `shlex` takes the apostrophe in `it's.txt` for an open quote.
    except ValueError:
        return tuple(text.split())


def evidence_of(text: str) -> tuple[str, ...]:
    """Split text into lines of evidence. Long lines are split so that nothing is hidden."""
    lines = [line for line in text.splitlines() if line.strip()]
    return tuple(piece for line in lines for piece in split(line, EVIDENCE_CHARACTERS))[:EVIDENCE_LINES]


class AnswerCommand(Document):
    """Arguments of the `answer` update."""

    question: str = ""
    """ID, step or window of the question. A window selects all of its questions. It may be empty if there is only one
    question, or only one window, that has the option.
    """
    option: str = ""
    text: str = ""
    by: str = "operator"


Answers = tuple[tuple[Question, Answer], ...]
"""Questions paired with their answers."""


class Questions(Value):
    """The open questions of a run, oldest first. IDs are never reused, not even in a later run."""

    waiting: tuple[Question, ...] = ()
    asked: int = 0
    """Number of questions asked so far. It determines the number of the next question."""

    def find(self, *kinds: QuestionKind) -> tuple[Question, ...]:
        """Return the open questions of the given kinds."""
        return tuple(question for question in self.waiting if question.kind in kinds)

    def is_open(self, question_id: str) -> bool:
        """Return whether a question is still open."""
        return any(question.id == question_id for question in self.waiting)

    def defaults(self, text: str = "", by: str = "operator") -> Answers:
        """Return the default answers. Questions without a default are skipped."""
        return tuple(
            (question, Answer(question=question.id, option=question.default, text=text, by=by))
            for question in self.waiting
            if question.default
        )

    def open(self, question: Question, now: datetime) -> tuple["Questions", Question]:
        """Add a question and return it with its ID, its time and its text shortened."""
        # Numbered by all questions ever asked, so that a late answer to `q3` never reaches another question.
        number = self.asked + 1
        opened = question.bounded.evolve(id=f"q{number}", since=now)
        return self.evolve(waiting=(*self.waiting, opened), asked=number), opened

    def close(self, *ids: str) -> "Questions":
        """Remove questions that no longer need an answer."""
        left = tuple(question for question in self.waiting if question.id not in ids)
        return self.evolve(waiting=left) if len(left) < len(self.waiting) else self

    def answer(self, answers: Answers, now: datetime) -> tuple["Questions", Answers]:
        """Record answers and return the updated questions.

        A question is closed as soon as it has a `chosen` option.
        """
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
    """Return whether any work is blocked until a question is answered."""
    return any(question.blocks for question in waiting)


def parse_answer(value: Any, example: str = '{"question": "q1", "option": "allow"}') -> AnswerCommand:
    """Parse the argument of the `answer` update.

    The argument is the name of an option, `option: text`, or an object.

    Raises:
        InvalidRequestError: a field is unknown or invalid. The message shows an example.
    """
    # Temporal's Web UI accepts any JSON; a plain string is the shortest to type there.
    if isinstance(value, str):
        option, _, text = value.partition(":")
        value = {"option": option, "text": text}
    return read_argument(value, AnswerCommand, what="answer", example=example)


def match_answers(command: AnswerCommand, waiting: tuple[Question, ...], otherwise: str = TELL_THE_PLANNER) -> Answers:
    """Find the questions that a command answers.

    Args:
        command: command sent by a person.
        waiting: open questions.
        otherwise: advice to add to the error if no question is open.

    Raises:
        InvalidRequestError: the command does not match an open question, the option does not exist, or
            the answer conflicts with earlier answers. The message shows a valid answer.
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
            _check_answer(question, answer, is_cut=len(command.text.strip()) > TEXT_CHARACTERS)
            answered.append((question, _with_paths(question, answer)))
        except InvalidRequestError as error:
            refusal = refusal or error
    if refusal is not None and not answered:
        raise refusal
    return tuple(answered)


def _check_answer(question: Question, answer: Answer, *, is_cut: bool) -> None:
    """Raise an error if an answer is invalid or conflicts with the earlier answers to its question."""
    option = next((option for option in question.options if option.name == answer.option), None)
    if option is None:
        raise InvalidRequestError(
            f"answer: {shorten(repr(answer.option), 60)} is not an option of {question.id} "
            f"({shorten(question.title, 120)!r}). Options: {', '.join(question.names)}. "
            f"Example: {question.example}"
        )
    if option.needs_text and not answer.text:
        raise InvalidRequestError(
            f"answer: {option.name!r} requires an argument: {option.needs_text}. Example: "
            f"{question.json_for(option.name)}"
        )
    if option.needs_text and is_cut:
        raise InvalidRequestError(
            f"answer: the argument of {option.name!r} is longer than {TEXT_CHARACTERS} characters. Put a long command "
            "in a script"
        )
    # The first answer, and an option that one person can choose alone, always count.
    if not question.answers or option.at_once:
        return
    if any(previous.by == answer.by for previous in question.answers):
        raise InvalidRequestError(
            f"answer: {answer.by} has already answered {question.id}, which needs answers from {question.count} "
            "different people"
        )
    first = question.answers[0]
    if first.option != answer.option:
        raise InvalidRequestError(
            f"answer: {first.by} has already answered {question.id} with {first.option!r}, not {answer.option!r}. "
            f"Choose the same option, or one of: "
            f"{', '.join(choice.name for choice in question.options if choice.at_once) or 'none'}"
        )


def _with_paths(question: Question, answer: Answer) -> Answer:
    """Add the selected files to an answer whose option takes paths.

    Raises:
        InvalidRequestError: a path or pattern does not match any of the question's files.
    """
    if not any(option.takes_paths for option in question.options if option.name == answer.option):
        return answer
    paths = read_paths(question, answer.text)
    for pattern in paths:
        if not any(is_path_named(pattern, path) for path in question.paths):
            hint = did_you_mean(pattern, question.paths)
            raise InvalidRequestError(
                f"answer: {shorten(repr(pattern), 120)} does not match any file in {question.id}. "
                f"{hint}{'' if hint.endswith('?') else '.'} A pattern such as 'src/*' selects several files. To "
                "select all files, omit the patterns"
            )
    return answer.evolve(paths=paths)


def _find_questions(name: str, option: str, questions: tuple[Question, ...], otherwise: str) -> tuple[Question, ...]:
    """Find questions by ID, step or window.

    If `name` is empty, find the questions that have the option.

    Raises:
        InvalidRequestError: no question matches, or the matching questions do not share a window.
    """
    if not questions:
        raise InvalidRequestError(f"answer: there is no question to answer. {otherwise}")
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
    problem = f"{name!r} is not an open question" if not matches else "several questions are open. Specify one"
    raise InvalidRequestError(f"answer: {problem}. Open questions: {listing}. Example: {waiting[0].example}")


# Notes to the outer plan are sent as a signal at each change and stay in its history, hence the bounds.
WAITS_LIMIT = 20
"""Maximum number of questions that a workflow forwards, including the questions of its descendants."""


NOTE_CHARACTERS = 300


NOTE_EVIDENCE_LINES = 3
"""Number of lines of evidence that are forwarded. The remaining lines are shown in the details of the workflow that
asks the question.
"""


OPTIONS_LIMIT = 12


CHILD_WAITS = "child_waits"
"""Signal that a workflow sends to its parent plan."""


class ChildWait(Value):
    """An open question from a direct or indirect child workflow."""

    workflow_id: str
    """Workflow that receives the answer."""
    question: Question
    """The question, with limited size. Some of its evidence may be omitted."""
    step: str = ""
    """Plan step that shows the question."""

    @property
    def where(self) -> str:
        """Workflow and step that ask the question, such as `nightly.build.1 at release`."""
        return f"{self.workflow_id} at {self.question.step}" if self.question.step else self.workflow_id

    @property
    def what(self) -> str:
        """Kind and title of the question, such as `gate: may it continue?`."""
        return f"{self.question.kind.value}: {' '.join(self.question.title.split())}"

    @property
    def command(self) -> str:
        """Command that answers the question."""
        return f"tightloop status {self.workflow_id}"


class ChildNote(Value):
    """The open questions of a child workflow, sent to its parent plan."""

    workflow_id: str
    """Workflow that the step started."""
    waits: tuple[ChildWait, ...] = ()
    """All open questions of that workflow. It is empty if no questions are left."""


def waits_of(workflow_id: str, questions: Iterable[Question]) -> tuple[ChildWait, ...]:
    """Convert a workflow's questions to the form that its parent plan receives. The size is limited."""
    return tuple(_shorten_wait(ChildWait(workflow_id=workflow_id, question=question)) for question in questions)[
        :WAITS_LIMIT
    ]


def read_child_note(value: Any) -> ChildNote:
    """Parse the argument of `child_waits`, and limit its size.

    Raises:
        InvalidRequestError: the argument is not a note.
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
            change=None,
            options=question.options[:OPTIONS_LIMIT],
        )
    )
