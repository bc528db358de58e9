"""Request bodies of the HTTP API."""

from collections.abc import Iterable
from datetime import datetime
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from tightloop.client import Event, Run
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.episode.control import ExecutorAmendment
from tightloop.episode.model import GOAL_CHARACTERS, EpisodeStatus
from tightloop.ledger.model import EvidenceLine, InboxItem, WorkflowLine
from tightloop.plan.request import PlanStatus
from tightloop.value.artifact import ArtifactRef

CONFIG = ConfigDict(
    alias_generator=to_camel,
    validate_by_name=True,
    validate_by_alias=True,
    from_attributes=True,
    # Durations are seconds: what pydantic writes otherwise, such as PT2.5S, is not a `duration` of RFC 3339.
    ser_json_timedelta="float",
)


class Shown(BaseModel):
    """A model of the API itself."""

    model_config = CONFIG


class Body(Shown):
    """A body of a request: a misspelt name is refused."""

    model_config = ConfigDict(extra="forbid")


@cache
def shown(model: type[BaseModel], *, without: frozenset[str] = frozenset()) -> type[BaseModel]:
    """Return a model with the fields of another one and of those within it, to be read from its instances."""
    return _mirror(model, Shown, without, "")


@cache
def body(model: type[BaseModel], name: str, *, without: frozenset[str] = frozenset()) -> type[BaseModel]:
    """Return a model of a request's body with the fields of another one; see `given`."""
    return _mirror(model, Body, without, name)


def given(sent: BaseModel) -> dict[str, Any]:
    """Return what a body says, under the names of the model that it was made from; defaults are left out."""
    return sent.model_dump(exclude_unset=True, by_alias=False)


def _mirror(model: type[BaseModel], kind: type[BaseModel], without: Iterable[str], name: str) -> type[BaseModel]:
    fields: dict[str, Any] = {
        key: (_annotation(info, kind), _default(info)) for key, info in model.model_fields.items() if key not in without
    }
    made: type[BaseModel] = create_model(name or _name(model, kind), __base__=kind, __doc__=model.__doc__, **fields)
    return made


def _name(model: type[BaseModel], kind: type[BaseModel]) -> str:
    return f"{model.__name__}{'Input' if kind is Body else ''}"


def _annotation(info: FieldInfo, kind: type[BaseModel]) -> Any:
    found = _translated(info.annotation, kind)
    return Annotated[found, *info.metadata] if info.metadata else found


def _translated(annotation: Any, kind: type[BaseModel]) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return body(annotation, _name(annotation, kind)) if kind is Body else shown(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is None or not any(_has_model(one) for one in arguments):
        return annotation
    if origin is Annotated:
        return Annotated[_translated(arguments[0], kind), *arguments[1:]]
    translated = tuple(one if one is Ellipsis else _translated(one, kind) for one in arguments)
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
    # Never read: of a request only what was sent counts, and an answer has all fields.
    return Field(default_factory=lambda: value, description=info.description)


TEXT_CHARACTERS = 4_000
SOURCE_CHARACTERS = 1_000_000
LARGEST_AMOUNT = 10**9

Text = Annotated[str, Field(max_length=TEXT_CHARACTERS, pattern=r"^[^\x00]*$")]
Name = Annotated[str, Field(max_length=200, pattern=r"^[^\x00]*$")]
Workspace = Annotated[
    str,
    Field(
        max_length=1_000,
        pattern=r"^/[^\x00]*$",
        description="Absolute path of the top of a git working tree, on the host of its worker.",
        examples=["/home/me/orders"],
    ),
]
Amount = Annotated[int, Field(ge=0, le=LARGEST_AMOUNT)]
Sum = Annotated[float, Field(ge=0, le=LARGEST_AMOUNT, allow_inf_nan=False)]

WorkflowId = Annotated[
    str, Path(alias="workflowId", max_length=200, description="Id of an episode or a plan.", examples=["nightly-1"])
]
ProjectId = Annotated[
    str,
    Path(
        alias="projectId",
        max_length=80,
        pattern=r"^[A-Za-z0-9-]+$",
        description="Id of a project.",
        examples=["orders-0123456789abcdef"],
    ),
]
ProjectFilter = Annotated[
    str,
    Query(
        max_length=80,
        pattern=r"^[A-Za-z0-9-]*$",
        description="Only of this project.",
        examples=["orders-0123456789abcdef"],
    ),
]
Wait = Annotated[
    int, Query(ge=0, le=60, description="Seconds to wait for what it started; then the answer says where it is.")
]
Limit = Annotated[int, Query(ge=1, le=500, description="Maximum number of items.")]
Cursor = Annotated[
    str,
    Query(
        max_length=1_000,
        pattern=r"^[A-Za-z0-9_.-]*$",
        description="Where the page begins: `cursor` of the page before.",
    ),
]

Line = shown(WorkflowLine, without=frozenset({"details"}))
EpisodeDetails = shown(EpisodeStatus)
PlanDetails = shown(PlanStatus)
Artifact = shown(ArtifactRef)


class CheckBody(Body):
    """One command of the definition of done."""

    run: Annotated[str, Field(min_length=1, max_length=TEXT_CHARACTERS, pattern=r"^[^\x00]*\S[^\x00]*$")]
    name: Name = ""
    timeout_s: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] = 600.0
    """It fails when it takes longer."""


