"""Argument checks that run before a public function is executed."""

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from enum import Enum
from functools import cache, wraps
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from tightloop.errors import InvalidRequestError, did_you_mean
from tightloop.value import shorten

T = TypeVar("T")

_WORDS: dict[Any, str] = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    timedelta: "a timedelta (for example timedelta(seconds=30))",
    NoneType: "None",
}
_SHOWN = (str, bytes, int, float, bool, NoneType, list, tuple, dict, set)


class AtLeast(NamedTuple):
    """The minimum value of an argument, for use in annotations: `Annotated[int, AtLeast(1)]`."""

    least: Any


class Hint(NamedTuple):
    """Advice added to the error if an argument has the wrong type."""

    sentence: str


def checks_arguments(owner: type[T]) -> type[T]:
    """Check the arguments of a class's public methods against their annotations. Used as a decorator.

    An invalid argument raises `InvalidRequestError`. For an iterator, the error is raised when the iterator
    is created, not when its first value is requested.
    """
    # A copy, because the loop changes the class.
    for name, member in list(vars(owner).items()):
        if name.startswith("_") and name != "__init__":
            continue
        if isinstance(member, classmethod):
            setattr(owner, name, classmethod(_wrap_function(member.__func__)))
        elif inspect.isfunction(member):
            setattr(owner, name, _wrap_function(member))
    return owner


def _wrap_function(function: Callable[..., Any]) -> Callable[..., Any]:
    making = function.__name__ == "__init__"
    title, module = function.__name__, function.__module__
    # A coroutine function has to stay one, because frameworks decide by `iscoroutinefunction`.
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def call_async(*given: Any, **named: Any) -> Any:
            _check(title, module, function, given, named)
            return await function(*given, **named)

        return call_async

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        _check(type(given[0]).__name__ if making else title, module, function, given, named)
        return function(*given, **named)

    return call


@cache
def _read(annotation: str, module: str) -> Any:
    """Resolve an annotation that is stored as text.

    Names that are only imported for type checkers are looked up in the package. This loads their modules.
    """
    namespace = vars(sys.modules[module])
    package = sys.modules[namespace["__package__"]]
    code = compile(annotation, module, "eval")
    later = {name: getattr(package, name) for name in code.co_names if name not in namespace and hasattr(package, name)}
    return eval(code, namespace, later)  # noqa: S307 - an annotation of ours


@cache
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    # On the first call, because a program calls few of the methods that it imports.
    return inspect.signature(function)


def _check(
    title: str, module: str, function: Callable[..., Any], positional: tuple[Any, ...], named: dict[str, Any]
) -> None:
    signature = _signature(function)
    try:
        bound = signature.bind(*positional, **named)
    except TypeError as error:
        raise InvalidRequestError(f"{title}: {_misfit(signature, named, str(error))}") from None
    # Without `self` or `cls`.
    for name, value in list(bound.arguments.items())[1:]:
        parameter = signature.parameters[name]
        kind = parameter.annotation
        if isinstance(kind, str):
            kind = _read(kind, module)
        several = value if parameter.kind is inspect.Parameter.VAR_KEYWORD else {name: value}
        for key, item in several.items():
            if problem := _problem(item, kind):
                raise InvalidRequestError(f"{title}: {key} {problem}")


def _misfit(signature: inspect.Signature, named: dict[str, Any], why: str) -> str:
    names = list(signature.parameters)[1:]
    unknown = next((name for name in named if name not in names), "")
    if unknown and "unexpected keyword" in why:
        suggestion = did_you_mean(unknown, names) or "No keyword arguments are accepted"
        return f"unknown argument {unknown!r}. {suggestion}"
    return f"{why}. Valid arguments: {', '.join(names) or 'none'}"


def _problem(value: Any, kind: Any) -> str:
    """Return the problem with a value, phrased as the end of a sentence, or "" if the value is valid."""
    broken = ""
    hints: list[str] = []
    for choice, rules in _choices(kind):
        hints += [f". {rule.sentence}" for rule in rules if isinstance(rule, Hint)]
        if not _fits(value, choice):
            continue
        least = next((rule.least for rule in rules if isinstance(rule, AtLeast)), None)
        if value is None or least is None or value >= least:
            return "" if _is_storable(value) else "contains characters that cannot be stored as UTF-8"
        broken = f"must be at least {least}, got {value}"
    return broken or f"must be {_words(kind)}, not {_format_value(value)}{''.join(dict.fromkeys(hints))}"


def _choices(kind: Any, rules: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield each type that an annotation allows, with its rules."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        yield from _choices(parts[0], (*rules, *parts[1:]))
    elif origin in (Union, UnionType):
        for part in parts:
            yield from _choices(part, rules)
    else:
        yield kind, rules


def _fits(value: Any, kind: Any) -> bool:
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any or kind is inspect.Parameter.empty:
        return True
    if origin is Literal:
        return any(value == part and isinstance(value, type(part)) for part in parts)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Sequence):
        # A string is a sequence too, but no caller means its letters.
        return (
            isinstance(value, Sequence)
            and not isinstance(value, str)
            and all(not _problem(item, parts[0]) for item in value)
        )
    if origin is not None:
        # Callables are the only other generic type in our signatures.
        return callable(value)
    if kind in (None, NoneType):
        return value is None
    if kind in (int, float):
        # `True` is an int in Python.
        return isinstance(value, (int, float) if kind is float else int) and not isinstance(value, bool)
    return isinstance(value, kind)


def _words(kind: Any) -> str:
    """Describe the allowed types in words, such as `text or None`."""
    kinds = sorted((choice for choice, _ in _choices(kind)), key=lambda one: one is NoneType)
    return " or ".join(dict.fromkeys(phrase for choice in kinds for phrase in _words_of(choice)))


def _words_of(kind: Any) -> tuple[str, ...]:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return tuple(map(repr, parts))
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return (f"a list (each item {_words(parts[0])})",)
    if origin is not None:
        return ("a function",)
    if issubclass(kind, Enum):
        return tuple(repr(member.value) for member in kind)
    return (_WORDS.get(kind) or _with_article(kind.__name__),)


def _with_article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _format_value(value: Any) -> str:
    if isinstance(value, _SHOWN):
        return shorten(repr(value), 80)
    return _with_article(type(value).__name__)


def _is_storable(value: Any) -> bool:
    # Payloads are UTF-8, which cannot encode lone surrogates.
    return not isinstance(value, str) or not any("\ud800" <= letter <= "\udfff" for letter in value)
