"""Reads the tables of data that stand beside modules as TOML files."""

from typing import Any


def read_toml(package: str, name: str) -> dict[str, Any]:
    """Return the content of a file of an installed package, which need not lie in a folder of its own."""
    # A client imports the modules that have tables, and reads few of them; `resources` brings archives and temp files.
    import tomllib
    from importlib import resources

    return tomllib.loads((resources.files(package) / name).read_text("utf-8"))
