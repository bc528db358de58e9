"""Request models of operations. Field docstrings are the descriptions in the API, in MCP and in the command help."""

from collections.abc import Iterable
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from tightloop.episode.check import Check
from tightloop.episode.control import ExecutorAmendment
from tightloop.episode.model import GOAL_CHARACTERS, SETUP_CHARACTERS, EpisodeRequest
from tightloop.episode.scenarios import HiddenScenarios
from tightloop.loop.model import TASKS_LIMIT
from tightloop.plan.request import PlanRequest

CONFIG = ConfigDict(
    alias_generator=to_camel,
    validate_by_name=True,
    validate_by_alias=True,
    from_attributes=True,
    # Durations are seconds: pydantic's default, such as PT2.5S, is not a `duration` of RFC 3339.
    ser_json_timedelta="float",
)


class Shown(BaseModel):
    """Base of API models."""

    model_config = CONFIG


class Body(Shown):
    """Base class for request bodies. Unknown fields are rejected."""

    model_config = ConfigDict(extra="forbid")


# Cached, because a second class for the same model would get a second schema in OpenAPI.
@cache
def make_output_model(model: type[BaseModel], *, without: frozenset[str] = frozenset()) -> type[BaseModel]:
    """Create a copy of a model and its nested models with camelCase field names.

    The new model is filled from instances of the original model.
    """
    return _mirror(model, Shown, without, "")


@cache
def body(model: type[BaseModel], name: str, *, without: frozenset[str] = frozenset()) -> type[BaseModel]:
    """Create a request body with the fields of a model. Use `read_fields` to read these fields."""
    return _mirror(model, Body, without, name)


def read_fields(model: BaseModel) -> dict[str, Any]:
    """Return the fields that are set in a request, by their names in the original model."""
    return model.model_dump(exclude_unset=True, by_alias=False)


def _mirror(model: type[BaseModel], kind: type[BaseModel], without: Iterable[str], name: str) -> type[BaseModel]:
    fields: dict[str, Any] = {
        key: (_annotation(info, kind), _default(info)) for key, info in model.model_fields.items() if key not in without
    }
    # Models that can be written as a plain string, such as an executor by its name.
    validators: dict[str, Any] = {}
    if kind is Body and (from_text := getattr(model, "_from_text", None)):
        take_text: Any = classmethod(lambda _, value: from_text(value))
        validators["from_text"] = model_validator(mode="before")(take_text)
    result: type[BaseModel] = create_model(
        name or _name(model, kind), __base__=kind, __doc__=model.__doc__, __validators__=validators, **fields
    )
    return result


def _name(model: type[BaseModel], kind: type[BaseModel]) -> str:
    return f"{model.__name__}{'Input' if kind is Body else ''}"


def _annotation(info: FieldInfo, kind: type[BaseModel]) -> Any:
    translated = _translate(info.annotation, kind)
    return Annotated[translated, *info.metadata] if info.metadata else translated


