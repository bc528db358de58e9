"""What Temporal, model services and alerts may see."""

from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from tightloop.egress import Egress, egress_for
from tightloop.settings.section import Section

EgressLevel = Annotated[Egress, WithJsonSchema({"type": "string", "enum": [level.value for level in Egress]})]


class ProjectPrivacy(Section):
    """What holds for the workspaces under one folder."""

    egress: EgressLevel = Egress.FULL


class PrivacySettings(Section):
    """What Temporal and model services may see. docs/privacy.md lists what is where."""

    encrypt: bool = False
    """Encrypt all payloads that Temporal stores. The same for all workers and clients of a namespace."""
    keys_file: str = ""
    """Key file, absolute or under the state folder; empty: `keys.json` there. See `tightloop keys`."""
    keys_env: str = ""
    """Name of the environment variable that holds the content of a key file, in place of a file."""
    egress: EgressLevel = Egress.FULL
    """What prompts of the planner and the reflector may contain."""
    projects: dict[str, ProjectPrivacy] = Field(default_factory=dict)
    """By an absolute folder, for the workspaces in it; the longest folder that fits wins."""

    alerts: Literal["minimal", "full"] = "minimal"
    """`minimal`: alerts carry ids, kinds and counts; `full`: also goal, reason and paths."""

    @property
    def strictest(self) -> Egress:
        """The strictest egress of any project here."""
        order = list(Egress)
        return max((self.egress, *(project.egress for project in self.projects.values())), key=order.index)

    def egress_of(self, workspace: str) -> Egress:
        """Return what prompts about a workspace (absolute path) may contain."""
        levels = {folder: project.egress for folder, project in self.projects.items()}
        return egress_for(workspace, levels, default=self.egress)
