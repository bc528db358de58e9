"""Reads a model of sections from layers: YAML documents, then environment variables.

The model has sections, a section has fields. Every problem becomes one sentence that names the setting,
where it stands, and what is allowed or was probably meant.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tightloop.errors import SettingsError
from tightloop.value import Document, clip

Keys = tuple[str, ...]
"""Section, or section and field."""

Model = TypeVar("Model", bound=Document)

_EXAMPLE = "temporal:\n  address: 127.0.0.1:7233"


def read_layers(
    model: type[Model], documents: Iterable[tuple[str, str]], environ: Mapping[str, str], *, prefix: str
) -> Model:
    """Lay the documents (name and text) and the variables `<prefix><SECTION>__<FIELD>` over each other.

    Raises:
        SettingsError: with one sentence for each setting that is unknown or not allowed.
    """
    layers = _Layers(model)
    for name, text in documents:
        for section, content in _sections(name, text).items():
            layers.put(section, content, origin=name)
    for variable in sorted(environ):
        section, separator, field = variable.removeprefix(prefix).lower().partition("__")
        if variable.startswith(prefix) and separator:
            value = _from_text(_schema(model, (section, field)), environ[variable])
            layers.put(section, {field: value}, origin=f"environment variable {variable}")
    try:
        return model.model_validate(layers.values)
    except ValidationError as error:
        raise SettingsError("\n".join(layers.sentences(error.errors()))) from None


class _Layers:
    """The values so far, and where each of them stands."""

    def __init__(self, model: type[Document]) -> None:
        self.model = model
        self.values: dict[str, Any] = {}
        self.origins: dict[Keys, str] = {}

    def put(self, section: str, content: Any, *, origin: str) -> None:
        """Lay one section over what earlier layers said of it; an empty section says nothing."""
        self.origins[section,] = origin
        if not isinstance(content, dict):
            self.values[section] = {} if content is None else content
            return
        below = self.values.get(section)
        fields = {str(key): value for key, value in content.items()}
        self.values[section] = (below if isinstance(below, dict) else {}) | fields
        for field in fields:
            self.origins[section, field] = origin

    def sentences(self, errors: list[ErrorDetails]) -> list[str]:
        """Return one sentence for each wrong setting."""
        first: dict[Keys, str] = {}
        for error in errors:
            path = tuple(str(part) for part in error["loc"][:2])
            origin = self.origins.get(path) or self.origins.get(path[:1], "")
            entry = _entry(self.model, path)
            where = path if entry is None else tuple(str(part) for part in error["loc"][:4])
            said = _sentence(self.model, path, error) if entry is None else _entry_sentence(entry, where, error)
            first.setdefault(where, (f"{origin}: " if origin else "") + said)
        return list(first.values())


def sections_of(name: str, text: str) -> frozenset[str]:
    """Return the names of the sections that a document has.

    Raises:
        SettingsError: it is not YAML, or has no sections.
    """
    return frozenset(_sections(name, text))


def _sections(name: str, text: str) -> dict[str, Any]:
    document = name or "the settings"
    try:
        content = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        # the mark's snippet is left out: it may show a secret
        at = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise SettingsError(f"{document}: not valid YAML: {at}{error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingsError(f"{document}: not valid YAML: {' '.join(str(error).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"{document}: there are no sections. Write it like this:\n{_EXAMPLE}")
    return {str(key): value for key, value in content.items()}


def _from_text(schema: Mapping[str, Any], text: str) -> Any:
    """Read a variable's text by the type of its setting: a list as YAML or with commas, empty as none."""
    if schema.get("type") == "array":
        return _list(text)
    if schema.get("type") == "object":
        return _read(text)
    if "anyOf" in schema and text.strip().lower() in ("", "none", "null"):
        return None
    return text


def _list(text: str) -> Any:
    if text.strip().startswith("["):
        return _read(text)
    return [part.strip() for part in text.split(",") if part.strip()]


