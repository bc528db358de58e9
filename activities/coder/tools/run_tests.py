"""The tool `run_tests`."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from activities.coder.calls.arguments import schema
from activities.coder.calls.equipment import Equipment
from activities.coder.calls.running import run_shell
from activities.coder.port import ProgramStart, ToolContext, ToolError, ToolResult, ToolSpec
from tightloop.safety.drift import DriftCause

LONGEST_S = 600.0
TESTS_LIMIT = 50
# The words before the arguments, such as `python -m pytest` or `.venv/bin/pytest`.
_PYTEST = re.compile(r"\s*((?:[\w./-]+ +){0,4}?(?:[\w./-]*/)?pytest)(?![\w/.-])")


class RunTests:
    """Runs the definition of done, or some tests."""

    reads = False
    runs = True
    spec = ToolSpec(
        "run_tests",
        "Run the checks that decide whether the task is done, or only some tests. What they write is undone.",
        schema(
            tests={
                "type": ["array", "null"],
                "items": {"type": "string", "minLength": 1},
                "maxItems": TESTS_LIMIT,
                "description": "Tests as pytest names them, such as tests/test_a.py::test_b; null: all checks",
            },
        ),
    )

    def __init__(self, equipment: Equipment) -> None:
        self._runner = equipment.runner

    def use(self, arguments: Mapping[str, Any], context: ToolContext) -> ProgramStart:
        """Choose the commands; see the port."""
        if not context.checks:
            raise ToolError("the task has no checks. Run what fits by run_command")
        tests = arguments["tests"]
        commands = (_pytest(context.checks, tests),) if tests else context.checks
        return ProgramStart(run=lambda: self._run(commands, context))

    def _run(self, commands: Sequence[str], context: ToolContext) -> ToolResult:
        before = context.tree.snapshot() if context.tree is not None else ""
        results = []
        try:
            for command in commands:
                results.append((command, run_shell(self._runner, command, LONGEST_S, context)))
                if context.cancelled():
                    break
        finally:
            # As when the definition of done is verified: reports and caches do not belong to the change.
            if context.tree is not None:
                context.tree.ensure(before, DriftCause.DURING_CHECKS)
        parts = [f"{'FAILED' if result.failed else 'passed'}: {command}\n{result.text}" for command, result in results]
        failed = sum(result.failed for _, result in results)
        heading = "all passed" if not failed else f"{failed} of {len(results)} failed"
        return ToolResult("\n\n".join((heading, *parts)), failed=bool(failed))


def _pytest(checks: Sequence[str], tests: Sequence[str]) -> str:
    """Return the command for single tests: the words of a check up to `pytest`, and the tests.

    Raises:
        ToolError: no check runs pytest, or a test is named like an option.
    """
    options = [test for test in tests if test.startswith("-")]
    if options:
        raise ToolError(f"{options[0]!r} is not the name of a test. Options are given by run_command")
    for check in checks:
        if found := _PYTEST.match(check):
            return f"{found[1]} -q {shlex.join(tests)}"
    raise ToolError(
        f"single tests are run by pytest, and no check is ({'; '.join(checks)[:300]}). Use null or run_command"
    )


def make(equipment: Equipment) -> RunTests:
    """Return the tool."""
    return RunTests(equipment)
