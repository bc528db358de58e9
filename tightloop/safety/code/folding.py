"""Works out what an expression of constants is, so that a name in pieces is read like a whole one.

Nothing of the code is run: only the operators and functions below are applied to constants, within `SIZE_LIMIT`.
"""

import ast
import base64
import binascii
import codecs
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

SIZE_LIMIT = 10_000
"""Characters, bytes or items of a value; longer ones are not worked out."""
DEPTH_LIMIT = 60
GROWTH_LIMIT = 1_000_000
"""Product of the sizes of a value and of the arguments of its method."""


class UnknownValueError(Exception):
    """The value is not known before the code is run. Caught by `fold`."""


_METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset({
        "lower", "upper", "title", "swapcase", "capitalize", "casefold", "strip", "lstrip", "rstrip", "replace",
        "encode", "join", "format", "removeprefix", "removesuffix", "translate", "split", "partition",
    }),
    bytes: frozenset({"decode", "hex", "lower", "upper", "strip", "replace", "join", "split"}),
}  # fmt: skip
_ALPHABETS = frozenset(
    {"rot13", "rot_13", "hex", "hex_codec", "base64", "base_64", "utf-8", "utf8", "ascii", "latin-1"}
)


def _decoded(value: Any, codec: str = "utf-8") -> Any:
    # No codec that unpacks: a few bytes may become a gigabyte.
    if codec.lower() not in _ALPHABETS:
        raise UnknownValueError
    return codecs.decode(value, codec)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "builtins.chr": chr,
    "builtins.ord": ord,
    "builtins.str": str,
    "builtins.bytes": lambda value, *encoding: bytes(value, *encoding) if encoding else bytes(list(value)),
    "builtins.bytearray": lambda value: bytes(list(value)),
    "builtins.list": list,
    "builtins.tuple": list,
    "builtins.reversed": lambda value: list(value)[::-1],
    "builtins.bytes.fromhex": bytes.fromhex,
    "builtins.str.join": lambda separator, parts: separator.join(parts),
    "base64.b64decode": base64.b64decode,
    "base64.urlsafe_b64decode": base64.urlsafe_b64decode,
    "base64.b32decode": base64.b32decode,
    "base64.b16decode": base64.b16decode,
    "binascii.unhexlify": binascii.unhexlify,
    "binascii.a2b_hex": binascii.a2b_hex,
    "binascii.a2b_base64": binascii.a2b_base64,
    "codecs.decode": _decoded,
}
MAPPED = frozenset({"builtins.map"})


