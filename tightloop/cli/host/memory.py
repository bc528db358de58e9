"""`tightloop memory`: search, list, show, forget, export and stats."""

import json
import sys
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from tightloop.cli.host.server_part import search_memory
from tightloop.cli.parameters import Argument, AsJson, Option
from tightloop.cli.session import Session, session_of
from tightloop.cli.terminal import as_plain_values, plain, show, show_either, show_json, table
from tightloop.errors import InvalidRequestError, ServiceUnavailableError
from tightloop.host import state_folder
from tightloop.memory import Details, Entry, Kind, Pattern, Recollection
from tightloop.value import format_count, shorten

if TYPE_CHECKING:
    from tightloop.database.memory.store import MemoryStore

TEXT_CHARACTERS = 100

Project = Annotated[
    str, Option(help="Id of the project, or a unique prefix of the id. Default: the project in the current folder.")
]
Limit = Annotated[int, Option(min=1, max=1_000, help="Maximum number of entries.")]


class KindOption(StrEnum):
    """Kind of entries to list."""

    FAILURE = "failure"
    PATTERN = "pattern"
    FACT = "fact"


def search(
    context: click.Context,
    text: Annotated[str, Argument(help="Error message, command output or keywords to search for.")],
    project: Project = "",
    kind: Annotated[KindOption, Option(help="Search only entries of this kind.")] = KindOption.FAILURE,
    limit: Limit = 5,
    as_json: AsJson = False,
) -> None:
    session = session_of(context)
    name = _project(_memory(session), project)
    results = search_memory(session, {"project": name, "text": text, "kind": kind.value, "limit": limit})
    if as_json:
        show_json(results)
    elif not results:
        show(f"the memory of {name} contains no similar entries")
    elif kind is KindOption.FAILURE:
        show(*(line for result in results for line in (*_recollection_lines(Recollection.model_validate(result)), "")))
    else:
        _show_entries(Entry.model_validate(result) for result in results)


