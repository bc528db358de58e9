"""Settings of the planner and of plans that a model writes."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from tightloop.safety.rubric import Rubric
from tightloop.settings.section import Count, Seconds, Section

if TYPE_CHECKING:
    # The rules about commands behind it need a parser of shell scripts, which only workers do.
    from tightloop.plan.rules.caution import Caution


class PlannerSettings(Section):
    """Planner of episodes and its model service."""

    kind: Literal["auto", "openai", "heuristic"] = "auto"
    """`auto`: `openai` where a key is present, else `heuristic`, which needs none."""
    models: tuple[str, ...] = Field(default=("gpt-5.1", "gpt-5-mini"), min_length=1)
    """The first is used; the next ones where it is refused or not available."""
    base_url: str = ""
    """Of an OpenAI-compatible service; empty: OpenAI itself."""
    api_key_env: str = Field(default="OPENAI_API_KEY", min_length=1)
    """Name of the environment variable that holds the key; never the key."""
    api: Literal["auto", "responses", "chat"] = "auto"
    """`auto`: `responses` against OpenAI itself, `chat` for any other `base_url`."""
    timeout_s: Seconds = 120.0
    """For one call."""
    plan_timeout_s: Annotated[float, Field(gt=0, le=7_000)] = 600.0
    """For all calls and attempts at one plan together, without the waits that the service asks for. After that a person
    is asked."""
    max_output_tokens: Count = 4000
    """For one answer."""
    corrections: int = Field(default=2, ge=0, le=10)
    """Maximum number of times an answer that does not follow the template is sent back."""
    context_characters: int = Field(default=24_000, ge=8_000)
    """Bound on what is put into one prompt."""


HostPattern = Annotated[
    str, Field(pattern=r"^(\*\.)?[^\s/@*]+$", examples=["tracker.example.org", "*.example.org", "127.0.0.1:8080"])
]


class PlanSettings(Section):
    """Plans: which secrets they may send where; and whether a model may write some, and its bounds."""

    secrets: dict[str, tuple[HostPattern, ...]] = Field(default_factory=dict)
    """Variables of the worker that `secret_headers` of any plan may name, each with the hosts that it may be sent to:
    `{TRACKER_TOKEN: [tracker.example.org]}`. A host stands for https, `host:port` for exactly that port."""
    agent_planning: bool = False
    """Let the model of `planner` write plans for a goal, and change plans whose steps failed. Plans that people write
    run in any case."""
    allow: tuple[str, ...] = (
        "cat **",
        "diff **",
        "echo **",
        "git diff **",
        "git log **",
        "git show **",
        "git status **",
        "grep **",
        "head **",
        "ls **",
        "tail **",
        "test **",
        "true",
        "wc **",
    )
    """Commands of such a plan that need no approval, besides `executor.programs`; `*` is a word, `**` any number."""
    write: tuple[str, ...] = ("**",)
    """Glob patterns of what its steps may change."""
    network: tuple[HostPattern, ...] = ()
    """Hosts that its `http` steps may ask."""
    max_steps: Annotated[int, Field(ge=1, le=2_000)] = 200
    """Steps of one plan."""
    max_attempts: Count = 1_000
    """Attempts of all its steps."""
    max_cost_usd: Annotated[float, Field(gt=0)] | None = 5.0
    """Of the planning itself and of all its steps, as they are priced. Empty (null): unbounded."""
    max_tokens: Annotated[int, Field(ge=1)] | None = 1_000_000
    """Of the planning itself and of all its steps."""
    max_wall_hours: Annotated[float, Field(gt=0, le=8_760)] | None = 4.0
    """Time spent working; time spent waiting for a person does not count. Empty (null): unbounded."""
    max_depth: Annotated[int, Field(ge=1, le=16)] = 2
    """Plans within plans, this one included."""
    max_fan_out: Annotated[int, Field(ge=1, le=2_500)] = 25
    """Steps that one template may become."""
    max_revisions: Count = 5
    """Revisions of the plan, the first included."""
    max_output_tokens: Count = 16_000
    """For one answer: a plan is longer than a message to an executor."""

    def caution(self, programs: Iterable[str], rubric: Rubric = Rubric()) -> "Caution":
        """Return the bounds.

        Args:
            programs: names of programs that need no approval either.
            rubric: its bounds of deletions hold for the plans, too.
        """
        from tightloop.plan.document.plan import PlanBudget
        from tightloop.plan.document.policy import Deletions
        from tightloop.plan.rules.caution import Caution, policy_for

        allowed = (*self.allow, *(f"{program} **" for program in programs))
        hours = self.max_wall_hours
        budget = PlanBudget(
            max_wall_s=None if hours is None else hours * 3_600,
            max_cost_usd=self.max_cost_usd,
            max_tokens=self.max_tokens,
            max_attempts=self.max_attempts,
            max_depth=self.max_depth,
            max_fan_out=self.max_fan_out,
            max_revisions=self.max_revisions,
        )
        gone = Deletions(files=rubric.deleted_files, lines=rubric.deleted_lines, share=rubric.deleted_share)
        policy = policy_for(allowed, write=self.write, network=self.network, deletions=gone)
        return Caution(policy=policy, budget=budget, max_steps=self.max_steps)