class Folding:
    """Works out constants; what names mean is asked of others."""

    def __init__(
        self, paths: Callable[[ast.expr], frozenset[str]], value_of: Callable[[ast.Name], ast.expr | None]
    ) -> None:
        """Take what returns the full names that an expression may have, and what a name is assigned once."""
        self._paths = paths
        self._value_of = value_of
        self._assigned: dict[int, Any] = {}

    def fold(self, node: ast.expr) -> Any:
        """Return the value of an expression (a text, bytes, a number or a list), or None where it is not known."""
        try:
            return self._value(node, {}, 0)
        except (UnknownValueError, ArithmeticError, LookupError, TypeError, ValueError):
            return None

    def _value(self, node: ast.expr, names: Mapping[str, Any], depth: int) -> Any:
        if depth > DEPTH_LIMIT:
            raise UnknownValueError
        value = self._inner(node, names, depth + 1)
        if isinstance(value, str | bytes | list) and len(value) > SIZE_LIMIT:
            raise UnknownValueError
        return value

    def _inner(self, node: ast.expr, names: Mapping[str, Any], depth: int) -> Any:
        match node:
            case ast.Constant(value=str() | bytes() | int() as value):
                return value
            case ast.Name(id=name):
                return names[name] if name in names else self._named(node, depth)
            case ast.Call(keywords=[]):
                return self._called(node, names, depth)
            case ast.ListComp() | ast.GeneratorExp():
                return list(self._items(node, names, depth))
            case ast.Subscript(value=owner, slice=index):
                return self._item(self._value(owner, names, depth), index, names, depth)
        return self._composed(node, names, depth)

    def _composed(self, node: ast.expr, names: Mapping[str, Any], depth: int) -> Any:
        match node:
            case ast.BinOp(left=left, op=operator, right=right):
                return _combined(operator, self._value(left, names, depth), self._value(right, names, depth))
            case ast.JoinedStr(values=values):
                return "".join(str(self._value(value, names, depth)) for value in values)
            case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
                return self._value(value, names, depth)
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                return [self._value(element, names, depth) for element in elements]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._value(operand, names, depth)
        raise UnknownValueError

    def _named(self, node: ast.Name, depth: int) -> Any:
        assigned = self._value_of(node)
        if assigned is None:
            raise UnknownValueError
        if id(assigned) not in self._assigned:
            self._assigned[id(assigned)] = None
            self._assigned[id(assigned)] = self._value(assigned, {}, depth)
        if self._assigned[id(assigned)] is None:
            raise UnknownValueError
        return self._assigned[id(assigned)]

    def _item(self, value: Any, index: ast.expr, names: Mapping[str, Any], depth: int) -> Any:
        if isinstance(index, ast.Slice):
            ends = (index.lower, index.upper, index.step)
            return value[slice(*(None if end is None else self._value(end, names, depth) for end in ends))]
        return value[self._value(index, names, depth)]

    def _items(self, node: ast.ListComp | ast.GeneratorExp, names: Mapping[str, Any], depth: int) -> Iterator[Any]:
        if len(node.generators) != 1 or node.generators[0].ifs:
            raise UnknownValueError
        target, each = node.generators[0].target, self._value(node.generators[0].iter, names, depth)
        if not isinstance(target, ast.Name) or not isinstance(each, str | bytes | list):
            raise UnknownValueError
        for item in each:
            yield self._value(node.elt, {**names, target.id: item}, depth)

    def _called(self, node: ast.Call, names: Mapping[str, Any], depth: int) -> Any:
        paths = self._paths(node.func)
        if MAPPED & paths and len(node.args) == 2:
            function = next((_FUNCTIONS[path] for path in self._paths(node.args[0]) if path in _FUNCTIONS), None)
            if function is None:
                raise UnknownValueError
            return [function(item) for item in self._value(node.args[1], names, depth)]
        known = next((_FUNCTIONS[path] for path in paths if path in _FUNCTIONS), None)
        if known is None and not isinstance(node.func, ast.Attribute):
            raise UnknownValueError
        arguments = [self._value(argument, names, depth) for argument in node.args]
        if known is not None:
            return known(*arguments)
        assert isinstance(node.func, ast.Attribute)
        value = self._value(node.func.value, names, depth)
        if node.func.attr not in _METHODS.get(type(value), ()) or _grows(value, node.func.attr, arguments):
            raise UnknownValueError
        return getattr(value, node.func.attr)(*arguments)


def _grows(value: str | bytes, method: str, arguments: list[Any]) -> bool:
    """Return whether a method could make a huge value of small ones."""
    if method == "format" and isinstance(value, str):
        return ":" in value
    sizes = [len(argument) for argument in arguments if isinstance(argument, str | bytes | list)]
    return math.prod((len(value) or 1, *sizes)) > GROWTH_LIMIT


def _combined(operator: ast.operator, left: Any, right: Any) -> Any:
    match operator:
        case ast.Add():
            return left + right
        case ast.Sub() | ast.BitXor() if isinstance(left, int) and isinstance(right, int):
            return left - right if isinstance(operator, ast.Sub) else left ^ right
        case ast.Mod() if isinstance(left, str) and left.count("%") == left.count("%s"):
            return left % (tuple(right) if isinstance(right, list) else right)
        case ast.Mult() if isinstance(left, str | bytes) and isinstance(right, int) and len(left) * right <= SIZE_LIMIT:
            return left * right
    raise UnknownValueError
