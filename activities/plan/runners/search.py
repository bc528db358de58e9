"""Search steps, which rank passages from the project's text files and cached documents."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from activities.plan.attempts.runner import fail_step
from activities.plan.port import RunnerResult, Work
from activities.plan.runners.fetch import Scorer, WebCache, readable, words
from activities.workspace.folders import state_folder_of
from activities.workspace.user_repository import list_files
from tightloop.plan.action import SearchAction
from tightloop.plan.failing import FailureClass
from tightloop.safety.scope import outside
from tightloop.value import format_count, shorten

FILES_LIMIT = 10_000
FILE_BYTES = 1_000_000
TOTAL_BYTES = 50_000_000
PASSAGE_LINES = 15
PASSAGE_CHARACTERS = 1_000
LINE_CHARACTERS = 2_000
"""Maximum length of a line. Longer ones are truncated, as they are usually generated."""
QUERY_CHARACTERS = 2_000


class _Passage(NamedTuple):
    source: str
    """Path below the root, or a URL."""
    line: int
    """Line number, starting at 1."""
    lines: tuple[str, ...]
    cached: bool
    title: str = ""


class SearchRunner:
    """Finds passages. Deterministic for the same tree, cache and query."""

    def preview(self, work: Work) -> str:
        action = work.action(SearchAction)
        return f"search {action.where} for {work.resolve(action.query)!r}, at most {action.limit} hits"

    def run(self, work: Work) -> RunnerResult:
        """Run the search. Finding nothing is not a failure."""
        action = work.action(SearchAction)
        query = str(work.resolve(action.query))[:QUERY_CHARACTERS]
        if not words(query):
            return fail_step("the query contains no words to search for", command=self.preview(work))
        passages: list[_Passage] = []
        for passage in _passages(work, [str(path) for path in work.resolve(action.paths)]):
            if work.cancelled():
                return fail_step("the search was stopped", FailureClass.TRANSIENT, command=self.preview(work))
            passages.append(passage)
        # File names and page titles describe all their passages, so their words count for each.
        frequencies = [
            Counter(words("\n".join((passage.source, passage.title, *passage.lines)))) for passage in passages
        ]
        scorer = Scorer(query, frequencies)
        scored = [(scorer.score(counts), passage) for counts, passage in zip(frequencies, passages, strict=True)]
        # A total order: equal scores must not depend on the order in which the file system lists files.
        scored.sort(key=lambda one: (-one[0], one[1].cached, one[1].source, one[1].line))
        terms = set(words(query))
        hits = [_hit(score, passage, terms) for score, passage in scored if score > 0][: action.limit]
        return RunnerResult(
            outputs={"hits": hits, "searched": len({passage.source for passage in passages})},
            command=self.preview(work),
            summary=f"{format_count(len(hits), 'hit')} in {format_count(len(passages), 'passage')}",
        )


def _passages(work: Work, patterns: list[str]) -> Iterator[_Passage]:
    room, where = TOTAL_BYTES, work.action(SearchAction).where
    if where in ("project", "both"):
        for path, content in _files(work.root, patterns):
            room -= len(content)
            if room < 0:
                return
            yield from _split(path, content.decode("utf-8", "replace"), cached=False)
    if where in ("cache", "both"):
        cache = WebCache(state_folder_of(work.scope))
        for document in cache.all():
            read = readable(cache.content(document) or b"", document.media_type)
            room -= len(read.text)
            if room < 0:
                return
            yield from _split(document.url, read.text, cached=True, title=read.title)


def _files(root: Path, patterns: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    # Sorted before the limit, so that the same tree always yields the same files.
    names = sorted(list_files(root))
    globs = tuple(patterns)
    left_out = set(outside(globs, names)) if globs else set()
    for name in [name for name in names if name not in left_out][:FILES_LIMIT]:
        content = _text(root / name)
        if content is not None:
            yield name, content


def _text(path: Path) -> bytes | None:
    """Read a text file. Return None for large files, binary files and symlinks.

    A symlink may point outside the tree.
    """
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > FILE_BYTES:
            return None
        content = path.read_bytes()
    except OSError:
        return None
    # Git's heuristic for binary files: a zero byte near the start.
    return None if b"\0" in content[:8_192] else content


def _split(source: str, text: str, *, cached: bool, title: str = "") -> Iterator[_Passage]:
    lines = [line[:LINE_CHARACTERS] for line in text.split("\n")]
    for start in range(0, len(lines), PASSAGE_LINES):
        part = tuple(lines[start : start + PASSAGE_LINES])
        if any(line.strip() for line in part):
            yield _Passage(source, start + 1, part, cached, title)


def _hit(score: float, passage: _Passage, terms: set[str]) -> dict[str, Any]:
    """Create a hit at the line of the passage that contains the most query words."""
    fitting = [len(terms & set(words(line))) for line in passage.lines]
    best = fitting.index(max(fitting))
    line = passage.line + best
    return {
        "where": f"{passage.source}:{line}",
        "path": "" if passage.cached else passage.source,
        "url": passage.source if passage.cached else "",
        "title": passage.title,
        "line": line,
        "score": round(score, 4),
        "text": shorten("\n".join(passage.lines).strip("\n"), PASSAGE_CHARACTERS),
    }
