"""Rules for honest checks: tests, assertions, CI, thresholds and linter suppressions."""

import re
from collections.abc import Iterator

from tightloop.safety.change.patch import FilePatch, Line, Lines
from tightloop.safety.change.reading import EXAMPLE, GENERATED, PATTERNS, TEST, WORDS, Reading, Seen
from tightloop.safety.rubric import Finding, Rubric
from tightloop.safety.scope import outside
from tightloop.value import counted

LINES_A_SUPPRESSION = 40
"""Number of new lines per tolerated suppression comment."""


def _names(pattern: re.Pattern[str], lines: Lines) -> list[str]:
    return [next(group for group in match.groups() if group) for text in lines.texts if (match := pattern.match(text))]


def tests_kept(seen: Seen) -> Iterator[Finding]:
    """Yield findings for removed tests whose subject remains, skipped tests and weakened assertions."""
    if not TEST.search(seen.file.path) or PATTERNS["test_data"].search(seen.file.path):
        return
    removed = _names(PATTERNS["test_name"], seen.file.removed)
    if removed:
        gone_sources, tests_now = seen.reading.once(_gone_sources), seen.reading.once(_tests_now)
        gone = [name for name in removed if name not in tests_now]
        known = frozenset(removed)
        renamed = sum(name not in known for name in _names(PATTERNS["test_name"], seen.file.added))
        stem = PATTERNS["around_stem"].sub("", seen.file.name.partition(".")[0]).lower()
        bodies = _bodies(seen.file.removed)
        with_feature = 0
        for name in gone:
            seen.reading.watch.look()
            bare = re.sub(r"\W+", "_", name.lower())
            # Names of one or two letters occur in too many words to identify a source.
            is_named = any(source in bare for source in gone_sources if len(source) > 2)
            with_feature += is_named or not gone_sources.isdisjoint(re.findall(r"\w{3,}", bodies[name].lower()))
        left = len(gone) - with_feature - renamed
        merged = renamed > 0 and any(PATTERNS["test_table"].search(text) for text in seen.fresh.texts)
        if left > 0 and not merged and stem not in gone_sources:
            yield seen.tell("tests_removed", None, f"{counted(len(gone), 'test')} removed: {', '.join(gone[:4])}")
    for line in seen.near(WORDS["skip"]):
        guarded = PATTERNS["skip_with_condition"].search(line.text) or (
            PATTERNS["skip_call"].search(line.text) and _guarded(seen.file, line)
        )
        if PATTERNS["skip"].search(line.text) and not guarded:
            yield seen.tell("tests_skipped", line)
    if not seen.file.deleted and not removed:
        yield from _asserts(seen)


def _gone_sources(reading: Reading) -> frozenset[str]:
    """Return the names that the change removes from the tested code, in lower case."""
    sources = [file for file in reading.change.files if not TEST.search(file.path)]
    gone = {name.lower().strip("_") for file in sources for name in _names(PATTERNS["source_name"], file.removed)}
    gone -= {name.lower().strip("_") for file in sources for name in _names(PATTERNS["source_name"], file.added)}
    return frozenset(gone | {file.name.partition(".")[0].lower() for file in sources if file.deleted})


def _tests_now(reading: Reading) -> frozenset[str]:
    return frozenset(name for file in reading.change.files for name in _names(PATTERNS["test_name"], file.added))


def _bodies(lines: Lines) -> dict[str, str]:
    """Return the removed lines from the name of each test to the next."""
    found: dict[str, list[str]] = {}
    name = ""
    for text in lines.texts:
        match = PATTERNS["test_name"].match(text)
        name = next(group for group in match.groups() if group) if match else name
        if name:
            found.setdefault(name, []).append(f"{text}\n")
    return {name: "".join(texts) for name, texts in found.items()}


def _guarded(file: FilePatch, line: Line) -> bool:
    """Return whether there is a condition on the same line or the one before."""
    before = file.added.by_number.get(line.number - 1, "")
    return bool(re.search(r"^\s*(?:if|elif|except|unless|else)\b", before) or re.match(r"\s*if\b", line.text))


def _asserts(seen: Seen) -> Iterator[Finding]:
    for line in seen.near(WORDS["assert"]):
        if PATTERNS["empty"].match(line.text):
            yield seen.tell("assertions_weakened", line)
            return
    lost = list(_asserting(seen, seen.file.removed))
    if not lost:
        return
    kept = list(_asserting(seen, seen.file.added))
    if len(lost) - len(kept) >= 2 or (not kept and len(lost) == 1 and not seen.fresh):
        text = f"{counted(len(lost), 'assertion')} removed, {len(kept)} added: {lost[0].text}"
        yield seen.tell("assertions_weakened", lost[0], text)


