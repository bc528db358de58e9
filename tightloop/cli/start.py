"""`tightloop start` and `tightloop code`."""

import contextlib
import json
import os
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import Annotated, Any

import click
import yaml
from pydantic import ValidationError

from tightloop.cli.follow import follow
from tightloop.cli.parameters import Argument, AsJson, NewId, Option, Wait, Watch
from tightloop.cli.session import Session, exit_with_status, session_of, wait_at_most
from tightloop.cli.terminal import is_attended, print_note, show_either
from tightloop.client import TightloopClient
from tightloop.client.workers import explain_idle
from tightloop.coder.model import CODER
from tightloop.episode.check import ProofRule
from tightloop.episode.exit_status import refuse_masked
from tightloop.episode.model import LONGEST_LIMIT_S, EpisodePhase, EpisodeRequest, EpisodeStatus
from tightloop.episode.scenarios import HiddenScenarios
from tightloop.errors import InvalidRequestError, TightloopError
from tightloop.executor.model import AgentMode, OnCrash
from tightloop.plan.request import PlanRequest, PlanStatus
from tightloop.run.core import ResultMode
from tightloop.safety.rubric import Verdict
from tightloop.settings import Settings
from tightloop.settings.layers import merge_layers
from tightloop.value import first_problem, unknown_fields
from tightloop.value.documents import load_yaml

_EXAMPLE = 'tightloop start "make the tests pass" --done "pytest -q"'


def read_request_file(path: Path) -> dict[str, Any]:
    """Parse a request file in YAML or JSON.

    Raises:
        InvalidRequestError: the file cannot be read, is not a mapping, or has an unknown field.
    """
    try:
        document = load_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequestError(f"cannot read the request file {path}: {error.strerror}. Check the path") from error
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"the request file {path} is not valid UTF-8 text (byte {error.start})") from error
    except yaml.MarkedYAMLError as error:
        at = (
            f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}: "
            if error.problem_mark
            else ""
        )
        raise InvalidRequestError(f"the request file {path} is not valid YAML: {at}{error.problem}") from error
    except yaml.YAMLError as error:
        raise InvalidRequestError(
            f"the request file {path} is not valid YAML: {' '.join(str(error).split())}"
        ) from error
    if not isinstance(document, dict):
        raise InvalidRequestError(
            f"{path} is not a valid request. Expected: goal: ..., workspace: ..., definition_of_done: [...]"
        )
    if unknown := next(unknown_fields(EpisodeRequest, document), ""):
        raise InvalidRequestError(f"{path}: {unknown}")
    return document


def find_project(path: str) -> dict[str, str]:
    """Return the fields `workspace` and `folder` for a project path.

    `folder` is set only if the project is below the root of a repository.
    """
    project, home = Path(path).expanduser().resolve(), Path.home().resolve()
    top = next((folder for folder in (project, *project.parents) if os.path.lexists(folder / ".git")), project)
    # A repository around the home folder contains settings, not the projects below it.
    if top == project or home.is_relative_to(top):
        return {"workspace": str(project)}
    return {"workspace": str(top), "folder": str(project.relative_to(top))}


def drop_none(**options: Any) -> dict[str, Any]:
    """Return the given options, leaving out those that are None."""
    return {name: value for name, value in options.items() if value is not None}


def read_request(
    settings: Settings,
    file: Path | None,
    options: dict[str, Any],
    *,
    workspace: str | None,
    check_timeout: float | None,
) -> EpisodeRequest:
    """Build the request for `tightloop start` from a file and options. Options override the file.

    Raises:
        InvalidRequestError: a value is invalid, or the request is incomplete.
    """
    written = read_request_file(file) if file else {}
    checks = with_timeout(options.get("definition_of_done") or written.get("definition_of_done"), check_timeout)
    place = find_project(workspace or written.get("workspace") or ".")
    return build_request(settings, written, options | drop_none(definition_of_done=checks), place)


