"""Review of changed code, and the model-based judge."""

import asyncio
import hashlib
import io
import logging
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from activities.model.asking import LOWERED, PromptedAsker, UnusableAnswerError
from activities.model.client import ModelService
from activities.safety.gate import JudgeAnswer, JudgeBriefing, Judges
from tightloop.errors import PlannerError, PlannerUnavailableError
from tightloop.executor.asking import permission_question
from tightloop.executor.model import Grant, Usage
from tightloop.run.question import Question
from tightloop.safety.change.reading import (
    GENERATED,
    VIOLATIONS,
    Deadline,
    OutOfTimeError,
    is_data,
    join_generated_code,
)
from tightloop.safety.code.dependencies import (
    is_manifest,
    own_modules,
    own_name,
    requirements_in,
    review_code,
    review_dependencies,
    review_scripts,
)
from tightloop.safety.code.names import CODE_CHARACTERS, is_python
from tightloop.safety.code.rules import CodeFile, CodeReview, CodeRules, Layer, ProjectFacts, default_rules
from tightloop.safety.drift import PromptPrivacy
from tightloop.safety.rubric import (
    Finding,
    Rubric,
    Ruling,
    Verdict,
    describe_findings,
    limit_findings,
    make_finding,
    strictest,
    unanswered_findings,
)
from tightloop.value import LruCache, Value, shorten
from tightloop.value.scrub import scrub

CACHED = 64
"""Number of texts whose issues are cached. The same files are scanned repeatedly while one of them is being edited."""


class OverTimeError(Exception):
    """Raised when Bandit exceeds its time limit. The scanner catches this error."""


class Issue(NamedTuple):
    """A finding from a Bandit test."""

    test: str
    """Test id such as `B602`."""
    severity: str
    """`low`, `medium` or `high`."""
    confidence: str
    text: str
    line: int


class Bandit:
    """Runs Bandit's tests and caches the latest findings."""

    def __init__(self) -> None:
        self._found: LruCache[str, tuple[Issue, ...]] = LruCache(CACHED)

    def issues(self, source: str, bound: timedelta) -> tuple[Issue, ...]:
        """Return Bandit's findings for Python source code, ignoring `nosec` comments.

        Raises:
            OverTimeError: this thread exceeded its CPU time limit.
            SyntaxError: the code is not valid Python.
            RecursionError: the code is nested too deeply.
        """
        key = hashlib.sha256(source.encode("utf-8", "replace")).hexdigest()
        if (issues := self._found.get(key)) is not None:
            return issues
        # CPU time, so that the result for the same code does not depend on the load of the host.
        until = time.thread_time() + bound.total_seconds()
        visitor = _visitor_class()(io.BytesIO(source.encode("utf-8", "replace")), until)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            visitor.process(source)
        issues = tuple(
            Issue(
                result.test_id,
                str(result.severity).lower(),
                str(result.confidence).lower(),
                str(result.text),
                int(result.lineno),
            )
            for result in visitor.tester.results
        )
        self._found.put(key, issues)
        return issues


@cache
def _visitor_class() -> Any:
    """Return a subclass of Bandit's visitor that stops at a time limit."""
    # Late import: only code reviews need it, and it takes 0.2 s. It replaces `warnings.formatwarning`.
    original_format = warnings.formatwarning
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from bandit.core import config, meta_ast, metrics, node_visitor, test_set
    warnings.formatwarning = original_format
    # Bandit logs a traceback, including lines of the code, when one of its own tests fails.
    logging.getLogger("bandit").setLevel(logging.CRITICAL)
    tests = test_set.BanditTestSet(config.BanditConfig())
    counts = metrics.Metrics()
    counts.begin("code")

    class Visitor(node_visitor.BanditNodeVisitor):  # type: ignore[misc]
        """Visitor with a time limit."""

        def __init__(self, content: io.BytesIO, until: float) -> None:
            # Without a folder in the name Bandit does not search the disk for a surrounding package.
            super().__init__("code.py", content, meta_ast.BanditMetaAst(), tests, False, {}, counts)
            self._until = until

        def pre_visit(self, node: Any) -> Any:
            if time.thread_time() > self._until:
                raise OverTimeError
            return super().pre_visit(node)

    return Visitor


