"""Wrong arguments: every method of the clients refuses them with a sentence of ours, never with Python's."""

import asyncio
import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client

import tightloop.client
from tightloop.client import Check, EpisodeRequest, ExecutorChoice, PlanRequest, SyncTightloopClient, TightloopClient
from tightloop.errors import InvalidRequestError, PlanError, TightloopError
from tightloop.settings import Settings

NOBODY = "nobody-has-this-id"
WRONG: tuple[Any, ...] = (
    *(3, -1, 0, 2.5, float("nan"), True, None, object(), b"bytes", timedelta(-1), timedelta(1), len),
    *("", " ", "no such thing", "\ud800", "a\0b", "x" * 3_000, "x" * 300_000),
    *((), [], {}, [3], {"goal": object()}, {"goal": "g"}, (("a", "b"),)),
)
RIGHT: dict[str, Any] = {
    "workflow_id": NOBODY,
    "episode_id": NOBODY,
    "plan_id": NOBODY,
    "reference": NOBODY,
    "run_id": "",
    "checkpoint_id": "ckpt-1",
    "option": "allow",
    "text": "use lib",
    "step": "build",
    "task_queue": "nobody",
    "goal": "g",
    "amounts": {"iterations": 1},
}
NOT_CALLED = ("connect", "sync")
PUBLIC = [name for name, _ in inspect.getmembers(TightloopClient, callable) if not name.startswith("_")]
METHODS = [name for name in PUBLIC if name not in NOT_CALLED]
NAMES = {name: list(inspect.signature(getattr(TightloopClient, name)).parameters)[1:] for name in METHODS}


@pytest.fixture
def client(temporal_client: Client, settings: Settings) -> TightloopClient:
    """The client as it is."""
    return TightloopClient(temporal_client, settings)


def request(**changes: Any) -> EpisodeRequest:
    return EpisodeRequest(**{"goal": "g", "workspace": "/srv/app", "definition_of_done": ["true"], **changes})


def calls() -> list[tuple[str, dict[str, Any]]]:
    """Every method with every wrong value of each argument; what is needed besides is right."""
    found: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in METHODS]
    for name in METHODS:
        parameters = inspect.signature(getattr(TightloopClient, name)).parameters
        needed = [one for one in NAMES[name] if parameters[one].default is inspect.Parameter.empty]
        for wrong in NAMES[name]:
            right = {one: RIGHT[one] for one in needed if one in RIGHT and one != wrong}
            right |= {"request": request()} if "request" in needed and wrong != "request" else {}
            right |= right.pop("amounts", {})
            field = "iterations" if wrong == "amounts" else wrong
            found += [(name, {**right, field: value}) for value in WRONG]
        found.append((name, {"no_such_argument": 1}))
    return found


@pytest.mark.parametrize("name", METHODS)
async def test_every_method_refuses_every_wrong_argument_with_a_sentence(client: TightloopClient, name: str) -> None:
    foreign: list[str] = []
    for _, arguments in (call for call in calls() if call[0] == name):
        try:
            async with asyncio.timeout(30):
                made = getattr(client, name)(**arguments)
                if inspect.isasyncgen(made):
                    async for _ in made:
                        pass
                else:
                    await made
        except TightloopError as error:
            if not error.message.strip() or "Input should" in error.message:
                foreign.append(f"{name}({arguments!r:.200}): {error.message}")
        except Exception as error:
            foreign.append(f"{name}({arguments!r:.200}): {error!r:.300}")
    assert not foreign, "\n".join(foreign)


def test_the_client_without_await_refuses_the_same(settings: Settings) -> None:
    accepted = []
    with TightloopClient.sync(settings=settings) as client:
        for name, arguments in calls():
            if not any(type(value) is object for value in arguments.values()):
                continue  # some methods take some of the other values
            try:
                made = getattr(client, name)(**arguments)
                if inspect.isgenerator(made):
                    list(made)
            except InvalidRequestError:
                continue
            accepted.append(name)
    assert not accepted


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda client: client.list(kind="bogus"),
            "list: kind must be 'episode' or 'plan' or 'loop' or None, not 'bogus'",
        ),
        (lambda client: client.list(limit=0), "list: limit must be at least 1, got 0"),
        (lambda client: client.list("bogus"), "'bogus' is not a valid status. Known statuses: running, paused"),
        (
            lambda client: client.start(3),
            "start: request must be an EpisodeRequest or a PlanRequest, not 3. Create one",
        ),
        (lambda client: client.start(request(), replce=True), "unknown argument 'replce'. Did you mean 'replace'?"),
        (lambda client: client.status(3), "status: workflow_id must be a string, not 3"),
        (lambda client: client.status(), "status: missing a required argument: 'workflow_id'"),
        (lambda client: client.result(NOBODY, timeout=3), "result: timeout must be a timedelta (for example "),
        (lambda client: client.timeline(NOBODY, limit=0), "timeline: limit must be at least 1, got 0"),
        (lambda client: client.timeline(NOBODY, limit=-1), "timeline: limit must be at least 1, got -1"),
        (lambda client: client.top_up(NOBODY, iterations="5"), "top_up: iterations must be a number, not '5'"),
        (
            lambda client: client.amend(NOBODY, definition_of_done="true"),
            "must be a list (each item a string or a Check",
        ),
        (lambda client: client.connect(settings={}), "connect: settings must be a Settings or None, not {}"),
        (lambda client: client.connect(3), "connect: target must be a string or None, not 3"),
        (
            lambda client: client.start(request(), new_id="größe"),
            "Use 1 to 100 characters from a-z, A-Z, 0-9, '-', '_'",
        ),
    ],
)
async def test_sentence_says_which_argument_and_what_it_must_be(
    client: TightloopClient, call: Callable[[Any], Any], sentence: str
) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        await call(client)
    assert sentence in refused.value.message


