import re

PATTERN = re.compile(r"v?(\d+).(\d+).(\d+)(-\w+)?")


def parse(text):
    """Return (major, minor, patch, pre-release), or None."""
    found = PATTERN.match(text)
    if not found:
        return None
    return int(found[1]), int(found[2]), int(found[3]), found[4] or ""
