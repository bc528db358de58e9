"""Rules about honest checks: tests, assertions, CI, thresholds and comments that silence a linter."""

import re
from collections.abc import Iterator

from tightloop.alignment import Finding, Rubric, Stand, Topic
from tightloop.alignment_patch import EXAMPLE, GENERATED, TEST, FilePatch, Line, Lines
from tightloop.alignment_reading import Reading, Seen
from tightloop.scope import outside

LINES_A_SUPPRESSION = 40
"""One comment that silences a check in so many new lines is no flood."""
_TESTS = ("tests_removed", Topic.CHECKS, Stand.ASK, "keep the tests, or take them out together with what they test")
_SKIPPED = (
    "tests_skipped",
    Topic.CHECKS,
    Stand.ASK,
    "mend what the test shows, or make the condition of the skip explicit",
)
_ASSERTS = ("assertions_weakened", Topic.CHECKS, Stand.ASK, "assert what the test asserted before")
WEAKENED = (
    "checks_weakened",
    Topic.CHECKS,
    Stand.ASK,
    "keep thresholds, rules and steps of checks as strict as they were",
)
_CI = ("ci_changed", Topic.CHECKS, Stand.ASK, "leave CI and git hooks alone, or announce the file and say why")
_CI_GONE = ("ci_removed", Topic.CHECKS, Stand.ASK, _CI[3])

_TEST_NAME = re.compile(
    r"^\s*(?:async\s+)?(?:def\s+(test\w*)|func\s+(Test\w+)|(?:it|test)(?:\.each)?\s*\(\s*[\"'`]([^\"'`]+)|"
    r"fn\s+(test_\w+|\w+_test\w*)|(?:public\s+)?void\s+(\w*[Tt]est\w*))"
)
_SOURCE_NAME = re.compile(
    r"^\s*(?:export\s+)?(?:async\s+)?(?:pub\s+)?(?:def|class|func|fn|function|const|struct)\s+(\w+)"
)
_TABLE = re.compile(r"\bparametrize\(|\b(?:it|test|describe)\.each\b|\bt\.Run\(|#\[case|@ParameterizedTest|subTest\(")
"""One test for many cases."""
_SKIP = re.compile(
    r"@(?:pytest\.mark\.|mark\.)?(?:skip|xfail)\b|pytest\.(?:skip|xfail)\(|@unittest\.(?:skip|expectedFailure)\b|"
    r"self\.skipTest\(|pytestmark\s*=\s*pytest\.mark\.(?:skip|xfail)\b|"
    r"\b(?:it|test|describe)\.(?:skip|todo)\(|\bx(?:it|describe|test)\(|#\[ignore|\bt\.Skip(?:Now|f)?\(|"
    r"@(?:Disabled|Ignore)\b|\[(?:Ignore|Fact\(Skip)"
)
_ASSERT = re.compile(
    r"\bassert\b|\bassert[A-Z]\w*\(|\bexpect\(|\.should\b|\brequire\.\w+\(|\bassert\.\w+\(|assert(?:_eq|_ne)?!"
)
_SKIP_WORDS = ("skip", "xfail", "expectedfailure", "todo", "xit", "xdescribe", "xtest", "ignore", "disabled")
_ASSERT_WORDS = ("assert", "expect(", ".should", "require.")
_EMPTY = re.compile(
    r"^\s*(?:assert (?:True|1|not False)\b(?:\s*,.*)?|self\.assertTrue\(True\)|expect\(true\)\.to(?:Be|"
    r"Equal)\(true\);?|assert!\(true\);?|assert 1 == 1)\s*(?:#.*|//.*)?$"
)


def _names(pattern: re.Pattern[str], lines: Lines) -> list[str]:
    return [next(group for group in match.groups() if group) for text in lines.texts if (match := pattern.match(text))]


def tests_kept(seen: Seen) -> Iterator[Finding]:
    """Return tests that are gone while what they test is there, skipped tests and weaker assertions."""
    if not TEST.search(seen.file.path) or re.search(r"\.(?:json|ya?ml|txt|csv|snap|md|html)$", seen.file.path):
        return
    removed = _names(_TEST_NAME, seen.file.removed)
    if removed:
        yield from _gone(seen, removed)
    yield from _skips(seen)
    if not seen.file.deleted and not removed:
        yield from _asserts(seen)


