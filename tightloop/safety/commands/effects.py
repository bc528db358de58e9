"""Effects of commands: files that they write, environment variables, and quoting contexts."""

import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tightloop.safety.commands.rules import read_scripts
from tightloop.safety.commands.shell import AS_ROOT, NESTING, Assignment, Call, parse
from tightloop.value.toml import read_toml

if TYPE_CHECKING:
    from tree_sitter import Node


_DATA = read_toml("tightloop.safety.commands", "effects.toml")
_HARMLESS, _LOADS_CODE, _EXPORTED = (
    tuple(_DATA["environment"][name]) for name in ("harmless", "loads_code", "exported")
)
_WRITES: dict[str, dict[str, Any]] = _DATA["writes"]
_RUNS: dict[str, list[str]] = _DATA["runs"]
_REDIRECT = re.compile(r"(?:\d*|\{\w+\})(&>>?|>>|>\||>&|<>|>|<<<|<<-?|<&|<)(.*)", re.DOTALL)
_WRITING = frozenset({"&>", "&>>", ">>", ">|", ">&", "<>", ">"})
# Devices and temporary folders do not count as files.
_NOWHERE = re.compile(r"/dev/(?:null|stdout|stderr|tty|fd/\d+)|(?:/var)?/tmp/.*|\d+-?|-")
# Shell expansions, and absolute paths.
_OPEN = re.compile(r"[$`*?\[{~]|^/")
_LEAST_LONG_OPTION = 4
"""Minimum length of an abbreviated long option. Most programs accept any unambiguous prefix."""


class Write(NamedTuple):
    """File that a command writes."""

    path: str
    """Path as written in the command."""
    by: str
    """Option or operator that writes the file. Empty if writing it is the purpose of the program."""

    @property
    def is_known(self) -> bool:
        """True if the path is literal and inside the command's folder."""
        return not _OPEN.search(self.path)


class Paths(NamedTuple):
    """Files that a script writes. Paths are relative to the root of the tree."""

    certain: tuple[str, ...] = ()
    possible: tuple[str, ...] = ()
    """Paths that the script may write, if it changes its working directory."""


def writes(call: Call) -> Iterator[Write]:
    """Yield the files that a call writes. Only the text of the call is examined."""
    arguments = _arguments(call)
    targets, more = _split_redirects(call.redirects)
    yield from targets
    table = _WRITES.get(call.name)
    if table is None:
        return
    # `tee > log file` writes to `file` too.
    arguments += more
    if table.get("when") and not any(_is(argument, option) for argument in arguments for option in table["when"]):
        return
    options = table.get("options", ())
    for at, argument in enumerate(arguments):
        for option in options:
            if _is(argument, option):
                inside = _value_of(argument, option)
                value = inside if inside is not None else next(iter(arguments[at + 1 : at + 2]), "")
                yield Write(value, option)
        if table.get("prefix") and argument.startswith(table["prefix"]):
            yield Write(argument.removeprefix(table["prefix"]), "")
    for path in _operands(table, arguments):
        # `host:path` is a file on another host.
        if call.name != "rsync" or ":" not in path:
            yield Write(path, "")


def exceeds(call: Call, allowed: Sequence[str]) -> bool:
    """Return whether a call does more than a rule for these words allows.

    It does if it writes to an unknown path, or if an option runs another program and the rule does not name the
    option.
    """
    runs = any(
        _is(argument, option) and option not in allowed
        for option in _RUNS.get(call.name, ())
        for argument in call.arguments
    )
    return runs or any(
        write.by and write.by not in allowed and not write.is_known and not _NOWHERE.fullmatch(write.path)
        for write in writes(call)
    )


@lru_cache(maxsize=256)
def written_paths(command: str, folder: str = "") -> Paths:
    """Return the files below the root that a script writes.

    Only the text of the script is examined.

    Args:
        command: the command after `plain` has removed any obfuscation.
        folder: working directory, relative to the root.
    """
    calls = read_scripts(command).calls
    moves = [argument for call in calls if call.name in ("cd", "pushd") for argument in _arguments(call)[:1]]
    moves += [
        argument
        for call in calls
        for option, argument in zip(call.arguments, call.arguments[1:], strict=False)
        if option == "-C"
    ]
    paths = [
        write.path
        for call in calls
        for write in writes(call)
        if write.path and write.is_known and not _NOWHERE.fullmatch(write.path)
    ]
    if not moves:
        return Paths(certain=_below(paths, [folder]))
    # It is unknown which command runs in which folder, so each folder is a candidate.
    bases = [folder, *(posixpath.join(folder, move) for move in moves if not _OPEN.search(move))]
    return Paths(possible=_below(paths, bases))


