"""What the heuristic planner proposes for which failing check."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.episode.check import Check, CheckReport, CheckResult, judge
from tightloop.episode.fixes import NEVER_SAFE, PROBES, Fix, FixFinder, RuffRules, known_bugs, read_rules
from tightloop.episode.progress.course import HistoryEntry, command_text

RUFF_OUTPUT = """\
F401 [*] `os` imported but unused
 --> src/a.py:1:8
UP035 [*] Import from `collections.abc` instead: `Mapping`
 --> src/a.py:2:1
F841 Local variable `y` is assigned to but never used
 --> src/a.py:9:5
note: This is an unsafe fix and may change runtime behavior
E722 Do not use bare `except`
 --> src/a.py:12:1
Found 4 errors.
[*] 2 fixable with `--fix` (1 unsafe fix available with `--fix --unsafe-fixes`).
"""
RULES = RuffRules(without_fix=frozenset({"E722", "F821"}))
F541 = "F541 [*] f-string without placeholders\nFound 1 error.\n[*] 1 fixable with `--fix`."


def failed(run: str, output: str, exit_code: int = 1) -> CheckResult:
    return judge(Check(run=run), tree="t", exit_code=exit_code, timed_out=False, duration_s=0.1, output=output)


def report(*results: CheckResult) -> CheckReport:
    return CheckReport(tree="t", results=results)


def find_fixes(
    of: CheckReport, tried: Sequence[HistoryEntry] = (), programs: tuple[str, ...] = (), rules: RuffRules = RULES
) -> tuple[Fix, ...]:
    return FixFinder(of, tried, programs).fixes(rules)


def cannot(
    of: CheckReport, tried: Sequence[HistoryEntry] = (), programs: tuple[str, ...] = (), rules: RuffRules = RULES
) -> str:
    return FixFinder(of, tried, programs).why_none(rules)


def commands(of: CheckReport, *tried: HistoryEntry, programs: tuple[str, ...] = ()) -> list[str]:
    return [command_text(fix.run) for fix in find_fixes(of, tried, programs)]


def ran(command: str, *, changed: bool = True, iteration: int = 1) -> HistoryEntry:
    return HistoryEntry(iteration=iteration, command=command, changed=changed)


def test_one_rule_a_plan_with_unused_imports_after_what_leaves_them_behind() -> None:
    assert commands(report(failed("ruff check src tests", RUFF_OUTPUT))) == [
        "ruff check --select UP035 --fix --exit-zero src tests",
        "ruff check --select F401 --fix --exit-zero src tests",
        "ruff check --select F841 --fix --unsafe-fixes --exit-zero src tests",
    ]


def test_unsafe_fix_waits_for_the_safe_one_where_ruff_does_not_say() -> None:
    of = report(failed("ruff check --output-format=github .", "::error title=ruff (F401),file=a.py::a.py:1:1: F401 x"))
    safe, unsafe = (f"ruff check --select F401 --fix {option}--exit-zero ." for option in ("", "--unsafe-fixes "))
    assert commands(of) == [safe]
    assert commands(of, ran(safe, changed=False)) == [unsafe]
    assert commands(of, ran(safe, changed=False), ran(unsafe, changed=False)) == []


def test_fix_that_worked_is_run_again_only_after_something_else_changed_the_tree() -> None:
    output = "F401 [*] `os` imported but unused\nFound 1 error.\n[*] 1 fixable with `--fix`."
    of = report(failed("ruff check .", output))
    fix = "ruff check --select F401 --fix --exit-zero ."
    assert fix not in commands(of, ran(fix))
    assert commands(of, ran(fix), ran("other"))[0] == fix
    assert fix not in commands(of, ran(fix), ran("other", changed=False))


def test_formatters_that_undo_each_other_are_stopped() -> None:
    of = report(failed("black --check .", "would reformat a.py\n1 file would be reformatted"))
    rounds = [entry for n in range(3) for entry in (ran("black ."), ran("isort ."))]
    assert commands(of, *rounds) == []


def test_rules_without_fix_are_not_tried() -> None:
    of = report(failed("ruff check .", "E722 Do not use bare `except`\n --> a.py:1:1\nFound 1 error."))
    assert commands(of) == []
    assert "ruff has no fix for E722" in cannot(of)


@pytest.mark.parametrize(
    ("run", "output", "expected"),
    [
        ("uv run ruff format --check src", "1 file would be reformatted", "uv run ruff format src"),
        ("ruff format --check --diff .", "1 file would be reformatted", "ruff format ."),
        ("black --check --line-length 100 src", "1 file would be reformatted", "black --line-length 100 src"),
        ("isort --check-only .", "ERROR: a.py Imports are incorrectly sorted", "isort ."),
        ("npx prettier --check .", "[warn] a.ts", "npx prettier --write ."),
        ("npx eslint src", "x 1 problem\n  1 error potentially fixable with `--fix`.", "npx eslint --fix src"),
        ('test -z "$(gofmt -l .)"', "", "gofmt -w ."),
        ("cargo fmt --all -- --check", "Diff in src/main.rs", "cargo fmt --all"),
        ("python -m ruff check --config x.toml --isolated a",
         F541,
         "python -m ruff check --select F541 --fix --exit-zero --config x.toml --isolated a"),
        ("cd sub && ruff check", F541,
         "ruff check --select F541 --fix --exit-zero sub"),
        ("make lint", f"ruff check src\n{F541}\nmake: *** [lint] Error 1",
         "ruff check --select F541 --fix --exit-zero src"),
    ],
)  # fmt: skip
def test_check_becomes_its_fix(run: str, output: str, expected: str) -> None:
    assert commands(report(failed(run, output)))[0] == expected


def test_eslint_problems_without_fix_are_left_to_others() -> None:
    output = "a.js\n  1:1 error no-undef\n\nx 1 problem (1 error, 0 warnings)"
    assert commands(report(failed("npx eslint .", output))) == []


@pytest.mark.parametrize(
    ("output", "code"),
    [
        ("E   ImportError: cannot import name 'Mapping' from 'collections'", "UP035"),
        ('a.py:3: SyntaxWarning: "is" with \'str\' literal. Did you mean "=="?', "F632"),
        ("E   TypeError: 'NotImplementedType' object is not callable", "F901"),
        ("E   TypeError: exceptions must derive from BaseException", "F901"),
        ("E   AttributeError: 'T' object has no attribute 'assertEquals'. Did you mean: 'assertEqual'?", "UP005"),
        ("E   AssertionError: assert [1, 2] == [2]", "B006"),
        ("E   ModuleNotFoundError: No module named 'mock'", "UP026"),
    ],
)
def test_traces_of_mechanical_bugs_point_to_a_rule(output: str, code: str) -> None:
    of = report(failed("pytest -q", f"{output}\n1 failed in 0.1s"))
    assert commands(of)[0].startswith(f"ruff check --select {code} --fix")


def test_what_points_to_nothing_is_probed_once_and_then_given_up() -> None:
    of = report(failed("pytest -q", "E   assert 1 == 2\nFAILED tests/test_a.py::test_a\n1 failed in 0.1s"))
    tried: list[HistoryEntry] = []
    while left := find_fixes(of, tried):
        assert "without naming the cause" in left[0].diagnosis
        tried.append(ran(command_text(left[0].run), changed=False, iteration=len(tried)))
    assert len(tried) == 1
    reason = cannot(of, tried)
    assert "'pytest -q'" in reason
    assert "assert 1 == 2" in reason
    assert "OPENAI_API_KEY" in reason


def test_passing_lint_saves_the_probes_that_it_covers() -> None:
    passing = judge(Check(run="ruff check ."), tree="t", exit_code=0, timed_out=False, duration_s=0.1, output="")
    of = report(failed("pytest", "E   assert 1 == 2\n1 failed in 0.1s"), passing)
    assert [command.split()[3] for command in commands(of)] == ["B006,E711,UP035"]


def test_only_allowed_programs_are_proposed_and_the_missing_one_is_named() -> None:
    of = report(failed("black --check .", "1 file would be reformatted"))
    assert commands(of, programs=("git", "pytest")) == []
    assert "needs black, which the executor is not allowed to run (allowed: git, pytest)" in cannot(
        of, (), ("git", "pytest")
    )


def test_tool_is_called_directly_where_only_its_launcher_is_forbidden() -> None:
    of = report(failed("uv run ruff format --check .", "1 file would be reformatted"))
    assert commands(of, programs=("ruff",)) == ["ruff format ."]
    assert commands(of, programs=("uv",)) == ["uv run ruff format ."]


def test_missing_program_of_a_check_is_said() -> None:
    of = report(failed("nosuchtool --check", "sh: 1: nosuchtool: not found", exit_code=127))
    assert commands(of) == []
    assert "Install the program that the check runs" in cannot(of)


@given(st.text(max_size=1_300), st.sampled_from(["ruff check .", "pytest -q", "npx eslint .", "make", "mypy ."]))
def test_reason_to_give_up_is_always_short_enough_to_be_shown(output: str, run: str) -> None:
    of = report(failed(run, output))
    find_fixes(of)
    assert 0 < len(cannot(of, (), ("git",))) <= 400


def test_named_rules_are_what_ruff_says_they_are() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "ruff", "rule", "--all", "--output-format", "json"],
        capture_output=True,
        check=True,
        cwd=Path("/"),
    ).stdout
    rules = {rule["code"]: rule for rule in json.loads(listed) if rule.get("code")}
    without_fix = read_rules(f"warning: a launcher says something\n{listed.decode()}").without_fix
    assert {"E722", "F821"} <= without_fix
    assert without_fix.isdisjoint({*PROBES, *(bug.code for bug in known_bugs())})
    assert all("marked as unsafe" in rules[code]["explanation"] for code in NEVER_SAFE)
    assert all(bug.unsafe == (bug.code in NEVER_SAFE) for bug in known_bugs())


def test_ruff_that_cannot_be_asked_is_said_and_every_fix_is_tried() -> None:
    of = report(failed("uv run ruff check .", "E722 Do not use bare `except`"))
    assert FixFinder(of).ruff == ("uv", "run", "ruff")
    rules = RuffRules(problem="'uv run ruff --version' failed: no such file")
    tried: list[HistoryEntry] = []
    while left := find_fixes(of, tried, rules=rules):
        tried.append(ran(command_text(left[0].run), changed=False))
    assert len(tried) == 2, "the safe fix, then the unsafe one"
    assert "can fix: 'uv run ruff --version' failed" in cannot(of, tried, rules=rules)


@pytest.mark.parametrize("listed", ["", "not json", "[1]", '{"code": "E722"}', '[{"name": "x"}]'])
def test_what_is_not_a_list_of_rules_is_refused(listed: str) -> None:
    with pytest.raises(ValueError):
        read_rules(listed)
