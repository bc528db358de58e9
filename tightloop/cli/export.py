"""`tightloop export`: all available data about an episode or a plan."""

import asyncio
import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TextIO

import click

from tightloop.cli.host.server_part import take_result
from tightloop.cli.parameters import AsJson, Id, Option
from tightloop.cli.session import Session, session_of
from tightloop.cli.terminal import as_plain_values, plain, print_note, show, show_either
from tightloop.client import CLOSED_STATUSES, Kind, RunStatus, Summary, TightloopClient
from tightloop.client.store import Store, result_patch
from tightloop.errors import ArtifactError, InvalidRequestError, ServiceUnavailableError, WorkspaceError
from tightloop.plan.document import PlanArchive
from tightloop.plan.request import PlanResult
from tightloop.value import ArtifactRef

RESULT_SECONDS = 15.0
_OWN_FILES = frozenset({"revisions", "records", "history", "children", "timeline", "report"})
"""Parts of the document that are written as separate files when exporting to a folder."""

Document = dict[str, Any]
# A dict keeps the order and drops repeats: several parts often fail for the same reason.
Problems = dict[str, None]


def export(
    context: click.Context,
    workflow: Id,
    out: Annotated[
        Path | None,
        Option(
            help="JSON file to write (NAME.json) or folder to create. A folder will also contain a plan's artifacts. "
            "With --report: file to write."
        ),
    ] = None,
    report: Annotated[
        bool, Option("--report", help="Export only the report of a closed plan (hand-off note and postmortem).")
    ] = False,
) -> None:
    if out is not None and out.suffix != ".json" and out.exists():
        raise InvalidRequestError(f"{out} already exists. Choose a different path for --out")
    session = session_of(context)
    if report:
        text = "\n".join(session.on(workflow, _report, Kind.PLAN).values())
        if out is None:
            click.echo(plain(text), nl=False)
            return
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise _cannot_write(out, error) from error
        show(f"wrote {out}")
        return
    # Histories of earlier runs are too large for memory; they go through files.
    with tempfile.TemporaryDirectory(prefix="tightloop-export-") as name:
        _export(session, workflow, out, Path(name))


def _export(session: Session, workflow: str, out: Path | None, histories: Path) -> None:
    """Write the export.

    `histories` is an empty folder for the large histories of earlier runs.
    """
    document, store = session.on(workflow, lambda client, key: _document(client, key, histories))
    # On stderr, so that the JSON on stdout can be parsed.
    for problem in document["problems"]:
        print_note(problem)
    if out is None:
        _write_json(sys.stdout, document, histories)
        return
    try:
        if out.suffix == ".json":
            with out.open("w", encoding="utf-8") as stream:
                _write_json(stream, document, histories)
            show(f"wrote {out}. Replay its history with: tightloop replay {out}")
            return
        for sentence in _write_folder(out, document, store, histories):
            print_note(sentence)
        show(f"wrote {out}: {', '.join(sorted(path.name for path in out.iterdir()))}")
    except OSError as error:
        raise _cannot_write(out, error) from error


def _cannot_write(out: Path, error: OSError) -> InvalidRequestError:
    return InvalidRequestError(f"cannot write {out}: {error.strerror}. Choose another path for --out")


