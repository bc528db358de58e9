"""Loader for TOML tables that are stored next to modules."""

from typing import Any


def read_toml(package: str, name: str) -> dict[str, Any]:
    """Parse a TOML file in an installed package. The package may be zipped."""
    # Lazy import: clients import the modules with tables but read few of them, and `resources` pulls in archives and
    # temporary files.
    import tomllib
    from importlib import resources

    return tomllib.loads((resources.files(package) / name).read_text("utf-8"))
