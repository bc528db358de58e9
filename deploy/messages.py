"""Lists every text that people may read, so that they can be read in one sitting: `make messages`."""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGES = ("tightloop", "workflows", "activities", "worker", "gateway")
WORDS = 3
"""A text with fewer words is a key, a name or a part of a command."""
_WORD = re.compile(r"[A-Za-z]{2,}")


class Message(NamedTuple):
    """A string literal with its place; `{name}` stands for a value that is filled in."""

    path: str
    line: int
    text: str


def messages(packages: tuple[str, ...] = PACKAGES) -> Iterator[Message]:
    """Yield the texts in the code of the packages, in order of their files; docstrings are left out."""
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for node in _literals(tree):
                text = _text(node)
                if _is_prose(text):
                    yield Message(str(path.relative_to(ROOT)), node.lineno, text)


def _literals(tree: ast.AST) -> Iterator[ast.Constant | ast.JoinedStr]:
    """Yield the outermost string literals of a tree that are not expression statements."""
    for child in ast.iter_child_nodes(tree):
        match child:
            case ast.Expr(value=ast.Constant()):
                continue
            case ast.JoinedStr():
                yield child
            case ast.Constant(value=str()):
                yield child
            case _:
                yield from _literals(child)


def _text(node: ast.Constant | ast.JoinedStr) -> str:
    if isinstance(node, ast.Constant):
        return " ".join(str(node.value).split())
    parts = [
        f"{{{ast.unparse(part.value)}}}" if isinstance(part, ast.FormattedValue) else str(ast.literal_eval(part))
        for part in node.values
    ]
    return " ".join("".join(parts).split())


def _is_prose(text: str) -> bool:
    """Return whether a text is neither a name nor a pattern of a search."""
    return text.count(" ") >= WORDS - 1 and len(_WORD.findall(text)) >= WORDS and "\\" not in text


def main() -> int:
    """Print the messages of the packages that are named, or of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="*", default=PACKAGES)
    path = ""
    for message in messages(tuple(parser.parse_args().packages)):
        if message.path != path:
            path = message.path
            print(f"\n{path}")
        print(f"{message.line:6}  {message.text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
