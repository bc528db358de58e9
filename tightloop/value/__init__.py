"""Base models for values sent through Temporal, for caller input and for documents, and helpers for texts and sizes."""

import hashlib
import json
import re
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Generic, Self, TypeVar, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from tightloop.errors import InvalidRequestError, did_you_mean
from tightloop.value.scrub import find_secrets
from tightloop.wording import format_count as format_count

AROUND_CUT = 4_096
"""Number of characters on each side of a cut that are searched for a secret. A 4096-bit private key is shorter."""


class _Frozen(BaseModel):
    # Validators are built on first use, because a client imports many models and uses few. Values that are created at
    # import time, such as field defaults, therefore use `model_construct()`, which needs no validator.
    model_config = ConfigDict(frozen=True, defer_build=True)

    def evolve(self, **changes: Any) -> Self:
        """Return a copy with the given fields changed.

        `deploy/mypy_evolve.py` checks the types. Values are not validated again.

        Raises:
            TypeError: a name is not a field. `model_copy` would silently accept the name.
        """
        unknown = changes.keys() - type(self).model_fields.keys()
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(unknown))}")
        copy = self.model_copy(update=changes)
        # A set per copy took a tenth of the memory of a waiting episode. Sharing is safe: values are frozen, and
        # pydantic copies the set before it adds to it.
        object.__setattr__(copy, "__pydantic_fields_set__", _shared(frozenset(copy.__pydantic_fields_set__)))
        return copy

    @classmethod
    def of(cls, other: BaseModel, **changes: Any) -> Self:
        """Create an instance from the matching fields of another model.

        For example, create a request from an input.
        """
        # Unlike `evolve` this validates, because the other model may have other bounds.
        shared = {name: getattr(other, name) for name in cls.model_fields if name in type(other).model_fields}
        return cls(**(shared | changes))


_shared: Callable[[frozenset[str]], set[str]] = cache(set)


class Value(_Frozen):
    """A frozen value that is sent through Temporal.

    Unknown fields are ignored and new fields need a default, because new code replays old histories and old workers
    may receive new ones.
    """

    model_config = ConfigDict(extra="ignore")


