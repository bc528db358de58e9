"""The commands that keep what a plan was: everything for an audit, and two texts for whoever goes on."""

import asyncio
import json
import shutil
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from tightloop.artifact import ArtifactRef
from tightloop.cli import render
from tightloop.cli.episodes import AsJson
from tightloop.cli.export import ask_all, json_text, writing
from tightloop.cli.plan_session import PlanId
from tightloop.cli.plan_store import PlanStore
from tightloop.cli.session import session_of
from tightloop.client.plan_kind import PLAN_CLOSED_STATUSES
from tightloop.client.plans import Plans
from tightloop.errors import ArtifactError, InvalidRequestError, WorkspaceError
from tightloop.plan.request import PlanResult
from tightloop.plan.stored import PlanArchive

app = typer.Typer()
KEEP = "Keep"
RESULT_SECONDS = 15.0


@app.command(rich_help_panel=KEEP)
def export(
    context: typer.Context,
    plan: PlanId,
    out: Annotated[
        Path | None, typer.Option(help="A new folder, with all artifacts; or a file that ends with .json.")
    ] = None,
) -> None:
    """Write everything about a plan: revisions, records, decisions, timeline, history. Default: JSON on stdout."""
    if out is not None and out.suffix != ".json" and out.exists():
        raise InvalidRequestError(f"{out} exists already. Name a folder that does not")
    document, store = session_of(context).on_plan(plan, _document)
    for problem in document["problems"]:
        render.remark(problem)
    if out is None:
        render.show_json(document)
        return
    with writing(out):
        if out.suffix == ".json":
            out.write_text(json_text(document), encoding="utf-8")
            render.show(f"wrote {out}. Replay its history with: tightloop replay {out}")
        else:
            missing = _write_folder(out, document, store)
            for sentence in missing:
                render.remark(sentence)
            render.show(f"wrote {out}: {', '.join(sorted(path.name for path in out.iterdir()))}")


async def _document(plans: Plans, plan_id: str) -> tuple[dict[str, Any], PlanStore]:
    """Return everything that is known of a plan; what could not be asked stands under `problems`."""
    (status, request, timeline, steps), problems = await ask_all(
        plan_id, plans.status, plans.request, plans.timeline, plans.steps
    )
    summary = await plans.summary(plan_id)
    store = PlanStore(Path(summary.workspace), plan_id)
    account = await _account(plans, plan_id, store, problems) if summary.status in PLAN_CLOSED_STATUSES else None
    return {
        "plan_id": plan_id,
        "exported_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "status": status,
        "request": request,
        "timeline": timeline,
        "steps": steps,
        "account": render.as_plain_values(account),
        **_stored(store, problems),
        "children": {child.plan_id: _stored(child, problems) for child in store.children()},
        "history": json.loads(await plans.history_json(plan_id)),
        "problems": list(problems),
    }, store


def _stored(store: PlanStore, problems: dict[str, None]) -> dict[str, Any]:
    """Return what lies on this host."""
    try:
        store.require()
        revisions, records = store.revisions(), store.records()
    except (WorkspaceError, ArtifactError) as error:
        problems[error.message] = None
        return {"revisions": None, "records": None, "decisions": None}
    decisions = dict.fromkeys(one for record in records for one in record.decisions)
    return {
        "revisions": [one.model_dump(mode="json", by_alias=True) for one in revisions],
        "records": render.as_plain_values(records),
        "decisions": render.as_plain_values(list(decisions)),
    }


async def _account(
    plans: Plans, plan_id: str, store: PlanStore, problems: dict[str, None] | None = None
) -> PlanArchive | None:
    """Return the account that a plan left at its end; None where there is none.

    Raises:
        WorkspaceError: it is on another host (only without `problems`).
    """
    async with asyncio.timeout(RESULT_SECONDS):
        result: PlanResult = await plans.result(plan_id)
    if result.record is None:
        return None
    try:
        store.require()
        return store.stored(result.record, PlanArchive)
    except (WorkspaceError, ArtifactError) as error:
        if problems is None:
            raise
        problems[error.message] = None
        return None


