"""Requests of operations. A field's sentence is its description in the API, in MCP and in the help of the command."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from tightloop.episode.check import Check
from tightloop.episode.control import ExecutorAmendment
from tightloop.episode.model import GOAL_CHARACTERS
from tightloop.loop.model import TASKS_LIMIT
from tightloop.operations.wire import Body, body, given

TEXT_CHARACTERS = 4_000
SOURCE_CHARACTERS = 1_000_000
LARGEST_AMOUNT = 10**9

Text = Annotated[str, Field(max_length=TEXT_CHARACTERS, pattern=r"^[^\x00]*$")]
Name = Annotated[str, Field(max_length=200, pattern=r"^[^\x00]*$")]
Source = Annotated[str, Field(max_length=SOURCE_CHARACTERS, pattern=r"^[^\x00]*$")]
# Strict: otherwise `true` counts as 1.
Amount = Annotated[int, Field(ge=0, le=LARGEST_AMOUNT, strict=True)]
Sum = Annotated[float, Field(ge=0, le=LARGEST_AMOUNT, allow_inf_nan=False, strict=True)]


class Request(Body):
    """Base of all requests; the run and the person are not part of them."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the client's method."""
        return dict(self)


class CheckBody(Request):
    """One command of the definition of done."""

    run: Annotated[str, Field(min_length=1, max_length=TEXT_CHARACTERS, pattern=r"^[^\x00]*\S[^\x00]*$")]
    """Command that exits with 0 when the check passes."""
    name: Name = ""
    timeout_s: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] = 600.0
    """Seconds after which it fails."""


class Pause(Request):
    """Request to pause."""

    reason: Text = Field(default="", examples=["wait for the release"])
    """Reason, kept in the timeline."""


class Resume(Request):
    """Request to go on."""

    note: Text = Field(default="", examples=["released"])
    """A message for the planner; kept in the timeline."""
    checkpoint_id: Name | None = Field(default=None, examples=["ckpt-2"])
    """Go back to this checkpoint of an episode first."""


class Cancel(Request):
    """Request to end for good."""

    reason: Text = ""
    """Reason, kept in the timeline."""


class Respond(Request):
    """Something for the planner; it decides nothing."""

    text: Text = Field(min_length=1, examples=["The flaky test is known, leave it"])
    """The message."""


class Answer(Request):
    """Answer to a question."""

    option: Name = Field(min_length=1, examples=["allow"])
    """One of the options of the question."""
    text: Text = ""
    """Explanation, or the files that a choice holds for."""
    question: Name = ""
    """Id of the question, its step or window; not needed where only one question has the option."""


class Approval(Request):
    """Approval of a gate."""

    text: Text = ""
    """Reason, kept in the record."""
    option: Name = "approve"
    """Option to choose, for a gate with options of its own."""


class Rejection(Request):
    """Rejection of a gate."""

    text: Text = Field(default="", examples=["the migration has no way back"])
    """Reason, kept in the record."""


class Amend(Request):
    """Changes of an episode; fields that are left out stay as they are."""

    goal: Annotated[str, Field(max_length=GOAL_CHARACTERS, pattern=r"^[^\x00]*$")] = Field(
        default="", examples=["Get the tests green on Python 3.13"]
    )
    """The new goal."""
    definition_of_done: Annotated[list[CheckBody], Field(max_length=50)] = Field(default_factory=list)
    """The new definition of done."""
    executor: body(ExecutorAmendment, "ExecutorAmendmentInput") | None = None  # type: ignore[valid-type]
    """The new executor."""
    planner: Literal["", "auto", "openai", "heuristic"] = ""
    """The new planner."""

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the client's method, with the models that it takes."""
        executor = ExecutorAmendment.model_validate(given(self.executor) if self.executor is not None else {})
        return {
            **dict(self),
            "definition_of_done": tuple(Check.model_validate(given(each)) for each in self.definition_of_done),
            "executor": None if executor == ExecutorAmendment() else executor,
        }


class Replan(Request):
    """The new text of a plan; empty: a planner writes it."""

    source: Source = ""
    """The whole new plan; empty: a planner writes it."""
    rationale: Text = Field(default="", examples=["the release moved"])
    """Reason, kept in the record."""


class PlanText(Request):
    """The text of a plan."""

    source: Source


class EpisodeTopUp(Request):
    """Amounts to add to the budget of an episode."""

    iterations: Amount = Field(default=0, examples=[5])
    """More iterations."""
    executor_failures: Amount = 0
    """More failures of the executor."""
    infrastructure_retries: Amount = 0
    """More retries after failures of the infrastructure."""
    tokens: Amount = 0
    """More tokens."""
    cost_usd: Sum = 0.0
    """More dollars."""
    wall_minutes: Sum = 0.0
    """More minutes of work."""


class PlanTopUpBody(Request):
    """Amounts to add to the budget of a plan."""

    attempts: Amount = Field(default=0, examples=[10])
    """More attempts of steps."""
    api_calls: Amount = 0
    """More calls to models and hosts."""
    fan_out: Amount = 0
    """More steps of one template."""
    revisions: Amount = 0
    """More revisions."""
    tokens: Amount = 0
    """More tokens."""
    cost_usd: Sum = 0.0
    """More dollars."""
    wall_minutes: Sum = 0.0
    """More minutes of work."""


class Restore(Request):
    """Request to go back to a checkpoint."""

    checkpoint_id: Name = Field(min_length=1, examples=["ckpt-2"])
    """Checkpoint, such as ckpt-2 or 2."""
    reason: Text = ""
    """Reason, kept in the timeline."""


class Fork(Request):
    """Request for a new episode that begins at a checkpoint."""

    checkpoint_id: Name = Field(min_length=1, examples=["ckpt-2"])
    """Checkpoint, such as ckpt-2 or 2."""
    id: Name | None = None
    """Id of the new episode; only with a token for all projects."""


class Move(Request):
    """Request to go on with an episode on another host."""

    to: Name = Field(min_length=1)
    """Host to continue on, or its task queue."""
    workspace: Name = ""
    """Absolute path of the workspace there; empty: as before."""
    reason: Text = ""
    """Reason, kept in the timeline."""


class Dispatch(Request):
    """Request to start the tasks."""

    parallel: bool | Annotated[int, Field(ge=1, le=TASKS_LIMIT)] = True
    """Number of tasks at the same time; true: as planned, false: one after the other."""


class Verify(Request):
    """Request to run the gates; its body is empty."""
