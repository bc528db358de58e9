"""Reviews changed code before anything of it is run: all layers, one verdict."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta

from activities.safety.bandit import Bandit, Issue, OverTimeError, by_line
from tightloop.executor.asking import permission_question
from tightloop.executor.model import Grant
from tightloop.question import Question
from tightloop.safety.change.reading import OutOfTimeError, Watch
from tightloop.safety.change.scripts import join_generated
from tightloop.safety.change.tables import VIOLATIONS
from tightloop.safety.code.commands import review_scripts
from tightloop.safety.code.dependencies import review_dependencies
from tightloop.safety.code.model import CodeFile, CodeReview, ProjectFacts
from tightloop.safety.code.review import review_code
from tightloop.safety.code.rules import CodeRules, Layer, default_rules
from tightloop.safety.code.syntax import is_python
from tightloop.safety.rubric import Finding, Rubric, bounded, make_finding, told, unanswered
from tightloop.safety.verdict import Ruling, Verdict, strictest

READING_BOUND = timedelta(seconds=10)
"""Processor time of the rules about one change: about 250 000 lines."""
BANDIT_BOUND = timedelta(seconds=10)
"""The same of Bandit, which reads about 100 000 lines in it."""


class CodeScanner:
    """Holds the rules, and Bandit."""

    def __init__(self, rules: CodeRules | None = None) -> None:
        """Take the rules of the settings; by default those that are delivered."""
        self._rules = rules or default_rules()
        self._bandit = Bandit()

    def scan(self, files: Sequence[CodeFile], known: ProjectFacts) -> CodeReview:
        """Return the verdict on a change: what is new in it, against what is `known` of the project.

        Nothing of the code is run. Blocking: about 0.2 s of processor time for 1 000 changed lines.
        """
        if not self._rules.enabled:
            return CodeReview()
        watch = Watch(time.thread_time, READING_BOUND.total_seconds())
        found = [
            *self._in_time(files, lambda: review_code(files, self._rules, own=known.modules, watch=watch)),
            *self._in_time(files, lambda: review_scripts(files, watch)),
            *review_dependencies(files, known, self._rules),
            *(self._by_bandit(files) if self._rules.is_on(Layer.BANDIT.value) else ()),
        ]
        # Two ways to find a command in a line give two findings that say the same.
        once = {(finding.layer, finding.rule, finding.where): finding for finding in reversed(found)}
        refused = [_refused(finding, known) for finding in join_generated(reversed(once.values()))]
        left = bounded(unanswered(refused, known.allowed), Rubric(allow=self._rules.off))
        verdict = strictest(Ruling(finding.verdict) for finding in left).verdict
        return CodeReview(verdict, left)

    def _in_time(self, files: Sequence[CodeFile], review: Callable[[], tuple[Finding, ...]]) -> tuple[Finding, ...]:
        try:
            return review()
        except OutOfTimeError:
            return (_not_read(files, Layer.AST, f"the rules took longer than {READING_BOUND.total_seconds():g} s"),)

    def _by_bandit(self, files: Sequence[CodeFile]) -> Iterator[Finding]:
        sides: list[tuple[CodeFile, list[tuple[Issue, str]], Counter[tuple[str, str]]]] = []
        until = time.thread_time() + BANDIT_BOUND.total_seconds()
        try:
            for file in files:
                before, after = (self._issues(file.path, text, until) for text in (file.before or "", file.after))
                sides.append((file, after, _keys(before)))
        except OverTimeError:
            rest = files[len(sides) :]
            yield _not_read(rest, Layer.BANDIT, f"Bandit took longer than {BANDIT_BOUND.total_seconds():g} s")
        gone = sum((before - _keys(after) for _, after, before in sides), Counter[tuple[str, str]]())
        for file, after, known in sides:
            for issue, line in after:
                key = (issue.test, line)
                # Another line number, or another file of the change, makes it no new finding.
                left = known if known[key] > 0 else gone
                if left[key] > 0:
                    left[key] -= 1
                else:
                    yield self._found(file, issue, line)

    def _issues(self, path: str, text: str, until: float) -> list[tuple[Issue, str]]:
        if not text or not is_python(path, text):
            return []
        try:
            issues = self._bandit.issues(text, timedelta(seconds=until - time.thread_time()))
        except (SyntaxError, ValueError, RecursionError):
            return []  # what cannot be parsed has a finding of the first layer
        return [(issue, line) for issue, line in by_line(issues, text) if self._verdict(issue) is not Verdict.ALLOW]

    def _verdict(self, issue: Issue) -> Verdict:
        table = self._rules.bandit
        return table.get(issue.test, Verdict.ALLOW if issue.confidence == "low" else table[issue.severity])

    def _found(self, file: CodeFile, issue: Issue, line: str) -> Finding:
        instead = self._rules.bandit_instead.get(issue.test, issue.text)
        violation = self._rules.violation(Layer.BANDIT.value)
        violation = violation._replace(rule=issue.test, verdict=self._verdict(issue), suggestion=instead)
        found = make_finding(violation, at=(file.path, line), evidence=line, where=f"{file.path}:{issue.line}")
        return found.evolve(layer=Layer.BANDIT.value)


def question_of(review: CodeReview) -> Question:
    """Return what a person is asked about the findings of a review that are not forbidden.

    The answer becomes a grant with the question's fingerprint, which `answered` reads.
    """
    asked = tuple(finding for finding in review.findings if finding.verdict is Verdict.ASK)
    title, evidence = told(asked)
    fingerprint = " ".join(finding.fingerprint for finding in asked)
    return permission_question(title, "\n".join(evidence), fingerprint)


def answered(known: ProjectFacts, grants: Iterable[Grant]) -> ProjectFacts:
    """Return what is known of a project, with the findings that a person allowed or refused."""
    allowed, refused = set(known.allowed), set(known.refused)
    for grant in grants:
        (allowed if grant.allowed else refused).update(grant.fingerprint.split())
    return known._replace(allowed=frozenset(allowed), refused=frozenset(refused - allowed))


def _refused(finding: Finding, known: ProjectFacts) -> Finding:
    return finding.evolve(verdict=Verdict.DENY, refused=True) if finding.fingerprint in known.refused else finding


def _keys(found: Iterable[tuple[Issue, str]]) -> Counter[tuple[str, str]]:
    return Counter((issue.test, line) for issue, line in found)


def _not_read(files: Sequence[CodeFile], layer: Layer, why: str) -> Finding:
    paths = ", ".join(file.path for file in files[:4])
    content = "\0".join(text for file in files for text in (file.path, file.after))
    found = make_finding(
        VIOLATIONS["change_not_read"], at=("", content), evidence=f"{why}: {paths}", where=paths or "the change"
    )
    return found.evolve(layer=layer.value)
