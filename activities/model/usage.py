"""Adds up the usage of several model calls."""

from collections.abc import Iterable

from tightloop.executor.usage import Usage


def total(usages: Iterable[Usage]) -> Usage:
    """Return the sum; a field that one of them did not report is unknown."""
    known = tuple(usages)
    values = {name: [getattr(usage, name) for usage in known] for name in Usage.model_fields}
    return Usage(**{name: None if None in column else sum(column) for name, column in values.items()})