def _read(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return text


def _fields(model: type[Document], section: str) -> dict[str, dict[str, Any]]:
    """Return the JSON schemas of a section's fields; the sentences take from them what is allowed."""
    field = model.model_fields.get(section)
    if field is None or not isinstance(field.annotation, type) or not issubclass(field.annotation, BaseModel):
        return {}
    return _properties(field.annotation)


def _properties(model: type[BaseModel]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = model.model_json_schema()["properties"]
    return found


def _entry(model: type[Document], path: Keys) -> type[BaseModel] | None:
    """Return the model of the entries, where a setting is a section of sections with names of the user's."""
    if len(path) < 2:
        return None
    section = model.model_fields.get(path[0])
    if section is None or not isinstance(section.annotation, type) or not issubclass(section.annotation, BaseModel):
        return None
    field = section.annotation.model_fields.get(path[1])
    of = get_args(field.annotation) if field is not None and get_origin(field.annotation) is dict else ()
    return of[1] if len(of) == 2 and isinstance(of[1], type) and issubclass(of[1], BaseModel) else None


def _entry_sentence(entry: type[BaseModel], where: Keys, error: ErrorDetails) -> str:
    """Say what is wrong with `section.field`, with `section.field.name`, or with a setting of that entry."""
    place, known = ".".join(where), _properties(entry)
    given = clip(repr(error["input"]), 80)
    if len(where) == 2:
        return f"{place} is {given}; it must be a section with one section for each name"
    if where[-1] == "[key]":
        return f"{'.'.join(where[:2])} has the name {given}; it must be text"
    if error["type"] == "value_error":
        return f"{place}: {error['msg'].removeprefix('Value error, ')}"
    if len(where) == 3:
        return f"{place} is {given}; it must be a section with {', '.join(known)}"
    if error["type"] == "extra_forbidden":
        near = get_close_matches(where[-1], known, 1)
        advice = f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(known))}"
        return f"there is no setting {where[-1]!r} ({place}); {advice}"
    index = "".join(f"[{part}]" for part in error["loc"][4:] if isinstance(part, int))
    schema = known[where[-1]]
    return f"{place}{index} is {given}; it must be {_allowed(schema['items'] if index else schema)}"


def _schema(model: type[Document], path: Keys) -> dict[str, Any]:
    return _fields(model, path[0]).get(path[1], {})


def _sentence(model: type[Document], path: Keys, error: ErrorDetails) -> str:
    if error["type"] == "extra_forbidden":
        return _unknown(model, path)
    given = clip(repr(error["input"]), 80)
    if len(path) > 1:
        schema = _schema(model, path)
        place = ".".join(path) + "".join(f"[{part}]" for part in error["loc"][2:] if isinstance(part, int))
        shown = "not text" if schema.get("format") == "password" else given
        wanted = schema["items"] if place != ".".join(path) else schema
        return f"{place} is {shown}; it must be {_allowed(wanted)}"
    section = next(iter(path), "")
    if error["type"] == "value_error":
        return f"{section}: {error['msg'].removeprefix('Value error, ')}"
    return f"{section} is {given}; it must be a section with {', '.join(_fields(model, section))}"


def _unknown(model: type[Document], path: Keys) -> str:
    """Name the nearest known setting: of the same section first, then of any."""
    *above, key = path
    known = {section: tuple(_fields(model, section)) for section in model.model_fields}
    here = known.get(above[0], ()) if above else tuple(known)
    everywhere = {field: f"{section}.{field}" for section, fields in known.items() for field in fields}
    near = [".".join((*above, name)) for name in get_close_matches(key, here, 1)]
    near += [everywhere[name] for name in get_close_matches(key, everywhere, 1)]
    advice = f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(here))}"
    return f"there is no setting {key!r} ({'.'.join(path)}); {advice}"


_TYPES = {"string": "text", "boolean": "true or false", "array": "a list of texts"}


def _allowed(schema: Mapping[str, Any]) -> str:
    """Say in words what a schema allows."""
    if "anyOf" in schema:
        return " or ".join(_allowed(option) for option in schema["anyOf"] if option["type"] != "null") + ", or null"
    if "enum" in schema:
        return "one of " + ", ".join(schema["enum"])
    if "pattern" in schema:
        return f"like {schema['default']}"
    kind = schema.get("type", "")
    if kind in ("integer", "number"):
        return _allowed_number("a whole number" if kind == "integer" else "a number", schema)
    filled = "minLength" in schema or "minItems" in schema
    return _TYPES[kind] + (", not empty" if filled else "")


def _allowed_number(what: str, schema: Mapping[str, Any]) -> str:
    low, above, high = schema.get("minimum"), schema.get("exclusiveMinimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{what} from {low:g} to {high:g}"
    parts = [
        what,
        f"at least {low:g}" if low is not None else "",
        f"above {above:g}" if above is not None else "",
        f"at most {high:g}" if high is not None else "",
    ]
    return ", ".join(part for part in parts if part)
