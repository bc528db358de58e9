"""Finds packages under strong copyleft or no free licence, and the words that claim such a licence for a file.

The names are a list that can go stale, not a scan of what is installed. Weak copyleft (LGPL, MPL) is left out: using
such a library puts no obligation on the code that uses it. Tools that are run and not linked
(pylint, ansible) are left out for the same reason.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from tightloop.safety.change.tables import PATTERNS
from tightloop.value.toml import read_toml


class Dependency(NamedTuple):
    """A package that a manifest names."""

    ecosystem: str
    name: str


_DATA = read_toml("tightloop.safety.change", "licences.toml")
_PACKAGES = {ecosystem: re.compile(pattern, re.VERBOSE) for ecosystem, pattern in _DATA["packages"].items()}
_LICENCES: dict[str, dict[str, str]] = _DATA["licences"]


def ecosystem_of(path: str) -> str:
    """Return whose packages a manifest names; empty where it is none."""
    name = path.rpartition("/")[2]
    if re.search(r"(?:^|/)(?:(?:requirements|constraints)[\w.-]*|requirements/[\w./-]+)\.(?:txt|in)$", path):
        return "pypi"
    return str(_DATA["manifests"].get(name, ""))


def named(ecosystem: str, line: str) -> Iterator[Dependency]:
    """Return the packages that a line of a manifest names."""
    if line.lstrip().startswith(("#", "//", "-r", "--")):
        return
    parts = line.split(",") if ecosystem == "pypi" else [line]
    for name in (name for part in parts for name in _PACKAGES[ecosystem].findall(part)):
        yield Dependency(ecosystem, re.sub(r"[._-]+", "-", name).lower() if ecosystem == "pypi" else name)


def licence_of(dependency: Dependency) -> str:
    """Return the strong copyleft, or the lack of a free licence, of a package; empty where none is known."""
    table = _LICENCES[dependency.ecosystem]
    if dependency.ecosystem == "npm" and dependency.name.startswith("@ckeditor/"):
        return "GPL-2.0"
    # The path of a Go package begins with that of its module; `/v2` is its major version.
    name = re.sub(r"/v\d+$", "", dependency.name)
    of_module = next((key for key in table if dependency.ecosystem == "go" and name.startswith(key + "/")), name)
    return table.get(of_module, "")


def licence_mark(line: str) -> str:
    """Return the licence that a line claims for its file, if it is a strong copyleft or no free one."""
    found = PATTERNS["licence_mark"].search(line)
    return (found["id"] or found["text"]) if found else ""
