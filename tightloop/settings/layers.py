"""Layers of settings: defaults, files and environment variables."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, Field, ValidationError
from pydantic_core import ErrorDetails

from tightloop.episode.model import EpisodeRequest
from tightloop.errors import SettingsError
from tightloop.loop.model import LoopRequest
from tightloop.plan.request import PlanRequest
from tightloop.run.core import project_of
from tightloop.settings.execution import (
    AlignmentSettings,
    BudgetSettings,
    CoderSettings,
    ExecutorSettings,
    GateSettings,
    PlannerSettings,
    PlanSettings,
    SandboxSettings,
    TrackingSettings,
    WindowSettings,
    WorkspaceSettings,
)
from tightloop.settings.services import (
    AlertSettings,
    CodecSettings,
    DatabaseSettings,
    GatewaySettings,
    MemorySettings,
    PrivacySettings,
    ProofSettings,
    QueueSettings,
    RemoteSettings,
    RetentionSettings,
    ServerSettings,
    TemporalSettings,
    WorkerSettings,
)
from tightloop.telemetry import TelemetrySettings
from tightloop.value import Document, clip

Keys = tuple[str, ...]
"""Path of a setting: its section, or its section and field."""

Request = TypeVar("Request", EpisodeRequest, PlanRequest, LoopRequest)

_EXAMPLE = "temporal:\n  address: 127.0.0.1:7233"


class _Layers:
    """Settings merged from several layers, with the origin of each value."""

    def __init__(self, model: type[Document]) -> None:
        self.model = model
        self.values: dict[str, Any] = {}
        self.origins: dict[Keys, str] = {}

    def put(self, section: str, content: Any, *, origin: str) -> None:
        """Merge a section into the earlier layers. An empty section changes nothing."""
        # For errors about the section as a whole.
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
        """Convert validation errors to sentences, one for each invalid setting."""
        first: dict[Keys, str] = {}
        for error in errors:
            path = tuple(str(part) for part in error["loc"][:2])
            origin = self.origins.get(path) or self.origins.get(path[:1], "")
            section, above, rest = _walk(self.model, error["loc"])
            sentence = self._sentence(section, above, rest, error)
            # A union reports an error for each alternative; one sentence per setting is enough.
            first.setdefault((*above, *rest[:1]), (f"{origin}: " if origin else "") + sentence)
        return list(first.values())

    def _sentence(self, section: type[BaseModel], above: Keys, rest: Keys, error: ErrorDetails) -> str:
        setting, value_text = ".".join((*above, *rest[:1])), clip(repr(error["input"]), 80)
        if error["type"] == "extra_forbidden":
            return f"unknown setting {rest[0]!r} ({setting}). {self._advice(section, above, rest[0])}"
        if not rest and error["type"] == "value_error":
            return f"{setting}: {error['msg'].removeprefix('Value error, ')}"
        if not rest:
            return f"{setting} must be a section with {', '.join(section.model_fields)}, got {value_text}"
        if rest[0] == "[key]":
            return f"names in {'.'.join(above[:-1])} must be strings, got {value_text}"
        index = "".join(f"[{part}]" for part in error["loc"][len(above) + 1 :] if isinstance(part, int))
        schema = _properties(section)[rest[0]]
        if len(rest) > 1 and schema.get("additionalProperties", {}).get("type") == "array":
            # Lists under user-defined names, such as `plans.secrets`.
            setting, schema = f"{setting}.{rest[1]}", schema["additionalProperties"]
        # Never show the value of a secret.
        displayed = "something else" if schema.get("format") == "password" else value_text
        return f"{setting}{index} must be {_describe_schema(schema['items'] if index else schema)}, got {displayed}"

    def _advice(self, section: type[BaseModel], above: Keys, name: str) -> str:
        # Lazy import: most settings files contain no misspelt field.
        from difflib import get_close_matches

        field_paths = {
            field: f"{top}.{field}" for top in self.model.model_fields for field in _section(self.model, top)
        }
        # Same section first: a misspelt field is more likely than a field in the wrong section.
        candidates = [".".join((*above, field)) for field in get_close_matches(name, section.model_fields, 1)]
        candidates += [field_paths[field] for field in get_close_matches(name, field_paths, 1)]
        return (
            f"Did you mean {candidates[0]}?"
            if candidates
            else f"Known settings: {', '.join(sorted(section.model_fields))}"
        )


def _walk(model: type[BaseModel], location: Iterable[str | int]) -> tuple[type[BaseModel], Keys, Keys]:
    """Find the innermost section on a path.

    Return the section, the names that lead to it, and the remaining names. Entries with user-defined
    names, such as those of `executor.agents`, also count as sections.
    """
    above: Keys = ()
    rest = tuple(map(str, location))
    while rest:
        field = model.model_fields.get(rest[0])
        kind = field.annotation if field is not None else None
        is_mapping = get_origin(kind) is dict
        inner, length = (get_args(kind)[1], 2) if is_mapping else (kind, 1)
        if len(rest) < length or not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            break
        model, above, rest = inner, above + rest[:length], rest[length:]
    return model, above, rest


def _properties(model: type[BaseModel]) -> dict[str, dict[str, Any]]:
    """Return the JSON schemas of the fields. Error messages use them to list the allowed values."""
    properties: dict[str, dict[str, Any]] = model.model_json_schema()["properties"]
    return properties


def _section(model: type[BaseModel], name: str) -> dict[str, dict[str, Any]]:
    section, _, unknown = _walk(model, (name,))
    return {} if unknown else _properties(section)


def sections_of(name: str, text: str) -> frozenset[str]:
    """Return the section names of a document.

    Raises:
        SettingsError: the document is not valid YAML or has no sections.
    """
    return frozenset(_sections(name, text))


def _sections(name: str, text: str) -> dict[str, Any]:
    # Lazy import: a client without a settings file needs no YAML.
    import yaml

    from tightloop.value.documents import load_yaml

    document = name or "the settings"
    try:
        content = load_yaml(text)
    except yaml.MarkedYAMLError as error:
        # the mark's snippet is omitted: it may contain a secret
        at = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise SettingsError(f"{document}: not valid YAML: {at}{error.problem}") from None
    except yaml.YAMLError as error:
        raise SettingsError(f"{document}: not valid YAML: {' '.join(str(error).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"{document} must consist of sections, for example:\n{_EXAMPLE}")
    return {str(key): value for key, value in content.items()}


def _from_text(schema: Mapping[str, Any], text: str) -> Any:
    """Parse an environment variable as YAML or as a comma-separated list.

    The schema of the setting determines the format. An empty value means null.
    """
    if schema.get("type") == "array":
        if text.strip().startswith("["):
            return _read(text)
        # Brackets would need quotes in a shell.
        return [part.strip() for part in text.split(",") if part.strip()]
    if schema.get("type") == "object":
        return _read(text)
    # Optional settings: an environment variable cannot be null.
    if "anyOf" in schema and text.strip().lower() in ("", "none", "null"):
        return None
    return text


def _read(text: str) -> Any:
    import yaml

    from tightloop.value.documents import load_yaml

    try:
        return load_yaml(text)
    # Left as text, so that the error names the setting and its allowed values instead of a position.
    except yaml.YAMLError:
        return text


_TYPES = {"string": "a string", "boolean": "true or false", "array": "a list of strings"}


def _describe_schema(schema: Mapping[str, Any]) -> str:
    """Describe the values that a schema allows."""
    if "anyOf" in schema:
        return (
            " or ".join(_describe_schema(option) for option in schema["anyOf"] if option["type"] != "null")
            + ", or null"
        )
    if schema.get("type") == "object":
        inner = "list of strings" if schema.get("additionalProperties", {}).get("type") == "array" else "section"
        return f"a section with one {inner} per name"
    if "enum" in schema:
        return "one of " + ", ".join(schema["enum"])
    if "pattern" in schema:
        return "like " + (schema["default"] if "default" in schema else " or ".join(schema["examples"]))
    kind = schema.get("type", "")
    if kind in ("integer", "number"):
        what = "a whole number" if kind == "integer" else "a number"
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
    filled = "minLength" in schema or "minItems" in schema
    return _TYPES[kind] + (", not empty" if filled else "")


ENVIRONMENT_PREFIX = "TIGHTLOOP_"
"""Prefix of environment variables that are settings if the rest of the name contains `__`. Others, such as
`TIGHTLOOP_HOME`, are not settings.
"""
_URL_PASSWORD = re.compile(r"://[^/@\s]+@")


class Settings(Document):
    """The effective settings, merged from files and environment variables."""

    temporal: TemporalSettings = Field(default_factory=TemporalSettings)
    queues: QueueSettings = Field(default_factory=QueueSettings)
    worker: WorkerSettings = Field(default_factory=WorkerSettings)
    server: ServerSettings = Field(default_factory=ServerSettings)
    planner: PlannerSettings = Field(default_factory=PlannerSettings)
    plans: PlanSettings = Field(default_factory=PlanSettings)
    executor: ExecutorSettings = Field(default_factory=ExecutorSettings)
    coder: CoderSettings = Field(default_factory=CoderSettings)
    workspace: WorkspaceSettings = Field(default_factory=WorkspaceSettings)
    window: WindowSettings = Field(default_factory=WindowSettings)
    sandbox: SandboxSettings = Field(default_factory=SandboxSettings)
    budget: BudgetSettings = Field(default_factory=BudgetSettings)
    tracking: TrackingSettings = Field(default_factory=TrackingSettings)
    alignment: AlignmentSettings = Field(default_factory=AlignmentSettings)
    gates: GateSettings = Field(default_factory=GateSettings)
    privacy: PrivacySettings = Field(default_factory=PrivacySettings)
    proof: ProofSettings = Field(default_factory=ProofSettings)
    codec: CodecSettings = Field(default_factory=CodecSettings)
    database: DatabaseSettings = Field(default_factory=DatabaseSettings)
    remote: RemoteSettings = Field(default_factory=RemoteSettings)
    memory: MemorySettings = Field(default_factory=MemorySettings)
    retention: RetentionSettings = Field(default_factory=RetentionSettings)
    gateway: GatewaySettings = Field(default_factory=GatewaySettings)
    alerts: AlertSettings = Field(default_factory=AlertSettings)
    telemetry: TelemetrySettings = Field(default_factory=TelemetrySettings)

    @property
    def seals_payloads(self) -> bool:
        """True if payloads are encrypted in Temporal."""
        return self.temporal.authenticate or self.privacy.encrypt

    def at(self, address: str | None = None, namespace: str | None = None) -> "Settings":
        """Return a copy for a different Temporal server or namespace. None keeps the current value.

        Raises:
            SettingsError: a value is invalid.
        """
        values = {"address": address, "namespace": namespace}
        changes = {name: value for name, value in values.items() if value is not None}
        try:
            # Validated as a whole: another address can conflict with `tls` or the key.
            temporal = TemporalSettings.model_validate(dict(self.temporal) | changes)
        except ValidationError as error:
            [problem, *_] = error.errors()
            if not problem["loc"]:
                raise SettingsError(f"temporal: {problem['msg'].removeprefix('Value error, ')}") from None
            name = str(problem["loc"][0])
            example = {"address": "127.0.0.1:7233", "namespace": "default"}.get(name, "")
            raise SettingsError(
                f"{changes.get(name)!r} is not a valid Temporal {name}. For example: {example}"
            ) from None
        return self.evolve(temporal=temporal)

    def with_defaults(self, request: Request) -> Request:
        """Fill in the omitted fields of a request from the settings. Idempotent.

        Nested models are merged as well. For example, a budget with a single limit gets its other limits from
        the settings.
        """
        if isinstance(request, EpisodeRequest | LoopRequest):
            # Only what the caller has set: a default of the model must not win over the settings.
            explicit = request.model_dump(exclude_unset=True)
            defaults = {name: value for name, value in _defaults(self).items() if name in type(request).model_fields}
            request = type(request).model_validate(merge_layers(defaults, explicit))
        project = request.project_name if isinstance(request, EpisodeRequest) else project_of(request.workspace)
        queues = self.queues.fill(request.queues, project)
        return request.evolve(queues=queues.evolve(absence_s=self.temporal.absence_s))

    def as_yaml(self) -> str:
        """Return the settings as YAML, with secrets masked."""
        import yaml

        # Keep the declaration order of the sections.
        text = yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)
        # `SecretStr` masks whole fields; a URL in another field may still contain a password.
        return _URL_PASSWORD.sub("://**********@", text)


def parse_settings(text: str, environ: Mapping[str, str]) -> Settings:
    """Parse a YAML document, and apply the environment variables on top.

    Raises:
        SettingsError: a setting is unknown or invalid. The error contains one sentence for each setting.
    """
    return combined_settings([("", text)], environ)


def combined_settings(documents: Iterable[tuple[str, str]], environ: Mapping[str, str]) -> Settings:
    """Parse several YAML documents, and apply the environment variables on top.

    Each document is a pair of a name and a text. Later layers take precedence.

    Raises:
        SettingsError: a setting is unknown or invalid. The error contains one sentence for each setting,
            which names its document or environment variable.
    """
    layers = _Layers(Settings)
    for name, text in documents:
        for section, content in _sections(name, text).items():
            layers.put(section, content, origin=name)
    # Sorted, so that equal mistakes give equal messages in the same order.
    for variable in sorted(environ):
        section, separator, field = variable.removeprefix(ENVIRONMENT_PREFIX).lower().partition("__")
        if variable.startswith(ENVIRONMENT_PREFIX) and separator:
            value = _from_text(_section(Settings, section).get(field, {}), environ[variable])
            layers.put(section, {field: value}, origin=f"environment variable {variable}")
    try:
        return Settings.model_validate(layers.values)
    except ValidationError as error:
        raise SettingsError("\n".join(layers.sentences(error.errors()))) from None


def merge_layers(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two documents. `above` takes precedence, and mappings are merged one level deep."""
    merged = dict(below)
    for name, value in above.items():
        beneath = merged.get(name)
        both = isinstance(beneath, dict) and isinstance(value, dict)
        merged[name] = {**beneath, **value} if both else value  # type: ignore[dict-item]
    return merged


def _defaults(settings: Settings) -> dict[str, Any]:
    executor, tracking = settings.executor, settings.tracking
    return {
        "planner": settings.planner.kind,
        "executor": {
            "name": executor.default,
            "fallback": executor.fallback,
            "wall_limit_s": executor.wall_limit_s,
            "idle_limit_s": executor.idle_limit_s,
            "retries": executor.retries,
            "retry_for_s": executor.retry_for_s,
            "on_crash": executor.on_crash,
        },
        "budget": settings.budget.as_budget().model_dump(),
        "pause_after": tracking.pause_after,
        "unattended": tracking.unattended,
        "scenario_reports": tracking.scenario_reports,
        "drafts": tracking.drafts,
        "review": tracking.review,
    }
