"""The coder's tools."""

import hashlib
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from activities.checks.runner import CheckRunner
from activities.coder.calls import judge_command, optional, run_shell, schema, text
from activities.coder.files import (
    Query,
    check_placeholders,
    check_writable,
    find_files,
    format_path,
    has_placeholder,
    is_binary,
    line_ends_of,
    relative,
    search_files,
)
from activities.coder.files import read_file as read_content
from activities.coder.port import FileChange, ProgramStart, Tool, ToolContext, ToolError, ToolResult, ToolSpec
from tightloop.coder.model import RESULT, cut, number_lines
from tightloop.coder.patching import PatchFailure, patch
from tightloop.executor.asking import IMPOSSIBLE, LEFT_RED, clarifying_question, impossible_question
from tightloop.run.question import TEXT_CHARACTERS, TITLE_CHARACTERS
from tightloop.safety.drift import DriftCause
from tightloop.safety.rubric import Rubric
from tightloop.value import format_count

Arguments = Mapping[str, Any]
Use = Callable[[Arguments, ToolContext], ToolResult | FileChange | ProgramStart]

FINGERPRINT_DIGITS = 16
PATH = text("Path relative to the project root")


def tool(
    description: str, *, reads: bool = False, runs: bool = False, **arguments: dict[str, Any]
) -> Callable[[Use], Tool]:
    """Return a decorator that turns a function into a tool.

    The tool has the name of the function. `arguments` are the schemas of its arguments.
    """
    return lambda use: Tool(ToolSpec(use.__name__, description, schema(**arguments)), use, reads, runs)


@tool(
    "Ask a person for information that is in neither the files nor the task. Work pauses until the person answers, "
    "so ask rarely.",
    question={"type": "string", "description": "One line", "minLength": 1, "maxLength": TITLE_CHARACTERS},
    detail=optional("string", "What the person needs to know to answer", maxLength=TEXT_CHARACTERS),
)
def ask_person(arguments: Arguments, context: ToolContext) -> ToolResult:
    """Return a person's answer. If there is no answer yet, return the question."""
    question = " ".join(arguments["question"].split())
    # Derived from the text, so that the same question finds its answer in a later delivery, too.
    fingerprint = hashlib.sha256(question.encode()).hexdigest()[:FINGERPRINT_DIGITS]
    grant = next((grant for grant in context.grants if grant.fingerprint == fingerprint), None)
    if grant is None:
        clarification = clarifying_question(question, arguments["detail"] or "", fingerprint)
        return ToolResult(f"waiting for a person: {question}", question=clarification)
    if not grant.allowed:
        return ToolResult(f"the person left the decision to you{f': {grant.text}' if grant.text else ''}")
    if not grant.text:
        return ToolResult("the person's answer was empty. Use your own judgment")
    return ToolResult(f"the person answered: {grant.text}")


def _file_to_change(arguments: Arguments, context: ToolContext) -> tuple[str, bytes | None]:
    """Return the path argument and the content of the file. The content is None if the file does not exist."""
    path = relative(context.root, arguments["path"])
    check_writable(path)
    return path, read_content(context.root, path)


@tool(
    "Write a whole file. Missing folders are created.",
    path=PATH,
    content=text("The whole content"),
    overwrite=optional("boolean", "true: replace an existing file"),
)
def create_file(arguments: Arguments, context: ToolContext) -> FileChange:
    path, before = _file_to_change(arguments, context)
    if before is not None and not arguments["overwrite"]:
        lines = format_count(before.count(b"\n"), "line")
        raise ToolError(f"{format_path(path)} already exists and has {lines}. Use edit_file, or set overwrite to true")
    after = line_ends_of(before, arguments["content"]).encode()
    check_placeholders(before or b"", after)
    what = "written" if before is None else "replaced"
    summary = f"{format_path(path)} {what}, with {format_count(len(after.splitlines()), 'line')}"
    is_script = before is None and after.startswith(b"#!")
    return FileChange(path=path, before=before, after=after, text=summary, executable=is_script)


@tool("Remove a file.", path=PATH)
def delete_file(arguments: Arguments, context: ToolContext) -> FileChange:
    path, before = _file_to_change(arguments, context)
    if before is None:
        raise ToolError(f"{format_path(path)} does not exist, so nothing was removed")
    return FileChange(path=path, before=before, after=None, text=f"{format_path(path)} removed")


