"""Values against JSON schemas (draft 2020-12), without remote references, and in time linear for patterns."""

from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable

from tightloop.plan.language.function import FunctionError, pattern_of
from tightloop.value import clip, shorten

PROBLEMS_LIMIT = 8
PROBLEM_CHARACTERS = 300
"""The end is kept: messages begin with the value."""


def schema_problem(schema: Mapping[str, Any]) -> str:
    """Return what is wrong with a schema itself; empty: nothing."""
    try:
        _Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        return f"the schema is malformed at '{_place(error)}': {clip(error.message, PROBLEM_CHARACTERS)}"
    except RecursionError:
        return "the schema is nested too deeply"
    return ""


def problems_with(value: Any, schema: Mapping[str, Any]) -> tuple[str, ...]:
    """Return why a value does not fit a schema, one sentence each, at most `PROBLEMS_LIMIT`; empty: it fits."""
    if problem := schema_problem(schema):
        return (problem,)
    try:
        # An empty registry: a schema must not make this process fetch another one.
        errors = sorted(_Validator(schema, registry=Registry()).iter_errors(value), key=lambda error: error.json_path)
    except Unresolvable as error:
        return (f"the schema refers to {error.ref!r}, which is not within it",)
    except FunctionError as error:
        return (f"the schema: {error}",)
    except RecursionError:
        return ("the schema or the value is nested too deeply",)
    return tuple(f"`{_place(error)}`: {clip(error.message, PROBLEM_CHARACTERS)}" for error in errors[:PROBLEMS_LIMIT])


def strict(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema as model services want it: every property of an object is required, none may be added."""
    made: dict[str, Any] = {name: _strict(name, part) for name, part in schema.items()}
    if isinstance(schema.get("properties"), Mapping):
        made |= {"required": list(schema["properties"]), "additionalProperties": False}
    return made


def _strict(name: str, part: Any) -> Any:
    if name in ("properties", "$defs") and isinstance(part, Mapping):
        return {key: strict(value) if isinstance(value, Mapping) else value for key, value in part.items()}
    if name == "items" and isinstance(part, Mapping):
        return strict(part)
    if name in ("anyOf", "allOf", "oneOf") and isinstance(part, list | tuple):
        return [strict(value) if isinstance(value, Mapping) else value for value in part]
    return part


def _place(error: jsonschema.ValidationError | jsonschema.SchemaError) -> str:
    return ".".join(map(str, error.absolute_path)) or "(whole)"


# The library matches patterns by `re`, which backtracks: some need exponential time.
def _pattern(_validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[jsonschema.ValidationError]:
    if isinstance(instance, str) and not pattern_of(pattern).isinstance_python(instance):
        yield jsonschema.ValidationError(f"{shorten(instance, 80)!r} does not match {pattern!r}")


_Validator: Any = extend(jsonschema.Draft202012Validator, {"pattern": _pattern})  # type: ignore[no-untyped-call]