def list_entries(
    context: click.Context,
    project: Project = "",
    kind: Annotated[KindOption | None, Option(help="List only entries of this kind. Default: all kinds.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    memory = _memory(session_of(context))
    name = _project(memory, project)
    entries = memory.entries(name, Kind(kind.value) if kind else None, limit)
    if as_json:
        show_json(entries)
    elif entries:
        _show_entries(entries)
    else:
        show(f"the memory of {name} is empty")


def show_entry(
    context: click.Context,
    entry: Annotated[str, Argument(metavar="ID", help="Id of a failure or a pattern, or the key of a fact.")],
    project: Project = "",
    as_json: AsJson = False,
) -> None:
    memory = _memory(session_of(context))
    details = memory.show(_project(memory, project), entry)
    if as_json:
        show_json(details)
    else:
        show(*_details_lines(details))


def forget(
    context: click.Context,
    ids: Annotated[list[str] | None, Argument(metavar="ID", help="Ids of the entries to delete.")] = None,
    project: Project = "",
    everything: Annotated[bool, Option("--all", help="Delete all memory entries about the project.")] = False,
    as_json: AsJson = False,
) -> None:
    if bool(ids) == everything:
        raise InvalidRequestError(
            "specify the ids to delete, or --all to delete everything about the project, but not both"
        )
    memory = _memory(session_of(context))
    name = _project(memory, project)
    removed = memory.forget(name, None if everything else ids)
    if not removed and ids:
        raise InvalidRequestError(
            f"the memory of {name} has no entry {ids[0][:60]!r}. List the entries: tightloop memory list"
        )
    show_either({"project": name, "forgotten": removed}, f"entries deleted: {removed}", as_json=as_json)


def export(
    context: click.Context,
    project: Project = "",
    out: Annotated[Path | None, Option(help="File to create. Default: standard output.")] = None,
) -> None:
    memory = _memory(session_of(context))
    rows = memory.export(_project(memory, project))
    if out is None:
        sys.stdout.writelines(_json_lines(rows))
        return
    try:
        # Never overwrites: after `forget`, an earlier export may be the only copy.
        with out.open("x", encoding="utf-8") as file:
            file.writelines(_json_lines(rows))
    except OSError as error:
        raise InvalidRequestError(f"cannot write {out}: {error.strerror}. Choose a different file") from None


def stats(context: click.Context, project: Project = "", as_json: AsJson = False) -> None:
    memory = _memory(session_of(context))
    statistics = memory.stats(_project(memory, project))
    if as_json:
        show_json(statistics)
        return
    models = ", ".join(f"{name} {count}" for name, count in sorted(statistics.embedders.items()))
    stats_table = table("PROJECT", statistics.project)
    for name, value in (
        ("failures", f"{statistics.failures}, {statistics.solved} solved"),
        ("patterns", str(statistics.patterns)),
        ("facts", str(statistics.facts)),
        ("uses of patterns", f"{statistics.tried}, {statistics.worked} worked"),
        ("failures by embedding model", models or "none"),
        ("database", str(memory.database)),
    ):
        stats_table.add_row(name, plain(value))
    show(stats_table)


def _memory(session: Session) -> "MemoryStore":
    """Return the configured memory. Projects are identified by the ids in its database.

    Raises:
        ServiceUnavailableError: only the client is installed.
    """
    try:
        from tightloop.database.memory.store import MemoryStore, memory_database
    except ImportError:
        raise ServiceUnavailableError(
            "cannot read the memory because only the client is installed on this host. Build and install "
            "tightloop-server: docs/operate/install.md"
        ) from None
    # No embedder: only the search needs one, and it runs in the server part.
    return MemoryStore(memory_database(session.settings), None, session.settings.memory)


def _project(memory: "MemoryStore", reference: str) -> str:
    """Resolve a project reference to an id. The default is the project that contains the current folder.

    Raises:
        InvalidRequestError: no project matches, or several do.
    """
    projects = memory.projects()
    if reference:
        fitting = [project for project in projects if project == reference] or [
            project for project in projects if project.startswith(reference)
        ]
        if len(fitting) == 1:
            return fitting[0]
        what = (
            f"{reference!r} matches {len(fitting)} projects"
            if fitting
            else f"the memory contains no project {reference!r}"
        )
    else:
        current_folder = Path.cwd()
        # In a subfolder, use the project that contains it.
        for folder in (current_folder, *current_folder.parents):
            if (name := state_folder(folder).name) in projects:
                return name
        what = f"the memory contains no project for {current_folder}"
    raise InvalidRequestError(f"{what}. Use --project with one of: {', '.join(projects[:8]) or '(none yet)'}")


def _show_entries(entries: Iterable[Entry]) -> None:
    entries_table = table("ID", "KIND", "TYPE", "TEXT", "SEEN", "WORKED", "LAST")
    for entry in entries:
        evidence = f"{entry.evidence.worked}/{entry.evidence.tried}" if entry.evidence.tried else ""
        entries_table.add_row(
            plain(entry.id),
            entry.kind.value,
            plain(entry.type),
            plain(shorten(entry.text, TEXT_CHARACTERS)),
            str(entry.times),
            evidence,
            f"{entry.at.astimezone():%Y-%m-%d %H:%M}" if entry.at else "",
        )
    show(entries_table)


def _recollection_lines(recollection: Recollection) -> list[str]:
    first = f"{recollection.failure}  {plain(recollection.line)}"
    return [first, f"  {recollection.shown}", *(_pattern_lines(recollection.pattern) if recollection.pattern else [])]


def _pattern_lines(pattern: Pattern) -> list[str]:
    commands = ["  " + " ".join(command) for command in pattern.commands]
    return [f"  {plain(pattern.id)}: {plain(pattern.title)}", *map(plain, commands)]


def _details_lines(details: Details) -> list[str]:
    entry, pattern = details.entry, details.pattern
    lines = [f"{entry.kind.value} {plain(entry.id)}", f"  {plain(entry.text)}"]
    if entry.kind is not Kind.FACT:
        vector = f"{details.embedder}, {details.dimension} dimensions" if details.embedder else "none"
        lines += [f"  seen {format_count(entry.times, 'time')}, {entry.evidence}", f"  vector: {plain(vector)}"]
    lines += [f"  check: {plain(details.check)}"] if details.check else []
    lines += ["", plain(details.context)] if details.context else []
    if pattern is not None:
        lines += [f"  - {plain(step)}" for step in pattern.steps]
        lines += [f"  $ {plain(' '.join(command))}" for command in pattern.commands]
        lines += [plain(text) for text in (pattern.code_template, pattern.test_template) if text]
    lines += [
        f"  {entry.kind.value} {plain(entry.id)}: {plain(entry.text)} ({entry.evidence})" for entry in details.related
    ]
    return lines


def _json_lines(rows: Iterable[dict[str, Any]]) -> Iterable[str]:
    for row in rows:
        yield json.dumps(as_plain_values(row), ensure_ascii=False, default=str) + "\n"
