"""Settings of what Temporal, model services and alerts may see."""

from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from tightloop.safety.prompt_privacy import PromptPrivacy, prompt_privacy_for
from tightloop.settings.section import Section

PromptPrivacyLevel = Annotated[
    PromptPrivacy, WithJsonSchema({"type": "string", "enum": [level.value for level in PromptPrivacy]})
]


class ProjectPrivacy(Section):
    """Privacy of the workspaces under one folder."""

    prompts: PromptPrivacyLevel = PromptPrivacy.FULL
    """What prompts about these workspaces may contain."""


class PrivacySettings(Section):
    """What Temporal and model services may see. docs/trust/privacy.md lists what is where."""

    encrypt: bool = False
    """Keep content out of the logs of workers, too, and encrypt payloads also where `temporal.authenticate` is off;
    where that is on they are encrypted anyway. The same for all workers and clients of a namespace."""
    keys_file: str = ""
    """Key file, absolute or under the state folder; empty: `keys.json` there. See `tightloop keys`."""
    keys_env: str = ""
    """Name of the environment variable that holds the content of a key file, in place of a file."""
    prompts: PromptPrivacyLevel = PromptPrivacy.FULL
    """What prompts of the planner and the reflector may contain."""
    projects: dict[str, ProjectPrivacy] = Field(default_factory=dict)
    """By an absolute folder, for the workspaces in it; the longest folder that fits wins."""

    alerts: Literal["minimal", "full"] = "minimal"
    """`minimal`: alerts carry ids, kinds and counts; `full`: also goal, reason and paths."""

    @property
    def strictest(self) -> PromptPrivacy:
        """The strictest prompt privacy of any project here."""
        # The enum goes from the most to the least that a prompt may contain.
        order = list(PromptPrivacy)
        return max((self.prompts, *(project.prompts for project in self.projects.values())), key=order.index)

    def prompt_privacy_of(self, workspace: str) -> PromptPrivacy:
        """Return what prompts about a workspace (absolute path) may contain."""
        levels = {folder: project.prompts for folder, project in self.projects.items()}
        return prompt_privacy_for(workspace, levels, default=self.prompts)
