"""Settings as a deployed process reads them from its variables."""

from collections.abc import Mapping

from tightloop.settings import Settings, parse_settings
from tightloop.settings.services import WorkerSettings

HEALTH = "TIGHTLOOP_WORKER__HEALTH_BIND"


def deployed_settings(variables: Mapping[str, str]) -> Settings:
    """Read the variables; an unknown setting or a wrong value raises `SettingsError`."""
    given = dict(variables)
    # The setting and the probes that need it come with separate changes.
    if "health_bind" not in WorkerSettings.model_fields:
        given.pop(HEALTH, None)
    return parse_settings("", given)