class Pause(Body):
    """Why it pauses."""

    reason: Text = Field(default="", examples=["wait for the release"])


class Resume(Body):
    """How it goes on."""

    note: Text = Field(default="", examples=["released"])
    checkpoint_id: Name | None = Field(default=None, examples=["ckpt-2"])
    """Of an episode: go on from there."""


class Cancel(Body):
    """Why it ends."""

    reason: Text = ""


class Respond(Body):
    """Something for the planner; it decides nothing."""

    text: Text = Field(min_length=1, examples=["The flaky test is known, leave it"])


class Answer(Body):
    """The answer to a question."""

    option: Name = Field(min_length=1, examples=["allow"])
    text: Text = ""
    """What was done, or why."""
    question: Name = ""
    """Its id, step or window; not needed where only one question has the option."""


class Approval(Body):
    """Why a gate is approved."""

    text: Text = ""
    option: Name = "approve"
    """Of a gate with options of its own: the one to choose."""


class Rejection(Body):
    """Why a gate is rejected."""

    text: Text = Field(default="", examples=["the migration has no way back"])


class Amend(Body):
    """What changes of an episode; what is left out stays as it is."""

    goal: Annotated[str, Field(max_length=GOAL_CHARACTERS, pattern=r"^[^\x00]*$")] = Field(
        default="", examples=["Get the tests green on Python 3.13"]
    )
    definition_of_done: Annotated[list[CheckBody], Field(max_length=50)] = Field(default_factory=list)
    executor: body(ExecutorAmendment, "ExecutorAmendmentInput") | None = None  # type: ignore[valid-type]
    planner: Literal["", "auto", "openai", "heuristic"] = ""


class Replan(Body):
    """The new text of a plan; empty: a planner writes it."""

    source: Annotated[str, Field(max_length=SOURCE_CHARACTERS, pattern=r"^[^\x00]*$")] = ""
    rationale: Text = Field(default="", examples=["the release moved"])


class PlanText(Body):
    """The text of a plan."""

    source: Annotated[str, Field(max_length=SOURCE_CHARACTERS, pattern=r"^[^\x00]*$")]


class EpisodeTopUp(Body):
    """What is added to the budget of an episode."""

    iterations: Amount = Field(default=0, examples=[5])
    executor_failures: Amount = 0
    infrastructure_retries: Amount = 0
    tokens: Amount = 0
    cost_usd: Sum = 0.0
    wall_minutes: Sum = 0.0


class PlanTopUpBody(Body):
    """What is added to the budget of a plan."""

    attempts: Amount = Field(default=0, examples=[10])
    api_calls: Amount = 0
    fan_out: Amount = 0
    revisions: Amount = 0
    tokens: Amount = 0
    cost_usd: Sum = 0.0
    wall_minutes: Sum = 0.0