def build_request(settings: Settings, *layers: dict[str, Any]) -> EpisodeRequest:
    """Build a request from the default settings and additional layers.

    Later layers override earlier ones.

    Raises:
        InvalidRequestError: a value is invalid, or the request is incomplete.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = merge_layers(merged, layer)
    try:
        request = EpisodeRequest.model_validate(merged)
    except ValidationError as error:
        raise InvalidRequestError(f"{first_problem(error)}. For example: {_EXAMPLE}") from error
    request = settings.with_defaults(request)
    request.check()
    refuse_masked(request.definition_of_done)
    return request


def budget_of(limit: int | None, until: str | None = None) -> dict[str, Any] | None:
    """Return the budget for `--max-iterations` and `--until`.

    The planner is warned when 80 % of the iterations are used.
    """
    budget: dict[str, Any] = drop_none(until=read_until(until, datetime.now().astimezone()))
    if limit is None:
        return budget or None
    if limit < 1:
        raise InvalidRequestError(f"--max-iterations must be at least 1, got {limit}")
    # The default budget has the same ratio, 12 of 15.
    return budget | {"max_iterations": limit, "warn_at_iteration": max(1, limit * 4 // 5)}


def read_until(text: str | None, now: datetime) -> datetime | None:
    """Parse `--until`, given as a time of day or an ISO time.

    A time of day refers to its next occurrence in this host's time zone. An ISO time may name another
    time zone.

    Raises:
        InvalidRequestError: the text is not a time, or the time has passed.
    """
    if text is None:
        return None
    with contextlib.suppress(ValueError):
        clock = time.fromisoformat(text)
        today = datetime.combine(now.date(), clock)
        # From local time for each day, because a night may change to or from summer time.
        days = (day.astimezone() if day.tzinfo is None else day for day in (today, today + timedelta(days=1)))
        return next(day for day in days if day > now)
    try:
        until = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequestError(
            f"--until {text!r} is not a valid time. For example: --until 07:00 or --until 2026-11-30T07:00+01:00"
        ) from None
    until = until if until.tzinfo is not None else until.astimezone()
    if until <= now:
        raise InvalidRequestError(f"--until {text} is in the past. Specify a later time")
    return until


def with_timeout(checks: list[Any] | None, seconds: float | None) -> list[Any] | None:
    """Apply `--check-timeout` to the checks that have no `timeout_s`.

    Raises:
        InvalidRequestError: the value is out of range, or there are no checks to apply it to.
    """
    if seconds is None:
        return checks
    if not checks:
        raise InvalidRequestError(
            "--check-timeout only applies to checks from --done or --file. Specify a check, or omit --check-timeout"
        )
    if not 0 < seconds <= LONGEST_LIMIT_S:
        raise InvalidRequestError(
            f"--check-timeout must be greater than 0 and at most {LONGEST_LIMIT_S} seconds, got {seconds:g}"
        )
    return [{"timeout_s": seconds, **({"run": check} if isinstance(check, str) else check)} for check in checks]


def read_pairs(option: str, pairs: list[str], example: str) -> dict[str, str]:
    """Parse the `name=value` pairs given for an option.

    Raises:
        InvalidRequestError: the `=` is missing.
    """
    split = [(pair, *pair.partition("=")) for pair in pairs]
    for pair, name, separator, _ in split:
        if not separator or not name:
            raise InvalidRequestError(
                f"{option} {pair!r} does not have the form name=value. For example: {option} {example}"
            )
    return {name: value for _, name, _, value in split}


def executor_values(pairs: list[str] | None) -> dict[str, Any] | None:
    """Parse the values of `--executor-option`.

    Raises:
        InvalidRequestError: a value is not `name=value`.
    """
    read = read_pairs("--executor-option", pairs or [], "model=gpt-5.1")
    return {name: json_or_text(value) for name, value in read.items()} or None


def json_or_text(text: str) -> Any:
    """Parse a string as JSON. Return the string unchanged if it is not valid JSON."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


