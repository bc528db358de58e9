"""Checks whose exit status is that of the wrong command."""

import subprocess
from pathlib import Path

import pytest

from tightloop.episode.check import Check
from tightloop.episode.exit_status import check_argv, masked_by, refuse_masked
from tightloop.errors import InvalidRequestError

PASS, FAIL = 0, 1
PIPES = [
    ("false | tee log", FAIL),
    ("true | tee log", PASS),
    ("true | false", FAIL),
    ("false | cat | cat", FAIL),
    ("cat missing | wc -l", FAIL),
    ("false |& cat", FAIL),
    ("(false | cat)", FAIL),
    # `set -e` holds within the parts of a pipe.
    ("set -e; { false; true; } | cat", FAIL),
    ("f() { false; true; }; set -e; f | cat", FAIL),
    ("set -e; yes | head -1; true", PASS),
    ("time false | cat", FAIL),
    ("A=1 env | grep -q A=1", PASS),
    ("! false | true", PASS),
    # `grep -q` and `head` end early, which kills the command before the pipe with SIGPIPE.
    ("yes | grep -q y", PASS),
    ("yes | head -1", PASS),
    ("cd . && yes | head -1 && test -d .", PASS),
    ("yes | head -1 && false", FAIL),
    ("while :; do echo y; done | head -1", PASS),
    ("if yes | grep -q y; then exit 1; fi", FAIL),
    ('x=$(yes | head -1); test "$x" = y', PASS),
    ("cat <<END | grep -q two\none\ntwo\nEND\n", PASS),
    ("cat <<END | grep -q two\none\nEND\n", FAIL),
    ("printf 'a|b' | grep -q '|'", PASS),
]


@pytest.mark.parametrize(("script", "status"), PIPES)
def test_a_pipe_fails_with_any_of_its_commands_but_not_by_sigpipe(script: str, status: int, tmp_path: Path) -> None:
    argv = check_argv(script)
    assert argv[0] == "/bin/bash"
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, timeout=30, check=False)
    assert (done.returncode != 0) == bool(status), done.stderr


@pytest.mark.parametrize("script", ["pytest -q", "a || b", "grep '|' x", "test -f a; test -f b", "echo 'a | b'"])
def test_a_check_without_a_pipe_runs_as_it_is_written(script: str) -> None:
    assert check_argv(script) == ("/bin/sh", "-c", script)


@pytest.mark.parametrize(
    ("script", "end"),
    [
        ("pytest -q || true", "|| true"),
        ("pytest; true", "; true"),
        ("pytest -q\ntrue\n", "; true"),
        ("(pytest || true)", "|| true"),
        ("{ pytest; :; }", "; :"),
        ("pytest -q || exit 0", "|| exit 0"),
        ("pytest || echo failed", "|| echo failed"),
        ("pytest; echo done  # always", "; echo done"),
        ("pytest | tee log || true", "|| true"),
        ("cd a && (pytest; true)", "; true"),
        ("pytest &", "pytest &"),
    ],
)
def test_a_check_that_cannot_fail_is_refused(script: str, end: str) -> None:
    assert masked_by(script) == end
    with pytest.raises(InvalidRequestError, match="always passes, because it ends with"):
        refuse_masked([Check(run="pytest -q"), Check(run=script)])


@pytest.mark.parametrize(
    "script",
    [
        "true",
        "pytest -q",
        "pytest && echo ok",
        "set -e\npytest\necho ok",
        "if grep -q TODO x; then exit 1; fi; true",
        "pytest || false",
        "test -f x || exit 1",
        "a || b",
        "sh -c 'pytest; true'",
        "pytest -q & wait $!",
        "echo ok",
        "! grep -rn TODO src",
    ],
)
def test_a_check_that_can_fail_is_not_refused(script: str) -> None:
    assert masked_by(script) == ""
    refuse_masked([Check(run=script)])
