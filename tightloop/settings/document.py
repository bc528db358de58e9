"""All settings as one document, read from YAML first, then from the environment."""

import re
from collections.abc import Iterable, Mapping

from pydantic import ValidationError

from tightloop.errors import SettingsError
from tightloop.settings.alerts import AlertSettings
from tightloop.settings.bounds import AlignmentSettings, BudgetSettings, TrackingSettings
from tightloop.settings.coder import CoderSettings
from tightloop.settings.execution import ExecutorSettings, SandboxSettings, WindowSettings, WorkspaceSettings
from tightloop.settings.gates import GateSettings
from tightloop.settings.gateway import GatewaySettings
from tightloop.settings.layers import read_layers
from tightloop.settings.memory import MemorySettings
from tightloop.settings.planning import PlannerSettings, PlanSettings
from tightloop.settings.privacy import PrivacySettings
from tightloop.settings.remote import RemoteSettings
from tightloop.settings.retention import RetentionSettings
from tightloop.settings.services import (
    CodecSettings,
    DatabaseSettings,
    QueueSettings,
    ServerSettings,
    TemporalSettings,
    WorkerSettings,
)
from tightloop.telemetry import TelemetrySettings
from tightloop.value import Document

ENVIRONMENT_PREFIX = "TIGHTLOOP_"
"""Variables with this prefix and `__` in the rest are settings; `TIGHTLOOP_HOME` and its like are not."""
_URL_PASSWORD = re.compile(r"://[^/@\s]+@")


class Settings(Document):
    """All settings, in force."""

    temporal: TemporalSettings = TemporalSettings()
    queues: QueueSettings = QueueSettings()
    worker: WorkerSettings = WorkerSettings()
    server: ServerSettings = ServerSettings()
    planner: PlannerSettings = PlannerSettings()
    plans: PlanSettings = PlanSettings()
    executor: ExecutorSettings = ExecutorSettings()
    coder: CoderSettings = CoderSettings()
    workspace: WorkspaceSettings = WorkspaceSettings()
    window: WindowSettings = WindowSettings()
    sandbox: SandboxSettings = SandboxSettings()
    budget: BudgetSettings = BudgetSettings()
    tracking: TrackingSettings = TrackingSettings()
    alignment: AlignmentSettings = AlignmentSettings()
    gates: GateSettings = GateSettings()
    privacy: PrivacySettings = PrivacySettings()
    codec: CodecSettings = CodecSettings()
    database: DatabaseSettings = DatabaseSettings()
    remote: RemoteSettings = RemoteSettings()
    memory: MemorySettings = MemorySettings()
    retention: RetentionSettings = RetentionSettings()
    gateway: GatewaySettings = GatewaySettings()
    alerts: AlertSettings = AlertSettings()
    telemetry: TelemetrySettings = TelemetrySettings()

    @property
    def seals_payloads(self) -> bool:
        """Whether what Temporal stores is encrypted."""
        return self.temporal.authenticate or self.privacy.encrypt

    def at(self, address: str | None = None, namespace: str | None = None) -> "Settings":
        """Return these settings for another Temporal server or namespace; None: the one that they name.

        Raises:
            SettingsError: that is not allowed.
        """
        given = {"address": address, "namespace": namespace}
        changes = {name: value for name, value in given.items() if value is not None}
        try:
            temporal = TemporalSettings.model_validate(dict(self.temporal) | changes)
        except ValidationError as error:
            [problem, *_] = error.errors()
            if not problem["loc"]:
                raise SettingsError(f"temporal: {problem['msg'].removeprefix('Value error, ')}") from None
            name = str(problem["loc"][0])
            example = {"address": "127.0.0.1:7233", "namespace": "default"}.get(name, "")
            raise SettingsError(f"the {name} of Temporal is {changes.get(name)!r}. For example: {example}") from None
        return self.evolve(temporal=temporal)

    def as_yaml(self) -> str:
        """Return the settings as a document, secrets masked."""
        import yaml

        # In the order of the sections above, as a reader expects them.
        text = yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)
        return _URL_PASSWORD.sub("://**********@", text)


def parse_settings(text: str, environ: Mapping[str, str]) -> Settings:
    """Read one YAML document, then the environment.

    Raises:
        SettingsError: with one sentence for each setting that is unknown or not allowed.
    """
    return combined_settings([("", text)], environ)


def combined_settings(documents: Iterable[tuple[str, str]], environ: Mapping[str, str]) -> Settings:
    """Read YAML documents, each as its name and its text, then the environment; what comes later wins.

    Raises:
        SettingsError: with one sentence for each setting that is unknown or not allowed, each naming the
            document or the environment variable that it stands in.
    """
    return read_layers(Settings, documents, environ, prefix=ENVIRONMENT_PREFIX)