async def _document(client: TightloopClient, workflow_id: str, histories: Path) -> tuple[Document, Store]:
    """Collect all available data. Missing parts are listed under `problems`.

    The document contains the history of the newest run. Each earlier history is written to the file
    `<run>.json` in the folder `histories`.
    """
    problems: Problems = {}

    async def part(ask: Callable[[str], Awaitable[Any]]) -> Any:
        try:
            return as_plain_values(await ask(workflow_id))
        # Queries need a worker; an export must also work if the workers are gone.
        except ServiceUnavailableError as error:
            problems[f"some parts of the export are missing, but the history is complete: {error.message}"] = None
            return None

    summary = await client.summary(workflow_id)
    store = Store(Path(summary.workspace), workflow_id)
    list_items: Callable[[str], Awaitable[Any]] = client.checkpoints
    if summary.kind is not Kind.EPISODE:
        list_items = client.steps if summary.kind is Kind.PLAN else client.runs
    asks: tuple[Callable[[str], Awaitable[Any]], ...] = (client.status, client.request, client.timeline, list_items)
    status, request, timeline, own_part = await asyncio.gather(*map(part, asks))
    document = {
        "id": workflow_id,
        "kind": summary.kind.value,
        "exported_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "status": status,
        "request": request,
        "timeline": timeline,
        {Kind.EPISODE: "checkpoints", Kind.PLAN: "steps", Kind.LOOP: "runs"}[summary.kind]: own_part,
    }
    if summary.kind is Kind.PLAN:
        document |= {"account": None, "report": {}, **_load_stored_data(store, problems)}
        # An open plan has no report yet, which is not a problem.
        with contextlib.suppress(InvalidRequestError):
            account = await _account(client, summary, store, problems)
            document |= {"account": as_plain_values(account), "report": _texts(account, store, problems)}
        document["children"] = {child.workflow_id: _load_stored_data(child, problems) for child in store.children()}
    # Temporal keeps one history per run, and each continue-as-new starts another run.
    runs = await client.runs(workflow_id)
    for run in runs[:-1]:
        # One at a time: a long episode has many histories, of 5 MB each when parsed.
        (histories / f"{run.run_id}.json").write_text(
            await client.history(workflow_id, run_id=run.run_id), encoding="utf-8"
        )
    document["history"] = json.loads(await client.history(workflow_id, run_id=runs[-1].run_id))
    return {**document, "problems": list(problems), "runs": as_plain_values(runs)}, store


def _load_stored_data(store: Store, problems: Problems) -> Document:
    """Return the stored data of a plan that is available on this host."""
    try:
        store.require()
        revisions, records = store.revisions(), store.records()
    except (WorkspaceError, ArtifactError) as error:
        problems[error.message] = None
        return {"revisions": None, "records": None, "answers": None}
    answers = dict.fromkeys((record.step, answer) for record in records for answer in record.answers)
    return {
        "revisions": [revision.model_dump(mode="json", by_alias=True) for revision in revisions],
        "records": as_plain_values(records),
        "answers": [{"step": step, **answer.model_dump(mode="json")} for step, answer in answers],
    }


async def _report(client: TightloopClient, plan_id: str) -> dict[str, str]:
    summary = await client.summary(plan_id)
    store = Store(Path(summary.workspace), plan_id)
    account = await _account(client, summary, store)
    if account is None:
        raise InvalidRequestError(
            f"{plan_id} has no report because it ended before writing one. Export its data: tightloop export {plan_id}"
        )
    return _texts(account, store)


async def _account(
    client: TightloopClient, summary: Summary, store: Store, problems: Problems | None = None
) -> PlanArchive | None:
    """Return the archive that a plan wrote when it ended, or None if there is none.

    Raises:
        InvalidRequestError: the plan is still open.
        WorkspaceError: the record is on another host, and `problems` is None.
    """
    if summary.status not in CLOSED_STATUSES:
        raise InvalidRequestError(
            f"{summary.id} is {summary.status}. The report will be written when the run ends. To see the status: "
            f"tightloop status {summary.id}"
        )
    async with asyncio.timeout(RESULT_SECONDS):
        result = await client.result(summary.id)
    # A terminated or timed-out plan wrote no record.
    if not isinstance(result, PlanResult) or result.record is None:
        return None
    try:
        store.require()
        return store.load_model(result.record, PlanArchive)
    except (WorkspaceError, ArtifactError) as error:
        if problems is None:
            raise
        problems[error.message] = None
        return None


def _texts(account: PlanArchive | None, store: Store, problems: Problems | None = None) -> dict[str, str]:
    named = {} if account is None else {"hand-off": account.hand_off, "postmortem": account.postmortem}
    texts = {}
    for name, ref in named.items():
        try:
            if ref is not None:
                texts[name] = store.artifact(ref).decode("utf-8", "replace")
        except ArtifactError as error:
            if problems is None:
                raise
            problems[error.message] = None
    return texts


def _write_json(stream: TextIO, document: Document, histories: Path) -> None:
    """Write a single JSON document, including the histories of earlier runs."""
    rest = {name: part for name, part in document.items() if name != "runs"}
    # The closing brace is cut off: the runs follow, with histories that are streamed into the text.
    stream.write(json.dumps(as_plain_values(rest), indent=1, ensure_ascii=False).removesuffix("\n}"))
    separator = ',\n "runs": ['
    for run in document["runs"]:
        stream.write(separator + "\n  " + json.dumps(run).removesuffix("}"))
        history = histories / f"{run['run_id']}.json"
        if history.exists():
            stream.write(', "history": ')
            # Copy the text: histories are too large to parse and hold in memory.
            with history.open(encoding="utf-8") as text:
                shutil.copyfileobj(text, stream)
        stream.write("}")
        separator = ","
    stream.write("\n ]\n}\n")


