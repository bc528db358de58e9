"""Models as HTTP writes them: names in camelCase, durations in seconds.

`shown` and `body` make such a model of one of the library, so that no field is written twice.
"""

from collections.abc import Iterable
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

CONFIG = ConfigDict(
    alias_generator=to_camel,
    validate_by_name=True,
    validate_by_alias=True,
    from_attributes=True,
    # Durations are seconds: what pydantic writes otherwise, such as PT2.5S, is not a `duration` of RFC 3339.
    ser_json_timedelta="float",
)


class Shown(BaseModel):
    """A model of the API itself."""

    model_config = CONFIG


class Body(Shown):
    """A body of a request: a misspelt name is refused."""

    model_config = ConfigDict(extra="forbid")


@cache
def shown(model: type[BaseModel], *, without: frozenset[str] = frozenset()) -> type[BaseModel]:
    """Return a model with the fields of another one and of those within it, to be read from its instances."""
    return _mirror(model, Shown, without, "")


@cache
def body(model: type[BaseModel], name: str, *, without: frozenset[str] = frozenset()) -> type[BaseModel]:
    """Return a model of a request's body with the fields of another one; see `given`."""
    return _mirror(model, Body, without, name)


def given(sent: BaseModel) -> dict[str, Any]:
    """Return what a body says, under the names of the model that it was made from; defaults are left out."""
    return sent.model_dump(exclude_unset=True, by_alias=False)


def _mirror(model: type[BaseModel], kind: type[BaseModel], without: Iterable[str], name: str) -> type[BaseModel]:
    fields: dict[str, Any] = {
        key: (_annotation(info, kind), _default(info)) for key, info in model.model_fields.items() if key not in without
    }
    made: type[BaseModel] = create_model(name or _name(model, kind), __base__=kind, __doc__=model.__doc__, **fields)
    return made


def _name(model: type[BaseModel], kind: type[BaseModel]) -> str:
    return f"{model.__name__}{'Input' if kind is Body else ''}"


def _annotation(info: FieldInfo, kind: type[BaseModel]) -> Any:
    found = _translated(info.annotation, kind)
    return Annotated[found, *info.metadata] if info.metadata else found


def _translated(annotation: Any, kind: type[BaseModel]) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return body(annotation, _name(annotation, kind)) if kind is Body else shown(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is None or not any(_has_model(one) for one in arguments):
        return annotation
    if origin is Annotated:
        return Annotated[_translated(arguments[0], kind), *arguments[1:]]
    translated = tuple(one if one is Ellipsis else _translated(one, kind) for one in arguments)
    return Union[translated] if origin in (Union, UnionType) else origin[translated]  # noqa: UP007 - made at run time


def _has_model(annotation: Any) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return True
    return any(map(_has_model, get_args(annotation)))


def _default(info: FieldInfo) -> Any:
    if info.is_required():
        return Field(description=info.description)
    value = info.get_default(call_default_factory=True)
    if isinstance(value, str | int | float | bool | None):
        return Field(default=value, description=info.description)
    # Never read: of a request only what was sent counts, and an answer has all fields.
    return Field(default_factory=lambda: value, description=info.description)