def _write_folder(out: Path, document: dict[str, Any], store: PlanStore) -> list[str]:
    """Write the parts as files, all or nothing; return a sentence for each artifact that is not here."""
    out.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}-"))
    try:
        _write_parts(made, document)
        for name, child in document["children"].items():
            (made / "children" / name).mkdir(parents=True)
            _write_parts(made / "children" / name, {"plan_id": name, **child})
        missing = _copy_artifacts(made / "artifacts", document, store)
        made.chmod(0o755)
        made.rename(out)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return missing


def _write_parts(folder: Path, document: dict[str, Any]) -> None:
    apart = {"revisions", "records", "history", "children", "timeline"}
    (folder / "plan.json").write_text(
        json_text({key: part for key, part in document.items() if key not in apart}), encoding="utf-8"
    )
    for number, revision in enumerate(document["revisions"] or (), start=1):
        (folder / f"revision-{number}.json").write_text(json_text(revision), encoding="utf-8")
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in document["records"] or ())
    (folder / "records.jsonl").write_text("".join(lines), encoding="utf-8")
    for name in ("history", "timeline"):
        if name in document:
            (folder / f"{name}.json").write_text(json_text(document[name]), encoding="utf-8")


def _copy_artifacts(folder: Path, document: dict[str, Any], store: PlanStore) -> list[str]:
    """Copy everything that the records and the account name, under its sha256."""
    missing = []
    named = [document["records"], document["account"], *(child["records"] for child in document["children"].values())]
    for ref in dict.fromkeys(_references(named)):
        try:
            content = store.artifact(ref)
        except ArtifactError as error:
            missing.append(error.message)
            continue
        folder.mkdir(exist_ok=True)
        (folder / ref.sha256).write_bytes(content)
    return missing


def _references(value: Any) -> Iterable[ArtifactRef]:
    if isinstance(value, dict):
        if {"sha256", "size_bytes"} <= value.keys():
            yield ArtifactRef.model_validate(value)
        for one in value.values():
            yield from _references(one)
    elif isinstance(value, list):
        for one in value:
            yield from _references(one)


@app.command(rich_help_panel=KEEP)
def archive(
    context: typer.Context,
    plan: PlanId,
    out: Annotated[Path | None, typer.Option(help="Folder for hand-off.md, postmortem.md and account.json.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a plan left: the hand-off note, and the postmortem where something failed."""

    async def look(plans: Plans, key: str) -> tuple[PlanArchive, dict[str, str]]:
        summary = await plans.summary(key)
        if summary.status not in PLAN_CLOSED_STATUSES:
            raise InvalidRequestError(
                f"{key} is {summary.status}: its account is written at its end. See: tightloop plan status {key}"
            )
        store = PlanStore(Path(summary.workspace), key)
        account = await _account(plans, key, store)
        if account is None:
            raise InvalidRequestError(
                f"{key} left no account: it was ended before it could write one. See: tightloop plan export {key}"
            )
        return account, _texts(account, store)

    account, texts = session_of(context).on_plan(plan, look)
    if out is not None:
        _write_archive(out, account, texts)
        render.show(f"wrote {out}: {', '.join(sorted(path.name for path in out.iterdir()))}")
    elif as_json:
        render.show_json({**account.model_dump(mode="json"), "texts": texts})
    else:
        typer.echo(render.plain("\n".join(texts.values())), nl=False)


def _texts(account: PlanArchive, store: PlanStore) -> dict[str, str]:
    named = {"hand-off": account.hand_off, "postmortem": account.postmortem}
    return {name: store.artifact(ref).decode("utf-8", "replace") for name, ref in named.items() if ref is not None}


def _write_archive(out: Path, account: PlanArchive, texts: dict[str, str]) -> None:
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (out / f"{name}.md").write_text(text, encoding="utf-8")
        (out / "account.json").write_text(json_text(account.model_dump(mode="json")), encoding="utf-8")