READING_BOUND = timedelta(seconds=10)
"""CPU time limit for applying the rules to one change. Enough for about 250 000 lines."""
BANDIT_BOUND = timedelta(seconds=10)
"""CPU time limit for Bandit. Enough for about 100 000 lines."""


class CodeScanner:
    """Scans code with rules and Bandit."""

    def __init__(self, rules: CodeRules | None = None) -> None:
        self._rules = rules or default_rules()
        self._bandit = Bandit()

    def scan(self, files: Sequence[CodeFile], facts: ProjectFacts) -> CodeReview:
        """Review changed files and return the findings that a person has not decided on.

        `facts` describes the project. The code is not run. Blocks for about 0.2 s of CPU time per 1,000 changed lines.
        """
        if not self._rules.enabled:
            return CodeReview()
        watch = Deadline(time.thread_time, READING_BOUND.total_seconds())
        raw_findings = [
            *self._in_time(files, lambda: review_code(files, self._rules, own_modules=facts.modules, watch=watch)),
            *self._in_time(files, lambda: review_scripts(files, watch)),
            *review_dependencies(files, facts, self._rules),
            *(self._by_bandit(files) if self._rules.is_on(Layer.BANDIT.value) else ()),
        ]
        # Two ways to detect a command in a line yield two identical findings.
        once = {(finding.layer, finding.rule, finding.where): finding for finding in reversed(raw_findings)}
        findings = [
            finding.evolve(verdict=Verdict.DENY, refused=True) if finding.fingerprint in facts.refused else finding
            for finding in join_generated_code(reversed(once.values()))
        ]
        left = limit_findings(unanswered_findings(findings, facts.allowed), Rubric(allow=self._rules.off))
        verdict = strictest(Ruling(finding.verdict) for finding in left).verdict
        return CodeReview(verdict, left)

    def _in_time(self, files: Sequence[CodeFile], review: Callable[[], tuple[Finding, ...]]) -> tuple[Finding, ...]:
        try:
            return review()
        except OutOfTimeError:
            return (
                _not_read(
                    files, Layer.AST, f"evaluating the rules took longer than {READING_BOUND.total_seconds():g} s"
                ),
            )

    def _by_bandit(self, files: Sequence[CodeFile]) -> Iterator[Finding]:
        sides: list[tuple[CodeFile, list[tuple[Issue, str]], Counter[tuple[str, str]]]] = []
        until = time.thread_time() + BANDIT_BOUND.total_seconds()
        try:
            for file in files:
                before, after = (self._issues(file.path, text, until) for text in (file.before or "", file.after))
                sides.append((file, after, _keys(before)))
        except OverTimeError:
            # A file that was not scanned is a finding of its own: silence would look like a clean result.
            rest = files[len(sides) :]
            yield _not_read(rest, Layer.BANDIT, f"Bandit took longer than {BANDIT_BOUND.total_seconds():g} s")
        removed_keys = sum((before - _keys(after) for _, after, before in sides), Counter[tuple[str, str]]())
        for file, after, old_keys in sides:
            for issue, line in after:
                key = (issue.test, line)
                # A moved line, in the same or another file of the change, is no new finding.
                left = old_keys if old_keys[key] > 0 else removed_keys
                if left[key] > 0:
                    left[key] -= 1
                else:
                    yield self._make_finding(file, issue, line)

    def _issues(self, path: str, text: str, until: float) -> list[tuple[Issue, str]]:
        if not text or not is_python(path, text):
            return []
        try:
            issues = self._bandit.issues(text, timedelta(seconds=until - time.thread_time()))
        except (SyntaxError, ValueError, RecursionError):
            return []  # the first layer reports unparsable code
        # An issue is matched by the text of its line.
        lines = [" ".join(line.split()) for line in text.splitlines()]
        return [
            (issue, lines[issue.line - 1] if 0 < issue.line <= len(lines) else "")
            for issue in issues
            if self._verdict(issue) is not Verdict.ALLOW
        ]

    def _verdict(self, issue: Issue) -> Verdict:
        table = self._rules.bandit
        return table.get(issue.test, Verdict.ALLOW if issue.confidence == "low" else table[issue.severity])

    def _make_finding(self, file: CodeFile, issue: Issue, line: str) -> Finding:
        instead = self._rules.bandit_instead.get(issue.test, issue.text)
        violation = self._rules.violation(Layer.BANDIT.value)
        violation = violation._replace(rule=issue.test, verdict=self._verdict(issue), suggestion=instead)
        finding = make_finding(violation, at=(file.path, line), evidence=line, where=f"{file.path}:{issue.line}")
        return finding.evolve(layer=Layer.BANDIT.value)


