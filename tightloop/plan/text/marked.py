"""Data of a text in which every value knows its line and column, also after its fields were renamed."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tightloop.plan.problem import Position

Path = tuple[str | int, ...]
"""Way to a value: names of fields and indexes of items."""


class Map(dict[str, Any]):
    """A mapping whose keys and values have positions."""

    def __init__(self, at: Position = Position()) -> None:
        """Make an empty one that begins at a position."""
        super().__init__()
        self.at = at
        self.keys_at: dict[str, Position] = {}
        self.values_at: dict[str, Position] = {}

    def put(self, key: str, value: Any, *, at: Position | None = None, key_at: Position | None = None) -> None:
        """Set a value with its position (by default that of the mapping)."""
        self[key] = value
        self.values_at[key] = at or key_at or self.at
        self.keys_at[key] = key_at or at or self.at

    def take(self, key: str) -> tuple[Any, Position, Position]:
        """Remove a key; return its value, the value's position and the key's."""
        return self.pop(key), self.values_at.pop(key, self.at), self.keys_at.pop(key, self.at)

    def rename(self, old: str, new: str) -> None:
        """Give a value another key, at the same place of the order of keys that matters to nobody."""
        value, at, key_at = self.take(old)
        self.put(new, value, at=at, key_at=key_at)


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
    return [plain(inner) for inner in value] if isinstance(value, list) else value


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
