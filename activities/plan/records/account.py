"""The account of a plan that has ended: revisions, records, decisions, and two texts for people."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from activities.artifacts.port import ArtifactStore, get_model, put_model
from activities.plan.plan_cache import LoadedPlan
from activities.plan.records.account_text import render_hand_off, render_postmortem
from activities.plan.records.file_records import FileRecords, RevisionFact, revision_fact_name
from activities.plan.requests import ClosePlanRequest
from tightloop.episode.check import CheckReport
from tightloop.plan.stored import PlanArchive
from tightloop.question import Answer
from tightloop.value import Value
from tightloop.value.artifact import ArtifactRef


class ChecksFact(Value):
    """Where the last report on the definition of done is stored."""

    report: ArtifactRef


CHECKS_FACT = "definition-of-done"


def store_account(
    request: ClosePlanRequest, loaded: LoadedPlan, records: FileRecords, store: ArtifactStore
) -> ArtifactRef:
    """Store the account of a plan, write its hand-off note, and return the reference of the account."""
    scope = request.scope
    every, now = records.all(scope.episode_id), records.of_this_run(scope.episode_id)
    lines = b"".join(record.model_dump_json().encode() + b"\n" for record in every)
    found: dict[str, dict[Answer, None]] = {}
    for record in now:
        if record.answers:
            found.setdefault(record.step, {}).update(dict.fromkeys(record.answers))
    names = map(revision_fact_name, range(1, scope.revision + 1))
    revisions = (records.kept(scope.episode_id, name, RevisionFact) for name in names)
    archive = PlanArchive(
        plan_id=scope.episode_id,
        title=loaded.plan.title or loaded.plan.id,
        outcome=request.outcome,
        reason=request.reason,
        closed=datetime.now(UTC),
        base_tree=scope.base_tree,
        tree=request.expected_tree,
        counts=request.counts,
        statuses=request.statuses,
        revisions=tuple(revision.plan for revision in revisions if revision is not None),
        records=store.put(lines, name="step records", media_type="application/jsonl"),
        answers={step: tuple(answers) for step, answers in found.items()},
        checks=_checks(request, records, store),
        artifacts=_declared(loaded, records, scope.episode_id),
    )
    note = render_hand_off(archive, loaded.plan, now, Path(scope.workspace)).encode()
    archive = archive.evolve(hand_off=store.put(note, name="hand-off note", media_type="text/markdown"))
    if (story := render_postmortem(archive, loaded.plan, now)) is not None:
        postmortem = store.put(story.encode(), name="postmortem", media_type="text/markdown")
        archive = archive.evolve(postmortem=postmortem)
    # Where a person finds it without a program.
    records.leave_note(scope.episode_id, "hand-off.md", note)
    return put_model(store, archive, name="plan account")


def _checks(request: ClosePlanRequest, records: FileRecords, store: ArtifactStore) -> ArtifactRef | None:
    """Return the report on the tree that the plan leaves; one on another tree is of a run before."""
    fact = records.kept(request.scope.episode_id, CHECKS_FACT, ChecksFact)
    if fact is None or get_model(store, fact.report, CheckReport).tree != request.expected_tree:
        return None
    return fact.report


def _declared(loaded: LoadedPlan, records: FileRecords, plan_id: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for declared in loaded.plan.artifacts:
        record = records.latest(plan_id, declared.from_step)
        name = declared.output or declared.name
        if record is not None and name in record.outputs:
            found[declared.name] = record.outputs[name]
        elif record is not None and name in record.artifacts:
            found[declared.name] = {"artifact": record.artifacts[name].model_dump(mode="json")}
        else:
            found[declared.name] = {"missing": f"step {declared.from_step!r} left no {name!r}"}
    return found
