"""The settings of the whole system: their defaults, their bounds, and how they are read.

A YAML document comes first, then environment variables `TIGHTLOOP_<SECTION>__<FIELD>`. A setting that is
misspelt or out of bounds is refused with a sentence that names it and says what is allowed.
"""

from tightloop.settings.alerts import AlertChannel, AlertSettings
from tightloop.settings.bounds import AlignmentSettings, BudgetSettings, TrackingSettings
from tightloop.settings.coder import CoderSettings, RoleSettings
from tightloop.settings.document import Settings, combined_settings, parse_settings
from tightloop.settings.execution import (
    AgentSettings,
    AgentSSettings,
    ExecutorSettings,
    SandboxSettings,
    WindowSettings,
    WorkspaceSettings,
)
from tightloop.settings.gateway import GatewaySettings
from tightloop.settings.memory import MemorySettings
from tightloop.settings.planning import PlannerSettings, PlanSettings
from tightloop.settings.privacy import PrivacySettings, ProjectPrivacy
from tightloop.settings.remote import RemoteSettings
from tightloop.settings.services import (
    LOOPBACK_HOSTS,
    NO_PROFILE,
    PEM,
    CodecSettings,
    DatabaseSettings,
    QueueSettings,
    ServerSettings,
    TemporalSettings,
    WorkerSettings,
)

__all__ = [
    "LOOPBACK_HOSTS",
    "NO_PROFILE",
    "PEM",
    "AgentSSettings",
    "AgentSettings",
    "AlertChannel",
    "AlertSettings",
    "AlignmentSettings",
    "BudgetSettings",
    "CodecSettings",
    "CoderSettings",
    "DatabaseSettings",
    "ExecutorSettings",
    "GatewaySettings",
    "MemorySettings",
    "PlanSettings",
    "PlannerSettings",
    "PrivacySettings",
    "ProjectPrivacy",
    "QueueSettings",
    "RemoteSettings",
    "RoleSettings",
    "SandboxSettings",
    "ServerSettings",
    "Settings",
    "TemporalSettings",
    "TrackingSettings",
    "WindowSettings",
    "WorkerSettings",
    "WorkspaceSettings",
    "combined_settings",
    "parse_settings",
]
