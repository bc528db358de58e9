"""Messages to an episode, and its input."""

import math
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError, ValidatorFunctionWrapHandler, field_validator, model_validator

from tightloop.episode.budget import TopUp
from tightloop.episode.check import Check
from tightloop.episode.checkpoint import CheckpointRecord, MoveTarget, RestoreTarget, checkpoint_id, checkpoint_number
from tightloop.episode.model import RIGHT_INPUT, EpisodeRequest, EpisodeState
from tightloop.errors import InvalidRequestError, followed_by
from tightloop.executor.model import ExecutorChoice, OnCrash
from tightloop.safety.rubric import Verdict
from tightloop.safety.seal import Heard, Seal
from tightloop.value import Document, first_problem, shorten
from tightloop.value.caller import unknown_fields

TEXT_CHARACTERS = 4_000


class Remark(Document):
    """A reason or a message, and who gave it."""

    text: str = ""
    by: str = "operator"
    resumes: bool = True
    """Whether, as a message to the planner, it ends a pause that needs no decision, and is planned before the end."""


class ExecutorAmendment(Document):
    """Another executor, or another rule for what it asks; what is left out stays as it is."""

    name: str = ""
    fallback: tuple[str, ...] | None = None
    permissions: Verdict | None = None
    on_crash: OnCrash | None = None

    def applied(self, choice: ExecutorChoice) -> ExecutorChoice:
        """Return the choice with the changes. Another executor starts with the model of its own settings."""
        other = bool(self.name) and self.name != choice.name
        return choice.evolve(
            name=self.name or choice.name,
            model="" if other else choice.model,
            fallback=choice.fallback if self.fallback is None else self.fallback,
            permissions=self.permissions or choice.permissions,
            on_crash=self.on_crash or choice.on_crash,
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
        return request.evolve(
            goal=self.goal.strip() or request.goal,
            definition_of_done=self.definition_of_done or request.definition_of_done,
            executor=self.executor.applied(request.executor),
            planner=self.planner.strip() or request.planner,
        )


class _Restore(Document):
    checkpoint_id: str
    reason: str = ""
    by: str = "operator"


M = TypeVar("M", bound=BaseModel)


def read_argument(value: Any, kind: type[M], *, what: str, example: str) -> M:
    """Read the argument of the command `what`.

    Raises:
        InvalidRequestError: with the first unknown or wrong field, and the example.
    """
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        said = next(unknown_fields(kind, value), "") or first_problem(error)
        raise InvalidRequestError(f"{what}: {followed_by(said, f'Send for example: {example}')}") from None


def read_remark(value: Any) -> Remark:
    """Read the argument of a signal, whatever it is: a signal has no caller who could be told that it is wrong."""
    try:
        return _read_text(value)
    except InvalidRequestError:
        return Remark(text=shorten(str(value), 200))


def _read_text(value: Any) -> Remark:
    if value is None:
        return Remark()
    if isinstance(value, dict):
        value = dict(value)
        for other in ("reason", "note", "message"):
            if other in value:
                value["text"] = value.pop(other)
    else:
        value = {"text": value if isinstance(value, str) else shorten(repr(value), 200)}
    remark = read_argument(value, Remark, what="respond", example='"the reason" or {"text": "the reason", "by": "ada"}')
    return Remark(text=shorten(remark.text.strip(), TEXT_CHARACTERS), by=shorten(remark.by, 80), resumes=remark.resumes)


def read_response(value: Any) -> Remark:
    """Read the argument of `respond`.

    Raises:
        InvalidRequestError: the text is empty.
    """
    remark = _read_text(value)
    if not remark.text:
        raise InvalidRequestError('respond: the text is empty. Send for example: "use the parser in lib/parse.py"')
    return remark


def read_restore(value: Any, known: tuple[CheckpointRecord, ...], *, newest: int) -> RestoreTarget:
    """Read the argument of `restore_checkpoint`.

    Args:
        value: an id, a number, or an object with `checkpoint_id` and a `reason`.
        known: the checkpoints that the run carries.
        newest: number of the newest checkpoint; older ones than those known are in the ledger.

    Raises:
        InvalidRequestError: the checkpoint is unknown; the sentence names those that exist.
    """
    if not isinstance(value, dict):
        value = {"checkpoint_id": str(value) if value is not None else ""}
    elif "id" in value and "checkpoint_id" not in value:
        value = {**{key: item for key, item in value.items() if key != "id"}, "checkpoint_id": value["id"]}
    wanted = read_argument(
        value, _Restore, what="restore_checkpoint", example='{"checkpoint_id": "ckpt-2", "reason": "wrong turn"}'
    )
    number = checkpoint_number(wanted.checkpoint_id)
    if number is None or number > newest:
        names = ", ".join(record.id for record in known[-12:]) or "none yet"
        raise InvalidRequestError(
            f"restore_checkpoint: the episode has no checkpoint {wanted.checkpoint_id!r}. Known: {names}. "
            'Send for example: {"checkpoint_id": "' + checkpoint_id(max(newest, 0)) + '"}'
        )
    return RestoreTarget(
        checkpoint_id=checkpoint_id(number), reason=shorten(wanted.reason, 500), by=shorten(wanted.by, 80)
    )


def read_move(value: Any) -> MoveTarget:
    """Read the argument of `move`: the task queue of a host, or an object.

    Raises:
        InvalidRequestError: a field is wrong.
    """
    return read_argument(
        {"to": value} if isinstance(value, str) else value,
        MoveTarget,
        what="move",
        example='{"to": "tightloop-workspace-host-2-1a2b3c", "workspace": "/home/me/project"}',
    ).bounded


def read_amounts(value: Any, kind: type[M], *, example: str) -> M:
    """Read the argument of `top_up`, whatever may be added.

    Raises:
        InvalidRequestError: a field is misspelt, negative, or nothing is added.
    """
    if not isinstance(value, dict):
        shown = shorten(repr(value), 60)
        raise InvalidRequestError(f"top_up: it needs an object, not {shown}. Send for example: {example}")
    for name, amount in value.items():
        # A text would be read as the number in it, and True as 1.
        if isinstance(amount, str | bool):
            raise InvalidRequestError(f"top_up: {name} must be a number, not {amount!r}. Send for example: {example}")
    addition = read_argument(value, kind, what="top_up", example=example)
    # The comparison refuses NaN and infinity as well, which Python's JSON parser accepts.
    amounts = addition.model_dump().values()
    if any(not 0 <= amount < math.inf for amount in amounts) or not any(amounts):
        raise InvalidRequestError(f"top_up: it needs an amount above 0. Send for example: {example}")
    return addition


def describe_amounts(addition: Document) -> str:
    """Return what is added, such as `2 iterations, 2.5 cost_usd`."""
    return ", ".join(f"{amount:g} {name}" for name, amount in addition.model_dump().items() if amount)


def read_top_up(value: Any) -> TopUp:
    """Read the argument of `top_up`: a number of iterations, or an object. Raises as `read_amounts` does."""
    # Python counts `True` as the number 1; nobody who sends it means one iteration.
    if isinstance(value, int) and not isinstance(value, bool):
        value = {"iterations": value}
    return read_amounts(value, TopUp, example='{"iterations": 5} or {"cost_usd": 2.5, "wall_minutes": 60}')


def read_amendment(value: Any) -> Amendment:
    """Read the argument of `amend_goal`: the new goal, or an object.

    Raises:
        InvalidRequestError: nothing is changed, or a field is wrong.
    """
    example = (
        '"make the tests pass on Python 3.13" or {"goal": "...", "definition_of_done": ["pytest -q"], '
        '"executor": {"name": "codex"}}'
    )
    amendment = read_argument(
        {"goal": value} if isinstance(value, str) else value, Amendment, what="amend_goal", example=example
    )
    if amendment.empty:
        raise InvalidRequestError(f"amend_goal: nothing is changed. Send for example: {example}")
    if any(not check.run.strip() for check in amendment.definition_of_done):
        raise InvalidRequestError(f"amend_goal: a check has no command. Send for example: {example}")
    return amendment


class EpisodeInput(EpisodeRequest):
    """What starts a run: a request; or a request with the state that the run before it left."""

    state: EpisodeState | None = None
    restore: RestoreTarget | None = None
    """Start from a stored checkpoint (restore of a closed episode, or fork)."""
    replace: bool = False
    """An episode with this id may have ended before; its checkpoints are kept and listed."""
    heard: Heard = Heard()
    """Messages that the runs before have taken."""
    sealed_as: Seal | None = None
    """What the input's seal says; set by the converter, whatever is sent."""
    problem: str = ""
    """Why the input could not be read; the workflow then fails with this sentence, instead of hanging."""
    unknown: str = ""
    """A misspelt name in an input that a person wrote, and the nearest right one."""

    @property
    def goes_on(self) -> bool:
        """Whether it is for an id that has been used before."""
        return self.replace or (self.restore is not None and not self.restore.episode_id)

    @model_validator(mode="wrap")
    @classmethod
    def _explain(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> "EpisodeInput":
        # A payload that cannot be decoded fails the workflow task, which Temporal tries again for ever.
        try:
            read: EpisodeInput = handler(value)
        except ValidationError as error:
            return cls.model_construct(problem=f"{first_problem(error)}. A right input: {RIGHT_INPUT}")
        # What tightloop itself writes has all fields, and unknown ones where it is newer than this worker.
        is_raw = isinstance(value, dict) and "sealed_as" not in value
        if is_raw and (unknown := next(unknown_fields(cls, value), "")):
            return read.evolve(unknown=followed_by(unknown, f"A right input: {RIGHT_INPUT}"))
        return read