def _translate(annotation: Any, kind: type[BaseModel]) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return body(annotation, _name(annotation, kind)) if kind is Body else make_output_model(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is None or not any(_has_model(argument) for argument in arguments):
        return annotation
    if origin is Annotated:
        return Annotated[_translate(arguments[0], kind), *arguments[1:]]
    translated = tuple(argument if argument is Ellipsis else _translate(argument, kind) for argument in arguments)
    return Union[translated] if origin in (Union, UnionType) else origin[translated]  # noqa: UP007 - made at run time


def _has_model(annotation: Any) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return True
    return any(map(_has_model, get_args(annotation)))


def _default(info: FieldInfo) -> Any:
    if info.is_required():
        return Field(description=info.description)
    value = info.get_default(call_default_factory=True)
    if isinstance(value, str | int | float | bool | None):
        return Field(default=value, description=info.description)
    # Never read: of a request only sent fields count, and a response has all fields.
    return Field(default_factory=lambda: value, description=info.description)


TEXT_CHARACTERS = 4_000
SOURCE_CHARACTERS = 1_000_000
LARGEST_AMOUNT = 10**9

# PostgreSQL cannot store a zero byte.
Text = Annotated[str, Field(max_length=TEXT_CHARACTERS, pattern=r"^[^\x00]*$")]
Name = Annotated[str, Field(max_length=200, pattern=r"^[^\x00]*$")]
Source = Annotated[str, Field(max_length=SOURCE_CHARACTERS, pattern=r"^[^\x00]*$")]
# Strict: otherwise `true` would be 1.
Amount = Annotated[int, Field(ge=0, le=LARGEST_AMOUNT, strict=True)]
Sum = Annotated[float, Field(ge=0, le=LARGEST_AMOUNT, allow_inf_nan=False, strict=True)]


class Request(Body):
    """Base class for requests. The run and the author are passed separately."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    def arguments(self) -> dict[str, Any]:
        """Return the request's fields as arguments for the client's method."""
        return dict(self)


class CheckBody(Request):
    """Command of the definition of done. A plain string, such as `"pytest -q"`, is also accepted."""

    run: Annotated[str, Field(min_length=1, max_length=TEXT_CHARACTERS, pattern=r"^[^\x00]*\S[^\x00]*$")]
    """Command that exits with 0 if the check passes."""
    name: Name = ""
    timeout_s: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] = 600.0
    """Time limit in seconds."""
    known_failures: Annotated[list[Name], Field(max_length=1_000)] = Field(default_factory=list)
    """Tests that may fail, by the names in the output."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"run": value} if isinstance(value, str) else value


class Pause(Request):
    """Request to pause."""

    reason: Text = Field(default="", examples=["wait for the release"])
    """Reason to record in the timeline."""


class Resume(Request):
    """Request to resume."""

    note: Text = Field(default="", examples=["released"])
    """Message for the planner, recorded in the timeline."""
    checkpoint_id: Name | None = Field(default=None, examples=["ckpt-2"])
    """Checkpoint to restore first (episodes only)."""


class Cancel(Request):
    """Request to end a run permanently."""

    reason: Text = ""
    """Reason to record in the timeline."""


class Respond(Request):
    """A message to the planner. It does not answer a question."""

    text: Text = Field(min_length=1, examples=["The flaky test is known, leave it"])
    """Message to send."""


class Answer(Request):
    """Answer to a question."""

    option: Name = Field(min_length=1, examples=["allow"])
    """One of the question's options."""
    text: Text = ""
    """Explanation of the answer, or the file names if the option applies to files."""
    question: Name = ""
    """Question to answer: its id, step or review window. Optional if only one question has the
    option.
    """


class Approval(Request):
    """Approval of a gate."""

    text: Text = ""
    """Reason to record."""
    option: Name = "approve"
    """Option to choose if the gate defines its own options."""


class Rejection(Request):
    """Rejection of a gate."""

    text: Text = Field(default="", examples=["the migration cannot be undone"])
    """Reason to record."""


class Amend(Request):
    """Changes to an episode. Omitted fields keep their values."""

    goal: Annotated[str, Field(max_length=GOAL_CHARACTERS, pattern=r"^[^\x00]*$")] = Field(
        default="", examples=["Get the tests green on Python 3.13"]
    )
    """New goal."""
    definition_of_done: Annotated[list[CheckBody], Field(max_length=50)] = Field(default_factory=list)
    """New definition of done."""
    scenarios: body(HiddenScenarios, "HiddenScenariosInput") | None = None  # type: ignore[valid-type]
    """New hidden scenarios. A count of 0 withdraws all of them."""
    no_drafts: bool = False
    """Withdraw the scenarios drafted by a model."""
    executor: body(ExecutorAmendment, "ExecutorAmendmentInput") | None = None  # type: ignore[valid-type]
    """New executor."""
    planner: Literal["", "auto", "openai", "heuristic"] = ""
    """New planner."""

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the client's method, converted to the client's models."""
        executor = ExecutorAmendment.model_validate(read_fields(self.executor) if self.executor is not None else {})
        return {
            **dict(self),
            "definition_of_done": tuple(Check.model_validate(read_fields(check)) for check in self.definition_of_done),
            "scenarios": None if self.scenarios is None else HiddenScenarios(**read_fields(self.scenarios)),
            "executor": None if executor == ExecutorAmendment() else executor,
        }


class Replan(Request):
    """Plan revision."""

    source: Source = ""
    """Full replacement plan. If it is empty, a planner writes the plan."""
    rationale: Text = Field(default="", examples=["the release moved"])
    """Reason to record."""


class PlanText(Request):
    """Text of a plan."""

    source: Source


class EpisodeTopUp(Request):
    """Amounts to add to the budget of an episode."""

    iterations: Amount = Field(default=0, examples=[5])
    """Additional iterations."""
    executor_failures: Amount = 0
    """Additional executor failures."""
    infrastructure_retries: Amount = 0
    """Additional retries after infrastructure failures."""
    tokens: Amount = 0
    """Additional tokens."""
    cost_usd: Sum = 0.0
    """Additional cost in US dollars."""
    wall_minutes: Sum = 0.0
    """Additional minutes of work."""


class PlanTopUpBody(Request):
    """Amounts to add to the budget of a plan."""

    attempts: Amount = Field(default=0, examples=[10])
    """Additional step attempts."""
    api_calls: Amount = 0
    """Additional calls to models and hosts."""
    fan_out: Amount = 0
    """Additional steps per template."""
    revisions: Amount = 0
    """Additional revisions."""
    tokens: Amount = 0
    """Additional tokens."""
    cost_usd: Sum = 0.0
    """Additional cost in US dollars."""
    wall_minutes: Sum = 0.0
    """Additional minutes of work."""


class Restore(Request):
    """Request to restore a checkpoint."""

    checkpoint_id: Name = Field(min_length=1, examples=["ckpt-2"])
    """Checkpoint id or number, such as ckpt-2 or 2."""
    reason: Text = ""
    """Reason to record in the timeline."""


class Fork(Request):
    """Request to fork a new episode from a checkpoint."""

    checkpoint_id: Name = Field(min_length=1, examples=["ckpt-2"])
    """Checkpoint id or number, such as ckpt-2 or 2."""
    id: Name | None = None
    """Id of the new episode. Requires a token for all projects."""


class Move(Request):
    """Request to continue an episode on another host."""

    to: Name = Field(min_length=1)
    """Host to continue on, or its task queue."""
    workspace: Name = ""
    """Absolute path of the workspace on that host; unchanged if empty."""
    reason: Text = ""
    """Reason to record in the timeline."""


class Dispatch(Request):
    """Request to start the tasks."""

    parallel: bool | Annotated[int, Field(ge=1, le=TASKS_LIMIT)] = True
    """Maximum number of tasks to run at the same time. `true` means the number set when the project
    was planned, and `false` means 1.
    """


class Verify(Request):
    """Request to run the gates. The body is empty."""


Workspace = Annotated[
    str,
    Field(
        max_length=1_000,
        pattern=r"^/[^\x00]*$",
        description="Absolute path of the root of a git working tree on the worker's host.",
        examples=["/home/me/orders"],
    ),
]
# The gateway decides where runs execute, and only a plan starts nested runs.
_INNER = frozenset({"within", "queues", "workspace"})
_AnyEpisode = body(EpisodeRequest, "AnyEpisode", without=_INNER)
PlanOfProject = body(PlanRequest, "PlanOfProject", without=_INNER | {"depth", "base_tree"})


class EpisodeOfProject(_AnyEpisode):  # type: ignore[misc, valid-type]
    """Goal of an episode and its checks."""

    goal: Annotated[str, Field(min_length=1, max_length=GOAL_CHARACTERS, pattern=r"^[^\x00]*\S[^\x00]*$")]
    definition_of_done: list[CheckBody] = Field(default_factory=list)
    """Commands that must all exit with 0; if empty, the checks in the project's own files, such as those of its CI."""
    planner: Literal["auto", "openai", "heuristic"] = "auto"


class EpisodeBody(EpisodeOfProject):
    """Episode in a workspace."""

    workspace: Workspace


class PlanBody(PlanOfProject):  # type: ignore[misc, valid-type]
    """Plan of steps in a workspace."""

    workspace: Workspace


class _Planning(Request):
    model: Name = ""
    """Model that divides the work into tasks. If empty, the model from the settings is used."""
    goal: Text = ""
    """Goal; if empty, the open problems of the project."""
    folder: Name = ""
    """Folder of the project below the root of the working tree, such as `services/api`; gates start in it."""
    gates: list[CheckBody] = Field(default_factory=list)
    """Commands that must pass at the end; if empty, the commands in the settings, or the checks of the project."""
    setup: Annotated[str, Field(max_length=SETUP_CHARACTERS, pattern=r"^[^\x00]*$")] = ""
    """Command that installs the project's packages. If empty, tightloop proposes one based on the lock files."""


class PlanProject(_Planning):
    """Request to plan a project. All fields are optional."""

    packet_id: Annotated[str, Field(pattern=r"^(pkt_[0-9a-f]{16})?$")] = ""
    """Existing packet of this project to use."""
    episode: Name = ""
    """Finished episode to inspect instead of the project."""


class AddProject(_Planning):
    """Request to add a project and plan it."""

    workspace: Workspace