def test_wrong_cursor_is_refused_when_the_iterator_is_made(client: TightloopClient) -> None:
    wrong: Any = 3
    with pytest.raises(InvalidRequestError, match="events: after must be a string, not 3"):
        client.events(NOBODY, after=wrong)


def test_a_client_that_is_not_connected_says_how_to_connect() -> None:
    address: Any = "127.0.0.1:7233"
    with pytest.raises(InvalidRequestError, match=r"^TightloopClient: client must be .* await TightloopClient.connect"):
        TightloopClient(address)


def test_both_clients_have_the_same_methods() -> None:
    for name in METHODS:
        assert hasattr(SyncTightloopClient, name), name


@pytest.mark.parametrize("kind", [Check, EpisodeRequest, PlanRequest, ExecutorChoice])
def test_values_are_made_with_names(kind: Any) -> None:
    with pytest.raises(InvalidRequestError, match=rf"{kind.__name__}: pass the fields by name, for example "):
        kind("true")


def test_all_that_a_typed_service_names_comes_from_one_place() -> None:
    """Arguments, results, the parts of both and the errors that a service catches."""
    needed = "TopUp ExecutorAmendment EpisodeOutcome PlanOutcome Question CheckpointRecord StepLine Settings Spent"
    needed += " TightloopError InvalidRequestError EpisodeNotFoundError IdTakenError PlanError ServiceUnavailableError"
    assert set(needed.split()) <= set(tightloop.client.__all__)
    assert all(hasattr(tightloop.client, name) for name in tightloop.client.__all__)


# -- what cannot work is refused before it is started ------------------------------------------------

PLAN = "id: p\ninputs: {target: staging}\nsteps:\n  - {id: one, shell: {run: 'echo ${plan.target}'}}\n"


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            PlanRequest(workspace="/srv/app", source=PLAN, inputs={"targt": 1}),
            "no input 'targt'. Did you mean 'target'?",
        ),
        (PlanRequest(workspace="/srv/app", source=PLAN, inputs={"target": object()}), "cannot be sent as JSON"),
        (PlanRequest(workspace="/srv/app", source="steps: ["), "1:"),
        (PlanRequest(workspace="/srv/app", source="id: p\nsteps: [{id: a, shel: {run: ls}}]"), "Did you mean 'shell'?"),
        (request(planner="heuristc"), "unknown planner 'heuristc'. Did you mean 'heuristic'?"),
        (request(executor={"name": "command", "options": {"argv": object()}}), "the request cannot be sent as JSON"),
        (
            request(budget={"max_iterations": 0}),
            "budget.max_iterations must be above 0, or null",
        ),
        (
            request(budget={"max_wall_time": timedelta(-1)}),
            "for no limit, got -1 day, 0:00:00",
        ),
        (
            request(budget={"max_cost_usd": -0.5}),
            "budget.max_cost_usd must be above 0",
        ),
    ],
)
async def test_request_that_cannot_work_is_not_started(
    client: TightloopClient, wrong: EpisodeRequest | PlanRequest, sentence: str
) -> None:
    new_id = f"wrong-{uuid4().hex[:8]}"
    with pytest.raises(InvalidRequestError) as refused:
        await client.start(wrong, new_id=new_id)
    assert sentence in refused.value.message
    assert new_id not in [row.id for row in await client.list()]


async def test_problems_of_a_plan_have_their_places(client: TightloopClient) -> None:
    with pytest.raises(PlanError) as refused:
        await client.start(PlanRequest(workspace="/srv/app", source="id: p\nsteps:\n  - {id: a, shel: {run: ls}}\n"))
    assert refused.value.problems[0].position.line == 3