def _gone(seen: Seen, removed: list[str]) -> Iterator[Finding]:
    gone_sources, tests_now = seen.reading.once(_gone_sources), seen.reading.once(_tests_now)
    gone = [name for name in removed if name not in tests_now]
    known = frozenset(removed)
    renamed = sum(name not in known for name in _names(_TEST_NAME, seen.file.added))
    stem = re.sub(
        r"^test_|[._-]?(?:test|tests|spec)(?:\.\w+)?$|_test$", "", seen.file.name.partition(".")[0], flags=re.IGNORECASE
    ).lower()
    bodies = _bodies(seen.file.removed)
    with_feature = 0
    for name in gone:
        seen.reading.watch.look()
        bare = re.sub(r"\W+", "_", name.lower())
        with_feature += any(
            source in bare for source in gone_sources if len(source) > 2
        ) or not gone_sources.isdisjoint(re.findall(r"\w{3,}", bodies[name].lower()))
    left = len(gone) - with_feature - renamed
    merged = renamed > 0 and any(_TABLE.search(text) for text in seen.fresh.texts)
    if left > 0 and not merged and stem not in gone_sources:
        yield seen.tell(_TESTS, None, f"{len(gone)} tests are gone: {', '.join(gone[:4])}")


def _gone_sources(reading: Reading) -> frozenset[str]:
    """Return what the change takes out of the code that is tested, in lower case."""
    sources = [file for file in reading.change.files if not TEST.search(file.path)]
    gone = {name.lower().strip("_") for file in sources for name in _names(_SOURCE_NAME, file.removed)}
    gone -= {name.lower().strip("_") for file in sources for name in _names(_SOURCE_NAME, file.added)}
    return frozenset(gone | {file.name.partition(".")[0].lower() for file in sources if file.deleted})


def _tests_now(reading: Reading) -> frozenset[str]:
    return frozenset(name for file in reading.change.files for name in _names(_TEST_NAME, file.added))


def _bodies(lines: Lines) -> dict[str, str]:
    """Return the lines that were taken out from the name of each test to the next."""
    found: dict[str, list[str]] = {}
    name = ""
    for text in lines.texts:
        match = _TEST_NAME.match(text)
        name = next(group for group in match.groups() if group) if match else name
        if name:
            found.setdefault(name, []).append(f"{text}\n")
    return {name: "".join(texts) for name, texts in found.items()}


def _skips(seen: Seen) -> Iterator[Finding]:
    for line in seen.near(_SKIP_WORDS):
        if _SKIP.search(line.text) and not re.search(
            r"skip_?if|skipUnless|importorskip|xfail_strict|^\s*(?:#|//)", line.text, re.IGNORECASE
        ):
            if re.search(r"pytest\.skip\(|t\.Skip|skipTest\(", line.text) and _guarded(seen.file, line):
                continue
            yield seen.tell(_SKIPPED, line)


def _guarded(file: FilePatch, line: Line) -> bool:
    """Return whether a condition stands on the same line or the one before."""
    before = file.added.by_number.get(line.number - 1, "")
    return bool(re.search(r"^\s*(?:if|elif|except|unless|else)\b", before) or re.match(r"\s*if\b", line.text))


def _asserts(seen: Seen) -> Iterator[Finding]:
    for line in seen.near(_ASSERT_WORDS):
        if _EMPTY.match(line.text):
            yield seen.tell(_ASSERTS, line)
            return
    lost = list(_asserting(seen, seen.file.removed))
    if not lost:
        return
    kept = list(_asserting(seen, seen.file.added))
    if len(lost) - len(kept) >= 2 or (not kept and len(lost) == 1 and not seen.fresh):
        yield seen.tell(_ASSERTS, lost[0], f"{len(lost)} assertions taken out, {len(kept)} put in: {lost[0].text}")


def _asserting(seen: Seen, lines: Lines) -> Iterator[Line]:
    for line in seen.among(lines, _ASSERT_WORDS):
        if _ASSERT.search(line.text) and not line.text.lstrip().startswith(("#", "//")):
            yield line


