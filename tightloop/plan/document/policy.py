"""What steps may do, as data. The rules that decide on it are in `tightloop/plan/rules/guard.py`."""

from pydantic import Field

from tightloop.safety.verdict import Verdict
from tightloop.value import Document


class CommandRule(Document):
    """A pattern over the words of a command and what it means."""

    match: str
    """Words; `*` stands for one word, `**` for any number: `git push **`."""
    verdict: Verdict = Verdict.DENY
    """The first rule that matches decides."""
    reason: str = ""
    """Shown to whoever is refused or asked."""


class Deletions(Document):
    """How much may be gone since the plan began before a step that removes more waits for a person."""

    files: int = Field(default=25, ge=1)
    """Removed files."""
    lines: int = Field(default=500, ge=1)
    """Removed lines."""
    share: float = Field(default=0.5, ge=0, le=1)
    """Of all lines; both this and `lines` have to be reached."""


class Policy(Document):
    """Scopes, commands and hosts. An act is judged before it is done; a refusal names its rule."""

    write: tuple[str, ...] = ("**",)
    """Glob patterns below the root that steps may change."""
    # Git runs hooks from `.git`.
    protect: tuple[str, ...] = (".git/**", "**/.env", "**/*.pem", "**/id_rsa*")
    """Glob patterns that no step may change; stronger than `write`."""
    commands: tuple[CommandRule, ...] = ()
    """Rules for commands, before those for every project."""
    network: tuple[str, ...] = ()
    """Hosts (`*.example.org`, `127.0.0.1:8080`) that `http` may ask; empty: none."""
    shell_network: bool = False
    """Shell steps see the network, where the sandbox's settings allow it too."""
    # Matched against kind, capability and labels, so that one word covers all three.
    approve: tuple[str, ...] = ("deploy",)
    """Step kinds, capabilities or labels that wait for a person before they start."""
    deletions: Deletions | None = None
    """None: unbounded. Plans that a model wrote have the bounds of `alignment`."""
    within: "Policy | None" = None
    """A policy around this one: an act must pass both. Set for plans within plans and for plans that a model wrote."""