Goal = Annotated[str | None, Argument(help="Goal in plain words.")]
Workspace = Annotated[str | None, Option(help="Project folder in a git working tree. Default: the current folder.")]
Done = Annotated[
    list[str] | None,
    Option(
        help='Command that passes when the goal is reached, for example "pytest -q". Repeatable. Default: the '
        "project's own checks, such as those of its CI."
    ),
]
CheckTimeout = Annotated[
    float | None, Option(help="Time limit for each check in seconds, unless --file sets one. Default: 600.")
]
Planner = Annotated[str | None, Option(help="Planner: auto, openai or heuristic.")]
Executor = Annotated[str | None, Option(help="Executor that does the work. List executors with: tightloop doctor")]
Fallback = Annotated[list[str] | None, Option(help="Executor to use if the previous one is unavailable. Repeatable.")]
Model = Annotated[str | None, Option(help="Model for the executor.")]
Mode = Annotated[AgentMode | None, Option(help="Level of access that the agent has to this host. Default: workspace.")]
Permissions = Annotated[Verdict | None, Option(help="How to answer the agent's permission requests. Default: allow.")]
WhenCrashed = Annotated[
    OnCrash | None, Option(help="What to do if the worker dies during a delivery. Default: retry if that is safe.")
]
ExecutorOptions = Annotated[
    list[str] | None, Option(help="Executor option as name=value, with a JSON value. Repeatable.")
]
PauseAfter = Annotated[
    int | None, Option(help="Number of iterations without progress after which the episode pauses. Default: 4.")
]
Unattended = Annotated[
    bool | None,
    Option(
        "--unattended",
        help="Send alerts instead of pausing when the work is stuck, and continue until the budget is used up. The run "
        "still pauses for other questions.",
    ),
]
Allow = Annotated[
    list[ProofRule] | None,
    Option(help="Accept findings of this kind without asking, for example tests_changed. Repeatable."),
]
KeepGreen = Annotated[
    bool | None,
    Option("--keep-green", help="Start work even if all checks already pass, for example when refactoring."),
]
Scenarios = Annotated[
    Path | None,
    Option(help="Hidden scenarios: a folder, a YAML file or an encrypted bundle. See: tightloop scenarios"),
]
Drafts = Annotated[
    int | None, Option(help="Maximum number of hidden scenarios that the planner's model drafts. 0 turns drafting off.")
]
Review = Annotated[
    bool | None,
    Option("--review/--no-review", help="Have the planner's model review the change after all checks have passed."),
]
MaxIterations = Annotated[int | None, Option(help="Number of iterations after which the episode pauses.")]
Until = Annotated[
    str | None,
    Option(
        metavar="TIME",
        help="Time at which the run pauses, as if its budget were spent: 07:00 (local time) or an ISO 8601 time.",
    ),
]
Worktree = Annotated[bool | None, Option("--worktree", help="Work in a new git worktree.")]
Setup = Annotated[
    str | None,
    Option(
        metavar="COMMAND",
        help='Command that installs the project\'s packages, such as "npm ci". The command runs again only after '
        "the lock files change. Default: ask if packages are missing.",
    ),
]
Result = Annotated[
    ResultMode | None,
    Option(
        help="How to deliver the result: as one commit on a new branch, one commit per task, or just files in the "
        "working tree."
    ),
]
Replace = Annotated[
    bool,
    Option(
        "--replace", help="Restart the closed episode with the id given by --id. Its checkpoints and timeline are kept."
    ),
]
RequestFile = Annotated[
    Path | None, Option(help="Request file in YAML or JSON. Options override the values in the file.")
]

OPENING_SECONDS = 3.0
"""Maximum time in seconds that a start waits for the workspace to be accepted or rejected."""
FINDING_SECONDS = 45.0
"""Maximum time in seconds for the same wait if the project's checks have to be found and tried."""


def start(
    context: click.Context,
    goal: Goal = None,
    workspace: Workspace = None,
    done: Done = None,
    check_timeout: CheckTimeout = None,
    planner: Planner = None,
    executor: Executor = None,
    fallback: Fallback = None,
    model: Model = None,
    mode: Mode = None,
    permissions: Permissions = None,
    on_crash: WhenCrashed = None,
    executor_option: ExecutorOptions = None,
    pause_after: PauseAfter = None,
    unattended: Unattended = None,
    allow: Allow = None,
    keep_green: KeepGreen = None,
    scenarios: Scenarios = None,
    drafts: Drafts = None,
    review: Review = None,
    max_iterations: MaxIterations = None,
    until: Until = None,
    worktree: Worktree = None,
    setup: Setup = None,
    result: Result = None,
    new_id: NewId = None,
    replace: Replace = False,
    file: RequestFile = None,
    watch: Watch = False,
    wait: Wait = None,
    as_json: AsJson = False,
) -> None:
    if replace and new_id is None:
        raise InvalidRequestError("--replace requires the id of the closed episode to start again: --id ID --replace")
    session = session_of(context)
    choice = drop_none(name=executor, fallback=fallback, model=model, mode=mode, permissions=permissions)
    choice |= drop_none(on_crash=on_crash, options=executor_values(executor_option))
    options = drop_none(goal=goal, definition_of_done=done, planner=planner, worktree=worktree, allow=allow)
    options |= drop_none(pause_after=pause_after, unattended=unattended, drafts=drafts, review=review)
    options |= drop_none(keep_green=keep_green, attended=is_attended(), result=result, setup=setup)
    options |= drop_none(executor=choice or None, budget=budget_of(max_iterations, until))
    request = read_request(session.settings, file, options, workspace=workspace, check_timeout=check_timeout)
    request = request.evolve(scenarios=commit(session, scenarios, request.workspace) or request.scenarios)
    start_now(session, request, new_id, replace=replace, watch=watch, wait=wait, as_json=as_json)


