"""Connection and options of a command."""

import asyncio
import contextlib
import getpass
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from tightloop.cli import FAILED, INTERRUPTED, NEEDS_PERSON
from tightloop.cli.terminal import show_either
from tightloop.client import CLOSED_STATUSES, Kind, Status, TightloopClient
from tightloop.client.connection import traced
from tightloop.client.status import LAST, word_of_status
from tightloop.episode.progress.classification import Preset
from tightloop.episode.proof import ProofRule
from tightloop.errors import ServiceUnavailableError
from tightloop.executor.model import AgentMode, OnCrash
from tightloop.host import load_settings
from tightloop.safety.rubric import Verdict
from tightloop.settings import Settings

# The shell is blocked for as long after each Tab.
COMPLETION_SECONDS = 2.0
FLUSH_SECONDS = 1.0
"""How long a command that is done waits for a collector."""

T = TypeVar("T")


@dataclass(frozen=True)
class Session:
    """The global options, and what follows from them."""

    settings_file: Path | None = None
    address: str | None = None
    namespace: str | None = None

    @property
    def settings(self) -> Settings:
        """The settings in force: files, environment, global options.

        Raises:
            SettingsError: a setting is unknown or not allowed.
        """
        return load_settings(self.settings_file).at(self.address, self.namespace)

    def run(self, work: Callable[[TightloopClient], Awaitable[T]], *, compare_keys: bool = True) -> T:
        """Connect and do one thing; Ctrl-C ends it without a word.

        Args:
            work: what to do.
            compare_keys: refuse it where the workers encrypt with keys that are not here.

        Raises:
            TightloopError: as the client does.
        """
        settings = self.settings

        async def connected() -> T:
            with traced(settings, FLUSH_SECONDS) as tracing:
                interceptors = () if tracing is None else (tracing,)
                return await work(
                    await TightloopClient.connect(
                        settings=settings, interceptors=interceptors, compare_keys=compare_keys
                    )
                )

        try:
            return asyncio.run(connected())
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None

    def on(self, reference: str, work: Callable[[TightloopClient, str], Awaitable[T]], kind: Kind | None = None) -> T:
        """Do one thing with the episode or plan that `reference` means."""

        async def resolved(client: TightloopClient) -> T:
            return await work(client, await client.resolve(reference, kind=kind))

        return self.run(resolved)

    def steer(
        self,
        reference: str,
        work: Callable[[TightloopClient, str], Awaitable[str]],
        *,
        as_json: bool,
        kind: Kind | None = None,
    ) -> None:
        """Do one thing with the episode or plan that `reference` means, and show the resulting sentence."""

        async def named(client: TightloopClient, key: str) -> tuple[str, str]:
            return key, await work(client, key)

        key, sentence = self.on(reference, named, kind)
        show_either({"id": key, "message": sentence}, sentence, as_json=as_json)


async def within(seconds: float, work: Awaitable[T]) -> T | None:
    """Return the result of a wait; None where it takes longer, or nobody answers."""
    with contextlib.suppress(TimeoutError, ServiceUnavailableError):
        async with asyncio.timeout(seconds):
            return await work
    return None


def session_of(context: typer.Context) -> Session:
    """Return the session that the global options made."""
    return Session(**(context.obj or {}))


def operator() -> str:
    """Return who is at the keyboard, for the audit trail."""
    try:
        # In a container the user id may have no name.
        return getpass.getuser()
    except (KeyError, OSError):
        return "operator"


def leave(last: Status | None) -> None:
    """End with exit code 1 where an episode or a plan ended without success, with 3 where it waits for a person."""
    if last is None or word_of_status(last) in ("succeeded", "completed", "verified"):
        return
    raise typer.Exit(FAILED if word_of_status(last) in CLOSED_STATUSES else NEEDS_PERSON)


def complete_id(incomplete: str) -> list[tuple[str, str]]:
    """Offer ids to the shell; silent when Temporal does not answer at once."""

    async def rows() -> list[tuple[str, str]]:
        async with asyncio.timeout(COMPLETION_SECONDS):
            client = await TightloopClient.connect()
            return [(row.id, f"{row.status}: {row.goal[:60]}") for row in await client.list()]

    try:
        found = [(LAST, "the newest"), *asyncio.run(rows())]
    except Exception:  # noqa: BLE001 - a shell that completes must never see an error
        return []
    return [pair for pair in found if pair[0].startswith(incomplete)]


def _id_of(what: str) -> Any:
    return typer.Argument(metavar="ID", help=f"Id of {what}, its beginning, or 'last'.", autocompletion=complete_id)


Id = Annotated[str, _id_of("an episode or a plan")]
EpisodeId = Annotated[str, _id_of("an episode")]
PlanId = Annotated[str, _id_of("a plan")]
LoopId = Annotated[str, _id_of("a project's plan")]
Checkpoint = Annotated[str, typer.Argument(metavar="CKPT", help="Checkpoint, such as ckpt-2 or 2.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document, for programs.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON document per change, each on one line.")]
Wait = Annotated[
    bool | None,
    typer.Option(
        "--wait/--no-wait",
        help="Whether to wait for people. --no-wait ends with exit code 3 when one is needed. "
        "Default: wait on a terminal.",
    ),
]
By = Annotated[str | None, typer.Option("--by", help="Who decides. Default: your user name.")]
Reason = Annotated[str, typer.Option(help="Why; kept in the timeline.")]


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
