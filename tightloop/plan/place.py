"""Where the things of a plan lie below `<workspace>/.tightloop`, and under which names."""

import hashlib
import re

DRY_RUN = "dry-run"
"""Stands for the inputs of a record that only shows what would be done."""
LONGEST_NAME = 120
_PLAIN = re.compile(r"[a-z0-9][a-z0-9._-]*")


def file_name(identity: str) -> str:
    """Return a name for files and references of git that is different for different ids, also where case is ignored."""
    fits = _PLAIN.fullmatch(identity) and len(identity) <= LONGEST_NAME
    # Git has no references with these.
    if fits and ".." not in identity and not identity.endswith((".", ".lock")):
        return identity
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", identity)[:60].strip("-")
    return f"{readable}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
