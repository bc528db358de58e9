"""Settings of the built-in coder: its model service, its bounds, its roles."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tightloop.coder.role import Positive, Role, Temperature, TopP, known_roles, known_tools
from tightloop.errors import did_you_mean
from tightloop.settings.section import Count, Seconds, Section


class RoleSettings(Section):
    """What one role of the coder does differently; whatever is left out stays as in the role's file."""

    tools: tuple[str, ...] = ()
    """Names of tools, in the order in which a model is shown them; `finish` is always among them."""
    models: tuple[str, ...] = ()
    """The first that the service has is used."""
    temperature: Temperature | None = None
    """How freely a model chooses its words; left out where the model takes none."""
    top_p: TopP | None = None
    """Part of the likeliest words that a model chooses from; left out where the model takes none."""
    max_output_tokens: Positive | None = None
    """For one answer."""
    max_turns: Positive | None = None
    """Answers for one part of the work."""


class CoderSettings(Section):
    """The built-in coder: which models it asks, and its bounds."""

    base_url: str = ""
    """Of an OpenAI-compatible service; empty: that of `planner`."""
    api_key_env: str = ""
    """Name of the environment variable that holds the key, never the key. Empty: that of `planner` where `base_url` is
    empty too; a service of its own is asked without a key."""
    api: Literal["auto", "responses", "chat"] = "auto"
    """`auto`: that of `planner` where `base_url` is empty; else `responses` at OpenAI itself, `chat` elsewhere."""
    models: tuple[str, ...] = ()
    """The first is used; the next ones where it is refused or not available. Empty: those of `planner`."""
    timeout_s: Annotated[float, Field(gt=0, le=840)] = 600.0
    """For one answer, to its last word."""
    # Models that think before they speak send nothing meanwhile, at services that do not stream their thoughts.
    silence_s: Seconds = 120.0
    """Longest silence within an answer."""
    max_turns: Count = 60
    """Answers of models in one delivery, of all roles together."""
    max_tokens: Count = 1_000_000
    """Tokens of one delivery, prompts and answers together, where the service reports them."""
    rounds: Annotated[int, Field(ge=0, le=20)] = 3
    """How often the coder tries again, after a reflection, when the checks or the tests do not pass."""
    context_tokens: Annotated[int, Field(ge=2_000)] = 40_000
    """Size of a prompt above which older turns are replaced by a digest."""
    keep_tokens: Annotated[int, Field(ge=500)] = 15_000
    """Newest turns that stay as they are then."""
    planning: bool = False
    """Let the role `planner` read the code before the role `coder` changes it."""
    testing: bool = False
    """Let the role `tester` write tests for the change; only those that can fail count."""
    roles: dict[str, RoleSettings] = Field(default_factory=dict)
    """By the name of a role: planner, coder, tester, reflector."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.keep_tokens > self.context_tokens / 2:
            raise ValueError(
                f"keep_tokens {self.keep_tokens} must not be above half of context_tokens {self.context_tokens}: "
                "otherwise every few turns pay for a new prompt"
            )
        for name, role in self.roles.items():
            if name not in known_roles():
                raise ValueError(f"unknown role {name!r} (coder.roles.{name}). {did_you_mean(name, known_roles())}")
            for tool in role.tools:
                if tool not in known_tools():
                    near = did_you_mean(tool, known_tools())
                    raise ValueError(f"unknown tool {tool!r} (coder.roles.{name}.tools). {near}")
        return self

    def role(self, name: str) -> Role:
        """Return a role as its file and these settings say.

        Raises:
            KeyError: there is no such role.
        """
        role = known_roles()[name]
        over = self.roles.get(name, RoleSettings())
        given = {field: value for field, value in over if value not in (None, ())}
        return Role.model_validate({**dict(role), "models": role.models or self.models, **given})
