"""Effects of a command."""

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
# Neither devices nor temporary folders are files of anybody's.
_NOWHERE = re.compile(r"/dev/(?:null|stdout|stderr|tty|fd/\d+)|(?:/var)?/tmp/.*|\d+-?|-")
# What a shell replaces, and what leads out of the tree.
_OPEN = re.compile(r"[$`*?\[{~]|^/")
_LEAST_LONG_OPTION = 4
"""Characters of a long option that are enough to stand for it: most programs take any prefix that is not ambiguous."""


class Write(NamedTuple):
    """A file that a command writes."""

    path: str
    """As it is written."""
    by: str
    """The option or operator by which it is written; empty: it is what the program is for."""

    @property
    def is_known(self) -> bool:
        """Whether it is a path below the folder of the command that can be read from the text."""
        return not _OPEN.search(self.path)


class Paths(NamedTuple):
    """Files that a script writes, relative to the root of the tree."""

    certain: tuple[str, ...] = ()
    possible: tuple[str, ...] = ()
    """Where the script changes its folder: what they may be."""


def writes(call: Call) -> Iterator[Write]:
    """Yield the files that a call writes, as far as its text says so."""
    arguments = _arguments(call)
    targets, more = _redirected(call.redirects)
    yield from targets
    table = _WRITES.get(call.name)
    if table is None:
        return
    arguments += more
    if table.get("when") and not any(_is(word, option) for word in arguments for option in table["when"]):
        return
    options = table.get("options", ())
    for at, word in enumerate(arguments):
        for option in options:
            if _is(word, option):
                inside = _value_of(word, option)
                value = inside if inside is not None else next(iter(arguments[at + 1 : at + 2]), "")
                yield Write(value, option)
        if table.get("prefix") and word.startswith(table["prefix"]):
            yield Write(word.removeprefix(table["prefix"]), "")
    for path in _operands(table, arguments):
        # `host:path` is a file of another host.
        if call.name != "rsync" or ":" not in path:
            yield Write(path, "")


def exceeds(call: Call, allowed: Sequence[str]) -> bool:
    """Return whether a call does more than a rule which allows these words says.

    It writes where nobody can tell from the text, or has an option that runs another program, and the rule does not
    name that option.
    """
    runs = any(
        _is(word, option) and option not in allowed for option in _RUNS.get(call.name, ()) for word in call.words
    )
    return runs or any(
        write.by and write.by not in allowed and not write.is_known and not _NOWHERE.fullmatch(write.path)
        for write in writes(call)
    )


@lru_cache(maxsize=256)
def written_paths(command: str, folder: str = "") -> Paths:
    """Return the files that a script writes below the root, where its text says which.

    Args:
        command: without disguises; see `plain`.
        folder: below the root, in which it starts.
    """
    found = read_scripts(command).calls
    moves = [word for call in found if call.name in ("cd", "pushd") for word in _arguments(call)[:1]]
    moves += [
        word for call in found for option, word in zip(call.words, call.words[1:], strict=False) if option == "-C"
    ]
    known = [
        write.path
        for call in found
        for write in writes(call)
        if write.path and write.is_known and not _NOWHERE.fullmatch(write.path)
    ]
    if not moves:
        return Paths(certain=_below(known, [folder]))
    bases = [folder, *(posixpath.join(folder, move) for move in moves if not _OPEN.search(move))]
    return Paths(possible=_below(known, bases))


def needs_judging(assignment: Assignment) -> bool:
    """Return whether a variable may change what programs do, as far as its name says."""
    if loads_code(assignment.name):
        return True
    if assignment.reaches_programs:
        return not _named(assignment.name, _HARMLESS)
    return _named(assignment.name, _EXPORTED) and not _named(assignment.name, _HARMLESS)


def loads_code(name: str) -> bool:
    """Return whether a variable of this name makes programs run code that it names."""
    return _named(name, _LOADS_CODE)


def _named(name: str, patterns: Iterable[str]) -> bool:
    return any(name.startswith(one[:-1]) if one.endswith("*") else name == one for one in patterns)


def _arguments(call: Call) -> tuple[str, ...]:
    words = call.words[:-1] if call.words[-1:] == (AS_ROOT,) else call.words
    return words[: max(len(words) - len(call.redirects), 0)]


def _redirected(words: Iterable[str]) -> tuple[list[Write], tuple[str, ...]]:
    """Return what redirections write, and words behind them that are arguments again."""
    found, more, operator = list[Write](), list[str](), ""
    for word in words:
        match = _REDIRECT.fullmatch(word) if not operator else None
        if match is not None:
            operator, word = match[1], match[2]
            if not word:
                continue
        if not operator:
            more.append(word)
        # `> >(tee x)` writes to a program, which is a call of its own.
        elif operator in _WRITING and not word.startswith((">(", "<(")):
            found.append(Write(word, operator))
        operator = ""
    return found, tuple(more)


