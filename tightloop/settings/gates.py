"""Settings of the gates that a project's plan has to pass."""

import posixpath

from pydantic import Field

from tightloop.episode.check import Check
from tightloop.settings.section import Section


class GateSettings(Section):
    """What `verify` runs, in this order; without any it is detected from the project's files."""

    checks: tuple[Check, ...] = ()
    """Commands for every project, such as `pytest -q`, or `{run: pytest -q, name: tests, timeout_s: 900}`."""
    projects: dict[str, tuple[Check, ...]] = Field(default_factory=dict)
    """By absolute path of a project, in place of `checks`."""

    def for_project(self, workspace: str) -> tuple[Check, ...]:
        """Return the gates of a project; empty: they are detected."""
        path = posixpath.normpath(workspace)
        own = {posixpath.normpath(folder): checks for folder, checks in self.projects.items()}
        return own.get(path, self.checks)