def needs_judging(assignment: Assignment) -> bool:
    """Return whether a variable's name suggests that it changes the behaviour of programs."""
    if loads_code(assignment.name):
        return True
    if assignment.reaches_programs:
        return not _matches_any(assignment.name, _HARMLESS)
    # A shell variable matters only if it was exported before, as PATH always is.
    return _matches_any(assignment.name, _EXPORTED) and not _matches_any(assignment.name, _HARMLESS)


def loads_code(name: str) -> bool:
    """Return whether a variable with this name makes programs load code."""
    return _matches_any(name, _LOADS_CODE)


def _matches_any(name: str, patterns: Iterable[str]) -> bool:
    return any(name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern for pattern in patterns)


def _arguments(call: Call) -> tuple[str, ...]:
    arguments = call.arguments[:-1] if call.arguments[-1:] == (AS_ROOT,) else call.arguments
    return arguments[: max(len(arguments) - len(call.redirects), 0)]


def _split_redirects(redirects: Iterable[str]) -> tuple[list[Write], tuple[str, ...]]:
    """Separate redirections to files from arguments.

    Return the files that are written, and the words after the redirections that are really arguments.
    """
    targets, more, operator = list[Write](), list[str](), ""
    for token in redirects:
        match = _REDIRECT.fullmatch(token) if not operator else None
        if match is not None:
            operator, token = match[1], match[2]
            if not token:
                continue
        if not operator:
            more.append(token)
        # `> >(tee x)` writes to a program, which is a separate call.
        elif operator in _WRITING and not token.startswith((">(", "<(")):
            targets.append(Write(token, operator))
        operator = ""
    return targets, tuple(more)


def _operands(table: dict[str, Any], arguments: tuple[str, ...]) -> tuple[str, ...]:
    which = table.get("operands")
    if which is None:
        return ()
    valued = (*table.get("valued", ()), *table.get("options", ()))
    operands, skip, ended = list[str](), False, False
    for argument in arguments:
        if skip:
            skip = False
        elif argument == "--" and not ended:
            ended = True
        elif argument.startswith("-") and argument != "-" and not ended:
            skip = argument in valued
        else:
            operands.append(argument)
    if which == "rest" and any(_is(argument, option) for argument in arguments for option in table.get("script", ())):
        which = "all"
    parts = {
        "all": slice(None),
        "last": slice(-1, None),
        "first": slice(1),
        "second": slice(1, 2),
        "rest": slice(1, None),
    }
    return tuple(operands[parts[which]]) if which != "last" or len(operands) > 1 else ()


def _is(argument: str, option: str) -> bool:
    """Return whether a word is the given option.

    The option may have a value, be abbreviated, or be part of a bundle of short options.
    """
    if argument == option:
        return True
    if option.startswith("--"):
        name = argument.partition("=")[0]
        return len(name) >= _LEAST_LONG_OPTION and option.startswith(name) and name.startswith("--")
    if len(option) != 2 or argument.startswith("--"):
        return False
    return (
        argument.startswith("-") and option[1] in argument[1:] and (argument[1] == option[1] or argument[1:].isalpha())
    )


def _value_of(argument: str, option: str) -> str | None:
    """Return the value that an option's word contains, or None if the value is the next word."""
    if argument.startswith("--"):
        _, equals, value = argument.partition("=")
        return value if equals else None
    return argument.partition(option[1])[2] or None if len(option) == 2 else None


def _below(paths: Iterable[str], bases: Iterable[str]) -> tuple[str, ...]:
    """Return the paths relative to the root. Paths outside the root are dropped."""
    joined = (posixpath.normpath(posixpath.join(base, path)) for path in paths for base in bases)
    return tuple(
        dict.fromkeys(
            joined_path for joined_path in joined if joined_path != "." and not joined_path.startswith(("..", "/"))
        )
    )


PLACEHOLDER = "any_word"
"""Placeholder for a reference while a script is parsed."""


