"""Settings in a file."""

import json
from pathlib import Path


def load(path):
    """Return the settings of a file."""
    return json.loads(Path(path).read_text())


def save(path, settings):
    """Write settings to a file."""
    Path(path).write_text(json.dumps(settings))
