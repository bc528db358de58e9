"""The account of a plan that has ended: revisions, records, decisions, and two texts for people."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from activities.artifacts.port import ArtifactStore, get_model, put_model
from activities.plan.account_text import hand_off_text, postmortem_text
from activities.plan.opening import RevisionFact, revision_fact
from activities.plan.port import Records
from activities.plan.requests import ClosePlanRequest
from activities.plan.stored import LoadedPlan
from tightloop.artifact import ArtifactRef
from tightloop.check import CheckReport
from tightloop.plan.result import PersonDecision, StepRecord
from tightloop.plan.stored import PlanArchive
from tightloop.value import Value


class ChecksFact(Value):
    """Where the last report on the definition of done is stored."""

    report: ArtifactRef


CHECKS_FACT = "definition-of-done"


def account_of(
    request: ClosePlanRequest, loaded: LoadedPlan, records: Records, store: ArtifactStore
) -> tuple[ArtifactRef, bytes]:
    """Store the account of a plan; return its reference, and the hand-off note."""
    scope = request.scope
    every, now = records.all(scope.episode_id), records.of_this_run(scope.episode_id)
    lines = b"".join(record.model_dump_json().encode() + b"\n" for record in every)
    checks = _checks(request, records, store)
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
        revisions=tuple(_revisions(records, scope.episode_id, scope.revision)),
        records=store.put(lines, name="step records", media_type="application/jsonl"),
        decisions=_decisions(now),
        checks=checks,
        artifacts=_declared(loaded, records, scope.episode_id),
    )
    note = hand_off_text(archive, loaded.plan, now).encode()
    archive = archive.model_copy(update=_texts(archive, loaded, (now, note), store))
    return put_model(store, archive, name="plan account"), note


def write_hand_off(folder: Path, text: bytes) -> None:
    """Put the hand-off note where a person finds it without a program."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hand-off.md").write_bytes(text)


def _texts(
    archive: PlanArchive, loaded: LoadedPlan, told: tuple[tuple[StepRecord, ...], bytes], store: ArtifactStore
) -> dict[str, ArtifactRef]:
    every, note = told
    texts = {"hand_off": store.put(note, name="hand-off note", media_type="text/markdown")}
    if (story := postmortem_text(archive, loaded.plan, every)) is not None:
        texts["postmortem"] = store.put(story.encode(), name="postmortem", media_type="text/markdown")
    return texts


def _revisions(records: Records, plan_id: str, last: int) -> Iterable[ArtifactRef]:
    for number in range(1, last + 1):
        if (fact := records.kept(plan_id, revision_fact(number), RevisionFact)) is not None:
            yield fact.plan


def _checks(request: ClosePlanRequest, records: Records, store: ArtifactStore) -> ArtifactRef | None:
    """Return the report on the tree that the plan leaves; one on another tree is of a run before."""
    fact = records.kept(request.scope.episode_id, CHECKS_FACT, ChecksFact)
    if fact is None or get_model(store, fact.report, CheckReport).tree != request.expected_tree:
        return None
    return fact.report


def _decisions(records: Iterable[StepRecord]) -> tuple[PersonDecision, ...]:
    return tuple(dict.fromkeys(decision for record in records for decision in record.decisions))


def _declared(loaded: LoadedPlan, records: Records, plan_id: str) -> dict[str, Any]:
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
