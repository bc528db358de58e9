"""Settings in a file."""

import json
import os
from pathlib import Path


class SettingsError(Exception):
    """A file of settings is wrong."""


def load(path, defaults=None):
    """Return the settings of a file over the defaults; of a file that is not there, the defaults.

    Raises:
        SettingsError: the file is not a JSON object.
    """
    settings = dict(defaults or {})
    try:
        text = Path(path).read_text()
    except FileNotFoundError:
        return settings
    try:
        found = json.loads(text)
    except ValueError as error:
        raise SettingsError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise SettingsError(f"{path} has a {type(found).__name__}, not an object")
    settings.update(found)
    return settings


def save(path, settings):
    """Write settings to a file as a whole: a reader sees the old ones or the new ones."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".new")
    beside.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
    os.replace(beside, path)


def merge(first, second):
    """Return two settings as one; of what both have, the second, but objects are merged in turn."""
    merged = dict(first)
    for key, value in second.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            value = merge(merged[key], value)
        merged[key] = value
    return merged