CONTEXT_LINES = 2
EDITED_LINES = 24


@tool(
    "Replace text that occurs exactly once in a file. Quote enough whole lines to make the match unique.",
    path=PATH,
    old=text("Text to replace, without line numbers"),
    new=text("Replacement text (empty: remove the old text)"),
)
def edit_file(arguments: Arguments, context: ToolContext) -> FileChange:
    """Prepare an edit to a file. The result shows the surrounding lines."""
    path, before = _file_to_change(arguments, context)
    if before is None:
        raise ToolError(f"{format_path(path)} does not exist. Use create_file for a new file")
    if is_binary(before):
        raise ToolError(f"{format_path(path)} is a binary file and cannot be edited as text")
    # surrogateescape preserves bytes that are not UTF-8.
    result = patch(before.decode("utf-8", "surrogateescape"), arguments["old"], arguments["new"])
    if isinstance(result, PatchFailure):
        advice = "\nText in brackets such as [secret:...] is not in the file. Omit lines with such text from old"
        raise ToolError(
            f"{format_path(path)} was not changed: {result.reason}{advice if has_placeholder(arguments['old']) else ''}"
        )
    after = result.text.encode("utf-8", "surrogateescape")
    check_placeholders(before, after)
    lines = after.decode("utf-8", "replace").replace("\r\n", "\n").split("\n")
    first = max(result.line - CONTEXT_LINES, 1)
    end = min(result.line + result.lines - 1 + CONTEXT_LINES, first + EDITED_LINES - 1)
    how = f" (found {result.how})" if result.how else ""
    summary = f"{format_path(path)} changed{how}. The lines are now:\n{number_lines(lines[first - 1 : end], first)}"
    return FileChange(path=path, before=before, after=after, text=summary)


@tool(
    "Report that your part is finished, and describe what you did. The report is verified.",
    reads=True,
    summary=text("What was done and what remains"),
)
def finish(arguments: Arguments, context: ToolContext) -> ToolResult:
    del context
    return ToolResult(arguments["summary"], finished=True)


@tool(
    "Stop because the task cannot be done, or because a check contradicts the task and should keep failing. A "
    "person then decides what to do. Do not work around such a check.",
    reason={"type": "string", "description": "Why, in one sentence", "minLength": 1, "maxLength": TITLE_CHARACTERS},
    left_red=optional("boolean", "true: the task is done except for a check that should keep failing"),
)
def report_impossible(arguments: Arguments, context: ToolContext) -> ToolResult:
    del context
    reason = f"{LEFT_RED if arguments['left_red'] else IMPOSSIBLE}: {' '.join(arguments['reason'].split())}"
    return ToolResult(f"waiting for a person: {reason}", question=impossible_question(reason))


SHOWN_FILES = 400


@tool(
    "List the files of the project, except files that git ignores.",
    reads=True,
    path=optional("string", "Folder, for example src (null: all folders)"),
    glob=optional("string", "Path pattern, for example **/test_*.py (null: all files)"),
)
def list_files(arguments: Arguments, context: ToolContext) -> ToolResult:
    names = find_files(context.root, arguments["path"], arguments["glob"])
    if not names:
        return ToolResult("no files")
    more = len(names) - SHOWN_FILES
    lines = [format_path(name) for name in names[:SHOWN_FILES]]
    lines += [f"[... {format_count(more, 'more file')}. Specify a path or a glob ...]"] if more > 0 else []
    return ToolResult("\n".join(lines))


DEFAULT_RESULTS = 3
RESULTS_LIMIT = 10


@tool(
    "Search this project's memory for failures, their solutions, and facts.",
    reads=True,
    query=text("An error message, or a short description of what you need"),
    limit=optional("integer", f"Null: {DEFAULT_RESULTS}", minimum=1, maximum=RESULTS_LIMIT),
)
def memory_search(arguments: Arguments, context: ToolContext) -> ToolResult:
    """Search the project memory and return the best matches first."""
    if context.memory is None:
        return ToolResult("this project has no memory. Continue without it")
    matches = context.memory.search(arguments["query"], arguments["limit"] or DEFAULT_RESULTS)
    return ToolResult("\n\n".join(matches) or "the memory contains nothing relevant")


