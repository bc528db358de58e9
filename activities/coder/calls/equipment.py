"""What the tools are made with."""

from dataclasses import dataclass, field

from activities.checks.port import CheckRunner
from tightloop.safety.rubric import Rubric


@dataclass(frozen=True, kw_only=True)
class Equipment:
    """What is the same for all projects of a worker; the rest comes with each call."""

    runner: CheckRunner
    """Runs commands in the sandbox."""
    rubric: Rubric = field(default_factory=Rubric)
    """Which of the rules about commands are off."""
