"""Data that was read from a text, each value with its line and column; renaming a field keeps them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

from tightloop.errors import Position

Path = tuple[str | int, ...]
"""Way to a value: names of fields and indexes of items."""


HALF_PAIR = "the text is not valid Unicode: it has half of a surrogate pair"


class TextError(ValueError):
    """A text that cannot be read as data."""

    def __init__(self, message: str, position: Position = Position(), suggestion: str = "") -> None:
        """Keep what, where and what to do."""
        super().__init__(message)
        self.message, self.position, self.suggestion = message, position, suggestion


class Block(str):
    """A text whose lines stand below each other as they are, as YAML's `|` writes it."""

    at: Position
    """Where its first line begins."""

    @classmethod
    def of(cls, text: str, at: Position) -> Self:
        """Return a text with the place of its first line."""
        made = cls(text)
        made.at = at
        return made


def place_in(text: str, offset: int, start: Position) -> Position:
    """Return where a character of a text stands that begins at `start`; of folded lines only the start is known."""
    if isinstance(text, Block):
        line_start = text.rfind("\n", 0, offset) + 1
        return Position(text.at.line + text.count("\n", 0, offset), text.at.column + offset - line_start)
    return start if "\n" in text or not start.line else Position(start.line, start.column + offset)


class Map(dict[str, Any]):
    """A mapping whose keys and values have positions."""

    def __init__(self, at: Position = Position()) -> None:
        """Make an empty one that begins at a position."""
        super().__init__()
        self.at = at
        self.keys_at: dict[str, Position] = {}
        self.values_at: dict[str, Position] = {}
        self.written: dict[str, str] = {}
        """Fields that were given another name -> the author's."""

    def put(self, key: str, value: Any, *, at: Position | None = None, key_at: Position | None = None) -> Self:
        """Set a value with its position (by default that of the mapping), and return the mapping."""
        self[key] = value
        self.values_at[key] = at or key_at or self.at
        self.keys_at[key] = key_at or at or self.at
        return self

    def put_new(self, key: str, value: Any, *, at: Position, key_at: Position) -> None:
        """Set a value as it is read.

        Raises:
            TextError: the mapping has the key already.
        """
        if key in self:
            first = self.keys_at[key].line
            raise TextError(f"field '{key}' occurs twice (first in line {first})", key_at, "Remove one")
        self.put(key, value, at=at, key_at=key_at)

    def take(self, key: str) -> tuple[Any, Position, Position]:
        """Remove a key; return its value, the value's position and the key's."""
        return self.pop(key), self.values_at.pop(key, self.at), self.keys_at.pop(key, self.at)

    def move(self, old: str, new: str, *, unit: str = "") -> None:
        """Move a value to another field, unless that has one already.

        Args:
            old: its field; a dot leads into a mapping below.
            new: its new field; mappings above it are made.
            unit: put behind a number.
        """
        *above, name = old.split(".")
        source: Any = self
        for part in above:
            source = source.get(part) if isinstance(source, Map) else None
        if not isinstance(source, Map) or name not in source:
            return
        value, at, key_at = source.take(name)
        if above and not source:
            self.take(above[0])
        *above, field = new.split(".")
        target: Any = self
        for part in above:
            if target.get(part) is None:
                target.put(part, Map(at), at=at, key_at=key_at)
            target = target[part]
        if isinstance(target, Map) and field not in target:
            number = unit and isinstance(value, int | float)
            target.put(field, f"{value}{unit}" if number else value, at=at, key_at=key_at)
            target.written[field] = old
        else:
            source.put(name, value, at=at, key_at=key_at)


class Seq(list[Any]):
    """A list whose items have positions."""

    def __init__(self, at: Position = Position()) -> None:
        """Make an empty one that begins at a position."""
        super().__init__()
        self.at = at
        self.items_at: list[Position] = []

    def add(self, value: Any, at: Position) -> None:
        """Append an item with its position."""
        self.append(value)
        self.items_at.append(at)


def seq(values: Iterable[Any], at: Position) -> Seq:
    """Return a list whose items all have one position."""
    made = Seq(at)
    for value in values:
        made.add(value, at)
    return made


def entries(values: Any, at: Position) -> Iterator[tuple[Any, Position]]:
    """Yield the items of a list with their positions; a single value counts as a list of one."""
    if isinstance(values, Seq):
        yield from zip(values, values.items_at, strict=True)
    elif values is not None:
        yield values, at


def plain(value: Any) -> Any:
    """Return the data without positions."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return str(value) if isinstance(value, Block) else value


def position(tree: Any, path: Sequence[str | int], *, key: bool = False) -> Position:
    """Return where the value at `path` stands, or the nearest value around it that exists.

    Args:
        tree: what was read.
        path: way to the value; parts that do not occur are passed over.
        key: point to the field's name, not to its value.
    """
    found = tree.at if isinstance(tree, Map | Seq) else Position()
    for part in path:
        if isinstance(tree, Map) and part in tree:
            name = str(part)
            nested = isinstance(tree[name], dict | list)
            found = (tree.keys_at if nested or key else tree.values_at).get(name, found)
            tree = tree[name]
        elif isinstance(tree, Seq) and isinstance(part, int) and 0 <= part < len(tree):
            found, tree = tree.items_at[part], tree[part]
    return found


def texts(tree: Any, *, without: frozenset[Path] = frozenset(), path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Yield all texts below a value with their paths, but for those below the paths `without`."""
    if path in without:
        return
    if isinstance(tree, str):
        yield path, tree
    elif isinstance(tree, dict):
        for key, inner in tree.items():
            yield from texts(inner, without=without, path=(*path, key))
    elif isinstance(tree, list | tuple):
        for index, inner in enumerate(tree):
            yield from texts(inner, without=without, path=(*path, index))
