"""What an operator may say to an episode, read leniently and refused with a sentence.

The Temporal Web UI sends one JSON value without a form, so every command takes plain text, an object,
or nothing.
"""

import math
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from tightloop.budget import TopUp
from tightloop.check import Check
from tightloop.checkpoint import CheckpointRecord, checkpoint_id, checkpoint_number
from tightloop.episode import EpisodeRequest, RestoreTarget
from tightloop.errors import InvalidRequestError
from tightloop.executor import (
    PERMISSION_ANSWERS,
    WORK_ANSWERS,
    Answer,
    AnswerKind,
    ExecutorChoice,
    PermissionRule,
    Question,
    QuestionKind,
)
from tightloop.value import Document, shorten

TEXT_CHARACTERS = 4_000


class Remark(Document):
    """A reason or a message, and who gave it."""

    text: str = ""
    by: str = "operator"


class ExecutorAmendment(Document):
    """Another executor, or another rule for what it asks; what is left out stays as it is."""

    name: str = ""
    fallback: tuple[str, ...] | None = None
    permissions: PermissionRule | None = None

    def applied(self, choice: ExecutorChoice) -> ExecutorChoice:
        """Return the choice with the changes. Another executor starts with the model of its own settings."""
        other = bool(self.name) and self.name != choice.name
        return choice.model_copy(
            update={
                "name": self.name or choice.name,
                "model": "" if other else choice.model,
                "fallback": choice.fallback if self.fallback is None else self.fallback,
                "permissions": self.permissions or choice.permissions,
            }
        )


