"""The memory: how well each embedder finds 60 failures again, and how fast 100 000 of them are searched."""

import random
import tempfile
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.figures import Report, progress
from tests.support.memory.minilm import find_minilm
from tests.support.memory.rows import failure
from tests.support.postgres import new_database, postgres_server
from tightloop.database.engine import Database, postgres_database, sqlite_database
from tightloop.database.memory.schema import MEMORY
from tightloop.database.memory.store import MemoryStore
from tightloop.episode.failure import normalize_explaining_line
from tightloop.memory import Embedder, HashingEmbedder, Posting, Query, bm25, fuse_scores, self_score, terms
from tightloop.settings import MemorySettings

LIMIT_S = 1_800
PAIRS = Path(__file__).parents[1] / "data" / "memory" / "paraphrases.txt"
ROWS = 100_000
AT_ONCE = 2_000
SEARCHES = 100
WARM_UP = 5
SEEN = 5
NAMES = ("order", "price", "user", "total", "branch", "token", "cache", "page", "queue", "invoice", "stock", "route")
VERBS = ("parse", "load", "save", "send", "merge", "render", "check", "build", "fetch", "close")


class Pair(NamedTuple):
    """A failure and two ways to come upon it again."""

    line: str
    prose: str
    renamed: str


class Lexical:
    """BM25 over the lines, in plain Python."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._count = len(lines)
        self._postings: dict[str, list[Posting]] = {}
        lengths = 0
        for place, line in enumerate(lines):
            found = terms(line)
            lengths += sum(found.values())
            for word, count in found.items():
                self._postings.setdefault(word, []).append(Posting(str(place), count, sum(found.values())))
        self._average = lengths / self._count

    def scores(self, text: str) -> tuple[dict[str, float], float]:
        """Return the scores, and that of the query itself."""
        query = terms(text)
        frequencies = {word: len(self._postings.get(word, ())) for word in query}
        here = {word: self._postings[word] for word in query if word in self._postings}
        sizes = {"documents": self._count, "average": self._average}
        return bm25(here, frequencies, **sizes), self_score(query, frequencies, **sizes)


async def measure() -> Report:
    """Return the quality of each way to search, then the speed of each store."""
    pairs = read_pairs()
    report = Report(
        f"memory: {len(pairs)} failures found again; search among {ROWS:,} rows, ms",
        ("", "top 1", "recall@5", "MRR", "p50", "p95", ""),
    )
    embedders: dict[str, Embedder] = {"hashing 1536": HashingEmbedder(1536), "hashing 384": HashingEmbedder(384)}
    if (folder := find_minilm()) is not None:
        from activities.memory.local import LocalEmbedder

        embedders["MiniLM 384"] = LocalEmbedder(folder)
    else:
        report.notes.append("MiniLM is not installed: python -m tests.support.memory.minilm install")
    lines = [normalize_explaining_line(pair.line) for pair in pairs]
    lexical = Lexical(lines)
    for what in ("prose", "renamed"):
        queries = [normalize_explaining_line(getattr(pair, what)) for pair in pairs]
        _quality(report, f"{what}: BM25", [_ranked(lexical.scores(query)[0]) for query in queries])
        for name, embedder in embedders.items():
            _measure_embedder(report, f"{what}: {name}", embedder, lines, queries, lexical)
    report.notes.append("an embedder of OpenAI was not measured: there is no network here")
    with tempfile.TemporaryDirectory() as home, postgres_server() as server, new_database(server) as address:
        stores = {"SQLite": sqlite_database(Path(home) / "memory.db", MEMORY)}
        stores["PostgreSQL"] = postgres_database(address, MEMORY)
        for name, database in stores.items():
            _speed(report, name, database)
            database.close()
    return report


def read_pairs() -> list[Pair]:
    """Return the prepared failures."""
    lines = PAIRS.read_text(encoding="utf-8").splitlines()
    return [Pair(*map(str.strip, line.split("\t"))) for line in lines if line and not line.startswith("#")]


def _measure_embedder(
    report: Report, name: str, embedder: Embedder, lines: Sequence[str], queries: Sequence[str], lexical: Lexical
) -> None:
    kept = embedder.embed(lines)
    asked = embedder.embed(queries)
    cosines = [{str(place): _dot(query, line) for place, line in enumerate(kept)} for query in asked]
    _quality(report, name, [_ranked(found) for found in cosines])
    profile = embedder.profile.in_words() if name.startswith("prose") else embedder.profile
    open_profile = profile._replace(threshold=-1.0)
    together = []
    for query, found in zip(queries, cosines, strict=True):
        scores, highest = lexical.scores(query)
        together.append([int(one.id) for one in fuse_scores(found, scores, open_profile, highest=highest)])
    _quality(report, f"{name} + BM25", together)
    true = sorted(found[str(place)] for place, found in enumerate(cosines))
    wrong = sorted(value for place, found in enumerate(cosines) for key, value in found.items() if key != str(place))
    for threshold in (profile.threshold, 0.65):
        kept_true, kept_wrong = (sum(one >= threshold for one in values) / len(values) for values in (true, wrong))
        report.notes.append(
            f"{name}: at {threshold:.2f} stay {kept_true:.0%} of the true and {kept_wrong:.1%} of the wrong ones; "
            f"median cosine {true[len(true) // 2]:.2f} and {wrong[len(wrong) // 2]:.2f}"
        )


def _quality(report: Report, name: str, ranked: Sequence[Sequence[int]]) -> None:
    places = [found.index(place) if place in found else None for place, found in enumerate(ranked)]
    known = [place for place in places if place is not None]
    top, seen = (sum(place < limit for place in known) / len(places) for limit in (1, SEEN))
    mrr = sum(1 / (place + 1) for place in known) / len(places)
    report.add(name, f"{top:.2f}", f"{seen:.2f}", f"{mrr:.2f}")
    report.figures[name] = {"top_1": top, "recall_5": seen, "mrr": mrr}


def _ranked(scores: Mapping[str, float]) -> list[int]:
    return [int(name) for name, _ in sorted(scores.items(), key=lambda one: (-one[1], int(one[0])))]


def _dot(one: "array[float]", other: "array[float]") -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def _speed(report: Report, name: str, database: Database) -> None:
    memory = MemoryStore(database, HashingEmbedder(384), MemorySettings(max_failures=2 * ROWS))
    draw = random.Random(7)
    begun = time.perf_counter()
    for start in range(0, ROWS, AT_ONCE):
        memory.record_failures("large", [failure(_line(draw, n), minute=n) for n in range(start, start + AT_ONCE)])
    memory.record_failures("small", [failure(_line(draw, n)) for n in range(1_000)])
    took = time.perf_counter() - begun
    progress(f"{name}: filled in {took:.0f} s")
    for project in ("large", "small"):
        queries = [Query(text=_line(draw, 0), solved=False) for _ in range(SEARCHES)]
        looks = sorted([_timed(partial(memory.recall, project, query)) for query in queries][WARM_UP:])
        p50, p95 = looks[len(looks) // 2], looks[int(len(looks) * 0.95)]
        rows = ROWS if project == "large" else 1_000
        report.add(f"{name}: recall among {rows:,}", "", "", "", f"{p50:.1f}", f"{p95:.1f}")
        report.figures[f"{name} {project}"] = {"p50_ms": p50, "p95_ms": p95, "rows": rows, "fill_s": took}
    report.notes.append(f"{name}: filled in {took:.0f} s")


def _timed(look: Callable[[], object]) -> float:
    begun = time.perf_counter()
    look()
    return (time.perf_counter() - begun) * 1_000


def _line(draw: random.Random, number: int) -> str:
    kind = draw.choice(("KeyError", "ValueError", "TypeError", "ImportError", "AssertionError", "RuntimeError"))
    name = f"{draw.choice(VERBS)}_{draw.choice(NAMES)}_{draw.choice(NAMES)}"
    some = f"{draw.choice(NAMES)}{_letters(draw.randrange(26**3))}"
    return f"{kind}: {name} of {some} got {draw.choice(NAMES)} {_letters(number)}"


def _letters(number: int) -> str:
    """Return a number as letters: digits are noise in a failure's line."""
    text = ""
    while True:
        number, rest = divmod(number, 26)
        text += chr(97 + rest)
        if not number:
            return text