def _write_folder(out: Path, document: Document, store: Store, histories: Path) -> list[str]:
    """Write each part to a file, and return a sentence for each missing artifact.

    Either all files are written, or none.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder as the target, so that the rename is atomic.
    folder = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}-"))
    try:
        _write_parts(folder, document)
        if len(document["runs"]) > 1:
            shutil.copytree(histories, folder / "runs")
        for name, child in document.get("children", {}).items():
            (folder / "children" / name).mkdir(parents=True)
            _write_parts(folder / "children" / name, {"id": name, "kind": Kind.PLAN.value, **child})
        missing = _copy_artifacts(folder / "artifacts", document, store)
        # mkdtemp creates private folders.
        folder.chmod(0o755)
        folder.rename(out)
    # Clean up after Ctrl-C too.
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return missing


def _write_parts(folder: Path, document: Document) -> None:
    files = {
        f"{document['kind']}.json": _json_text({key: part for key, part in document.items() if key not in _OWN_FILES})
    }
    for number, revision in enumerate(document.get("revisions") or (), start=1):
        files[f"revision-{number}.json"] = _json_text(revision)
    if "records" in document:
        lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in document["records"] or ())
        files["records.jsonl"] = "".join(lines)
    files |= {f"{name}.json": _json_text(document[name]) for name in ("history", "timeline") if name in document}
    files |= {f"{name}.md": text for name, text in document.get("report", {}).items()}
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def _copy_artifacts(folder: Path, document: Document, store: Store) -> list[str]:
    """Copy all artifacts used in a plan's records and report. Files are named by their SHA-256."""
    missing = []
    children = document.get("children", {}).values()
    named = [document.get("records"), document.get("account"), *(child["records"] for child in children)]
    # Many steps refer to the same artifact.
    for ref in dict.fromkeys(_references(named)):
        try:
            content = store.artifact(ref)
        except ArtifactError as error:
            missing.append(error.message)
            continue
        # Created late, so that an export without artifacts has no empty folder.
        folder.mkdir(exist_ok=True)
        (folder / ref.sha256).write_bytes(content)
    return missing


def _references(value: Any) -> Iterable[ArtifactRef]:
    if isinstance(value, dict):
        if {"sha256", "size_bytes"} <= value.keys():
            yield ArtifactRef.model_validate(value)
        for part in value.values():
            yield from _references(part)
    elif isinstance(value, list):
        for part in value:
            yield from _references(part)


def _json_text(document: Any) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def result(
    context: click.Context,
    workflow: Id,
    apply: Annotated[bool, Option("--apply", help="Write the changed files into the workspace.")] = False,
    branch: Annotated[str, Option(help="Commit the changes on a new branch with this name.")] = "",
    patch: Annotated[bool, Option("--patch", help="Print the changes as a patch.")] = False,
    as_json: AsJson = False,
) -> None:
    if apply + bool(branch) + patch > 1:
        raise InvalidRequestError("choose one of --apply, --branch or --patch")
    session = session_of(context)

    async def look(client: TightloopClient, key: str) -> tuple[RunStatus, str]:
        return await client.status(key), (await client.request(key)).goal

    status, goal = session.on(workflow, look)
    if patch:
        text = result_patch(Path(status.workspace), status.id)
        show_either({"patch": text}, text.rstrip("\n"), as_json=as_json)
        return
    place = f"the changed files are in {status.worktree or status.workspace}; tightloop did not commit them"
    delivered = status.delivered or ("no file has changed" if status.files_changed == 0 else place)
    if apply or branch:
        how = {"run": status.id, "workspace": status.workspace, "title": goal, "branch": branch}
        how |= {"status": status.list_status, "qualifier": status.qualifier, "reason": status.reason}
        delivered = take_result(session, {**how, "worktree": bool(status.worktree)})
    show_either({"id": status.id, "result": delivered}, delivered, as_json=as_json)
