"""Messages to an episode, and its input."""

from typing import Any, ClassVar

from pydantic import field_validator

from tightloop.episode.budget import TopUp
from tightloop.episode.check import Check
from tightloop.episode.checkpoint import CheckpointRecord, MoveTarget, RestoreTarget, checkpoint_id, checkpoint_number
from tightloop.episode.model import RIGHT_INPUT, EpisodeRequest, EpisodeState
from tightloop.errors import InvalidRequestError
from tightloop.executor.model import ExecutorChoice, OnCrash
from tightloop.run.commands import Remark, read_amounts, read_argument, read_text
from tightloop.run.core import RunInput
from tightloop.run.routing import EPISODE_WORKFLOW_TYPE
from tightloop.safety.rubric import Verdict
from tightloop.value import Document, shorten


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
    executor: ExecutorAmendment = ExecutorAmendment.model_construct()
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


def read_response(value: Any) -> Remark:
    """Read the argument of `respond`.

    Raises:
        InvalidRequestError: the text is empty.
    """
    remark = read_text(value)
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


class EpisodeInput(EpisodeRequest, RunInput):
    """Starts a run: a request, or a request with the state that the previous Temporal run left."""

    state: EpisodeState | None = None
    restore: RestoreTarget | None = None
    """Start from a stored checkpoint (restore of a closed episode, or fork)."""

    workflow_type: ClassVar[str] = EPISODE_WORKFLOW_TYPE
    right_input: ClassVar[str] = RIGHT_INPUT

    @property
    def title(self) -> str:
        return self.goal

    @property
    def executor_name(self) -> str:
        return self.executor.name

    @property
    def goes_on(self) -> bool:
        return self.replace or (self.restore is not None and not self.restore.episode_id)
