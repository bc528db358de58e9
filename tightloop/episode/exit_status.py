"""Exit status of a check: pipes that hide a failure, and commands that can never fail.

POSIX shells return the status of a pipeline's last command, so `make test | tee log` passes although the tests fail.
"""

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tightloop.episode.check import Check
from tightloop.errors import InvalidRequestError
from tightloop.safety.commands.shell import parse
from tightloop.value import shorten

if TYPE_CHECKING:
    from tree_sitter import Node

_PASSES_ALWAYS = re.compile(r"(?:true|:|exit\s+0|(?:/usr)?/bin/true|(?:echo|printf)\b[^|&;<>]*)$", re.DOTALL)
_ENDS_ITSELF = re.compile(r"(?:^|[\s;&|({'])(?:set\s+-(?:\w*e|o\s+errexit)|exit\s+(?!0\b)\S|return\s+(?!0\b)\S)")
"""Script that stops at the first failure, or that returns a failure itself. Such a script may end with `true`."""
# A command that writes to a closed pipe is killed by SIGPIPE (13), as in `cmd | grep -q x`: 128 + 13. A trap and not
# `|| ...`, which would turn off `set -e` inside of the command.
_BEFORE, _AFTER = "( trap '[ $? -ne 141 ] || exit 0' EXIT; ( ", "\n)\n)"
_GROUPS = ("program", "compound_statement", "subshell")
BASH = "/bin/bash"
_JOINED = re.compile(r"[;&|\n]")


def check_argv(script: str) -> tuple[str, ...]:
    """Return the command line that runs a check. Pipes need bash, because POSIX shells lack `pipefail`."""
    if has_pipe(script):
        return (BASH, "-o", "pipefail", "-c", with_pipe_status(script))
    return ("/bin/sh", "-c", script)


def masked_problem(script: str) -> str:
    """Return the error for a check that can never fail, or "" if the check can fail."""
    end = masked_by(script)
    return (
        f"the check {shorten(script, 80)!r} always passes, because it ends with {end!r}. Remove this ending"
        if end
        else ""
    )


def refuse_masked(checks: Iterable[Check]) -> None:
    """Reject checks whose commands can never fail.

    Raises:
        InvalidRequestError: a check always passes.
    """
    if problem := next(filter(None, (masked_problem(check.run) for check in checks)), ""):
        raise InvalidRequestError(problem)


def has_pipe(script: str) -> bool:
    """Return whether a script contains a pipeline."""
    return "|" in script and next(_pipelines(parse(script)), None) is not None


def masked_by(script: str) -> str:
    """Return the end of a script that hides all earlier failures, such as `|| true`.

    Return "" if there is no such end.
    """
    # Parsing loads a C library, and most checks are a single command.
    return _masked_by(parse(script), script) if _JOINED.search(script) else ""


def _masked_by(node: "Node", script: str) -> str:
    if node.type in _GROUPS:
        statements = [child for child in node.named_children if child.type != "comment"]
        if not statements:
            return ""
        last, text = statements[-1], _text(statements[-1], script)
        if node.children[-1].type == "&" or script[last.end_byte : node.end_byte].strip().startswith("&"):
            return f"{text} &"
        if len(statements) > 1 and _PASSES_ALWAYS.match(text):
            return "" if _ENDS_ITSELF.search(script[: last.start_byte]) else f"; {text}"
        return _masked_by(last, script)
    if node.type == "list":
        last = node.named_children[-1]
        if any(child.type == "||" for child in node.children) and _PASSES_ALWAYS.match(text := _text(last, script)):
            return f"|| {text}"
        return _masked_by(last, script)
    return ""


def with_pipe_status(script: str) -> str:
    """Return a bash script in which a command stopped by SIGPIPE does not count as a failure.

    The script must run with `-o pipefail`.
    """
    root = parse(script)
    # If the parser found an error, positions may be wrong. If the script is really invalid, Bash reports it.
    if root.has_error:
        return script
    edits: list[tuple[int, str]] = []
    for pipeline in _pipelines(root):
        for part in pipeline.named_children[:-1]:
            start = part.start_byte
            if part.type == "negated_command":
                # `!` applies to the whole pipeline, although the parser takes it as a part of the first command.
                start += len(_text(part, script)) - len(_text(part, script)[1:].lstrip())
            # A here-document ends after the pipeline, so it cannot be wrapped.
            if part.type not in ("comment", "heredoc_body") and "<<" not in _text(part, script):
                edits += [(start, _BEFORE), (part.end_byte, _AFTER)]
    for position, text in sorted(edits, reverse=True):
        script = script[:position] + text + script[position:]
    return script


def _pipelines(root: "Node") -> Iterator["Node"]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.type == "pipeline":
            yield node
        waiting += node.children


def _text(node: "Node", script: str) -> str:
    return script[node.start_byte : node.end_byte]
