"""Runners of tests that the proof observes besides those of Python: what they tell becomes a report.

`tests/data/runners` holds what real runners said of a file with a failing, a passing and a skipped test. Runners
themselves are played here by programs in the same place, because they are not installed with the tests.
"""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from shutil import which

import pytest

from activities.checks.activity import CheckView
from activities.proof.checkouts import LocalCheckouts
from tests.support.proving import has_node
from tightloop.episode.check import Check
from tightloop.episode.proof.report import FAILED, PASSED, SKIPPED, Observation

RECORDED = Path(__file__).parents[1] / "data" / "runners"
Observe = Callable[[str], tuple[Observation, str]]


@pytest.fixture
def observe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Observe:
    """Run a command under observation in `tmp_path / "project"`, and return what was seen and printed."""
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "home"))
    root = tmp_path / "project"
    root.mkdir()

    def run(command: str) -> tuple[Observation, str]:
        with LocalCheckouts().proof_folder(root) as room:
            watched = room.watch(Check(run=command), CheckView(), root)
            environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", **watched.view.environment}
            done = subprocess.run(
                ["sh", "-c", watched.check.run],
                cwd=root, env=environment, capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            return watched.observation(), done.stdout + done.stderr

    return run


@pytest.fixture
def go(observe: Observe, tmp_path: Path) -> Callable[[str], tuple[Observation, str]]:
    """Run a shell script in the place of a test program that `go test` has built."""

    def run(script: str) -> tuple[Observation, str]:
        program = tmp_path / "project" / "calc.test"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return observe('${GOFLAGS#-exec=} ./calc.test -test.timeout=10m; echo "ended with $?"')

    return run


def test_tests_of_go_are_told_by_name(go: Callable[[str], tuple[Observation, str]], tmp_path: Path) -> None:
    seen, said = go(f'echo "$@" >&2; cat {RECORDED}/go-1.19.8-verbose.txt; exit 1')
    place = tmp_path / "project"
    assert seen.results["go"] == {
        f"{place} > TestAdd": FAILED,
        f"{place} > TestMul": PASSED,
        f'{place} > TestMul/small_"q"_x': PASSED,
        f"{place} > TestLater": SKIPPED,
    }
    assert seen.complete["go"]
    assert "-test.timeout=10m -test.v=true" in said
    assert "--- FAIL: TestAdd" in said
    assert "ended with 1" in said


def test_a_go_program_that_ends_before_its_tests_has_no_report(go: Callable[[str], tuple[Observation, str]]) -> None:
    """`func init() { os.Exit(0) }`: `go test` says ok."""
    seen, said = go("exit 0")
    assert seen.checkers == ("go",)
    assert not seen.complete["go"]
    assert "ended with 0" in said


def test_flags_of_go_in_the_command_stay(observe: Observe) -> None:
    _, said = observe('GOFLAGS=-mod=vendor; GOFLAGS="-a -b"; echo $GOFLAGS')
    assert said.split()[1:] == ["-a", "-b"]
    assert said.startswith("-exec=/")


def test_what_go_run_has_built_runs_as_it_is(observe: Observe) -> None:
    seen, said = observe("${GOFLAGS#-exec=} echo plain")
    assert (seen.checkers, said) == ((), "plain\n")


CARGO = """#!/bin/sh
echo "$@" >&2
cat <<'END'

running 3 tests
test tests::adds ... FAILED
test tests::refuses - should panic ... ok
test tests::later ... ignored, "slow"

END
"""
CARGO_END = "echo 'test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out'\nexit 101\n"


@pytest.fixture
def cargo(observe: Observe, tmp_path: Path) -> Callable[[str], tuple[Observation, str]]:
    """Run a shell script in the place of a test program that `cargo test` has built."""

    def run(script: str) -> tuple[Observation, str]:
        program = tmp_path / "project" / "target" / "debug" / "deps" / "calc-0123456789abcdef"
        program.parent.mkdir(parents=True)
        program.write_text(script)
        program.chmod(0o755)
        return observe(f'$CARGO_TARGET_AARCH64_APPLE_DARWIN_RUNNER {program} --quiet; echo "ended with $?"')

    return run


def test_tests_of_cargo_are_told_by_name(cargo: Callable[[str], tuple[Observation, str]]) -> None:
    seen, said = cargo(CARGO + CARGO_END)
    names = {"calc > tests::adds": FAILED, "calc > tests::refuses": PASSED, "calc > tests::later": SKIPPED}
    assert (seen.results["cargo"], seen.complete["cargo"]) == (names, True)
    assert "--quiet --format=pretty" in said
    assert "ended with 101" in said


def test_a_program_of_cargo_that_ends_among_its_tests_has_no_report(
    cargo: Callable[[str], tuple[Observation, str]],
) -> None:
    seen, said = cargo(CARGO)
    assert not seen.complete["cargo"]
    assert "ended with 0" in said


def test_a_program_of_cargo_with_tests_of_its_own_kind_is_left_alone(
    cargo: Callable[[str], tuple[Observation, str]],
) -> None:
    seen, said = cargo("#!/bin/sh\necho all good\n")
    assert (seen.checkers, said) == ((), "all good\nended with 0\n")


RUBY_TEST = """require 'minitest/autorun'
require_relative 'calc'
class CalcTest < Minitest::Test
  def test_add = assert_equal(4, add(2, 2))
  def test_later = skip
end
"""


@pytest.mark.skipif(which("ruby") is None, reason="ruby is needed")
def test_a_ruby_that_leaves_before_its_end_is_told(observe: Observe, tmp_path: Path) -> None:
    root = tmp_path / "project"
    (root / "calc_test.rb").write_text(RUBY_TEST)
    (root / "calc.rb").write_text("def add(a, b) = a + b\n")
    seen, said = observe("RUBYOPT=-W0 ruby calc_test.rb")
    assert seen.results["minitest"] == {"CalcTest#test_add": PASSED, "CalcTest#test_later": SKIPPED}, said
    assert (seen.complete["minitest"], seen.cut_short, seen.patched) == (True, (), ())
    patch = "module Minitest::Assertions\n  def assert_equal(*) = true\nend\nat_exit { exit!(0) }\n"
    (root / "calc.rb").write_text(f"def add(a, b) = a - b\n{patch}")
    seen, _ = observe("ruby calc_test.rb")
    assert "ruby calc_test.rb" in seen.cut_short or not seen.complete.get("minitest")


@pytest.mark.skipif(which("phpunit") is None, reason="phpunit is needed")
def test_tests_of_phpunit_are_told_by_name(observe: Observe, tmp_path: Path) -> None:
    body = "$this->assertSame(4, 2 + 2); } function testLater() { $this->markTestSkipped(); } function testEnd() { END"
    text = f"<?php class CalcTest extends PHPUnit\\Framework\\TestCase {{ function testAdd() {{ {body} }} }}\n"
    (tmp_path / "project" / "CalcTest.php").write_text(text.replace("END", "$this->assertTrue(true);"))
    seen, said = observe("phpunit --do-not-cache-result CalcTest.php")
    names = {"CalcTest::testAdd": PASSED, "CalcTest::testLater": SKIPPED, "CalcTest::testEnd": PASSED}
    assert (seen.results["phpunit"], seen.complete["phpunit"]) == (names, True), said
    (tmp_path / "project" / "CalcTest.php").write_text(text.replace("END", "exit(0);"))
    seen, _ = observe("phpunit --do-not-cache-result CalcTest.php")
    assert not seen.complete["phpunit"]


NODE = pytest.mark.skipif(not has_node(), reason="node 20 is needed")
PLACES = {"jest": "jest/bin/jest.js", "mocha": "mocha/bin/mocha.js", "vitest": "vitest/vitest.mjs"}


def runner(root: Path, name: str, code: str) -> str:
    """Install a program in the place of a runner; return the command that starts it as its package does."""
    program = root / "node_modules" / PLACES[name]
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/usr/bin/env node\n{code}")
    program.chmod(0o755)
    link = root / "node_modules" / ".bin" / name
    link.parent.mkdir()
    link.symlink_to(program)
    return f"node_modules/.bin/{name}"


LOAD = "const load = name => process.argv.find(word => word.startsWith(name)).slice(name.length);\n"
PLAYED = {
    "jest": f"""{LOAD}
const results = JSON.parse(require('fs').readFileSync('results.json'));
require(load('--testResultsProcessor='))(results);
""",
    "mocha": f"""{LOAD}
const {{ mochaHooks }} = require(load('--require='));
const ran = (title, state) => mochaHooks.afterEach.call(
  {{ currentTest: {{ file: 'test/calc.js', titlePath: () => ['calc', title], state, isPending: () => !state }} }});
ran('adds', 'failed'); ran('multiplies', 'passed'); ran('later', undefined);
mochaHooks.afterAll();
""",
    "vitest": """
const file = process.argv.filter(word => word.startsWith('--reporter=')).pop().slice('--reporter='.length);
const { default: Observer } = await import(file);
const test = (name, state) => ({ fullName: `calc > ${name}`, result: () => ({ state }) });
const tests = [test('adds', 'failed'), test('multiplies', 'passed'), test('later', 'skipped')];
const observer = new Observer();
observer.onInit();
observer.onTestRunEnd([{ moduleId: 'test/calc.test.mjs', children: { allTests: () => tests } }]);
""",
}


@NODE
@pytest.mark.parametrize("name", PLACES)
def test_runners_of_node_get_the_option_by_which_they_tell(observe: Observe, tmp_path: Path, name: str) -> None:
    root = tmp_path / "project"
    (root / "results.json").write_bytes((RECORDED / "jest-29.7.0-results.json").read_bytes())
    command = runner(root, name, PLAYED[name])
    for started in (command, f"NODE_OPTIONS=--no-warnings {command}", f"NODE_OPTIONS='--no-warnings' {command} run"):
        seen, said = observe(started)
        assert seen.complete == {name: True}, said
        told = sorted((test.rpartition(" ")[2], result) for test, result in seen.results[name].items())
        assert told == [("adds", FAILED), ("later", SKIPPED), ("multiplies", PASSED)]


@NODE
def test_a_parallel_mocha_whose_first_process_runs_no_test_has_a_whole_report(observe: Observe, tmp_path: Path) -> None:
    code = f"""{LOAD}
const hooks = load('--require=');
require('child_process').fork(__dirname + '/worker.js', [hooks]).on('exit', require(hooks).mochaGlobalTeardown);
"""
    command = runner(tmp_path / "project", "mocha", code)
    played = PLAYED["mocha"].replace("require(load('--require='))", "require(process.argv[2])").replace(LOAD, "")
    (tmp_path / "project/node_modules/mocha/bin/worker.js").write_text(played)
    seen, said = observe(command)
    assert seen.complete == {"mocha": True}, said
    assert len(seen.results["mocha"]) == 3


@NODE
def test_a_runner_that_a_module_ends_has_no_report(observe: Observe, tmp_path: Path) -> None:
    command = runner(tmp_path / "project", "jest", "process.exit(0);\n")
    seen, _ = observe(command)
    assert seen.complete == {"jest": False}


@NODE
def test_other_programs_of_node_and_other_work_of_a_runner_are_left_alone(observe: Observe, tmp_path: Path) -> None:
    command = runner(tmp_path / "project", "mocha", "console.log(JSON.stringify(process.argv.slice(2)));\n")
    seen, said = observe(f"{command} --version && node -p 'JSON.stringify(process.argv.slice(1))'")
    assert seen.checkers == ()
    assert [json.loads(line) for line in said.splitlines()] == [["--version"], []]