class Amendment(Document):
    """A changed goal, definition of done, executor or planner; what is empty stays as it is."""

    goal: str = ""
    definition_of_done: tuple[Check, ...] = ()
    executor: ExecutorAmendment = ExecutorAmendment()
    planner: str = ""
    by: str = "operator"

    @field_validator("executor", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def empty(self) -> bool:
        """Whether nothing is changed."""
        return not (
            self.goal.strip() or self.definition_of_done or self.planner.strip() or self.executor != ExecutorAmendment()
        )

    def applied(self, request: EpisodeRequest) -> EpisodeRequest:
        """Return the request with the changes."""
        return request.model_copy(
            update={
                "goal": self.goal.strip() or request.goal,
                "definition_of_done": self.definition_of_done or request.definition_of_done,
                "executor": self.executor.applied(request.executor),
                "planner": self.planner.strip() or request.planner,
            }
        )


class _Additions(TopUp):
    model_config = ConfigDict(extra="forbid")


class _Restore(Document):
    checkpoint_id: str
    reason: str = ""
    by: str = "operator"


M = TypeVar("M", bound=BaseModel)


def _read(value: Any, kind: type[M], *, what: str, example: str) -> M:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the value"
        raise InvalidRequestError(f"{what}: {field}: {first['msg']}. Send for example: {example}") from None


def read_remark(value: Any, *, what: str = "pause") -> Remark:
    """Read the argument of `pause`, `abort` or `respond`: nothing, text, or an object with text or reason.

    Raises:
        InvalidRequestError: with an example of a right value.
    """
    if value is None:
        return Remark()
    if isinstance(value, dict):
        value = dict(value)
        for other in ("reason", "note", "message"):
            if other in value:
                value["text"] = value.pop(other)
    else:
        value = {"text": value if isinstance(value, str) else shorten(repr(value), 200)}
    remark = _read(value, Remark, what=what, example='"the reason" or {"text": "the reason", "by": "ada"}')
    return Remark(text=shorten(remark.text.strip(), TEXT_CHARACTERS), by=shorten(remark.by, 80))


def read_response(value: Any) -> Remark:
    """Read the argument of `respond`.

    Raises:
        InvalidRequestError: there is no text.
    """
    remark = read_remark(value, what="respond")
    if not remark.text:
        raise InvalidRequestError('respond: the text is empty. Send for example: "use the parser in lib/parse.py"')
    return remark


ANSWER_EXAMPLES = {
    QuestionKind.PERMISSION: '{"allow": true, "text": ""} or "allow" or "deny: why"',
    QuestionKind.WORK: '{"done": true, "text": "what I did"} or "done" or "failed: why" or "refused: why"',
}
_ANSWERS = {QuestionKind.PERMISSION: PERMISSION_ANSWERS, QuestionKind.WORK: WORK_ANSWERS}
_SYNONYMS = {
    "allowed": "allow", "yes": "allow", "denied": "deny", "no": "deny", "fail": "failed", "refuse": "refused",
}  # fmt: skip


class _Answered(Document):
    allow: bool | None = None
    done: bool | None = None
    answer: str = ""
    text: str = ""
    by: str = "operator"

    @property
    def word(self) -> str:
        if self.allow is not None:
            return "allow" if self.allow else "deny"
        if self.done is not None:
            return "done" if self.done else "failed"
        return self.answer


def read_answer(value: Any, question: Question) -> Answer:
    """Read the argument of `answer`: one word, a word with a text behind a colon, or an object.

    Raises:
        InvalidRequestError: it is no answer to this question; the sentence shows right ones.
    """
    example = ANSWER_EXAMPLES[question.kind]
    if isinstance(value, bool):
        value = {"allow" if question.kind is QuestionKind.PERMISSION else "done": value}
    if isinstance(value, str):
        word, _, text = value.partition(":")
        value = {"answer": word, "text": text}
    said = _read(value, _Answered, what="answer", example=example)
    word = said.word.strip().lower()
    fitting = [kind for kind in _ANSWERS[question.kind] if kind.value == _SYNONYMS.get(word, word)]
    if not fitting:
        raise InvalidRequestError(
            f"answer: {shorten(repr(said.word), 60)} does not answer {shorten(question.title, 120)!r}. "
            f"Send for example: {example}"
        )
    return Answer(kind=fitting[0], text=shorten(said.text.strip(), TEXT_CHARACTERS), by=shorten(said.by, 80))


def as_answer(remark: Remark, question: Question) -> Answer | None:
    """Return a remark as the answer to a question; None where it is none.

    Any text is a report on work, which is then done; a permission needs one of its own words.
    """
    try:
        return read_answer(remark.text, question).model_copy(update={"by": remark.by})
    except InvalidRequestError:
        if question.kind is QuestionKind.PERMISSION:
            return None
        return Answer(kind=AnswerKind.DONE, text=remark.text, by=remark.by)


def read_restore(value: Any, known: tuple[CheckpointRecord, ...], *, newest: int) -> RestoreTarget:
    """Read the argument of `restore_checkpoint`.

    Args:
        value: an id, a number, or an object with `checkpoint_id` and a `reason`.
        known: the checkpoints that the run carries.
        newest: number of the newest checkpoint; older ones than those known are in the ledger.

    Raises:
        InvalidRequestError: there is no such checkpoint; the sentence names those that exist.
    """
    if not isinstance(value, dict):
        value = {"checkpoint_id": str(value) if value is not None else ""}
    elif "id" in value and "checkpoint_id" not in value:
        value = {**{key: item for key, item in value.items() if key != "id"}, "checkpoint_id": value["id"]}
    wanted = _read(
        value, _Restore, what="restore_checkpoint", example='{"checkpoint_id": "ckpt-2", "reason": "wrong turn"}'
    )
    number = checkpoint_number(wanted.checkpoint_id)
    if number is None or number > newest:
        names = ", ".join(record.id for record in known[-12:]) or "none yet"
        raise InvalidRequestError(
            f"restore_checkpoint: there is no checkpoint {wanted.checkpoint_id!r}. Known: {names}. "
            'Send for example: {"checkpoint_id": "' + checkpoint_id(max(newest, 0)) + '"}'
        )
    return RestoreTarget(
        checkpoint_id=checkpoint_id(number), reason=shorten(wanted.reason, 500), by=shorten(wanted.by, 80)
    )


def read_top_up(value: Any) -> TopUp:
    """Read the argument of `top_up`.

    Raises:
        InvalidRequestError: a field is misspelt, negative, or nothing is added.
    """
    example = '{"iterations": 5} or {"cost_usd": 2.5, "wall_minutes": 60}'
    if isinstance(value, int) and not isinstance(value, bool):
        value = {"iterations": value}
    if not isinstance(value, dict):
        raise InvalidRequestError(
            f"top_up: it needs an object, not {shorten(repr(value), 60)}. Send for example: {example}"
        )
    addition = _read(value, _Additions, what="top_up", example=example)
    amounts = addition.model_dump()
    if any(not 0 <= amount < math.inf for amount in amounts.values()) or not any(amounts.values()):
        raise InvalidRequestError(f"top_up: the amounts must be positive. Send for example: {example}")
    return TopUp(**amounts)


def read_amendment(value: Any) -> Amendment:
    """Read the argument of `amend_goal`: the new goal, or an object.

    Raises:
        InvalidRequestError: nothing is changed, or a field is wrong.
    """
    example = (
        '"make the tests pass on Python 3.13" or {"goal": "...", "definition_of_done": ["pytest -q"], '
        '"executor": {"name": "codex"}}'
    )
    amendment = _read(
        {"goal": value} if isinstance(value, str) else value, Amendment, what="amend_goal", example=example
    )
    if amendment.empty:
        raise InvalidRequestError(f"amend_goal: nothing is changed. Send for example: {example}")
    if any(not check.run.strip() for check in amendment.definition_of_done):
        raise InvalidRequestError(f"amend_goal: a check has no command. Send for example: {example}")
    return amendment
