"""Shell commands in changed code and scripts, for the rules about commands."""

import ast
from collections.abc import Iterator, Sequence

from tightloop.safety.change.patch import NOTHING, Change, FilePatch, Lines
from tightloop.safety.change.reading import Reading, Watch
from tightloop.safety.change.scripts import scripts
from tightloop.safety.code.model import CodeFile
from tightloop.safety.code.names import Module, Placed
from tightloop.safety.code.patterns import TEXT_CHARACTERS, Use
from tightloop.safety.code.rules import Layer
from tightloop.safety.commands.judge import find_violations, find_violations_in_words
from tightloop.safety.rubric import Finding

_SCRIPTS = frozenset({
    "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "asyncio.create_subprocess_shell",
})  # fmt: skip
_EITHER = frozenset({
    "subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.check_output", "subprocess.Popen",
})  # fmt: skip
_WORDS = frozenset({"asyncio.create_subprocess_exec", "os.execlp", "os.execl", "os.spawnlp"})


def review_scripts(files: Sequence[CodeFile], watch: Watch | None = None) -> tuple[Finding, ...]:
    """Return what the rules about commands find in the new lines of scripts and of code that calls programs.

    Raises:
        OutOfTimeError: the time of the watch is over.
    """
    change = Change(files=tuple(map(_patch_of, files)))
    reading = Reading(change, watch or Watch())
    found = (finding for file in change.files for finding in scripts(reading.seen(file)))
    return tuple(finding.evolve(layer=Layer.COMMANDS.value) for finding in found)


def _patch_of(file: CodeFile) -> FilePatch:
    # Lines that stand on both sides are not fresh, wherever they stand: no diff is needed.
    return FilePatch(file.path, "", _lines(file.after), _lines(file.before or ""), new=file.before is None)


def _lines(text: str) -> Lines:
    lines = text.splitlines()
    return Lines(lines, lambda: range(1, len(lines) + 1)) if lines else NOTHING


def commands_in(placed: Placed, module: Module) -> Iterator[Use]:
    """Return the violations of the constant commands that a call starts, on however many lines it stands."""
    node = placed.node
    if not isinstance(node, ast.Call) or not node.args:
        return
    functions = module.paths(node.func)
    if not functions & (_SCRIPTS | _EITHER | _WORDS):
        return
    first = module.fold(node.args[0])
    if functions & _WORDS:
        words = [module.fold(argument) for argument in node.args]
        first = [word for word in words if isinstance(word, str)]
    if isinstance(first, str):
        found = find_violations(first)
    elif isinstance(first, list) and all(isinstance(word, str) for word in first):
        found = find_violations_in_words(first)
    else:
        return
    for violation in found:
        yield Use(violation, Layer.COMMANDS, (node.lineno, node.col_offset), ast.unparse(node)[:TEXT_CHARACTERS])