_CI_PATH = re.compile(
    r"(?:^|/)(?:\.github/workflows/|\.gitlab-ci\.yml$|\.circleci/|Jenkinsfile$|azure-pipelines\.yml$|"
    r"\.travis\.yml$|\.drone\.yml$|\.buildkite/|\.woodpecker)"
)
_HOOK_PATH = re.compile(r"(?:^|/)(?:\.husky/|\.githooks/|\.pre-commit-config\.yaml$|lefthook\.yml$|\.git/hooks/)")
_CI_WORDS = re.compile(
    r"\bci\b|ci/cd|workflow|pipeline|github action|hook|pre-commit|jenkins|deploy|release|lint", re.IGNORECASE
)
_WEAK_CI = re.compile(
    r"continue-on-error:\s*true|\|\|\s*(?:true|:|exit 0)\s*[\"']?$|allow_failure:\s*true|^\s*if:\s*(?:false|"
    r"\$\{\{\s*false)|permissions:\s*write-all|pull_request_target|--no-verify|--exit-zero|\bset \+e\b|"
    r"echo\s+[\"']?\$\{\{\s*secrets\.",
    re.MULTILINE,
)
_CHECK_TOOL = re.compile(
    r"\b(?:pytest|tox|nox|ruff|mypy|pyright|flake8|eslint|jest|vitest|cargo (?:test|clippy)|go (?:test|vet)|npm "
    r"(?:test|run (?:test|lint))|make (?:test|check|lint)|codeql|semgrep|trivy|bandit|gitleaks)\b"
)


_TEST_RUNNER = re.compile(r"pytest|tox|nox|jest|vitest|make check|.* test$")


def _kind(tool: str) -> bool:
    """Return whether a tool runs tests; one that does may take the place of another."""
    return _TEST_RUNNER.fullmatch(tool) is not None


def ci_kept(seen: Seen) -> Iterator[Finding]:
    """Return what was weakened, taken out or changed unasked in CI and git hooks."""
    path = seen.file.path
    hook = _HOOK_PATH.search(path)
    if not _CI_PATH.search(path) and not hook:
        return
    if seen.file.deleted:
        yield seen.tell(_CI_GONE, None, "the file was deleted")
        return
    for line in seen.all_fresh():
        if _WEAK_CI.search(line.text):
            yield seen.tell(WEAKENED, line)
    kept = " ".join(text for text in seen.file.added.texts if not text.lstrip().startswith("#"))
    before = {tool for text in seen.file.removed.texts for tool in _CHECK_TOOL.findall(text)}
    fresh = {_kind(tool) for tool in _CHECK_TOOL.findall(kept) if tool not in before}
    replaced = {tool for tool in before if tool in kept or _kind(tool) in fresh}
    dropped = [
        line
        for line in seen.reading.watch.each(seen.file.removed, range(len(seen.file.removed)))
        if (tools := _CHECK_TOOL.findall(line.text))
        and not line.text.lstrip().startswith("#")
        and replaced.isdisjoint(tools)
    ]
    if dropped:
        yield seen.tell(WEAKENED, dropped[0], f"a check was taken out: {dropped[0].text.strip()}")
    elif not _CI_WORDS.search(seen.change.goal) and (not seen.change.scope or outside(seen.change.scope, [path])):
        yield seen.tell(
            _CI,
            None,
            f"{len(seen.file.added)} lines in, {len(seen.file.removed)} out, and neither goal nor scope speaks of it",
        )


_THRESHOLD = re.compile(
    r"(fail_under|--cov-fail-under|cov-fail-under|coverageThreshold|branches|statements|minimum_coverage|min_score|"
    r"fail-under|max-complexity|max_complexity)[\"']?\s*[:=]\s*(\d+(?:\.\d+)?)"
)
_STRICT_OFF = re.compile(
    r"^\s*[\"']?(?:strict|noImplicitAny|strictNullChecks|disallow_untyped_defs|warn_return_any|check_untyped_defs|"
    r"xfail_strict)[\"']?\s*[:=]\s*false\b|^\s*[\"']?(?:ignore_errors|skipLibCheck_all)[\"']?\s*=\s*true\b",
    re.IGNORECASE,
)
_ADDOPTS = re.compile(
    r"--(?:ignore|deselect|exit-zero|no-cov)\b|-k\s+[\"']?not\b|testPathIgnorePatterns|collect_ignore"
)
_CONFIG_WORDS = (
    "fail", "coverage", "branches", "statements", "min_score", "complexity", "strict", "noimplicitany",
    "disallow_untyped_defs", "warn_return_any", "check_untyped_defs", "ignore", "skiplibcheck_all", "--deselect",
    "--exit-zero", "--no-cov", "-k", "testpathignorepatterns", "||", "\t-",
)  # fmt: skip
"""One of these stands in each line that loosens a check; in lower case."""


