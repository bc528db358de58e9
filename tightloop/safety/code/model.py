"""What the rules about code look at: files before and after a change, and what is known of their project."""

from collections.abc import Mapping
from typing import NamedTuple


class CodeFile(NamedTuple):
    """One changed file."""

    path: str
    """Relative to the root, with slashes."""
    before: str | None
    """None: there was no such file."""
    after: str
    """Empty where the file was deleted."""


class ProjectFacts(NamedTuple):
    """What is known of a project apart from the change."""

    modules: frozenset[str] = frozenset()
    """Names that its own modules and packages are imported by."""
    distributions: frozenset[str] = frozenset()
    """Distributions that it depends on, as its manifests spell them, and names of packages of other ecosystems."""
    imports: frozenset[str] = frozenset()
    """Top-level modules that its unchanged files import."""
    installed: Mapping[str, tuple[str, ...]] = {}
    """Distributions by the top-level module that they install, as `importlib.metadata.packages_distributions`."""
    allowed: frozenset[str] = frozenset()
    """Fingerprints of findings that a person allowed."""
    refused: frozenset[str] = frozenset()
    """Fingerprints of findings that a person refused: they are not asked about again."""
