"""The options of `tightloop start`."""

from pathlib import Path
from typing import Annotated

import typer

from tightloop.episode.progress.presets import Preset
from tightloop.episode.proof import ProofRule
from tightloop.executor.model import AgentMode, OnCrash
from tightloop.safety.verdict import Verdict

Goal = Annotated[str | None, typer.Argument(help="The goal in plain words.")]
Workspace = Annotated[str | None, typer.Option(help="Top of the git working tree. Default: this folder.")]
Done = Annotated[
    list[str] | None,
    typer.Option(help='Command that passes when the goal is met, such as "pytest -q". Repeatable.'),
]
CheckTimeout = Annotated[
    float | None, typer.Option(help="Seconds that each check may take, unless --file says otherwise. Default: 600.")
]
Planner = Annotated[str | None, typer.Option(help="auto, openai or heuristic.")]
Executor = Annotated[str | None, typer.Option(help="Executor that does the work; see: tightloop doctor.")]
Fallback = Annotated[
    list[str] | None, typer.Option(help="Executor to use where the previous one is not available. Repeatable.")
]
Model = Annotated[str | None, typer.Option(help="Model for the executor.")]
Mode = Annotated[AgentMode | None, typer.Option(help="What an agent may do to this host. Default: workspace.")]
Permissions = Annotated[
    Verdict | None, typer.Option(help="Answer to an agent that asks for permission. Default: allow.")
]
WhenCrashed = Annotated[
    OnCrash | None, typer.Option(help="What to do when the worker dies during a delivery. Default: retry if safe.")
]
ExecutorOptions = Annotated[
    list[str] | None, typer.Option(help="Executor option as name=value, the value as JSON. Repeatable.")
]
ChosenPreset = Annotated[
    Preset | None, typer.Option(help="How soon a person is asked about a deviation. Default: normal.")
]
Allow = Annotated[
    list[ProofRule] | None,
    typer.Option(help="What may speak against the proof without a question, such as tests_changed. Repeatable."),
]
MaxIterations = Annotated[int | None, typer.Option(help="Pause after this number of iterations.")]
Worktree = Annotated[bool | None, typer.Option("--worktree", help="Work in a new git worktree.")]
EpisodeNewId = Annotated[str | None, typer.Option("--id", help="Id of the episode. Default: a new one.")]
Replace = Annotated[
    bool, typer.Option("--replace", help="With the --id of a closed episode: start again, and keep what it left.")
]
RequestFile = Annotated[Path | None, typer.Option(help="Request as YAML or JSON; options override it.")]
Watch = Annotated[bool, typer.Option("--watch", help="Follow the episode until it ends.")]