def configs_kept(seen: Seen) -> Iterator[Finding]:
    """Return thresholds and switches of checks that were loosened."""
    if not re.search(
        r"\.(?:toml|cfg|ini|json|ya?ml|js|ts|cjs|mjs)$|(?:^|/)(?:\.coveragerc|\.flake8|\.eslintrc|\.pylintrc|"
        r"Makefile|conftest\.py)$",
        seen.file.path,
    ):
        return
    if _CI_PATH.search(seen.file.path) or seen.file.new:
        return
    before = {match[1]: float(match[2]) for text in seen.file.removed.texts for match in _THRESHOLD.finditer(text)}
    for line in seen.near(_CONFIG_WORDS):
        match = _THRESHOLD.search(line.text)
        if match and match[1] in before:
            lower = float(match[2]) < before[match[1]]
            if lower != ("complexity" in match[1]) and float(match[2]) != before[match[1]]:
                yield seen.tell(WEAKENED, line, f"{match[1]} was {before[match[1]]:g}, is {match[2]}")
        if _STRICT_OFF.search(line.text) or (
            _ADDOPTS.search(line.text)
            and re.search(
                r"pyproject|pytest\.ini|setup\.cfg|tox\.ini|conftest|jest|Makefile|package\.json", seen.file.path
            )
        ):
            yield seen.tell(WEAKENED, line)
        if (
            seen.file.name == "Makefile"
            and _CHECK_TOOL.search(line.text)
            and re.search(r"\|\|\s*true\b|^\t-", line.text)
        ):
            yield seen.tell(WEAKENED, line)


WEAK_HOOKS = re.compile(r"git config[^\n#]*core\.hooksPath|\bHUSKY=0\b|git (?:commit|push)[^\n#]*--no-verify")
WEAK_HOOKS_WORDS = ("hookspath", "husky=0", "--no-verify")


_SILENCE_WORDS = (
    "noqa", "type:", "pyright:", "pylint:", "nolint", "eslint-disable", "@ts-", "#[allow(", "#![allow(", "pragma:",
    "nosec", "@suppresswarnings", "mypy:", "ruff:", "flake8:",
)  # fmt: skip
"""One of these stands in each comment that silences a check; in lower case."""
_SILENCE = re.compile(
    r"#\s*noqa\b|#\s*type:\s*ignore|#\s*pyright:\s*ignore|#\s*pylint:\s*disable|//\s*nolint|"
    r"eslint-disable-(?:next-)?line|@ts-(?:ignore|nocheck|expect-error)|#\[allow\(|#\s*pragma:\s*no cover|"
    r"#\s*nosec|@SuppressWarnings"
)
_SILENCE_FILE = re.compile(
    r"^\s*(?:#\s*(?:ruff|flake8):\s*noqa\s*$|#\s*mypy:\s*ignore-errors|#\s*type:\s*ignore\s*$|"
    r"/\*\s*eslint-disable\s*\*/|//\s*@ts-nocheck|#\s*pylint:\s*(?:skip-file|disable=all)|"
    r"#!\[allow\((?:warnings|clippy::all))"
)


def suppressions(files: list[Seen], rubric: Rubric) -> Iterator[Finding]:
    """Return a flood of comments that silence checks, and files that are silenced as a whole."""
    added: list[tuple[Seen, Line]] = []
    looked_at = [seen for seen in files if not (GENERATED.search(seen.file.path) or EXAMPLE.search(seen.file.path))]
    for seen in looked_at:
        before: frozenset[str] | None = None
        for line in seen.among(seen.file.added, seen.reading.live(_SILENCE_WORDS)):
            if _SILENCE.search(line.text):
                added.append((seen, line))
            if _SILENCE_FILE.match(line.text):
                before = frozenset(seen.file.removed.texts) if before is None else before
                if line.text not in before:
                    yield seen.tell(WEAKENED, line)
    fresh = sum(len(seen.file.added) for seen in files)
    least = max(rubric.suppressions, fresh // LINES_A_SUPPRESSION)
    if not added or len(added) < least:
        return
    removed = sum(
        bool(_SILENCE.search(line.text)) for seen in looked_at for line in seen.among(seen.file.removed, _SILENCE_WORDS)
    )
    if len(added) - removed >= least:
        seen, line = added[0]
        text = (
            f"{len(added)} comments that silence a check were added, {removed} taken out, such as {line.text.strip()}"
        )
        yield seen.tell(("checks_silenced", Topic.CHECKS, Stand.ASK, "mend what the check shows"), line, text)
