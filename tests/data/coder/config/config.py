import json


class ConfigError(Exception):
    """The configuration cannot be used."""


def load(text):
    """Return the settings in a text.

    Raises:
        ConfigError: it is not a JSON object, or has no port.
    """
    try:
        found = json.loads(text)
        port = int(found["port"])
    except KeyError as error:
        raise ConfigError(f"missing: {error}")
    return {**found, "port": port}
