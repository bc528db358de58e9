"""Rules that prevent checks from being weakened: tests, assertions, CI, thresholds and linter suppressions."""

import re
from collections import Counter
from collections.abc import Iterator

from tightloop.safety.change.patch import FilePatch, Line, Lines
from tightloop.safety.change.reading import EXAMPLE, GENERATED, PATTERNS, TEST, WORDS, FileView, ScanContext
from tightloop.safety.rubric import Finding, Rubric
from tightloop.safety.scope import outside
from tightloop.value import format_count

LINES_A_SUPPRESSION = 40
"""Number of new lines for which one suppression comment is tolerated."""


def _names(pattern: re.Pattern[str], lines: Lines) -> list[str]:
    return [next(group for group in match.groups() if group) for text in lines.texts if (match := pattern.match(text))]


def tests_kept(view: FileView) -> Iterator[Finding]:
    """Yield findings for removed tests, skipped tests and weakened assertions.

    A test may be removed together with the code that it tests.
    """
    if not TEST.search(view.file.path) or PATTERNS["test_data"].search(view.file.path):
        return
    requested = view.change.requested
    removed = _names(PATTERNS["test_name"], view.file.removed)
    may_change = requested.covers(view.file.path)
    if removed and not may_change:
        gone_sources, tests_now = view.reading.compute_once(_gone_sources), view.reading.compute_once(_tests_now)
        missing = [name for name in removed if name not in tests_now and not requested.covers_test(name)]
        removed_names = frozenset(removed)
        renamed = sum(name not in removed_names for name in _names(PATTERNS["test_name"], view.file.added))
        stem = PATTERNS["around_stem"].sub("", view.file.name.partition(".")[0]).lower()
        bodies = _bodies(view.file.removed)
        with_feature = 0
        for name in missing:
            view.reading.deadline.check_time()
            bare = re.sub(r"\W+", "_", name.lower())
            # Names of one or two letters occur in too many words to identify a source.
            is_named = any(source in bare for source in gone_sources if len(source) > 2)
            with_feature += is_named or not gone_sources.isdisjoint(re.findall(r"\w{3,}", bodies[name].lower()))
        # Each new name may be one of the removed tests, renamed.
        left = len(missing) - with_feature - renamed
        merged = renamed > 0 and any(PATTERNS["test_table"].search(text) for text in view.new_lines.texts)
        if left > 0 and not merged and stem not in gone_sources:
            yield view.make_finding(
                "tests_removed", None, f"{format_count(len(missing), 'test')} removed: {', '.join(missing[:4])}"
            )
    # The lines between a mark and its test are not part of a patch, so each named test stands for one mark.
    may_skip = len(requested.tests) if requested.skips_tests else 0
    for line in view.find_lines(WORDS["skip"]):
        guarded = PATTERNS["skip_with_condition"].search(line.text) or (
            PATTERNS["skip_call"].search(line.text) and _has_condition(view.file, line)
        )
        if PATTERNS["skip"].search(line.text) and not guarded and not (may_change and requested.skips_tests):
            may_skip -= 1
            if may_skip < 0:
                yield view.make_finding("tests_skipped", line)
    if not view.file.deleted and not removed:
        yield from _asserts(view, may_change=may_change)


def _gone_sources(reading: ScanContext) -> frozenset[str]:
    """Return the names that the change removes from the tested code, in lower case."""
    sources = [file for file in reading.change.files if not TEST.search(file.path)]
    removed_names = {
        name.lower().strip("_") for file in sources for name in _names(PATTERNS["source_name"], file.removed)
    }
    removed_names -= {
        name.lower().strip("_") for file in sources for name in _names(PATTERNS["source_name"], file.added)
    }
    return frozenset(removed_names | {file.name.partition(".")[0].lower() for file in sources if file.deleted})


def _tests_now(reading: ScanContext) -> frozenset[str]:
    return frozenset(name for file in reading.change.files for name in _names(PATTERNS["test_name"], file.added))


def _bodies(lines: Lines) -> dict[str, str]:
    """Return the removed lines of each test, by test name."""
    lines_by_test: dict[str, list[str]] = {}
    name = ""
    for text in lines.texts:
        match = PATTERNS["test_name"].match(text)
        name = next(group for group in match.groups() if group) if match else name
        if name:
            lines_by_test.setdefault(name, []).append(f"{text}\n")
    return {name: "".join(texts) for name, texts in lines_by_test.items()}


def _has_condition(file: FilePatch, line: Line) -> bool:
    """Return whether a line, or the line before it, contains a condition."""
    before = file.added.by_number.get(line.number - 1, "")
    return bool(re.search(r"^\s*(?:if|elif|except|unless|else)\b", before) or re.match(r"\s*if\b", line.text))


def _asserts(view: FileView, *, may_change: bool) -> Iterator[Finding]:
    for line in view.find_lines(WORDS["assert"]):
        if PATTERNS["empty"].match(line.text):
            yield view.make_finding("assertions_weakened", line)
            return
    lost = list(_asserting(view, view.file.removed))
    if not lost or may_change:
        return
    added = list(_asserting(view, view.file.added))
    # One assertion fewer is usual when two are combined.
    if len(lost) - len(added) >= 2 or (not added and len(lost) == 1 and not view.new_lines):
        text = f"{format_count(len(lost), 'assertion')} removed, {len(added)} added: {lost[0].text}"
        yield view.make_finding("assertions_weakened", lost[0], text)


