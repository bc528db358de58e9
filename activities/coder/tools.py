"""The coder's tools."""

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from activities.coder.calls import Equipment, judge_command, optional, run_shell, schema, text
from activities.coder.files import (
    Query,
    check_placeholders,
    check_writable,
    has_placeholder,
    is_binary,
    line_ends_of,
    listed_files,
    read_file,
    relative,
    search_files,
    shown,
)
from activities.coder.port import FileChange, ProgramStart, Tool, ToolContext, ToolError, ToolResult, ToolSpec
from tightloop.coder.model import RESULT
from tightloop.coder.patching import Miss, Patched, patch
from tightloop.coder.role import cut, numbered
from tightloop.executor.asking import clarifying_question
from tightloop.question import TEXT_CHARACTERS, TITLE_CHARACTERS
from tightloop.safety.drift import DriftCause
from tightloop.value import counted

FINGERPRINT_DIGITS = 16


class AskPerson:
    """Asks a person something that only a person can know."""

    spec = ToolSpec(
        "ask_person",
        "Ask a person what neither the files nor the task tell. The work waits for the answer: ask seldom.",
        schema(
            question={"type": "string", "description": "One line", "minLength": 1, "maxLength": TITLE_CHARACTERS},
            detail=optional("string", "What a person has to know for the answer", maxLength=TEXT_CHARACTERS),
        ),
    )
    reads = False
    runs = False

    def use(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Return the answer, or the question where nobody has answered it yet; see the port."""
        question = " ".join(arguments["question"].split())
        fingerprint = hashlib.sha256(question.encode()).hexdigest()[:FINGERPRINT_DIGITS]
        for grant in context.grants:
            if grant.fingerprint == fingerprint:
                return ToolResult(_answer(grant.text, allowed=grant.allowed))
        asked = clarifying_question(question, arguments["detail"] or "", fingerprint)
        return ToolResult(f"waits for a person: {question}", question=asked)


def _answer(text: str, *, allowed: bool) -> str:
    if not allowed:
        return f"the person leaves it to you{f': {text}' if text else ''}"
    return f"the person answers: {text}" if text else "the person has answered without a text: decide by yourself"


class CreateFile:
    """Writes a whole file."""

    spec = ToolSpec(
        "create_file",
        "Write a whole file. Folders that are missing are made.",
        schema(
            path=text("Path below the root of the project"),
            content=text("The whole content"),
            overwrite=optional("boolean", "true: replace the file that is there"),
        ),
    )
    reads = False
    runs = False

    def use(self, arguments: Mapping[str, Any], context: ToolContext) -> FileChange:
        """Prepare the new file; see the port."""
        path = relative(context.root, arguments["path"])
        check_writable(path)
        before = read_file(context.root, path)
        if before is not None and not arguments["overwrite"]:
            lines = counted(before.count(b"\n"), "line")
            raise ToolError(f"{shown(path)} is there already, with {lines}. Use edit_file, or overwrite: true")
        after = line_ends_of(before, arguments["content"]).encode()
        check_placeholders(before or b"", after)
        what = "written" if before is None else "replaced"
        said = f"{shown(path)} {what}, with {counted(len(after.splitlines()), 'line')}"
        is_script = before is None and after.startswith(b"#!")
        return FileChange(path=path, before=before, after=after, text=said, executable=is_script)


class DeleteFile:
    """Removes a file."""

    spec = ToolSpec("delete_file", "Remove a file.", schema(path=text("Path below the root of the project")))
    reads = False
    runs = False

    def use(self, arguments: Mapping[str, Any], context: ToolContext) -> FileChange:
        """Prepare the removal; see the port."""
        path = relative(context.root, arguments["path"])
        check_writable(path)
        before = read_file(context.root, path)
        if before is None:
            raise ToolError(f"{shown(path)} is not there: nothing was removed")
        return FileChange(path=path, before=before, after=None, text=f"{shown(path)} removed")


AROUND_LINES = 2
EDITED_LINES = 24


class EditFile:
    """Replaces one place of a file."""

    spec = ToolSpec(
        "edit_file",
        "Replace text that is in a file exactly once. Quote whole lines, enough of them to be found only once.",
        schema(
            path=text("Path below the root of the project"),
            old=text("Text that is replaced, without line numbers"),
            new=text("Text that takes its place; empty: it is removed"),
        ),
    )
    reads = False
    runs = False

    def use(self, arguments: Mapping[str, Any], context: ToolContext) -> FileChange:
        """Prepare the change; see the port."""
        path = relative(context.root, arguments["path"])
        check_writable(path)
        before = read_file(context.root, path)
        if before is None:
            raise ToolError(f"{shown(path)} is not there. Use create_file for a new file")
        if is_binary(before):
            raise ToolError(f"{shown(path)} is a binary file: it cannot be edited as text")
        # Bytes that are not UTF-8 come through unchanged.
        found = patch(before.decode("utf-8", "surrogateescape"), arguments["old"], arguments["new"])
        if isinstance(found, Miss):
            raise ToolError(f"{shown(path)} was not changed: {found.reason}{_advice(arguments['old'])}")
        after = found.text.encode("utf-8", "surrogateescape")
        check_placeholders(before, after)
        return FileChange(path=path, before=before, after=after, text=f"{shown(path)} changed{_show(found)}")


def _advice(old: str) -> str:
    if not has_placeholder(old):
        return ""
    return "\nWhat stands in brackets, such as [secret:...], is not in the file: leave those lines out of old"


def _show(found: Patched) -> str:
    lines = found.text.replace("\r\n", "\n").split("\n")
    first = max(found.line - AROUND_LINES, 1)
    end = min(found.line + found.lines - 1 + AROUND_LINES, first + EDITED_LINES - 1)
    how = f" (found {found.how})" if found.how else ""
    part = "\n".join(lines[first - 1 : end]).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return f"{how}. It is now:\n{numbered(part.split(chr(10)), first)}"


class Finish:
    """Ends the part of a role."""

    spec = ToolSpec(
        "finish",
        "Say that your part is done, and what was done. What you say is checked.",
        schema(summary=text("What was done, and what is left")),
    )
    reads = True
    runs = False

    def use(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """End it; see the port."""
        del context
        return ToolResult(arguments["summary"], finished=True)


SHOWN_FILES = 400


class ListFiles:
    """Lists files that git does not ignore."""

    spec = ToolSpec(
        "list_files",
        "List the files of the project, without those that git ignores.",
        schema(
            path=optional("string", "Folder, such as src; null: all"),
            glob=optional("string", "Pattern for paths, such as **/test_*.py; null: all"),
        ),
    )
    reads = True
    runs = False

    def use(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """List them; see the port."""
        names = listed_files(context.root, arguments["path"], arguments["glob"])
        if not names:
            return ToolResult("no files")
        more = len(names) - SHOWN_FILES
        lines = [shown(name) for name in names[:SHOWN_FILES]]
        lines += [f"[... {counted(more, 'file')} more: give a path or a glob ...]"] if more > 0 else []
        return ToolResult("\n".join(lines))


USUAL = 3
MOST = 10


class MemorySearch:
    """Looks for what earlier work on the project has taught."""

    spec = ToolSpec(
        "memory_search",
        "Search what is remembered of this project: failures, what solved them, facts.",
        schema(
            query=text("An error message, or what is wanted in a few words"),
            limit=optional("integer", f"Null: {USUAL}", minimum=1, maximum=MOST),
        ),
    )
    reads = True
    runs = False

    def use(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Search; see the port."""
        if context.memory is None:
            return ToolResult("this project has no memory. Go on without it")
        found = context.memory.search(arguments["query"], arguments["limit"] or USUAL)
        return ToolResult("\n\n".join(found) or "nothing that fits is remembered")


READ_LINES = 400
SHOWN_CHARACTERS = 9_000
"""Of one answer, so that its ends are never cut; what follows is read by another call."""


class ReadFile:
    """Shows lines of a file, or of an earlier result of the session."""

    spec = ToolSpec(
        "read_file",
        "Read a text file, with line numbers. An earlier result is read by the name that it was given, result:<id>.",
        schema(
            path=text("Path below the root of the project, or result:<id>"),
            start=optional("integer", "First line, from 1; null: the first", minimum=1),
            end=optional("integer", "Last line; null: as many as fit", minimum=1),
        ),
    )
    reads = True
    runs = False

    def use(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Show the lines; see the port."""
        path = str(arguments["path"])
        if path.startswith(RESULT):
            return _numbered(path, _result(path, context), arguments)
        path = relative(context.root, path)
        content = read_file(context.root, path)
        if content is None:
            raise ToolError(f"{shown(path)} is not there. list_files and search show what is")
        if is_binary(content):
            raise ToolError(f"{shown(path)} is a binary file of {len(content):,} bytes: it cannot be shown as text")
        return _numbered(shown(path), content, arguments)


def _result(path: str, context: ToolContext) -> bytes:
    ref = context.find_result(path.removeprefix(RESULT).strip().lower())
    if ref is None:
        raise ToolError(f"{path[:80]!r} is not a result of this session. Copy its name from where it was shown")
    return context.store.get(ref)


def _numbered(name: str, content: bytes, arguments: Mapping[str, Any]) -> ToolResult:
    text = content.decode("utf-8", "replace")
    plain = text.replace("\r\n", "\n")
    if not plain:
        return ToolResult(f"{name} is empty")
    lines = plain.removesuffix("\n").split("\n")
    first, last = arguments["start"] or 1, arguments["end"] or len(lines)
    if first > len(lines) or last < first:
        raise ToolError(f"{name} has lines 1 to {len(lines)}, not {first} to {last}")
    chosen = _fitting(lines[first - 1 : min(last, first + READ_LINES - 1)])
    end = first + len(chosen) - 1
    marks = [f"lines {first} to {end} of {len(lines)}"]
    marks += ["CRLF line ends"] if "\r\n" in text else []
    marks += ["no line end at the end of the file"] if not plain.endswith("\n") else []
    rest = f"\n[go on with start={end + 1}]" if end < min(last, len(lines)) else ""
    return ToolResult(f"{name}: {', '.join(marks)}\n{numbered(chosen, first)}{rest}")


def _fitting(lines: list[str]) -> list[str]:
    """Return the first lines, at least one, that fit into an answer."""
    room = SHOWN_CHARACTERS
    for number, line in enumerate(lines):
        room -= len(cut(line)) + 8
        if room < 0:
            return lines[: max(number, 1)]
    return lines


KEY_CHARACTERS = 120
NOTE_CHARACTERS = 2_000


class Remember:
    """Keeps a fact about the project."""

    spec = ToolSpec(
        "remember",
        "Keep a fact about this project for later work, such as how its tests are run.",
        schema(
            key={"type": "string", "description": "A short name", "minLength": 1, "maxLength": KEY_CHARACTERS},
            text={"type": "string", "description": "The fact", "minLength": 1, "maxLength": NOTE_CHARACTERS},
        ),
    )
    reads = False
    runs = False

    def use(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Keep it; see the port. To keep it twice changes nothing."""
        if context.memory is None:
            return ToolResult("nothing was kept: this project has no memory. Go on without it")
        context.memory.remember(arguments["key"], arguments["text"])
        return ToolResult(f"kept as {arguments['key']!r}")


LONGEST_S = 600
USUAL_S = 120


class RunCommand:
    """Runs a shell command in the sandbox."""

    reads = False
    runs = True
    spec = ToolSpec(
        "run_command",
        "Run a command by /bin/sh at the root of the project, in a sandbox without network. What it leaves in the "
        "background is ended.",
        schema(
            command=text("Shell command"),
            timeout_s=optional("integer", f"Null: {USUAL_S}", minimum=1, maximum=LONGEST_S),
        ),
    )

    def __init__(self, equipment: Equipment) -> None:
        self._equipment = equipment

    def use(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult | ProgramStart:
        """Ask the rules about commands, then prepare the run; see the port."""
        command, timeout_s = arguments["command"], float(arguments["timeout_s"] or USUAL_S)
        refusal = judge_command(command, self._equipment.rubric, context.grants)
        if refusal is not None:
            return refusal
        return ProgramStart(run=lambda: run_shell(self._equipment.runner, command, timeout_s, context))


LONGEST_TESTS_S = 600.0
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
                results.append((command, run_shell(self._runner, command, LONGEST_TESTS_S, context)))
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


class Search:
    """Searches files that git does not ignore, for a regular expression."""

    spec = ToolSpec(
        "search",
        "Search the text files of the project, line by line, for a regular expression.",
        schema(
            pattern=text("Regular expression, as ripgrep takes it"),
            path=optional("string", "Folder or file, such as src; null: all"),
            glob=optional("string", "Pattern for paths, such as **/*.py; null: all"),
            literal=optional("boolean", "true: the pattern is plain text"),
            ignore_case=optional("boolean", "true: upper and lower case are alike"),
            context=optional("integer", "Lines shown around each match; null: 0", minimum=0, maximum=10),
        ),
    )
    reads = True
    runs = False

    def use(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Search; see the port."""
        query = Query(
            pattern=arguments["pattern"],
            literal=bool(arguments["literal"]),
            ignore_case=bool(arguments["ignore_case"]),
            context=arguments["context"] or 0,
        )
        names = listed_files(context.root, arguments["path"], arguments["glob"])
        return ToolResult(search_files(context.root, names, query, cancelled=context.cancelled))


def make_tools(equipment: Equipment) -> tuple[Tool, ...]:
    """Return all tools, in the order of their names."""
    return (
        AskPerson(),
        CreateFile(),
        DeleteFile(),
        EditFile(),
        Finish(),
        ListFiles(),
        MemorySearch(),
        ReadFile(),
        Remember(),
        RunCommand(equipment),
        RunTests(equipment),
        Search(),
    )