READ_LINES = 400
SHOWN_CHARACTERS = 9_000
"""Maximum length of a response, so that results are never shortened. Reading the rest requires another call."""


@tool(
    "Read a text file with line numbers. To read an earlier result, pass its name, result:<id>.",
    reads=True,
    path=text("Path relative to the project root, or result:<id>"),
    start=optional("integer", "First line to include, 1-based (null: start of file)", minimum=1),
    end=optional("integer", "Last line (null: as many lines as fit)", minimum=1),
)
def read_file(arguments: Arguments, context: ToolContext) -> ToolResult:
    """Return numbered lines of a file or of an earlier result in the session."""
    path = str(arguments["path"])
    if path.startswith(RESULT):
        ref = context.find_result(path.removeprefix(RESULT).strip().lower())
        if ref is None:
            raise ToolError(f"{path[:80]!r} is not a result in this session. Copy the name exactly as it was shown")
        return _number_lines(path, context.store.get(ref), arguments)
    path = relative(context.root, path)
    content = read_content(context.root, path)
    if content is None:
        raise ToolError(f"{format_path(path)} does not exist. Find the file with list_files or search")
    if is_binary(content):
        raise ToolError(f"{format_path(path)} is a binary file ({len(content):,} bytes) and cannot be shown as text")
    return _number_lines(format_path(path), content, arguments)


def _number_lines(name: str, content: bytes, arguments: Arguments) -> ToolResult:
    text = content.decode("utf-8", "replace")
    plain = text.replace("\r\n", "\n")
    if not plain:
        return ToolResult(f"{name} is empty")
    lines = plain.removesuffix("\n").split("\n")
    first, last = arguments["start"] or 1, arguments["end"] or len(lines)
    if first > len(lines) or last < first:
        raise ToolError(f"cannot read lines {first} to {last}: {name} has {format_count(len(lines), 'line')}")
    excerpt = lines[first - 1 : min(last, first + READ_LINES - 1)]
    # As many lines as fit into an answer, at least one.
    room = SHOWN_CHARACTERS
    for number, line in enumerate(excerpt):
        room -= len(cut(line)) + 8
        if room < 0:
            excerpt = excerpt[: max(number, 1)]
            break
    end = first + len(excerpt) - 1
    marks = [f"lines {first} to {end} of {len(lines)}"]
    marks += ["CRLF line endings"] if "\r\n" in text else []
    marks += ["no line ending at the end of the file"] if not plain.endswith("\n") else []
    rest = f"\n[continue with start={end + 1}]" if end < min(last, len(lines)) else ""
    return ToolResult(f"{name}: {', '.join(marks)}\n{number_lines(excerpt, first)}{rest}")


KEY_CHARACTERS = 120
NOTE_CHARACTERS = 2_000


@tool(
    "Save a fact about this project for later work, for example how to run its tests.",
    key={"type": "string", "description": "A short name", "minLength": 1, "maxLength": KEY_CHARACTERS},
    text={"type": "string", "description": "The fact", "minLength": 1, "maxLength": NOTE_CHARACTERS},
)
def remember(arguments: Arguments, context: ToolContext) -> ToolResult:
    """Store a fact in the project memory. Idempotent."""
    if context.memory is None:
        return ToolResult("nothing was saved because this project has no memory. Continue without the memory")
    context.memory.remember(arguments["key"], arguments["text"])
    return ToolResult(f"saved as {arguments['key']!r}")


@tool(
    "Search the text files of the project line by line with a regular expression.",
    reads=True,
    pattern=text("Regular expression in ripgrep syntax"),
    path=optional("string", "Folder or file, for example src (null: all files)"),
    glob=optional("string", "Path pattern, for example **/*.py (null: all files)"),
    literal=optional("boolean", "true: treat the pattern as plain text"),
    ignore_case=optional("boolean", "true: ignore case"),
    context=optional("integer", "Lines shown around each match (null: 0)", minimum=0, maximum=10),
)
def search(arguments: Arguments, context: ToolContext) -> ToolResult:
    query = Query(
        pattern=arguments["pattern"],
        literal=bool(arguments["literal"]),
        ignore_case=bool(arguments["ignore_case"]),
        context=arguments["context"] or 0,
    )
    names = find_files(context.root, arguments["path"], arguments["glob"])
    return ToolResult(search_files(context.root, names, query, cancelled=context.cancelled))


