"""Finds shell commands in Python code, for the rules about commands."""

import ast
from collections.abc import Iterator

from tightloop.safety.code.names import Module, Placed
from tightloop.safety.code.patterns import Use
from tightloop.safety.code.rules import Layer
from tightloop.safety.commands.judge import find_violations, find_violations_in_words

_SCRIPTS = frozenset({
    "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "asyncio.create_subprocess_shell",
})  # fmt: skip
_EITHER = frozenset({
    "subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.check_output", "subprocess.Popen",
})  # fmt: skip
_WORDS = frozenset({"asyncio.create_subprocess_exec", "os.execlp", "os.execl", "os.spawnlp"})


def commands_in(placed: Placed, module: Module) -> Iterator[Use]:
    """Return the violations of the constant commands that a call starts."""
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
        yield Use(violation, Layer.COMMANDS, (node.lineno, node.col_offset), ast.unparse(node)[:400])
