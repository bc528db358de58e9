"""Searches files with ripgrep, or with Python's `re` where that is not installed; bounded in time and in size.

Either is a process of its own: an expression that backtracks for ever is ended with it, and nothing else waits.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from activities.coder.files.tree_files import shown
from activities.coder.port import ToolError
from activities.process import Reason, run_process
from activities.process.request import ProcessRequest, ProcessResult
from tightloop.coder.lines import cut
from tightloop.host.programs import TrustedProgram, find_trusted, own_python
from tightloop.value import counted, shorten

PATTERN_CHARACTERS = 2_000
FILES_LIMIT = 20_000
FILE_BYTES = 2 * 1024 * 1024
LINES_LIMIT = 200
SECONDS = 10.0
OUTPUT_BYTES = 1024 * 1024
# ARG_MAX of Linux is 2 MB for arguments and environment together, of macOS 1 MB.
ARGUMENT_BYTES = 200_000
COLUMNS = 500
NO_MATCH = 1
_BY_RE = Path(__file__).with_name("by_re.py")


@dataclass(frozen=True, kw_only=True)
class Query:
    """What is looked for."""

    pattern: str
    literal: bool = False
    ignore_case: bool = False
    context: int = 0
    seconds: float = SECONDS
    """Time limit of one process; ripgrep is started for every 200 kB of names."""


def search_files(
    root: Path,
    names: Sequence[str],
    query: Query,
    *,
    cancelled: Callable[[], bool],
    with_ripgrep: bool = True,
) -> str:
    """Return the lines that match, as `path:line:text`.

    Args:
        root: of the tree.
        names: files and links below it; links are left out.
        query: what is looked for.
        cancelled: asked while it runs.
        with_ripgrep: use ripgrep where it is installed.

    Raises:
        ToolError: the expression is wrong, or takes too long.
    """
    if not query.pattern or len(query.pattern) > PATTERN_CHARACTERS:
        raise ToolError(f"the pattern has to have 1 to {PATTERN_CHARACTERS} characters")
    # Links may lead out of the tree, and files may be gone by now.
    files = [name for name in names[:FILES_LIMIT] if _is_plain(root / name)]
    ripgrep = find_trusted("rg") if with_ripgrep else None
    if ripgrep is None:
        outputs = _by_re(root, files, query, cancelled)
    else:
        outputs = _by_ripgrep(root, files, query, cancelled, ripgrep)
    lines = list(_lines(outputs, set(map(os.fsencode, files))))
    marks = (
        [f"[only the first {LINES_LIMIT} lines: narrow the pattern or the path]"] if len(lines) > LINES_LIMIT else []
    )
    left = len(names) - FILES_LIMIT
    marks += [f"[{counted(left, 'file')} not searched: give a path or a glob]"] if left > 0 else []
    return "\n".join((*lines[:LINES_LIMIT], *marks)) or "no match"


def _is_plain(place: Path) -> bool:
    try:
        return place.is_file() and not place.is_symlink() and place.stat().st_size <= FILE_BYTES
    except (OSError, ValueError):
        return False


def _lines(outputs: Iterator[bytes], names: Set[bytes]) -> Iterator[str]:
    """Yield lines of `path NUL number : text`, as ripgrep writes them, until there are too many."""
    number = 0
    for output in outputs:
        rest = output
        while number <= LINES_LIMIT:
            path, nul, rest = rest.partition(b"\0")
            # In front of a name are lines between groups, and those that say that a binary file matches.
            while path not in names and b"\n" in path:
                path = path.partition(b"\n")[2]
            line, end, rest = rest.partition(b"\n")
            if not (nul and end):
                break
            number += 1
            yield f"{shown(os.fsdecode(path))}:{cut(line.decode('utf-8', 'replace').rstrip())}"


def _by_ripgrep(
    root: Path, files: Sequence[str], query: Query, cancelled: Callable[[], bool], program: TrustedProgram
) -> Iterator[bytes]:
    options = ["--no-config", "--no-messages", "--color=never", "--no-heading", "--with-filename", "--line-number"]
    options += ["--null", "--sort=path", f"--max-columns={COLUMNS}", "--max-columns-preview", "--crlf"]
    options += [f"--context={query.context}", *(["--fixed-strings"] if query.literal else [])]
    options += ["--ignore-case"] if query.ignore_case else []
    for batch in _batches(files):
        arguments = (*options, "--regexp", query.pattern, "--", *batch)
        yield _output(_request(root, query, program, arguments), cancelled)


def _by_re(root: Path, files: Sequence[str], query: Query, cancelled: Callable[[], bool]) -> Iterator[bytes]:
    order = {**asdict(query), "files": files, "lines": LINES_LIMIT + 1, "columns": COLUMNS}
    with tempfile.NamedTemporaryFile("w", suffix=".json", prefix="tightloop-search-") as file:
        json.dump(order, file)
        file.flush()
        # Isolated: neither the folder nor variables decide what it imports.
        request = _request(root, query, own_python(), ("-I", "-S", str(_BY_RE)))
        yield _output(replace(request, stdin=Path(file.name)), cancelled)


def _request(root: Path, query: Query, program: TrustedProgram, arguments: tuple[str, ...]) -> ProcessRequest:
    return ProcessRequest(
        program=program, arguments=arguments, cwd=root, wall_limit_s=query.seconds, output_bytes=OUTPUT_BYTES
    )


def _output(request: ProcessRequest, cancelled: Callable[[], bool]) -> bytes:
    result = run_process(request, cancelled=cancelled, started=lambda _pid: None)
    if result.reason is Reason.WALL_LIMIT:
        raise ToolError(f"the search took longer than {request.wall_limit_s:g} s. Simplify the pattern, or give a path")
    if result.reason is not Reason.EXITED or result.exit_code not in (0, NO_MATCH):
        raise ToolError(f"the search failed: {_why(result)}")
    return result.output


def _why(result: ProcessResult) -> str:
    said = result.message or result.output.decode("utf-8", "replace").strip() or result.reason.value
    return shorten(said, 400)


def _batches(files: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for name in files:
        size += len(os.fsencode(name)) + 16
        if batch and size > ARGUMENT_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(name)
    if batch:
        yield batch