class Sparse(Value):
    """A value that is sent in large numbers. Fields with default values are omitted from its JSON."""

    @model_serializer(mode="wrap", when_used="json")
    def _without_defaults(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Not `exclude_defaults`: every caller would have to pass it, and one of them is Temporal's converter.
        defaults = _defaults(type(self))
        return {name: value for name, value in write(self).items() if getattr(self, name) != defaults.get(name, ...)}


@cache
def _defaults(model: type[BaseModel]) -> dict[str, Any]:
    fields = model.model_fields.items()
    return {name: field.get_default(call_default_factory=True) for name, field in fields if not field.is_required()}


@cache
def build_models() -> None:
    """Build the validators of all imported values in advance, so that workflow tasks do not have to wait."""
    left: list[type[BaseModel]] = [_Frozen]
    while left:
        model = left.pop()
        model.model_rebuild()
        left += model.__subclasses__()


class Document(_Frozen):
    """A frozen value written by a person, such as settings or CLI input. Unknown fields are rejected."""

    model_config = ConfigDict(extra="forbid")


def digest(text: str) -> str:
    """Return the length and the digest of a text that must not be shown.

    Logs and traces use the same format, so that a digest from a log can be found in the traces.
    """
    return f"{len(text)} characters, sha256 {hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:12]}"


_DURATION = "a duration such as 2h, 90m or 5400 (seconds)"
_KINDS = {
    "tuple": "a list", "list": "a list", "set": "a list", "frozen_set": "a list", "dict": "fields", "model": "fields",
    "string_type": "a string", "int": "a whole number", "float": "a number", "finite": "a number",
    "bool": "true or false", "time_delta": _DURATION, "timedelta": _DURATION,
}  # fmt: skip
"""Expected values, by the prefix of pydantic's error type."""


def first_problem(error: ValidationError) -> str:
    """Describe the first invalid field as `field: problem, not value`."""
    first = error.errors()[0]
    field, kind = ".".join(str(part) for part in first["loc"]) or "the input", first["type"]
    if kind == "missing":
        return f"{field} is missing"
    value_text = shorten(json.dumps(first["input"], ensure_ascii=False, default=str), 80)
    if kind == "extra_forbidden":
        return f"unknown field '{field}'"
    expected = next((phrase for start, phrase in _KINDS.items() if kind.startswith(start)), "")
    if kind in ("enum", "literal_error"):
        expected = str(first.get("ctx", {}).get("expected", ""))
    # Validators of our models already raise sentences.
    requirement = f"must be {expected}" if expected else first["msg"].removeprefix("Value error, ")
    requirement = requirement.replace("Input should be", "must be")
    return f"{field}: {requirement}, not {value_text}"


def is_path_named(pattern: str, path: str) -> bool:
    """Return whether a pattern matches a path exactly, as a parent folder, or with `*`."""
    return pattern == path or path.startswith(f"{pattern.rstrip('/')}/") or fnmatchcase(path, pattern)


def shorten(text: str, limit: int) -> str:
    """Return the start of `text`, at most `limit` characters. A mark shows where the text was cut.

    A secret is never cut in two, because half of a secret would not be recognised.
    """
    if len(text) <= limit:
        return text
    suffix = " [...]"
    return text[: _cut_around_secret(text, max(limit - len(suffix), 0))[0]] + suffix[:limit]


def clip(text: str, limit: int) -> str:
    """Return the end of `text`, at most `limit` characters. A mark shows where the text was cut.

    The end is kept because tools usually print the cause last. A secret is never cut in two.
    """
    if len(text) <= limit:
        return text
    prefix = "[...] "[:limit]
    return prefix + text[_cut_around_secret(text, len(text) - limit + len(prefix))[1] :]


def last_lines(text: str, limit: int) -> str:
    """Return the last complete lines of `text`, at most `limit` characters.

    A line is only cut if it exceeds the limit on its own.
    """
    if len(text) <= limit:
        return text
    # With the character before: it shows whether the first line is whole.
    _, _, lines = text[-limit - 1 :].partition("\n")
    if not lines.strip():
        return clip(text, limit)
    # A private key has several lines, and a part of it would not be recognized.
    return text[_cut_around_secret(text, len(text) - len(lines))[1] :]


def abridge(text: str, limit: int) -> str:
    """Shorten text to at most `limit` characters by removing the middle.

    Two thirds of the result come from the end of the text.
    """
    if len(text) <= limit:
        return text
    start = limit // 3
    return shorten(text, start) + clip(text, limit - start).removeprefix("[...]")


def split(text: str, limit: int) -> Iterator[str]:
    """Split text into pieces of at most `limit` characters. A secret longer than that is not split."""
    while len(text) > limit:
        before, after = _cut_around_secret(text, limit)
        # A secret at the very start leaves no cut before it, so it is taken as a whole.
        yield text[: before or after]
        text = text[before or after :]
    yield text


def _cut_around_secret(text: str, at: int) -> tuple[int, int]:
    """Return the cut positions before and after a secret that spans `at`.

    Both positions are `at` if there is no such secret.
    """
    start = max(at - AROUND_CUT, 0)
    for span in find_secrets(text[start : at + AROUND_CUT]):
        if start + span.start < at < start + span.end:
            return start + span.start, start + span.end
    return at, at


PACKED = "small.db"
"""SQLite file in the artifact folder that contains the small artifacts. Larger ones are separate files next to it."""
FIND_PACKED = "SELECT content FROM artifact WHERE sha256 = ?"


class ArtifactRef(Sparse):
    """A reference to stored bytes. Temporal only receives the reference."""

    sha256: str
    """Digest of the bytes, 64 hexadecimal digits. It is also the key in the store."""
    size_bytes: int
    media_type: str = "application/json"
    name: str = ""
    """Role of the content, such as `plan` or `checks`, which helps people who read the history."""


def reference(content: bytes, *, name: str, media_type: str = "application/json") -> ArtifactRef:
    """Return the reference under which `content` will be stored."""
    return ArtifactRef(
        sha256=hashlib.sha256(content).hexdigest(),
        size_bytes=len(content),
        media_type=media_type,
        name=name,
    )


def pack(content: bytes) -> bytes:
    """Encode the bytes of an artifact for the SQLite file."""
    return zlib.compress(content)


def unpack(packed: bytes) -> bytes:
    """Decode a packed artifact. Return empty bytes if it is damaged, so that the hash check fails."""
    try:
        return zlib.decompress(packed)
    except zlib.error:
        return b""


UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
"""Accepted units in seconds."""
_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)")


