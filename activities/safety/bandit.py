"""Runs the tests of Bandit over a text, within a time; the code itself is never run."""

import hashlib
import io
import logging
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from typing import Any, NamedTuple

CACHED = 64
"""Texts whose issues are kept: the same files are scanned again and again while somebody works on one of them."""


class OverTimeError(Exception):
    """The time for Bandit is over. Caught by the scanner."""


class Issue(NamedTuple):
    """What a test of Bandit found."""

    test: str
    """Such as `B602`."""
    severity: str
    """`low`, `medium` or `high`."""
    confidence: str
    text: str
    line: int


class Bandit:
    """The tests of Bandit, with what they found in the latest texts."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, tuple[Issue, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def issues(self, source: str, bound: timedelta) -> tuple[Issue, ...]:
        """Return what Bandit finds in a text, comments that silence it notwithstanding.

        Raises:
            OverTimeError: it takes longer than the bound, in processor time of this thread.
            SyntaxError: it is not Python.
            RecursionError: it is nested too deeply.
        """
        key = hashlib.sha256(source.encode("utf-8", "replace")).hexdigest()
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
                return self._found[key]
        found = _scan(source, time.thread_time() + bound.total_seconds())
        with self._lock:
            self._found[key] = found
            while len(self._found) > CACHED:
                self._found.popitem(last=False)
        return found


def _scan(source: str, until: float) -> tuple[Issue, ...]:
    visitor = _visitor_class()(io.BytesIO(source.encode("utf-8", "replace")), until)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        visitor.process(source)
    return tuple(_issue(found) for found in visitor.tester.results)


def _issue(found: Any) -> Issue:
    return Issue(
        found.test_id, str(found.severity).lower(), str(found.confidence).lower(), str(found.text), int(found.lineno)
    )


@cache
def _visitor_class() -> Any:
    """Return what makes a visitor of Bandit for a text, and a time until which it may work."""
    # Imported late: only who reviews code needs it, and it takes 0.2 s. It replaces how Python writes warnings.
    shown = warnings.formatwarning
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from bandit.core import config, meta_ast, metrics, node_visitor, test_set
    warnings.formatwarning = shown
    # A test that fails within Bandit is its own affair: it would print a traceback with lines of the code.
    logging.getLogger("bandit").setLevel(logging.CRITICAL)
    tests = test_set.BanditTestSet(config.BanditConfig())
    counts = metrics.Metrics()
    counts.begin("code")

    class Visitor(node_visitor.BanditNodeVisitor):  # type: ignore[misc]
        """A visitor that ends in time."""

        def __init__(self, content: io.BytesIO, until: float) -> None:
            # Without a folder in the name Bandit looks for no package around it on disk.
            super().__init__("code.py", content, meta_ast.BanditMetaAst(), tests, False, {}, counts)
            self._until = until

        def pre_visit(self, node: Any) -> Any:
            if time.thread_time() > self._until:
                raise OverTimeError
            return super().pre_visit(node)

    return Visitor


def by_line(issues: tuple[Issue, ...], source: str) -> Iterator[tuple[Issue, str]]:
    """Return each issue with the text of its line, by which it is known again."""
    lines = source.splitlines()
    for issue in issues:
        yield issue, " ".join(lines[issue.line - 1].split()) if 0 < issue.line <= len(lines) else ""
