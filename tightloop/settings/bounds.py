"""Settings of the bounds of an episode: budget, deviation and alignment."""

from datetime import timedelta
from typing import Annotated, Any, Self

from pydantic import Field, WithJsonSchema, model_validator

from tightloop.episode.budget import Budget
from tightloop.episode.progress import presets
from tightloop.episode.progress.presets import Preset
from tightloop.episode.progress.tracking import Thresholds
from tightloop.safety.code.rules import CodeRule, CodeRules, default_rules
from tightloop.safety.rubric import Rubric
from tightloop.settings.section import Count, Section

PresetName = Annotated[Preset, WithJsonSchema({"type": "string", "enum": [preset.value for preset in Preset]})]


class BudgetSettings(Section):
    """Default budget of an episode. Empty (null): unbounded."""

    max_iterations: Count | None = 15
    """Plan, work and check: one iteration."""
    warn_at_iteration: Count | None = 12
    """From here on the planner is asked to converge."""
    max_executor_failures: Count | None = 6
    """Deliveries in the whole episode that failed, timed out or ended with an unknown outcome."""
    max_tokens: Count | None = None
    """Of all calls of models; agents that do not report theirs are not counted."""
    max_cost_usd: Annotated[float, Field(gt=0)] | None = None
    """Of all calls of models, as they are priced."""
    max_wall_hours: Annotated[float, Field(gt=0, le=8_760)] | None = 12.0
    """Time spent working; time spent paused does not count."""

    def as_budget(self) -> Budget:
        """Return the budget of an episode."""
        hours = self.max_wall_hours
        fields = self.model_dump(exclude={"max_wall_hours"})
        return Budget(**fields, max_wall_time=None if hours is None else timedelta(hours=hours))


class TrackingSettings(Thresholds, Section):
    """When an episode left its course, or goes in circles."""

    preset: PresetName = Preset.NORMAL
    """Sets the other values here that are not given: `careful`, `normal` or `bold`."""
    deviation_limit: Count = 2
    """Iterations in a row with class LOW until people are told; as many again pause."""
    repeat_error_limit: Count = 3
    """Iterations in a row with the same error until people are told; as many again pause."""

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: Any) -> Any:
        return presets.under(given, presets.TRACKING)

    @model_validator(mode="after")
    def _ordered(self) -> "TrackingSettings":
        if problem := self.problem():
            raise ValueError(problem)
        return self

    def as_thresholds(self) -> Thresholds:
        """Return the thresholds of an episode."""
        return Thresholds.model_validate(self.model_dump())


class AlignmentSettings(Rubric, Section):
    """Bounds of the alignment rubric: what is asked of a person before a plan is handed off and after it was done."""

    preset: PresetName = Preset.NORMAL
    """Sets the bounds here that are not given: `careful`, `normal` or `bold`."""
    judge: bool = True
    """Ask the planner's model about what a rule cannot tell, before a person is asked."""
    code: dict[str, CodeRule] = Field(default_factory=dict)
    """Rules about code that is reviewed before it is run, by name: what is given of a known rule is changed
    (`network: {verdict: allow}`), other rules are added."""
    dependencies: tuple[str, ...] = ()
    """Packages that such code may use without a question, besides what the project depends on."""

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: Any) -> Any:
        return presets.under(given, presets.ALIGNMENT)

    @model_validator(mode="after")
    def _code_is_known(self) -> Self:
        if self.code:
            self.code_rules()
        return self

    def code_rules(self) -> CodeRules:
        """Return the rules about code with what is changed here."""
        return default_rules().changed(self.code, off=self.allow, dependencies=self.dependencies, enabled=self.enabled)

    @property
    def rubric(self) -> Rubric:
        """The bounds as the rules take them."""
        return Rubric(**{name: getattr(self, name) for name in Rubric.model_fields})