class Restore(Body):
    """Where to go back to."""

    checkpoint_id: Name = Field(min_length=1, examples=["ckpt-2"])
    reason: Text = ""


class Fork(Body):
    """Where the new episode begins."""

    checkpoint_id: Name = Field(min_length=1, examples=["ckpt-2"])
    id: Name | None = None
    """Of the new episode; only with a token for all projects."""


class TextProblem(Shown):
    """Something wrong or odd in a text, and where."""

    severity: str = Field(examples=["error"])
    message: str
    suggestion: str = ""
    code: str = ""
    line: int = 0
    column: int = 0


class Examined(Shown):
    """What is wrong or odd in the text of a plan."""

    ok: bool
    """Nothing stops it from running; a worker may refuse more."""
    problems: list[TextProblem]


class Asked(Shown):
    """What a workflow was asked for; of an episode with its amendments."""

    kind: Literal["episode", "plan", "loop"]
    request: dict[str, Any]
    """As the body that starts one, with what the settings filled in."""


class Runs(Shown):
    """The runs that Temporal still has, oldest first."""

    items: list[shown(Run)]  # type: ignore[valid-type]


class WorkerLine(Shown):
    """A worker process."""

    process: str = Field(examples=["4711@build-1"])
    last_seen: datetime | None = None
    free_slots: int | None = None
    """For activities; null where the worker does not say."""
    runs_workflows: bool = False


class WaitingSteps(Shown):
    """The steps that wait on a task queue for a free slot. Temporal counts them roughly, and some seconds late."""

    queue: str = Field(examples=["tightloop-gui-macos"])
    steps: int
    oldest_s: float
    person_waits: int
    """Steps for which a person waits; they go first."""
    running: int
    """Steps of work that runs; they go next."""
    new: int
    """First steps of new work."""


class Workers(Shown):
    """The workers of the installation, what is missing, and what waits."""

    queue: str
    """The task queue of the workflows."""
    items: list[WorkerLine]
    hosts: list[str]
    """Task queues of the hosts that open workspaces."""
    missing: list[str]
    """What an episode would wait for, each as a sentence that says what to start."""
    waiting: list[WaitingSteps]
    """By task queue; only where steps wait."""


class Done(Shown):
    """What became of a message."""

    id: str
    message: str = Field(examples=["the pause begins at the next safe point"])


class Started(Shown):
    """What was started, and where it is."""

    id: str = Field(examples=["episode-1f2e3d4c5b6a"])
    href: str = Field(examples=["/api/episodes/episode-1f2e3d4c5b6a"])


class Lines(Shown):
    """A page of a list, the newest start first."""

    items: list[Line]  # type: ignore[valid-type]
    cursor: str = ""
    """Where the next page begins; empty: this is the last one."""


class Timeline(Shown):
    """Events, oldest first."""

    items: list[shown(Event)]  # type: ignore[valid-type]
    cursor: str = ""
    """Ask for what follows with it."""


class Trail(Shown):
    """Lines of the evidence trail, oldest first."""

    items: list[shown(EvidenceLine)]  # type: ignore[valid-type]
    after: int = 0
    """Ask for what follows with it."""


class Checkpoints(Shown):
    """Checkpoints, oldest first."""

    items: list[shown(CheckpointRecord)]  # type: ignore[valid-type]


class Artifacts(Shown):
    """References to what is stored."""

    items: list[Artifact]  # type: ignore[valid-type]


class ChangedFile(Shown):
    """How many lines of one file changed; null: it is binary."""

    path: str
    added: int | None = None
    removed: int | None = None


class Diff(Shown):
    """What changed between two checkpoints."""

    before: str
    after: str
    files: list[ChangedFile]
    patch: str = ""
    """The unified diff, cut where it is very long."""
    cut: bool = False
    plan_change: str = ""


class Waiting(shown(InboxItem)):  # type: ignore[misc]
    """A question that waits for a person, and where the answer goes."""

    answer_href: str
    """POST `{"question": ..., "option": ...}` to it."""


class Inbox(Shown):
    """What waits for a person, oldest first."""

    items: list[Waiting]
