"""Where in a script the references of a plan stand: how a shell reads a text depends on that."""

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from tightloop.safety.commands.shell import NESTING, parse

if TYPE_CHECKING:
    from tree_sitter import Node

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
