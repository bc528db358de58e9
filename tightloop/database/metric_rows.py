"""Rows of the table `metrics`: writes them, and reads them with the episodes that they are about."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, case, func, or_, select

from tightloop.database.rows import next_tick, scrubbed, upsert
from tightloop.database.schema import metrics, workflows
from tightloop.episode.display import STANDS_IN
from tightloop.episode.model import EpisodeOutcome
from tightloop.ledger.metrics import EndedEpisode, Metric, MetricKind, MetricsFilter
from tightloop.ledger.model import SUCCEEDED, UNKNOWN, WorkflowSnapshot
from tightloop.question import Question, QuestionKind


def write_metrics(connection: Connection, project: str, measured: Iterable[Metric]) -> None:
    """Keep values; one of which a newer one is known is dropped."""
    for one in measured:
        row = {"project": project, "workflow_id": one.workflow_id, "kind": one.kind.value, "key": one.key}
        here = (metrics.c[name] == value for name, value in row.items())
        known = connection.execute(select(metrics.c.at).where(*here)).scalar()
        if known is not None and known > one.at:
            continue
        values = {"value": one.value, "at": one.at, "metadata": json.dumps(scrubbed(one.metadata))}
        upsert(connection, metrics, [{**row, **values, "changed": next_tick(connection)}])


def answer_times(snapshot: WorkflowSnapshot, settled: Iterable[Question]) -> Iterator[Metric]:
    """Yield how long each question of a workflow waited that is not asked any more."""
    if snapshot.status == EpisodeOutcome.FAILED.value.lower():
        return  # nobody answered in time
    for question in settled:
        if question.since is not None and question.kind is not QuestionKind.OPERATOR:
            seconds = max((snapshot.at - question.since).total_seconds(), 0.0)
            yield Metric(
                workflow_id=snapshot.id,
                kind=MetricKind.ANSWER_S,
                value=seconds,
                at=snapshot.at,
                key=question.id,
                metadata={"kind": question.kind.value},
            )


def ended_episodes(connection: Connection, wanted: MetricsFilter, seen: ColumnElement[bool]) -> list[EndedEpisode]:
    """Return the episodes that a filter lets through.

    Args:
        connection: to the database.
        wanted: the range and the filter.
        seen: condition on `workflows` for the projects that the reader may see.
    """
    which = (workflows.c.kind == "episode", seen, *_conditions(wanted))
    answers = _answers(connection, which)
    return [_episode(row, answers) for row in connection.execute(_episodes(which))]


def _episode(row: Sequence[Any], answers: Mapping[tuple[str, str], Iterable[float]]) -> EndedEpisode:
    # By unpacking: names would be looked up in each of thousands of rows.
    project, workflow_id, executor, model, closed, status, iterations, tokens, cost, cost_known, *known, hits = row
    worked_s, interventions, safety_findings, bandit_findings, coverage, searches = known
    return EndedEpisode(
        project=project,
        executor=executor.partition(STANDS_IN)[0],
        model=model,
        closed=closed,
        succeeded=None if status == UNKNOWN else status.lower() in SUCCEEDED,
        iterations=iterations,
        tokens=tokens,
        cost_usd=cost if cost_known else None,
        worked_s=worked_s,
        interventions=interventions,
        safety_findings=safety_findings,
        bandit_findings=bandit_findings,
        changed_line_coverage=coverage,
        memory_searches=searches,
        memory_hits=int(hits or 0),
        answers_s=tuple(answers.get((project, workflow_id), ())),
    )


def _episodes(which: Iterable[ColumnElement[bool]]) -> Any:
    of_kind = {kind: case((metrics.c.kind == kind.value, metrics.c.value)) for kind in MetricKind}
    row = workflows.c
    columns = (
        row.project, row.id, row.executor, row.model, row.closed, row.status, row.iteration, row.tokens, row.cost_usd,
        row.cost_known, row.worked_s, row.interventions,
    )  # fmt: skip
    sums = (
        func.sum(of_kind[MetricKind.SAFETY_FINDINGS]),
        func.sum(of_kind[MetricKind.BANDIT_FINDINGS]),
        func.sum(of_kind[MetricKind.CHANGED_LINE_COVERAGE]),
        func.count(of_kind[MetricKind.MEMORY_HIT]),
        func.sum(of_kind[MetricKind.MEMORY_HIT]),
    )
    joined = workflows.outerjoin(metrics, _of_episode())
    return select(*columns, *sums).select_from(joined).where(*which).group_by(row.project, row.id)


def _answers(connection: Connection, which: Iterable[ColumnElement[bool]]) -> dict[tuple[str, str], list[float]]:
    query = select(metrics.c.project, metrics.c.workflow_id, metrics.c.value)
    query = query.select_from(workflows.join(metrics, _of_episode()))
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in connection.execute(query.where(metrics.c.kind == MetricKind.ANSWER_S.value, *which)):
        found[row.project, row.workflow_id].append(row.value)
    return found


def _of_episode() -> ColumnElement[bool]:
    return and_(metrics.c.project == workflows.c.project, metrics.c.workflow_id == workflows.c.id)


def _conditions(wanted: MetricsFilter) -> Iterator[ColumnElement[bool]]:
    yield workflows.c.closed >= wanted.since
    yield workflows.c.closed < wanted.until
    if wanted.project:
        yield workflows.c.project == wanted.project
    if wanted.executor:
        stands_in = workflows.c.executor.startswith(f"{wanted.executor}{STANDS_IN}", autoescape=True)
        yield or_(workflows.c.executor == wanted.executor, stands_in)
    if wanted.model:
        yield workflows.c.model == wanted.model
