"""Commands that show workflows, digests and metrics."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
from rich.table import Table

from tightloop.cli.follow import follow
from tightloop.cli.parameters import Argument, AsJson, EpisodeId, Id, JsonLines, Option, Project, Wait
from tightloop.cli.plan import with_records
from tightloop.cli.session import Session, exit_with_status, session_of, wait_at_most
from tightloop.cli.terminal import on_terminal, plain, print_note, show, show_either, show_json, table
from tightloop.cli.views import (
    checkpoints_table,
    timeline_table,
)
from tightloop.client import Event, Kind, RunStatus, Summary, TightloopClient
from tightloop.client.store import Store, TreeChange, plan_change, read_number
from tightloop.episode.check import CheckReport, find_checks
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.episode.control import reset_command
from tightloop.episode.model import EpisodeStatus
from tightloop.errors import InvalidRequestError, ServiceUnavailableError, SettingsError
from tightloop.ledger.metrics import (
    MEANINGS,
    Division,
    Figure,
    Group,
    MetricsFilter,
    MetricsReport,
    Rate,
    Unit,
    read_range,
)
from tightloop.ledger.model import InboxItem, amount
from tightloop.loop.digest import digest_lines, is_worth_telling
from tightloop.plan.request import StepLine
from tightloop.settings import Settings
from tightloop.value import format_count

if TYPE_CHECKING:
    from tightloop.database.ledger import Ledger


EVENTS_SHOWN = 100
QUESTION_SECONDS = 2.0
"""Time limit in seconds for collecting the questions in `list`, which must be fast even if no worker responds."""


def rows_of_temporal(
    session: Session, status: str | None, kind: str | None, limit: int, *, questions_of: int
) -> tuple[Sequence[Summary], list[RunStatus]]:
    """Return the rows for `list`, and the statuses of workflows that are waiting for a person.

    Only the first `questions_of` of these statuses are returned.
    """
    unread: list[SettingsError] = []

    async def question(client: TightloopClient, workflow_id: str) -> RunStatus | None:
        try:
            return await wait_at_most(QUESTION_SECONDS, client.status(workflow_id))
        # A status that is encrypted with an unknown key must not hide the list.
        except SettingsError as error:
            unread.append(error)
            return None

    async def look(client: TightloopClient) -> tuple[Sequence[Summary], list[RunStatus | None]]:
        rows = await client.list(status, limit, kind=Kind(kind) if kind else None)
        waiting = [row.id for row in rows if row.pause_kind][:questions_of]
        return rows, await asyncio.gather(*(question(client, workflow_id) for workflow_id in waiting))

    rows, waiting = session.run(look, compare_keys=False)
    if unread:
        print_note(unread[0].message)
    return rows, [run_status for run_status in waiting if run_status is not None]


def status_of_temporal(session: Session, workflow: str, *, steps: bool) -> tuple[RunStatus, tuple[StepLine, ...]]:
    """Return the status of a run. If no worker responds, return the stored status."""

    async def look(client: TightloopClient, key: str) -> tuple[RunStatus, tuple[StepLine, ...]]:
        try:
            return await client.status(key), await client.steps(key) if steps else ()
        except ServiceUnavailableError as error:
            status = with_records(await client.stored_status(key))
            print_note(error.message)
            return status, ()

    return session.on(workflow, look)


def watch(context: click.Context, workflow: Id, wait: Wait = None, as_json: JsonLines = False) -> None:
    session = session_of(context)
    exit_with_status(follow(session, session.run(lambda client: client.resolve(workflow)), as_json=as_json, wait=wait))


def timeline(
    context: click.Context,
    workflow: Id,
    after: Annotated[
        str, Option(metavar="CURSOR", help="Show only events after this cursor. --json prints the cursors.")
    ] = "",
    limit: Annotated[
        int | None, Option(min=1, help=f"Maximum number of events. Default: the last {EVENTS_SHOWN}.")
    ] = None,
    all_: Annotated[bool, Option("--all", help="Show all events, including events of earlier runs.")] = False,
    as_json: AsJson = False,
) -> None:
    # With a cursor everything after it is wanted, so the default limit does not apply.
    most = limit or (None if after or all_ else EVENTS_SHOWN)

    async def look(client: TightloopClient, key: str) -> tuple[str, tuple[Event, ...]]:
        return key, await client.timeline(key, after=after, limit=most)

    key, events = session_of(context).on(workflow, look)
    show_either(events, timeline_table(events), as_json=as_json)
    if events and not as_json:
        if not after and len(events) == most:
            print_note(f"earlier events: tightloop timeline {key} --all")
        print_note(f"to see only newer events: tightloop timeline {key} --after {events[-1].cursor}")


def checkpoints(
    context: click.Context,
    workflow: EpisodeId,
    all_: Annotated[bool, Option("--all", help="Also show checkpoints that a restore discarded.")] = False,
    as_json: AsJson = False,
) -> None:

    async def look(client: TightloopClient, key: str) -> tuple[str, tuple[CheckpointRecord, ...]]:
        return key, tuple(await client.checkpoints(key))

    key, records = session_of(context).on(workflow, look, Kind.EPISODE)
    if as_json:
        show_json(records)
        return
    visible = [record for record in records if all_ or not record.discarded]
    show(checkpoints_table(visible))
    if hidden := len(records) - len(visible):
        print_note(
            f"{format_count(hidden, 'discarded checkpoint')} hidden. To list discarded checkpoints, which can still be "
            "restored, use --all."
        )
    if reset := reset_command(key, records):
        print_note(f"to reset in Temporal itself, use a checkpoint's run and event (see --json): {reset}")


def ledger_inbox(settings: Settings, project: str) -> Sequence[InboxItem]:
    """Return the open questions in the ledger."""
    ledger = require_ledger(settings)
    return ledger.inbox(resolve_project(ledger, project) if project else "")


DigestSince = Annotated[
    str,
    Option(
        metavar="TIME",
        help="Start of the time range: how long ago (12h) or a UTC time (2026-01-31 or 2026-01-31T20:00).",
    ),
]
DigestUntil = Annotated[
    str,
    Option(
        metavar="TIME",
        help="End of the time range, in the same format. Default: now, including work that is still open.",
    ),
]


def digest(
    context: click.Context,
    project: Project = "",
    since: DigestSince = "24h",
    until: DigestUntil = "",
    as_json: AsJson = False,
) -> None:
    now = datetime.now(UTC)
    begin, end = read_range(since, until, now)
    ledger = require_ledger(session_of(context).settings)
    names = [resolve_project(ledger, project)] if project else [line.id for line in ledger.projects()]
    digests = [ledger.digest(name, begin, end, is_newest=end >= now) for name in names]
    if as_json:
        show_json([project_digest.model_dump(mode="json") for project_digest in digests])
    elif lines := [
        line
        for project_digest in digests
        if project or is_worth_telling(project_digest)
        for line in (*map(plain, digest_lines(project_digest)), "")
    ]:
        show(*lines)
    else:
        show(f"Nothing happened from {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC, and nothing is open.")


def resolve_project(ledger: "Ledger", reference: str) -> str:
    """Resolve a project id or an unambiguous prefix to the full id.

    Raises:
        InvalidRequestError: no project matches, or several do.
    """
    ids = [line.id for line in ledger.projects()]
    fitting = [project_id for project_id in ids if project_id == reference] or [
        project_id for project_id in ids if project_id.startswith(reference)
    ]
    if len(fitting) != 1:
        named = f"matches {len(fitting)} projects: {', '.join(fitting[:5])}" if fitting else "matches no project"
        raise InvalidRequestError(f"{reference!r} {named}. Known projects: {', '.join(ids[:8]) or 'none yet'}")
    return fitting[0]


def require_ledger(settings: Settings) -> "Ledger":
    """Return the configured ledger.

    Raises:
        ServiceUnavailableError: only the client is installed.
    """
    try:
        from tightloop.database.ledger import open_ledger
    except ImportError:
        raise ServiceUnavailableError(
            "cannot read the ledger because only the client is installed on this host. Build and install "
            "tightloop-server: docs/operate/install.md. Or ask the gateway: GET /api/inbox"
        ) from None
    return open_ledger(settings)


def diff(
    context: click.Context,
    workflow: EpisodeId,
    before: Annotated[str, Argument(metavar="A", help="Checkpoint id or number, such as ckpt-1 or 1.")],
    after: Annotated[str, Argument(metavar="B", help="Checkpoint id or number, such as ckpt-2 or 2.")],
    stat: Annotated[bool, Option("--stat", help="Show only the files and the number of changed lines.")] = False,
    plan: Annotated[bool, Option("--plan", help="Compare the plans instead of the files.")] = False,
    as_json: AsJson = False,
) -> None:

    async def look(client: TightloopClient, key: str) -> tuple[str, Path, tuple[CheckpointRecord, ...]]:
        workspace = (await client.summary(key)).workspace
        try:
            return key, Path(workspace), await client.checkpoints(key)
        except ServiceUnavailableError:
            # The refs in the store are enough for file diffs; the list only helps with a fork.
            if plan:
                raise
            return key, Path(workspace), ()

    key, folder, records = session_of(context).on(workflow, look, Kind.EPISODE)
    numbers = [read_number(key, name) for name in (before, after)]
    if plan:
        _show_plan(Store(folder, key), numbers, records, as_json=as_json)
    else:
        _show_files(TreeChange(folder, key, numbers, records), before, after, stat=stat, as_json=as_json)


def output(
    context: click.Context,
    workflow: EpisodeId,
    check: Annotated[
        str,
        Argument(
            metavar="CHECK",
            help="Name of the check, or the beginning of its name. Default: all failing checks, or all if none fails.",
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:

    async def look(client: TightloopClient, key: str) -> tuple[str, EpisodeStatus]:
        try:
            status = await client.status(key)
        except ServiceUnavailableError:
            status = await client.stored_status(key)
        assert isinstance(status, EpisodeStatus)
        return key, status

    key, status = session_of(context).on(workflow, look, Kind.EPISODE)
    if status.check_report is None:
        raise InvalidRequestError(f"no checks have run for {key} yet. Follow the run with: tightloop watch {key}")
    store = Store(Path(status.workspace), key)
    results = find_checks(store.load_model(status.check_report, CheckReport), check)
    texts = {
        result.name: store.artifact(result.output).decode("utf-8", "replace") if result.output else result.tail
        for result in results
    }
    if as_json:
        show_json([{"name": result.name, "status": result.status, "output": texts[result.name]} for result in results])
        return
    for result in results:
        if len(results) > 1:
            print_note(f"{result.name}: {result.status}")
        click.echo(plain(texts[result.name]).rstrip("\n"))


def _show_plan(store: Store, numbers: list[int], records: tuple[CheckpointRecord, ...], *, as_json: bool) -> None:
    change = plan_change(store, numbers, records)
    a, b = (f"ckpt-{number}" for number in numbers)
    if as_json:
        show_json({"from": a, "to": b, "plan_change": change})
        return
    click.echo(plain(change or f"the plan is the same in {a} and {b}").rstrip("\n"))


def _show_files(change: TreeChange, before: str, after: str, *, stat: bool, as_json: bool) -> None:
    if not as_json:
        colour = "--color=always" if on_terminal() else "--color=never"
        click.echo(change.text(colour, *(["--stat"] if stat else [])), nl=False)
        return
    patch = {} if stat else {"patch": change.text("--binary")}
    files = [file.model_dump() for file in change.files()]
    show_json({"files": files, **patch, "from": before, "to": after})


Since = Annotated[
    str,
    Option(
        metavar="TIME",
        help="Count only episodes that ended after this time. Specify how long ago (7d, 12h) or a UTC time "
        "(2026-01-31T08:00).",
    ),
]
Until = Annotated[
    str,
    Option(metavar="TIME", help="Count only episodes that ended before this time, in the same format. Default: now."),
]
Executor = Annotated[str, Option(help="Count only episodes with this executor. Default: all.")]
Model = Annotated[str, Option(help="Count only episodes with this model. Default: all.")]
By = Annotated[Division | None, Option(help="Also break the figures down by this field.")]
GROUP_COLUMNS = ("success", "iterations_to_success", "tokens", "cost_usd", "worked_s", "interventions", "answer_s")


def metrics(
    context: click.Context,
    since: Since = "7d",
    until: Until = "",
    project: Project = "",
    executor: Executor = "",
    model: Model = "",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    begin, end = read_range(since, until, datetime.now(UTC))
    ledger = require_ledger(session_of(context).settings)
    named = resolve_project(ledger, project) if project else ""
    metrics_filter = MetricsFilter(since=begin, until=end, project=named, executor=executor, model=model, by=by)
    report = ledger.metrics(metrics_filter)
    if as_json:
        show_json(report)
        return
    show(_heading(report))
    if report.figures.episodes:
        show(_table(report))
    if report.groups:
        show(_group_table(report.groups, metrics_filter.by))


def _heading(report: MetricsReport) -> str:
    metrics_filter = report.wanted
    restrictions = [f"{name} {value}" for name in Division for value in (getattr(metrics_filter, name.value),) if value]
    of = f" of {', '.join(restrictions)}" if restrictions else ""
    ended = format_count(report.figures.episodes, "episode")
    return (
        f"{ended}{of} ended from {metrics_filter.since:%Y-%m-%d %H:%M} to {metrics_filter.until:%Y-%m-%d %H:%M} (UTC)"
    )


def _table(report: MetricsReport) -> Table:
    result = table("", "rate, median", "p90", "total", "n", "not known")
    for name, meaning in MEANINGS.items():
        figure: Figure | Rate = getattr(report.figures, name)
        if isinstance(figure, Rate):
            cells = [amount(figure.share, meaning.unit), "", f"{figure.count} of {figure.n}" if figure.n else ""]
        else:
            # A sum of shares is meaningless.
            total = "" if meaning.unit is Unit.SHARE else amount(figure.total, meaning.unit)
            cells = [amount(figure.median, meaning.unit), amount(figure.p90, meaning.unit), total]
        result.add_row(meaning.title, *cells, str(figure.n), str(figure.unknown) if figure.unknown else "")
    return result


def _group_table(groups: tuple[Group, ...], by: Division | None) -> Table:
    result = table(by.value if by else "", "episodes", *(MEANINGS[name].title for name in GROUP_COLUMNS))
    for group in groups:
        cells = []
        for name in GROUP_COLUMNS:
            figure: Figure | Rate = getattr(group.figures, name)
            value = figure.share if isinstance(figure, Rate) else figure.median
            cells.append(f"{amount(value, MEANINGS[name].unit)} (n {figure.n})")
        result.add_row(plain(group.name) or "not named", str(group.figures.episodes), *cells)
    return result