def read_seconds(text: str) -> float | None:
    """Parse a number with a time unit. Return the number of seconds, or None for any other text."""
    match = _FORM.fullmatch(text.strip())
    return float(match[1]) * UNITS[match[2]] if match else None


def _in_seconds(value: Any) -> Any:
    seconds = read_seconds(value) if isinstance(value, str) else None
    return value if seconds is None else seconds


Duration = Annotated[timedelta, BeforeValidator(_in_seconds)]
"""Time span, read from seconds, `2h`, `2:00:00` or ISO 8601 (`PT2H`)."""


class CallerInput(Value):
    """A value created by callers. In Python, a misspelled or wrong argument raises `InvalidRequestError`.

    Data received through Temporal is parsed like any other `Value`.
    """

    # Type checkers still see the fields as arguments.
    if not TYPE_CHECKING:

        def __init__(self, *given: Any, **fields: Any) -> None:
            kind = type(self)
            if given:
                first = next(iter(kind.model_fields))
                raise InvalidRequestError(
                    f"{kind.__name__}: pass the fields by name, for example {kind.__name__}({first}={given[0]!r})"
                )
            # `Value` ignores unknown fields for old histories; a caller's typing error must not be ignored.
            if unknown := next(unknown_fields(kind, fields), ""):
                raise InvalidRequestError(f"{kind.__name__}: {unknown}")
            try:
                super().__init__(**fields)
            except ValidationError as error:
                raise InvalidRequestError(f"{kind.__name__}: {first_problem(error)}") from None

        # Without this mark pydantic would also call it while parsing.
        __init__.__pydantic_base_init__ = True


def json_size(value: BaseModel, fields: set[str] | None = None) -> int:
    """Return the number of JSON characters in a value, or in some of its fields.

    Raises:
        InvalidRequestError: the value contains an object that has no JSON form.
    """
    try:
        return len(value.model_dump_json(include=fields))
    except ValueError as error:
        why = str(error).removeprefix("Error serializing to JSON: ")
        raise InvalidRequestError(
            f"the request cannot be sent as JSON: {shorten(why, 120)}. "
            "Use only strings, numbers, True, False, None, lists and dicts"
        ) from None


def unknown_fields(model: type[BaseModel], document: Any, above: str = "") -> Iterator[str]:
    """Yield a sentence for each field that does not exist in the model or a nested model.

    Args:
        model: model that the document will be parsed into.
        document: parsed JSON or YAML. Nothing is yielded if it is not a mapping.
        above: dotted path of the document within its parent.
    """
    if not isinstance(document, dict):
        return
    for name, value in document.items():
        field = model.model_fields.get(name)
        if field is None:
            field_path = f"{above}.{name}" if above else str(name)
            yield f"unknown field {field_path!r}. {did_you_mean(str(name), model.model_fields)}"
            continue
        if get_origin(field.annotation) is dict:  # its names are user-defined
            continue
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                for item in value if isinstance(value, list | tuple) else (value,):
                    yield from unknown_fields(part, item, f"{above}.{name}" if above else name)


K = TypeVar("K")
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """Thread-safe least-recently-used cache."""

    def __init__(self, most: int) -> None:
        self._max_size = most
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """Return a cached value, or None."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        """Store a value. If the cache is full, evict the least recently used value."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self._max_size:
                self._values.popitem(last=False)

    def drop(self, key: K) -> None:
        """Remove a value. A missing key is ignored."""
        with self._lock:
            self._values.pop(key, None)