def _asserting(view: FileView, lines: Lines) -> Iterator[Line]:
    for line in view.search_lines(lines, WORDS["assert"]):
        if PATTERNS["assert"].search(line.text) and not line.text.lstrip().startswith(("#", "//")):
            yield line


def _kind(tool: str) -> bool:
    """Return whether a tool runs tests. Replacing one such tool with another is allowed."""
    return PATTERNS["test_runner"].fullmatch(tool) is not None


def ci_kept(view: FileView) -> Iterator[Finding]:
    """Yield findings for CI steps and git hooks that were weakened, removed or changed without being asked for."""
    path = view.file.path
    if not (PATTERNS["ci_path"].search(path) or PATTERNS["hook_path"].search(path)):
        return
    if view.file.deleted:
        yield view.make_finding("ci_removed", None, "the file was deleted")
        return
    for line in view.all_fresh():
        if PATTERNS["weak_ci"].search(line.text):
            yield view.make_finding("checks_weakened", line)
    added_text = " ".join(text for text in view.file.added.texts if not text.lstrip().startswith("#"))
    before = {tool for text in view.file.removed.texts for tool in PATTERNS["check_tool"].findall(text)}
    new_kinds = {_kind(tool) for tool in PATTERNS["check_tool"].findall(added_text) if tool not in before}
    replaced = {tool for tool in before if tool in added_text or _kind(tool) in new_kinds}
    dropped = [
        line
        for line in view.reading.deadline.iterate_lines(view.file.removed, range(len(view.file.removed)))
        if (tools := PATTERNS["check_tool"].findall(line.text))
        and not line.text.lstrip().startswith("#")
        and replaced.isdisjoint(tools)
    ]
    if dropped:
        yield view.make_finding("checks_weakened", dropped[0], f"a check was removed: {dropped[0].text.strip()}")
        return
    scope = view.change.scope
    if view.change.requested.covers(path, is_test=False) or _is_named(view):
        return
    if not PATTERNS["ci_words"].search(view.change.goal) and (not scope or outside(scope, [path])):
        added, removed = len(view.file.added), len(view.file.removed)
        counts = f"{format_count(added, 'line')} added, {removed} removed"
        text = f"{counts}, but neither the goal nor the scope mentions the file"
        yield view.make_finding("ci_changed", None, text)


def _is_named(view: FileView) -> bool:
    """Return whether the goal mentions every word that changed in a file, such as a version."""
    before, after = (
        Counter(re.findall(r"\w+(?:\.\w+)*", lines.whole)) for lines in (view.file.removed, view.file.added)
    )
    different = (before - after) + (after - before)
    return bool(different) and all(map(view.change.requested.names, different))


def configs_kept(view: FileView) -> Iterator[Finding]:
    """Yield findings for relaxed thresholds and disabled checks."""
    path, threshold = view.file.path, PATTERNS["threshold"]
    # A new file cannot loosen what was checked before.
    if view.file.new or not PATTERNS["config_file"].search(path) or PATTERNS["ci_path"].search(path):
        return
    before = {match[1]: float(match[2]) for text in view.file.removed.texts for match in threshold.finditer(text)}
    for line in view.find_lines(WORDS["config"]):
        match = threshold.search(line.text)
        was, now = (before[match[1]], float(match[2])) if match and match[1] in before else (0.0, 0.0)
        # A complexity limit is weakened upwards, all others downwards.
        is_wanted = match is not None and view.change.requested.wants(match[2])
        if match and not is_wanted and now != was and (now > was) == ("complexity" in match[1]):
            yield view.make_finding("checks_weakened", line, f"{match[1]} changed from {was:g} to {match[2]}")
        excludes = PATTERNS["addopts"].search(line.text) and PATTERNS["config_of_tests"].search(path)
        if PATTERNS["strict_off"].search(line.text) or excludes:
            yield view.make_finding("checks_weakened", line)
        in_recipe = view.file.name == "Makefile" and PATTERNS["ignored_failure"].search(line.text)
        if in_recipe and PATTERNS["check_tool"].search(line.text):
            yield view.make_finding("checks_weakened", line)


def suppressions(files: list[FileView], rubric: Rubric) -> Iterator[Finding]:
    """Yield findings for too many suppression comments, and for files that are suppressed entirely."""
    added: list[tuple[FileView, Line]] = []
    looked_at = [view for view in files if not (GENERATED.search(view.file.path) or EXAMPLE.search(view.file.path))]
    for view in looked_at:
        before: frozenset[str] | None = None
        for line in view.search_lines(view.file.added, view.reading.find_present_terms(WORDS["silence"])):
            if PATTERNS["silence"].search(line.text):
                added.append((view, line))
            if PATTERNS["silence_file"].match(line.text):
                before = frozenset(view.file.removed.texts) if before is None else before
                if line.text not in before:
                    yield view.make_finding("checks_weakened", line)
    added_lines = sum(len(view.file.added) for view in files)
    least = max(rubric.suppressions, added_lines // LINES_A_SUPPRESSION)
    if not added or len(added) < least:
        return
    taken_out = (line for view in looked_at for line in view.search_lines(view.file.removed, WORDS["silence"]))
    removed = sum(bool(PATTERNS["silence"].search(line.text)) for line in taken_out)
    if len(added) - removed >= least:
        view, line = added[0]
        text = f"added {len(added)} comments that silence checks and removed {removed}, for example {line.text.strip()}"
        yield view.make_finding("checks_silenced", line, text)
