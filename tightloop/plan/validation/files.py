"""Rules about plans in files that a plan names as subplans: none may lead back to itself."""

from collections.abc import Callable, Iterator
from posixpath import normpath

from tightloop.errors import Problem
from tightloop.plan.document.step import Step
from tightloop.plan.text.located import Path
from tightloop.plan.text.reading import ReadPlan, read_parts

FILES_LIMIT = 200
"""Files that are looked at."""
Load = Callable[[str], str | None]
"""Returns the text of a file below the root of the tree; None where it is not there yet."""


def find_file_cycles(read: ReadPlan, own: str, load: Load) -> tuple[Problem, ...]:
    """Return an error for each step whose file leads back to a file on the way to it.

    Args:
        read: the plan.
        own: its file, below the root of the tree.
        load: reads the others.
    """
    known: dict[str, tuple[str, ...]] = {}
    found = []
    for path, file in _files(read.plan.steps, ("steps",)):
        way = _way_back((normpath(own), normpath(file)), known, load)
        if way:
            said = f"the plan includes itself: {' -> '.join(way)}"
            hint = "Take one of these steps out, or name another file"
            place = read.where(path)
            found.append(Problem(message=said, suggestion=hint, position=place, code="file-cycle", file=read.name))
    return tuple(found)


def _way_back(way: tuple[str, ...], known: dict[str, tuple[str, ...]], load: Load) -> tuple[str, ...]:
    if way[-1] in way[:-1]:
        return way[way.index(way[-1]) :]
    if way[-1] not in known:
        if len(known) >= FILES_LIMIT:
            return ()
        text = load(way[-1])
        read = read_parts(text)[0] if text is not None else None
        named = (normpath(file) for _, file in _files(read.plan.steps, ())) if read else ()
        known[way[-1]] = tuple(dict.fromkeys(named))
    for file in known[way[-1]]:
        if back := _way_back((*way, file), known, load):
            return back
    # Nothing leads back from here: the next way to it need not be walked.
    known[way[-1]] = ()
    return ()


def _files(steps: tuple[Step, ...], path: Path) -> Iterator[tuple[Path, str]]:
    for number, step in enumerate(steps):
        if step.subplan and step.subplan.file and "${" not in step.subplan.file:
            yield (*path, number, "subplan", "file"), step.subplan.file
        for inner in step.inner():
            yield from _files(inner.steps, (*path, number, *inner.path))