def code(
    context: click.Context,
    goal: Goal = None,
    workspace: Workspace = None,
    done: Done = None,
    check_timeout: CheckTimeout = None,
    model: Model = None,
    allow: Allow = None,
    keep_green: KeepGreen = None,
    scenarios: Scenarios = None,
    drafts: Drafts = None,
    review: Review = None,
    max_iterations: MaxIterations = None,
    until: Until = None,
    unattended: Unattended = None,
    worktree: Worktree = None,
    setup: Setup = None,
    result: Result = None,
    new_id: NewId = None,
    watch: Watch = False,
    wait: Wait = None,
    as_json: AsJson = False,
) -> None:
    session = session_of(context)
    options = drop_none(goal=goal, definition_of_done=done, worktree=worktree, allow=allow, unattended=unattended)
    options |= drop_none(keep_green=keep_green, attended=is_attended(), result=result, drafts=drafts, review=review)
    options |= drop_none(setup=setup)
    options |= drop_none(executor=drop_none(name=CODER, model=model), budget=budget_of(max_iterations, until))
    request = read_request(session.settings, None, options, workspace=workspace, check_timeout=check_timeout)
    request = request.evolve(scenarios=commit(session, scenarios, request.workspace))
    start_now(session, request, new_id, replace=False, watch=watch, wait=wait, as_json=as_json)


def commit(session: Session, scenarios: Path | None, workspace: str = "") -> HiddenScenarios | None:
    """Store hidden scenarios on this host and return their commitment.

    Raises:
        InvalidRequestError: the scenarios are unreadable, invalid, or visible to agents.
    """
    if scenarios is None:
        return None
    # Lazy import: it loads the code for YAML and encryption, which other starts do not need.
    from tightloop.client.scenarios import ScenarioStore

    return ScenarioStore(session.settings).commit(scenarios, workspace=Path(workspace) if workspace else None)


def start_now(
    session: Session,
    request: EpisodeRequest,
    new_id: str | None,
    *,
    replace: bool,
    watch: bool,
    wait: Wait,
    as_json: bool,
) -> None:
    """Start an episode and print its id.

    With `watch`, follow the episode until it ends.

    Raises:
        InvalidRequestError: `wait` is given without `watch`.
    """
    if wait is not None and not watch:
        raise InvalidRequestError("--wait and --no-wait only have an effect with --watch. Add --watch")
    queue = session.settings.temporal.task_queue
    started, notes = session.run(
        lambda client: start_and_wait(client, request, queue, new_id, replace=replace),
        # The start compares the keys itself.
        compare_keys=False,
    )
    for note in notes:
        print_note(note)
    hint = "" if watch else f"\nFollow it: tightloop watch {started}"
    show_either({"id": started}, f"started {started}{hint}", as_json=as_json)
    if watch:
        exit_with_status(follow(session, started, as_json=as_json, wait=wait))


async def start_and_wait(
    client: TightloopClient,
    request: EpisodeRequest | PlanRequest,
    task_queue: str,
    new_id: str | None,
    *,
    replace: bool = False,
) -> tuple[str, tuple[str, ...]]:
    """Start an episode or a plan, and wait until it can no longer be rejected.

    Return the id and any notes. For example, the notes may list the checks found in the project, or warn that no
    worker is available.

    Raises:
        InvalidRequestError: the episode or plan was rejected. The message contains the reason.
    """
    started = await client.start(request, new_id=new_id, replace=replace)
    # A bad workspace is rejected within this time; a start without a worker is valid anyway.
    if (opened := await wait_at_most(OPENING_SECONDS, _wait_until_open(client, started))) is not None:
        return started, opened
    # Only a hint: a failure to list the workers must not fail the start.
    with contextlib.suppress(TightloopError):
        workers = await client.pollers(task_queue)
        if not workers:
            idleness = f"no worker is polling task queue {task_queue!r}. Start a worker: tightloop up"
            return started, (f"{started} is waiting because {idleness}",)
        if idle := explain_idle(task_queue, workers):
            return started, (f"{started} is waiting. {idle}",)
    if isinstance(request, EpisodeRequest) and not request.definition_of_done:
        opened = await wait_at_most(FINDING_SECONDS, _wait_until_open(client, started))
        later = f"tightloop is trying the project's checks. See which checks it chooses: tightloop status {started}"
        return started, (later,) if opened is None else opened
    return started, ()


async def _wait_until_open(client: TightloopClient, started: str) -> tuple[str, ...]:
    """Wait until a run is open or asks a question.

    Return the question, or sentences about the checks that were found.
    """
    async with contextlib.aclosing(client.watch(started)) as changes:
        async for status in changes:
            assert isinstance(status, EpisodeStatus | PlanStatus)
            # A plan with counts has been opened: its failure is a result and not a rejection.
            if status.status == "failed" and (isinstance(status, EpisodeStatus) or not status.counts):
                raise InvalidRequestError(f"{started} could not start: {status.reason}")
            if status.questions:
                question = status.questions[0]
                return (f"{question.title} Answer: tightloop answer {started} {'|'.join(question.names)}",)
            if isinstance(status, EpisodeStatus) and status.phase is not EpisodePhase.OPENING:
                return status.chosen_checks
            if isinstance(status, PlanStatus) and status.counts:
                return ()
    return ()