def question_of(review: CodeReview) -> Question:
    """Build the question that asks a person to approve findings.

    The answer becomes a grant with the question's fingerprint. Use `apply_grants` to apply the grant.
    """
    open_findings = tuple(finding for finding in review.findings if finding.verdict is Verdict.ASK)
    title, evidence = describe_findings(open_findings)
    fingerprint = " ".join(finding.fingerprint for finding in open_findings)
    return permission_question(title, "\n".join(evidence), fingerprint)


def apply_grants(facts: ProjectFacts, grants: Iterable[Grant]) -> ProjectFacts:
    """Add a person's decisions on findings to the project facts."""
    # A later grant can allow what an earlier one refused, so the allowed ones win.
    allowed, refused = set(facts.allowed), set(facts.refused)
    for grant in grants:
        (allowed if grant.allowed else refused).update(grant.fingerprint.split())
    return facts._replace(allowed=frozenset(allowed), refused=frozenset(refused - allowed))


def _keys(issues: Iterable[tuple[Issue, str]]) -> Counter[tuple[str, str]]:
    return Counter((issue.test, line) for issue, line in issues)


def _not_read(files: Sequence[CodeFile], layer: Layer, why: str) -> Finding:
    paths = ", ".join(file.path for file in files[:4])
    content = "\0".join(text for file in files for text in (file.path, file.after))
    finding = make_finding(
        VIOLATIONS["change_not_read"], at=("", content), evidence=f"{why}: {paths}", where=paths or "the change"
    )
    return finding.evolve(layer=layer.value)


READ_LIMIT = 8_000_000
"""Number of bytes of project files to search for imports. Imports beyond that must be declared in a manifest."""
_IMPORT = re.compile(rb"^[ \t]*(?:import|from)[ \t]+([A-Za-z_]\w*)", re.MULTILINE)
Content = Callable[[str], bytes]
"""Returns a file's bytes by blob id."""


def changed_files(before: Mapping[bytes, str], after: Mapping[bytes, str], content: Content) -> tuple[CodeFile, ...]:
    """Return the files that differ between two trees. Each tree maps paths to blob ids.

    Binary files have no text, so only their paths are reviewed. Generated files count as code, because
    the model chooses their paths. Only non-executable data is skipped.
    """
    paths = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    return tuple(
        CodeFile(
            path.decode("utf-8", "backslashreplace"),
            _text(content(before[path])) if path in before else None,
            _text(content(after[path])) if path in after else "",
        )
        for path in paths
        if not is_data(path.decode("utf-8", "backslashreplace"))
    )


def project_facts(
    before: Mapping[bytes, str], after: Mapping[bytes, str], content: Content, rules: CodeRules
) -> ProjectFacts:
    """Return the project's dependencies before the change, and its own modules after the change."""
    # From the tree before: a change must not vouch for the dependencies that it adds.
    paths = {path.decode("utf-8", "backslashreplace"): blob for path, blob in before.items()}
    now = [path.decode("utf-8", "backslashreplace") for path in after]
    manifests = [path for path in paths if is_manifest(path, rules.manifests) and not GENERATED.search(path)]
    names: set[str] = set()
    for path in manifests:
        text = _text(content(paths[path]))
        names.add(own_name(path, text))
        names.update(requirement.name for requirement in requirements_in(path, text, rules.manifests))
    imports, read = set[str](), 0
    for path, blob in paths.items():
        if path.endswith(".py") and not GENERATED.search(path) and read < READ_LIMIT:
            source = content(blob)
            read += len(source)
            imports.update(name.decode() for name in _IMPORT.findall(source))
    return ProjectFacts(
        modules=own_modules([*paths, *now]),
        distributions=frozenset(names - {""}),
        imports=frozenset(imports),
        installed=_list_distributions(),
    )