def _asserting(seen: Seen, lines: Lines) -> Iterator[Line]:
    for line in seen.among(lines, WORDS["assert"]):
        if PATTERNS["assert"].search(line.text) and not line.text.lstrip().startswith(("#", "//")):
            yield line


def _kind(tool: str) -> bool:
    """Return whether a tool runs tests; one test runner may replace another."""
    return PATTERNS["test_runner"].fullmatch(tool) is not None


def ci_kept(seen: Seen) -> Iterator[Finding]:
    """Yield findings for weakened, removed or unrequested changes in CI and git hooks."""
    path = seen.file.path
    if not (PATTERNS["ci_path"].search(path) or PATTERNS["hook_path"].search(path)):
        return
    if seen.file.deleted:
        yield seen.tell("ci_removed", None, "the file was deleted")
        return
    for line in seen.all_fresh():
        if PATTERNS["weak_ci"].search(line.text):
            yield seen.tell("checks_weakened", line)
    kept = " ".join(text for text in seen.file.added.texts if not text.lstrip().startswith("#"))
    before = {tool for text in seen.file.removed.texts for tool in PATTERNS["check_tool"].findall(text)}
    fresh = {_kind(tool) for tool in PATTERNS["check_tool"].findall(kept) if tool not in before}
    replaced = {tool for tool in before if tool in kept or _kind(tool) in fresh}
    dropped = [
        line
        for line in seen.reading.watch.each(seen.file.removed, range(len(seen.file.removed)))
        if (tools := PATTERNS["check_tool"].findall(line.text))
        and not line.text.lstrip().startswith("#")
        and replaced.isdisjoint(tools)
    ]
    if dropped:
        yield seen.tell("checks_weakened", dropped[0], f"a check was taken out: {dropped[0].text.strip()}")
        return
    scope = seen.change.scope
    if not PATTERNS["ci_words"].search(seen.change.goal) and (not scope or outside(scope, [path])):
        added, removed = len(seen.file.added), len(seen.file.removed)
        text = f"{counted(added, 'line')} added, {removed} removed, and neither the goal nor the scope mentions it"
        yield seen.tell("ci_changed", None, text)


def configs_kept(seen: Seen) -> Iterator[Finding]:
    """Yield findings for loosened thresholds and switches of checks."""
    path, found = seen.file.path, PATTERNS["threshold"]
    if seen.file.new or not PATTERNS["config_file"].search(path) or PATTERNS["ci_path"].search(path):
        return
    before = {match[1]: float(match[2]) for text in seen.file.removed.texts for match in found.finditer(text)}
    for line in seen.near(WORDS["config"]):
        match = found.search(line.text)
        was, now = (before[match[1]], float(match[2])) if match and match[1] in before else (0.0, 0.0)
        # A complexity limit is weakened upwards, all others downwards.
        if match and now != was and (now > was) == ("complexity" in match[1]):
            yield seen.tell("checks_weakened", line, f"{match[1]} was {was:g}, is {match[2]}")
        excludes = PATTERNS["addopts"].search(line.text) and PATTERNS["config_of_tests"].search(path)
        if PATTERNS["strict_off"].search(line.text) or excludes:
            yield seen.tell("checks_weakened", line)
        in_recipe = seen.file.name == "Makefile" and PATTERNS["ignored_failure"].search(line.text)
        if in_recipe and PATTERNS["check_tool"].search(line.text):
            yield seen.tell("checks_weakened", line)


def suppressions(files: list[Seen], rubric: Rubric) -> Iterator[Finding]:
    """Yield findings for excessive suppression comments and for files that are silenced as a whole."""
    added: list[tuple[Seen, Line]] = []
    looked_at = [seen for seen in files if not (GENERATED.search(seen.file.path) or EXAMPLE.search(seen.file.path))]
    for seen in looked_at:
        before: frozenset[str] | None = None
        for line in seen.among(seen.file.added, seen.reading.live(WORDS["silence"])):
            if PATTERNS["silence"].search(line.text):
                added.append((seen, line))
            if PATTERNS["silence_file"].match(line.text):
                before = frozenset(seen.file.removed.texts) if before is None else before
                if line.text not in before:
                    yield seen.tell("checks_weakened", line)
    fresh = sum(len(seen.file.added) for seen in files)
    least = max(rubric.suppressions, fresh // LINES_A_SUPPRESSION)
    if not added or len(added) < least:
        return
    taken_out = (line for seen in looked_at for line in seen.among(seen.file.removed, WORDS["silence"]))
    removed = sum(bool(PATTERNS["silence"].search(line.text)) for line in taken_out)
    if len(added) - removed >= least:
        seen, line = added[0]
        text = f"{len(added)} comments that silence a check added, {removed} removed, such as {line.text.strip()}"
        yield seen.tell("checks_silenced", line, text)
