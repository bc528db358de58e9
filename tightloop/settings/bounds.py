"""The bounds of an episode: what it may spend, when it left its course, and what a person has to look at."""

from datetime import timedelta
from typing import Annotated

from pydantic import Field, model_validator

from tightloop.alignment import Rubric
from tightloop.budget import Budget
from tightloop.settings.section import Count, Section, Share
from tightloop.tracking import HIGH_FROM, MEDIUM_FROM, Thresholds

_COURSE = Thresholds()
_RUBRIC = Rubric()


class BudgetSettings(Section):
    """What an episode may spend where its request does not say. Empty (null): unbounded."""

    max_iterations: Count | None = 15
    warn_at_iteration: Count | None = 12
    """From here on the planner is asked to converge."""
    max_executor_failures: Count | None = 6
    max_tokens: Count | None = None
    max_cost_usd: Annotated[float, Field(gt=0)] | None = None
    max_wall_hours: Annotated[float, Field(gt=0, le=8_760)] | None = 12.0
    """Time spent working; time spent paused does not count."""

    def as_budget(self) -> Budget:
        """Return the budget of an episode."""
        hours = self.max_wall_hours
        return Budget(
            max_iterations=self.max_iterations,
            warn_at_iteration=self.warn_at_iteration,
            max_executor_failures=self.max_executor_failures,
            max_tokens=self.max_tokens,
            max_cost_usd=self.max_cost_usd,
            max_wall_time=None if hours is None else timedelta(hours=hours),
        )


class TrackingSettings(Section):
    """When an episode left its course, or goes in circles."""

    high_from: Share = HIGH_FROM
    """Similarity of the tree before and after an iteration from which its class is HIGH."""
    medium_from: Share = MEDIUM_FROM
    growth_keeps: Share = _COURSE.growth_keeps
    """A change that keeps this share of the lines before is growth: new files alone are no departure."""
    scope_share_medium: Share = _COURSE.scope_share_medium
    """Share of the changed lines outside of the files that the plan announced."""
    scope_share_low: Share = _COURSE.scope_share_low
    """The same, where no check got better."""
    open_items_medium: Count = _COURSE.open_items_medium
    """Iterations in which nothing was done about an action item."""
    open_items_low: Count = _COURSE.open_items_low
    no_change_low: Count = _COURSE.no_change_low
    """Deliveries in a row that changed nothing."""
    same_error_low: Annotated[int, Field(ge=2)] = _COURSE.same_error_low
    """Iterations in a row with the same failures of the checks."""
    iterations_per_progress: Count | None = _COURSE.iterations_per_progress
    """What may be spent until a check gets better, then the class is MEDIUM. Empty (null): unbounded."""
    tokens_per_progress: Count | None = _COURSE.tokens_per_progress
    cost_usd_per_progress: Annotated[float, Field(gt=0)] | None = _COURSE.cost_usd_per_progress
    hours_per_progress: Annotated[float, Field(gt=0)] | None = _COURSE.hours_per_progress
    cost_low_factor: Annotated[float, Field(ge=1)] = _COURSE.cost_low_factor
    """So many times one of these four bounds is LOW."""
    reasons_low: Annotated[int, Field(ge=2)] = _COURSE.reasons_low
    """So many reasons together that are MEDIUM alone are LOW."""
    deviation_limit: Count = 2
    """Iterations in a row with class LOW before the episode pauses."""
    repeat_error_limit: Count = 3
    """Iterations in a row with the same error before the episode pauses."""

    @model_validator(mode="after")
    def _ordered(self) -> "TrackingSettings":
        problem = self.as_thresholds().problem()
        if problem:
            raise ValueError(problem)
        return self

    def as_thresholds(self) -> Thresholds:
        """Return the thresholds of an episode."""
        return Thresholds.model_validate(self.model_dump())


class AlignmentSettings(Section):
    """Bounds of the alignment rubric: what is asked of a person before a plan is handed off and after it was done."""

    enabled: bool = True
    judge: bool = True
    """Ask the planner's model about what a rule cannot tell, before a person is asked."""
    allow: tuple[str, ...] = ()
    """Rules that are off, by the names that pauses show, such as `publishes`."""
    cpu_minutes: Annotated[float, Field(gt=0)] = _RUBRIC.cpu_minutes
    """Processor time of an iteration, where it is known."""
    wall_minutes: Annotated[float, Field(gt=0)] = _RUBRIC.wall_minutes
    """Working time of an iteration."""
    deleted_files: Count = _RUBRIC.deleted_files
    """So many deleted files that the plan did not announce are too many."""
    deleted_share: Share = _RUBRIC.deleted_share
    """So large a part of all lines, from `deleted_lines` on, is too much."""
    deleted_lines: Count = _RUBRIC.deleted_lines
    suppressions: Count = _RUBRIC.suppressions
    """So many new comments that silence a linter are a flood."""

    @property
    def rubric(self) -> Rubric:
        """The bounds as the rules take them."""
        return Rubric(**{name: getattr(self, name) for name in Rubric.model_fields})
