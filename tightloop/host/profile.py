"""Temporal's own configuration, in the format used by its command line and SDKs, as a source of connection settings.

Files, variables and profiles: https://docs.temporal.io/develop/environment-configuration
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from temporalio.bridge.temporal_sdk_bridge import envconfig  # type: ignore[import-not-found]
from temporalio.envconfig import ClientConfigProfile, ClientConfigTLS

from tightloop.errors import SettingsError
from tightloop.settings import NO_PROFILE, Settings, TemporalSettings

FILE_VARIABLE = "TEMPORAL_CONFIG_FILE"
PROFILE_VARIABLE = "TEMPORAL_PROFILE"
_WITHOUT = "or ignore Temporal's configuration: TIGHTLOOP_TEMPORAL__PROFILE=none"


def fill_from_profile(settings: Settings, environ: Mapping[str, str]) -> Settings:
    """Fill in missing connection settings from Temporal's configuration.

    Raises:
        SettingsError: the configuration is invalid, or conflicts with the settings.
    """
    section = settings.temporal
    values = profile_values(section.profile, environ)
    explicit = {name: getattr(section, name) for name in section.model_fields_set}
    if explicit.get("tls", values.get("tls")) is False:
        # Temporal's own programs also ignore the other TLS settings if TLS is off.
        values = {name: value for name, value in values.items() if not name.startswith("tls_")}
    if not values.keys() - explicit.keys():
        return settings
    try:
        return settings.evolve(temporal=TemporalSettings.model_validate(values | explicit))
    except ValidationError as error:
        [problem, *_] = error.errors()
        name, message = ".".join(map(str, problem["loc"])), problem["msg"].removeprefix("Value error, ")
        raise SettingsError(
            f"{profile_source(section.profile, environ)}: "
            f"{f'temporal.{name} is not allowed: ' if name else ''}{message}, " + _WITHOUT
        ) from None


def profile_values(profile: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Load a profile from Temporal's configuration, using the field names of the section `temporal`.

    Args:
        profile: profile name. If empty, the profile from the environment or `default` is used.
        environ: environment variables.

    Raises:
        SettingsError: the configuration cannot be read.
    """
    if profile == NO_PROFILE:
        return {}
    named = environ.get(FILE_VARIABLE, "")
    # The library treats a missing file like an empty one.
    if named and not Path(named).is_file():
        raise SettingsError(
            f"{FILE_VARIABLE} names {named}, which is not a file. Fix or unset the variable, {_WITHOUT}"
        )
    if environ.get("TEMPORAL_TLS", "").lower() not in ("", "true", "1", "false", "0"):
        raise SettingsError(f"TEMPORAL_TLS must be true or false, got {environ['TEMPORAL_TLS']!r}")
    try:
        # Strict, because a misspelt key would go unnoticed.
        config = ClientConfigProfile.load(profile or None, config_file_strict=True, override_env_vars=dict(environ))
    except envconfig.ConfigError as error:
        # Without the excerpt of the file, which may show the API key.
        text = re.sub(r"\s*\n[\d\s]*\|[^\n]*", "", str(error)).removeprefix("Configuration loading error: ")
        message = " ".join(text.split())
        raise SettingsError(
            f"{profile_source(profile, environ)}: {message}. Fix the configuration, {_WITHOUT}"
        ) from None
    values = {"address": config.address, "namespace": config.namespace, "api_key": config.api_key}
    values |= {"metadata": dict(config.grpc_meta)} | (_tls_values(config.tls) if config.tls else {})
    return {name: value for name, value in values.items() if value not in (None, "", {})}


def profile_source(profile: str, environ: Mapping[str, str]) -> str:
    """Describe the source of a profile for messages.

    The source is a profile in a file, or the environment variables.
    """
    name = profile or environ.get(PROFILE_VARIABLE, "")
    file = environ.get(FILE_VARIABLE, "")
    return f"Temporal's configuration ({file or 'temporal.toml, TEMPORAL_*'}, profile {name or 'default'!r})"


def _tls_values(tls: ClientConfigTLS) -> dict[str, Any]:
    sources = {"tls_ca": tls.server_root_ca_cert, "tls_cert": tls.client_cert, "tls_key": tls.client_private_key}
    texts = {
        name: source.decode("utf-8", "replace") if isinstance(source, bytes) else source
        for name, source in sources.items()
    }
    return {
        "tls": None if tls.disabled is None else not tls.disabled,
        "tls_server_name": tls.server_name,
        **{name: os.fspath(text) if isinstance(text, Path) else text for name, text in texts.items()},
    }
