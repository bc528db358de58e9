"""Parses Python that nobody has looked at yet."""

import ast
import re
import warnings
from typing import NamedTuple

CODE_CHARACTERS = 500_000
"""Of one file; a longer one is not read."""
_SHEBANG = re.compile(r"#!.*\bpython[\d.]*\b")


class Unread(NamedTuple):
    """Why a text could not be read."""

    why: str
    line: int = 0
    """Where its syntax is wrong; 0: it is too long or too deep."""


def is_python(path: str, text: str) -> bool:
    """Return whether a file is run by Python."""
    return path.endswith((".py", ".pyw", ".pyi")) or _SHEBANG.match(text) is not None


def parse_tree(text: str) -> ast.Module | Unread:
    """Return the syntax tree of a text, or why it cannot be read."""
    if len(text) > CODE_CHARACTERS:
        return Unread(f"longer than {CODE_CHARACTERS} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except SyntaxError as error:
        return Unread(str(error.msg), error.lineno or 1)
    except (ValueError, RecursionError, MemoryError) as error:
        return Unread(str(error) or type(error).__name__)
