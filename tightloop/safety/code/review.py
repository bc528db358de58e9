"""Review of changed code against the rules in `rules.yaml`. Only new uses count."""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from tightloop.safety.change.reading import EXAMPLE, Deadline
from tightloop.safety.change.reading import VIOLATIONS as CHANGE_VIOLATIONS
from tightloop.safety.code.dependencies import commands_in
from tightloop.safety.code.names import Module, Unread, is_python, parse_tree
from tightloop.safety.code.patterns import Patterns, Use
from tightloop.safety.code.rules import CodeFile, CodeRules, Layer
from tightloop.safety.rubric import Finding, Verdict, Violation, make_finding

NODES_PER_CHECK = 500
USES_OF_A_FILE = 2_000
FINDINGS_OF_A_FILE = 50
"""Maximum number of findings per file, because nobody would read more.

The rest is found once these have been fixed.
"""
UNREADABLE = "unreadable_code"


def review_code(
    files: Sequence[CodeFile],
    rules: CodeRules,
    *,
    own_modules: frozenset[str] = frozenset(),
    watch: Deadline | None = None,
) -> tuple[Finding, ...]:
    """Return the new findings in the syntax trees of a change, in file order.

    A use that was moved to another line, or to another file of the change, is not new.

    Args:
        files: all changed files. Files without applicable rules are skipped.
        rules: the rule table.
        own_modules: names under which the project's modules can be imported.
        watch: time limit.

    Raises:
        OutOfTimeError: the time limit of the watch has been reached.
    """
    if not rules.enabled:
        return ()
    patterns = Patterns(rules, own_modules)
    watch = watch or Deadline()
    reviewed = [_FileReview(file, patterns, watch) for file in files]
    removed_uses = sum((review.gone for review in reviewed), Counter[tuple[Violation, str]]())
    return tuple(finding for review in reviewed for finding in review.findings(removed_uses))


class _FileReview:
    """Review of one file: its violations before and after the change."""

    def __init__(self, file: CodeFile, patterns: Patterns, watch: Deadline) -> None:
        self._file = file
        self._patterns = patterns
        self._deadline = watch
        self._lines = file.after.splitlines()
        self._unread: list[Finding] = []
        before = Counter(use.key for use in self._uses(file.before or "", is_after=False))
        self._after = list(self._uses(file.after, is_after=True))
        self._before = before
        self.gone = before - Counter(use.key for use in self._after)

    def findings(self, removed_uses: Counter[tuple[Violation, str]]) -> Iterator[Finding]:
        """Yield a finding for each new use.

        Uses in `removed_uses` may have been moved here from elsewhere in the change.
        """
        yield from self._unread
        previous_uses = self._before.copy()
        count = 0
        for use in self._after:
            if count == FINDINGS_OF_A_FILE:
                return
            # The file's own uses first: those removed elsewhere stay available for uses that really moved.
            for left in (previous_uses, removed_uses):
                if left[use.key] > 0:
                    left[use.key] -= 1
                    break
            else:
                count += 1
                path = self._file.path
                line = self._line(use.line)
                finding = make_finding(
                    use.violation,
                    at=(path, use.text),
                    evidence=use.excerpt or line or path,
                    where=f"{path}:{use.line}" if use.line else path,
                )
                yield finding.evolve(layer=use.layer.value)

    def _line(self, number: int) -> str:
        return self._lines[number - 1].strip() if 0 < number <= len(self._lines) else ""

    def _uses(self, text: str, *, is_after: bool) -> Iterator[Use]:
        path, patterns = self._file.path, self._patterns
        if not is_after and self._file.before is None:
            return
        if not text and is_after and self._file.before is not None:
            return
        # The path of an existing file is an old use; only that of a new file is reported.
        yield from (use for use in patterns.in_path(path) if is_after == (self._file.before is None))
        if not is_python(path, text):
            return
        yield from patterns.in_source(text)
        tree = parse_tree(text)
        if isinstance(tree, ast.Module):
            try:
                yield from _each_once(islice(self._in_module(Module(tree)), USES_OF_A_FILE))
            except RecursionError:
                self._unread += [self._not_read(Unread("nested too deeply"))] if is_after else []
        elif is_after and (not tree.line or patterns.rules.is_on(UNREADABLE)):
            self._unread.append(self._not_read(tree))

    def _in_module(self, module: Module) -> Iterator[Use]:
        for number, placed in enumerate(module.nodes):
            if number % NODES_PER_CHECK == 0:
                self._deadline.check_time()
            yield from self._patterns.in_node(placed, module)
            yield from commands_in(placed, module)

    def _not_read(self, unread: Unread) -> Finding:
        file, violation = self._file, self._patterns.rules.violation(UNREADABLE)
        was_unread = isinstance(parse_tree(file.before or ""), Unread)
        # The author can fix a syntax error; anything else, such as test data or a newer syntax, needs a person.
        if not unread.line:
            violation = CHANGE_VIOLATIONS["change_not_read"]
        elif was_unread or EXAMPLE.search(file.path):
            violation = violation._replace(verdict=Verdict.ASK)
        location = f"{file.path}:{unread.line}" if unread.line else file.path
        evidence = f"{unread.why}: {self._line(unread.line)}" if unread.line else unread.why
        finding = make_finding(violation, at=(file.path, file.after), evidence=evidence, where=location)
        return finding.evolve(layer=Layer.AST.value)


def _each_once(uses: Iterable[Use]) -> Iterator[Use]:
    """Yield the uses in line order, without duplicates.

    If there are several at one location, only the strictest one for each layer is yielded.
    """
    by_place: dict[tuple[int, int, Layer, str], Use] = {}
    for use in uses:
        key = (*use.position, use.layer, use.violation.rule if use.layer is not Layer.AST else "")
        previous = by_place.get(key)
        if previous is None or (
            previous.violation.verdict is not Verdict.DENY and use.violation.verdict is Verdict.DENY
        ):
            by_place[key] = use
    keys: set[tuple[Violation, str]] = set()
    for use in sorted(by_place.values(), key=lambda use: use.position):
        # Access counts once per file, regardless of the number of uses.
        if use.layer is Layer.ACCESS and use.key in keys:
            continue
        keys.add(use.key)
        yield use