class QuotingContext(StrEnum):
    """Contexts in which text can occur in a shell script, such as quotes or a comment."""

    UNQUOTED = "unquoted"
    SINGLE_QUOTED = "single quoted"
    DOUBLE_QUOTED = "double quoted"
    COMMENT = "comment"
    HERE_DOCUMENT = "here-document"
    LITERAL = "literal here-document"
    """Here-document with a quoted delimiter, in which nothing is expanded."""
    ARITHMETIC = "arithmetic"
    """Arithmetic, in which a word that is not a number is a variable name."""


class ShellContext(NamedTuple):
    """The shell context of a piece of text. It includes the delimiter if the text is in a here-document."""

    context: QuotingContext
    delimiter: str = ""
    """Delimiter of a here-document, as written in the script."""


_PLACES = {
    "raw_string": QuotingContext.SINGLE_QUOTED,
    "ansi_c_string": QuotingContext.SINGLE_QUOTED,
    "string": QuotingContext.DOUBLE_QUOTED,
    "comment": QuotingContext.COMMENT,
    "heredoc_body": QuotingContext.HERE_DOCUMENT,
    **dict.fromkeys(NESTING, QuotingContext.UNQUOTED),
}
_COMPARES_NUMBERS = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})


def find_places(texts: Sequence[str | None]) -> list[ShellContext]:
    """Return the shell context of each piece of text in a script. None marks a placeholder."""
    parts = [PLACEHOLDER if text is None else text for text in texts]
    text = "".join(parts)
    root = parse(text)
    contexts: list[ShellContext] = []
    at = 0
    for part in parts:
        contexts.append(_place(root.descendant_for_byte_range(at, at + len(part)), at, text))
        at += len(part)
    return contexts


def _place(node: "Node | None", at: int, text: str) -> ShellContext:
    enclosing: Node | None = None
    while node is not None:
        # Shell arithmetic includes quoted text: `$(( "1" + 1 ))`.
        if _is_arithmetic(node, at, text):
            return ShellContext(QuotingContext.ARITHMETIC)
        if enclosing is None and node.type in _PLACES:
            enclosing = node
        if node.type in NESTING:
            break
        node = node.parent
    if enclosing is None:
        return ShellContext(QuotingContext.UNQUOTED)
    if enclosing.type != "heredoc_body" or enclosing.parent is None:
        return ShellContext(_PLACES[enclosing.type])
    start = enclosing.parent.children[1]
    delimiter = text[start.start_byte : start.end_byte]
    is_quoted = delimiter.strip("'\"\\") != delimiter
    return ShellContext(QuotingContext.LITERAL if is_quoted else QuotingContext.HERE_DOCUMENT, delimiter)


def _is_arithmetic(node: "Node", at: int, text: str) -> bool:
    """Return whether a position in a node is part of a shell arithmetic expression."""
    match node.type:
        case "arithmetic_expansion" | "subscript":
            return True
        case "compound_statement" | "c_style_for_statement":
            return any(child.type == "((" for child in node.children)
        case "subshell":
            return _is_misread(node, text)
        case "expansion":
            # `${x:1:2}`, but not `${x:-word}`.
            before = [child.type for child in node.children if child.end_byte <= at and not child.is_named]
            return before[-1:] == [":"]
        case "binary_expression":
            tokens = (text[child.start_byte : child.end_byte] for child in node.children)
            return not _COMPARES_NUMBERS.isdisjoint(tokens) and _is_in_brackets(node)
    return False


def _is_misread(node: "Node", text: str) -> bool:
    """Return whether the parser mistook an arithmetic expression for a subshell.

    In a here-document, the parser reads `$((...))` as two pairs of parentheses.
    """
    while node.type in ("subshell", "ERROR") and node.parent is not None:
        node = node.parent
    source = text[node.start_byte : node.end_byte]
    return node.type == "command_substitution" and source.startswith("$((") and source.endswith("))")


def _is_in_brackets(node: "Node") -> bool:
    """Return whether a comparison is inside `[[ ]]`.

    `[[ ]]` evaluates arithmetic, whereas `[ ]` only accepts numbers.
    """
    enclosing = node.parent
    while enclosing is not None and enclosing.type not in ("test_command", *NESTING):
        enclosing = enclosing.parent
    return enclosing is not None and bool(enclosing.children) and enclosing.children[0].type == "[["