def _text(content: bytes) -> str:
    if b"\0" in content[:8_000]:
        return ""
    # One character more than is read, as a sign of truncation.
    return content[: 4 * CODE_CHARACTERS].decode("utf-8", "replace")[: CODE_CHARACTERS + 1]


@cache
def _list_distributions() -> dict[str, tuple[str, ...]]:
    """Return the distributions in the worker's environment, by module.

    The mapping is also used for the project's environment.
    """
    return {module: tuple(names) for module, names in packages_distributions().items()}


PROMPTS = Path(__file__).parent / "prompts"
LONGEST_S = 120.0
"""Time limit for all attempts together. The response only saves a person a question, so a long wait is not worth it."""


class _Judged(Value):
    finding: int
    verdict: Annotated[Verdict, LOWERED]
    rationale: str


class _Answer(Value):
    """The model's response. The schema is in `prompts/answer.json`."""

    verdicts: list[_Judged]


class OpenAIJudge:
    """Asks a model for a verdict on each finding."""

    def __init__(self, service: ModelService) -> None:
        self._asker = PromptedAsker(service, PROMPTS, "alignment")

    async def judge(self, briefing: JudgeBriefing) -> JudgeAnswer:
        """Ask the model for one verdict per finding.

        If there is no usable response, all verdicts are `ASK` and `note` contains the reason.
        """
        visible_briefing = briefing if briefing.prompt_privacy is PromptPrivacy.FULL else scrub.model(briefing)
        try:
            async with asyncio.timeout(LONGEST_S):
                exchange = await self._asker.ask(
                    "judge.md",
                    visible_briefing,
                    briefing.prompt_privacy,
                    lambda value: _read(value, len(briefing.findings)),
                )
        except TimeoutError:
            return self._make_undecided_answer(briefing, f"no verdict within {LONGEST_S:g} s", usage=Usage())
        except PlannerUnavailableError as error:
            # The call may have been charged: usage is unknown, not zero.
            return self._make_undecided_answer(briefing, error.message, usage=Usage())
        except PlannerError as error:
            return self._make_undecided_answer(briefing, error.message)
        if exchange.value is None:
            return self._make_undecided_answer(
                briefing, exchange.failure, usage=exchange.usage, transcript=exchange.transcript
            )
        return JudgeAnswer(
            verdicts=tuple(judged.verdict for judged in exchange.value),
            rationales=tuple(shorten(judged.rationale, 400) for judged in exchange.value),
            model=exchange.model,
            prompt_sha256=self._asker.sha256,
            usage=exchange.usage,
            transcript=exchange.transcript,
        )

    def _make_undecided_answer(
        self, briefing: JudgeBriefing, note: str, *, usage: Usage | None = None, transcript: bytes = b""
    ) -> JudgeAnswer:
        return JudgeAnswer(
            verdicts=tuple(Verdict.ASK for _ in briefing.findings),
            rationales=tuple(shorten(note, 400) for _ in briefing.findings),
            note=shorten(note, 500),
            prompt_sha256=self._asker.sha256,
            usage=usage,
            transcript=transcript,
        )


def _read(value: dict[str, Any], count: int) -> tuple[_Judged, ...]:
    judged = {item.finding: item for item in _Answer.model_validate(value).verdicts}
    missing = [str(number) for number in range(1, count + 1) if number not in judged]
    # A verdict on an unknown finding means that the model numbered them differently: none can be trusted.
    if missing or len(judged) != count:
        raise UnusableAnswerError(f"`verdicts` must contain exactly one entry for each finding from 1 to {count}")
    if any(not item.rationale.strip() for item in judged.values()):
        raise UnusableAnswerError("each verdict needs a rationale")
    return tuple(judged[number] for number in range(1, count + 1))


def judges(service: ModelService, *, enabled: bool = True) -> Judges:
    """Return a function that returns the judge for a planner.

    The function returns None if the planner does not use a model. A person is then asked instead.
    """
    by_model = cache(lambda: OpenAIJudge(service))
    return lambda planner: by_model() if enabled and service.plans(planner) else None
