"""Our reading of ignore rules is git's, and no rule takes long."""

import re
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from activities.workspace.store.rules import RuleList, Rules
from tests.support.git_sample import make_repository

ATOMS = (
    "a",
    "b",
    "*",
    "**",
    "?",
    "[ab]",
    "[!a]",
    "a*",
    "*b",
    "*a*b",
    "\\a",
    "\\*",
    "[a-c]x",
    "[[:alpha:]]",
    "[",
    "é",
    " ",
)
NAMES = st.sampled_from(("a", "b", "ab", "aab", "ax", "bx", "é", "*", "[", "a b", "a ", "!a", "#a", "acb"))
PARTS = st.lists(st.sampled_from(ATOMS), min_size=1, max_size=2).map("".join)
RULES = st.builds(
    lambda mark, parts, end: mark + "/".join(parts) + end,
    st.sampled_from(("", "", "", "!", "/", "!/", "#", "\\!")),
    st.lists(PARTS, min_size=1, max_size=3),
    st.sampled_from(("", "", "/", " ", "\\ ", "\r")),
)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("rules") / "repo")


def ignored(rules: Rules, path: str) -> bool:
    parts = path.split("/")
    return any(
        rules.ignores("/".join(parts[:depth]), parts[depth - 1], folder=depth < len(parts))
        for depth in range(1, len(parts) + 1)
    )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(RULES, min_size=1, max_size=4), paths=st.lists(PATHS, min_size=1, max_size=20, unique=True))
def test_same_paths_are_ignored_as_by_git(root: Path, lines: list[str], paths: list[str]) -> None:
    # Git takes `a**/` for `a` and any number of folders, which its manual does not say: we do not.
    lines = [line for line in lines if not re.search(r"[^/*!]\*\*|\*\*[^/*]", line)]
    content = "\n".join(lines).encode()
    (root / ".gitignore").write_bytes(content)
    asked = subprocess.run(
        ("git", "-C", str(root), "check-ignore", "--no-index", "-z", "--stdin"),
        input=b"".join(path.encode() + b"\0" for path in paths), capture_output=True, check=False,
    )  # fmt: skip
    assert asked.returncode in (0, 1), asked.stderr
    rules = Rules([RuleList("", content)])
    assert {path for path in paths if ignored(rules, path)} == set(asked.stdout.decode().split("\0")) - {""}


@pytest.mark.parametrize("rule", ["*a" * 60, "**/*a/" * 40 + "b", "/".join(["**/a"] * 40) + "/b", "[a-z]*" * 80 + "Q"])
def test_rule_that_is_made_to_take_long_does_not(rule: str) -> None:
    rules = RuleList("", rule.encode())
    begun = time.process_time()
    for path in ("a" * 255 + "!", "/".join(["a" * 100] * 20), "/".join("a" * 1000)):
        rules.verdict(path, path.rpartition("/")[2], folder=False)
    assert time.process_time() - begun < 5