def _operands(table: dict[str, Any], arguments: tuple[str, ...]) -> tuple[str, ...]:
    which = table.get("operands")
    if which is None:
        return ()
    valued = (*table.get("valued", ()), *table.get("options", ()))
    found, skip, ended = list[str](), False, False
    for word in arguments:
        if skip:
            skip = False
        elif word == "--" and not ended:
            ended = True
        elif word.startswith("-") and word != "-" and not ended:
            skip = word in valued
        else:
            found.append(word)
    if which == "rest" and any(_is(word, option) for word in arguments for option in table.get("script", ())):
        which = "all"
    parts = {
        "all": slice(None),
        "last": slice(-1, None),
        "first": slice(1),
        "second": slice(1, 2),
        "rest": slice(1, None),
    }
    return tuple(found[parts[which]]) if which != "last" or len(found) > 1 else ()


def _is(word: str, option: str) -> bool:
    """Return whether a word is an option, with its value or without it, abbreviated or in a bundle of short ones."""
    if word == option:
        return True
    if option.startswith("--"):
        name = word.partition("=")[0]
        return len(name) >= _LEAST_LONG_OPTION and option.startswith(name) and name.startswith("--")
    if len(option) != 2 or word.startswith("--"):
        return False
    return word.startswith("-") and option[1] in word[1:] and (word[1] == option[1] or word[1:].isalpha())


def _value_of(word: str, option: str) -> str | None:
    """Return the value that is in the word of an option itself; None: it is the next word."""
    if word.startswith("--"):
        _, equals, value = word.partition("=")
        return value if equals else None
    return word.partition(option[1])[2] or None if len(option) == 2 else None


def _below(paths: Iterable[str], bases: Iterable[str]) -> tuple[str, ...]:
    """Return paths relative to the root, without those that leave it."""
    joined = (posixpath.normpath(posixpath.join(base, path)) for path in paths for base in bases)
    return tuple(dict.fromkeys(one for one in joined if one != "." and not one.startswith(("..", "/"))))


PLACEHOLDER = "any_word"
"""What stands for a reference while a script is read."""


class Place(StrEnum):
    """Where in a script a text stands: how a shell reads it depends on that."""

    UNQUOTED = "unquoted"
    SINGLE_QUOTED = "single quoted"
    DOUBLE_QUOTED = "double quoted"
    COMMENT = "comment"
    HERE_DOCUMENT = "here-document"
    LITERAL = "literal here-document"
    """Its delimiter is quoted: the shell replaces nothing in it."""
    ARITHMETIC = "arithmetic"
    """The shell calculates with it, and takes what is not a number for the name of a variable."""


class Found(NamedTuple):
    """The place of one text."""

    place: Place
    delimiter: str = ""
    """As it is written; of a here-document."""


_PLACES = {
    "raw_string": Place.SINGLE_QUOTED,
    "ansi_c_string": Place.SINGLE_QUOTED,
    "string": Place.DOUBLE_QUOTED,
    "comment": Place.COMMENT,
    "heredoc_body": Place.HERE_DOCUMENT,
    **dict.fromkeys(NESTING, Place.UNQUOTED),
}
_COMPARES_NUMBERS = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})


def find_places(texts: Sequence[str | None]) -> list[Found]:
    """Return the place of each text of a script; None is any word."""
    parts = [PLACEHOLDER if text is None else text for text in texts]
    text = "".join(parts)
    root = parse(text)
    found: list[Found] = []
    at = 0
    for part in parts:
        found.append(_place(root.descendant_for_byte_range(at, at + len(part)), at, text))
        at += len(part)
    return found


def _place(node: "Node | None", at: int, text: str) -> Found:
    around: Node | None = None
    while node is not None:
        # Within quotes, too, a shell calculates: `$(( "1" + 1 ))`.
        if _is_arithmetic(node, at, text):
            return Found(Place.ARITHMETIC)
        if around is None and node.type in _PLACES:
            around = node
        if node.type in NESTING:
            break
        node = node.parent
    if around is None:
        return Found(Place.UNQUOTED)
    if around.type != "heredoc_body" or around.parent is None:
        return Found(_PLACES[around.type])
    start = around.parent.children[1]
    delimiter = text[start.start_byte : start.end_byte]
    is_quoted = delimiter.strip("'\"\\") != delimiter
    return Found(Place.LITERAL if is_quoted else Place.HERE_DOCUMENT, delimiter)


def _is_arithmetic(node: "Node", at: int, text: str) -> bool:
    """Return whether a shell calculates with what stands at a place within a node."""
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
            words = (text[child.start_byte : child.end_byte] for child in node.children)
            return not _COMPARES_NUMBERS.isdisjoint(words) and _is_in_brackets(node)
    return False


def _is_misread(node: "Node", text: str) -> bool:
    """Return whether a subshell is arithmetic: in a here-document the parser takes `$((...))` for two pairs."""
    while node.type in ("subshell", "ERROR") and node.parent is not None:
        node = node.parent
    source = text[node.start_byte : node.end_byte]
    return node.type == "command_substitution" and source.startswith("$((") and source.endswith("))")


def _is_in_brackets(node: "Node") -> bool:
    """Return whether a comparison stands in `[[ ]]`, which calculates; `[ ]` takes numbers only."""
    around = node.parent
    while around is not None and around.type not in ("test_command", *NESTING):
        around = around.parent
    return around is not None and bool(around.children) and around.children[0].type == "[["
