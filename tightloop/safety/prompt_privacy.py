"""What may leave this host in a prompt: a level, and which level holds for a workspace."""

import posixpath
from collections.abc import Mapping
from enum import StrEnum


class PromptPrivacy(StrEnum):
    """What prompts may contain, from the most to the least."""

    FULL = "full"
    """Everything that the briefing holds."""
    REDACTED = "redacted"
    """The same, with secrets and personal data taken out."""
    SUMMARY = "summary"
    """Besides, no code, no diff and no output of checks and executors: names, counts and outcomes are left."""


def prompt_privacy_for(
    workspace: str, projects: Mapping[str, PromptPrivacy], *, default: PromptPrivacy
) -> PromptPrivacy:
    """Return the level of the longest folder that holds the workspace, else the default. Paths are absolute."""
    path = posixpath.normpath(workspace)
    levels = {posixpath.normpath(folder): level for folder, level in projects.items()}
    fitting = [folder for folder in levels if path == folder or path.startswith(folder.rstrip("/") + "/")]
    return levels[max(fitting, key=len)] if fitting else default
