"""The eight small programs: red before, green by their scripted calls."""

from pathlib import Path

import pytest

from tests.support.coder_programs import CHECK, PROGRAMS, Program
from tests.support.coder_tools import bench


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_the_calls_of_a_program_fix_its_bug(tmp_path: Path, program: Program) -> None:
    made = bench(tmp_path, program.files, checks=(CHECK,))
    assert made.use("run_tests", {"tests": None}).failed
    results = [(call, made.use(*call)) for turn in program.turns for call in turn]
    tests = [result for (tool, _), result in results if tool == "run_tests"]
    assert not tests[-1].failed, made.text(tests[-1])
    assert results[-1][1].finished
    changed = {path: (made.root / path).read_text() for path in program.files if "test" in path}
    assert changed == {path: text for path, text in program.files.items() if "test" in path}
