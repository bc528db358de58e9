"""Rules about the files and folders that a plan names: they are there, and no plan leads back to itself."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from posixpath import basename, dirname, normpath

from tightloop.errors import Problem, Severity, did_you_mean
from tightloop.plan.document.step import Step
from tightloop.plan.text.located import Path
from tightloop.plan.text.reading import ReadPlan, read_parts

FILES_LIMIT = 200
"""Files that are looked at."""
Names = Callable[[str], Collection[str] | None]
"""Returns the names in a folder, whose path starts at the root of the tree (`""`); None: there is no such folder."""
Load = Callable[[str], str | None]
"""Returns the text of a file, whose path starts at the root of the tree; None: it is not there yet."""


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


def find_missing(read: ReadPlan, names: Names) -> tuple[Problem, ...]:
    """Return a problem for each file of a subplan, folder of a command and folder of `policy.write` that is not there.

    An error where nothing can make it before it is needed.
    """
    found = []
    for path, place, what, is_first in _places(read):
        around = names(dirname(normpath(place)).lstrip("."))
        if around is not None and basename(normpath(place)) in around:
            continue
        hint = did_you_mean(basename(place), around) if around else ""
        is_close = hint.startswith("Did")
        if path[0] == "policy" and not is_close:
            continue  # steps may make it
        hint = hint if is_close else "Write its path from the root of the tree"
        severity = Severity.ERROR if is_first else Severity.WARNING
        said = f"{what} '{place}', which is not there" + ("" if is_first else " yet")
        told = {"message": said, "suggestion": hint, "code": "missing-file", "file": read.name}
        found.append(Problem(severity=severity, position=read.where(path), **told))
    return tuple(found)


def find_unknown_inputs(read: ReadPlan, load: Load) -> tuple[Problem, ...]:
    """Return a problem for each input that a step gives to a plan in a file which does not have it.

    An error where nothing can change the file before it is read.
    """
    found = []
    known: dict[str, Collection[str] | None] = {}
    for path, step, is_first in _steps(read.plan.steps, ("steps",)):
        if step.subplan is None or not step.subplan.inputs or not step.subplan.file or "${" in step.subplan.file:
            continue
        file = normpath(step.subplan.file)
        if file not in known:
            text = load(file) if len(known) < FILES_LIMIT else None
            inner = read_parts(text)[0] if text is not None else None
            known[file] = None if inner is None or ("inputs",) in inner.left_out else inner.plan.inputs
        names = known[file]
        for name in step.subplan.inputs if names is not None else ():
            if name not in (names or ()):
                said = f"'{step.id}' gives the input '{name}', which {file} does not have"
                hint = did_you_mean(name, names or ()) or "Write it there under `inputs:`"
                severity = Severity.ERROR if is_first else Severity.WARNING
                place = read.where((*path, "subplan", "inputs", name), key=True)
                told = {"message": said, "suggestion": hint, "code": "unknown-input", "file": read.name}
                found.append(Problem(severity=severity, position=place, **told))
    return tuple(found)


def _places(read: ReadPlan) -> Iterator[tuple[Path, str, str, bool]]:
    """Yield field, place, what names it, and whether that is before anything could have made it."""
    for number, pattern in enumerate(read.plan.policy.write):
        folder = pattern.removeprefix("./").partition("*")[0].rpartition("/")[0]
        if folder:
            yield ("policy", "write", number), folder, "policy.write covers", False
    for path, step, is_first in _steps(read.plan.steps, ("steps",)):
        if step.subplan and step.subplan.file and "${" not in step.subplan.file:
            yield (*path, "subplan", "file"), step.subplan.file, f"'{step.id}' runs the plan", is_first
        if step.shell and step.shell.folder not in ("", ".") and "${" not in step.shell.folder:
            yield (*path, "shell", "folder"), step.shell.folder, f"'{step.id}' runs in the folder", is_first


def _steps(steps: tuple[Step, ...], path: Path, *, begin: bool = True) -> Iterator[tuple[Path, Step, bool]]:
    behind_a_writer = _behind_writers(steps)
    for number, step in enumerate(steps):
        is_first = begin and step.id not in behind_a_writer
        yield (*path, number), step, is_first
        for inner in step.inner():
            yield from _steps(inner.steps, (*path, number, *inner.path), begin=is_first)


def _behind_writers(steps: tuple[Step, ...]) -> set[str]:
    """Return the steps that begin after one that writes."""
    behind: defaultdict[str, list[str]] = defaultdict(list)
    for step in steps:
        for name in step.needs:
            behind[name].append(step.id)
        behind[step.id] += (*step.on_success, *(name for choice in step.choices() for name in choice.to))
    found: set[str] = set()
    left = [name for step in steps if step.tree_access.changes_tree for name in behind[step.id]]
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += behind[name]
    return found


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