LONGEST_S = 600
USUAL_S = 120
TESTS_LIMIT = 50
# The words before the arguments, such as `python -m pytest` or `.venv/bin/pytest`.
_PYTEST = re.compile(r"\s*((?:[\w./-]+ +){0,4}?(?:[\w./-]*/)?pytest)(?![\w/.-])")


def make_tools(runner: CheckRunner, rubric: Rubric = Rubric()) -> tuple[Tool, ...]:
    """Create all tools that the coder can use, sorted by name.

    Args:
        runner: runs commands in the sandbox.
        rubric: determines which command rules are disabled.
    """

    @tool(
        "Run a command with /bin/sh in the project root, in a sandbox without network access. Processes that it leaves "
        "in the background are terminated.",
        runs=True,
        command=text("Shell command"),
        timeout_s=optional("integer", f"Null: {USUAL_S}", minimum=1, maximum=LONGEST_S),
    )
    def run_command(arguments: Arguments, context: ToolContext) -> ToolResult | ProgramStart:
        command, timeout_s = arguments["command"], float(arguments["timeout_s"] or USUAL_S)
        refusal = judge_command(command, rubric, context.grants)
        return refusal or ProgramStart(run=lambda: run_shell(runner, command, timeout_s, context))

    @tool(
        "Run the checks that decide whether the task is done, or only specific tests. File changes made by the checks "
        "are undone.",
        runs=True,
        tests={
            "type": ["array", "null"],
            "items": {"type": "string", "minLength": 1},
            "maxItems": TESTS_LIMIT,
            "description": "Pytest names of tests, for example tests/test_a.py::test_b (null: all checks)",
        },
    )
    def run_tests(arguments: Arguments, context: ToolContext) -> ProgramStart:
        if not context.checks:
            raise ToolError("the task has no checks. Run suitable commands with run_command")
        commands = _commands_for(arguments["tests"] or (), context.checks)
        return ProgramStart(run=lambda: _run_checks(runner, commands, context))

    reading = (list_files, memory_search, read_file, remember)
    programs = (report_impossible, run_command, run_tests)
    return (ask_person, create_file, delete_file, edit_file, finish, *reading, *programs, search)


def _commands_for(tests: tuple[str, ...], checks: tuple[str, ...]) -> tuple[str, ...]:
    """Return the commands that run the given tests, or the checks if no tests are given.

    The tests are run with the pytest command of one of the checks.

    Raises:
        ToolError: no check runs pytest, or a test name looks like an option.
    """
    if not tests:
        return checks
    # Options such as `-p` load code, and others change what a green run means.
    options = [test for test in tests if test.startswith("-")]
    if options:
        raise ToolError(f"{options[0]!r} is not a test name. To pass options, use run_command")
    for check in checks:
        if match := _PYTEST.match(check):
            # The check's own pytest command, which runs in the right environment.
            return (f"{match[1]} -q {shlex.join(tests)}",)
    raise ToolError(
        f"cannot run individual tests because no check runs pytest ({'; '.join(checks)[:300]}). Pass null to run "
        "all checks, or use run_command"
    )


def _run_checks(runner: CheckRunner, commands: tuple[str, ...], context: ToolContext) -> ToolResult:
    before = context.tree.snapshot() if context.tree is not None else ""
    results = []
    try:
        for command in commands:
            results.append((command, run_shell(runner, command, float(LONGEST_S), context)))
            if context.cancelled():
                break
    finally:
        # As in the verification: reports and caches are not part of the change.
        if context.tree is not None:
            context.tree.ensure(before, DriftCause.DURING_CHECKS)
    parts = [f"{'FAILED' if result.failed else 'passed'}: {command}\n{result.text}" for command, result in results]
    failed = sum(result.failed for _, result in results)
    heading = "all passed" if not failed else f"{failed} of {len(results)} failed"
    return ToolResult("\n\n".join((heading, *parts)), failed=bool(failed))
