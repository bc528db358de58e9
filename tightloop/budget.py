"""What an episode may spend, what it has spent, and when that is too much."""

from datetime import timedelta
from enum import StrEnum

from tightloop.value import Value

YEAR_MINUTES = 365.0 * 24 * 60


class Usage(Value):
    """What one call to a model cost. `None` means that it was not reported, which is not zero."""

    input_tokens: int | None = None
    cached_tokens: int | None = None
    """The part of `input_tokens` that the provider served from its cache."""
    output_tokens: int | None = None
    cost_usd: float | None = None

    @property
    def known(self) -> bool:
        """Whether tokens were reported."""
        return self.input_tokens is not None and self.output_tokens is not None


class Budget(Value):
    """Upper bounds for one episode. `None` means unbounded."""

    max_iterations: int | None = 15
    warn_at_iteration: int | None = 12
    """Circuit breaker: from here on the planner is asked to converge."""
    max_executor_failures: int | None = 6
    """Executor runs in the whole episode that failed, timed out or ended with an unknown outcome."""
    max_infrastructure_retries: int | None = 200
    """Activity attempts after the first: crashes of workers and of services around us."""
    max_tokens: int | None = None
    max_cost_usd: float | None = None
    max_wall_time: timedelta | None = timedelta(hours=12)
    """Time spent working; time spent paused does not count."""


class Spent(Value):
    """What an episode has spent so far, over all its runs and branches."""

    iterations: int = 0
    executor_failures: int = 0
    infrastructure_retries: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    calls: int = 0
    """Calls that said what they used: of planner, reflector and judge; each run of an executor is one."""
    unreported_calls: int = 0
    """Calls whose tokens are not known; while it is above zero the sums of tokens are lower bounds."""
    unpriced_calls: int = 0
    """Calls whose cost is not known; while it is above zero `cost_usd` is a lower bound."""
    wall_time: timedelta = timedelta()

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens

    def with_usage(self, usage: Usage) -> "Spent":
        """Return the sum of this and one call's usage."""
        return self.model_copy(
            update={
                "input_tokens": self.input_tokens + (usage.input_tokens or 0),
                "cached_tokens": self.cached_tokens + (usage.cached_tokens or 0),
                "output_tokens": self.output_tokens + (usage.output_tokens or 0),
                "cost_usd": self.cost_usd + (usage.cost_usd or 0.0),
                "calls": self.calls + 1,
                "unreported_calls": self.unreported_calls + (0 if usage.known else 1),
                "unpriced_calls": self.unpriced_calls + (1 if usage.cost_usd is None else 0),
            }
        )


class BudgetItem(StrEnum):
    """Which bound was reached."""

    ITERATIONS = "iterations"
    EXECUTOR_FAILURES = "executor_failures"
    INFRASTRUCTURE_RETRIES = "infrastructure_retries"
    TOKENS = "tokens"
    COST = "cost_usd"
    WALL_TIME = "wall_time"


class Breach(Value):
    """One bound that was reached, in words."""

    item: BudgetItem
    spent: str
    limit: str

    def __str__(self) -> str:
        """Say what was spent of what."""
        return f"{self.item.value} {self.spent} of {self.limit}"


def usage_delta(previous: Usage | None, total: Usage) -> Usage:
    """Turn a session's running total into what was spent since `previous`.

    A total of which any part shrank means that the session was started anew; then the total itself is
    the difference. What `total` does not report stays unknown.
    """
    if previous is None:
        return total
    before, now = previous.model_dump(), total.model_dump()
    both = [name for name in now if before[name] is not None and now[name] is not None]
    if any(now[name] < before[name] for name in both):
        return total
    return total.model_copy(update={name: now[name] - before[name] for name in both})


def _in_words(amount: float) -> str:
    return f"{amount:.4f}".rstrip("0").rstrip(".")


def breaches(budget: Budget, spent: Spent) -> tuple[Breach, ...]:
    """Return every bound that `spent` has reached, in the order of `BudgetItem`."""
    pairs: tuple[tuple[BudgetItem, float, float | None], ...] = (
        (BudgetItem.ITERATIONS, spent.iterations, budget.max_iterations),
        (BudgetItem.EXECUTOR_FAILURES, spent.executor_failures, budget.max_executor_failures),
        (BudgetItem.INFRASTRUCTURE_RETRIES, spent.infrastructure_retries, budget.max_infrastructure_retries),
        (BudgetItem.TOKENS, spent.tokens, budget.max_tokens),
        (BudgetItem.COST, round(spent.cost_usd, 4), budget.max_cost_usd),
    )
    found = [
        Breach(item=item, spent=_in_words(used), limit=_in_words(limit))
        for item, used, limit in pairs
        if limit is not None and used >= limit
    ]
    if budget.max_wall_time is not None and spent.wall_time >= budget.max_wall_time:
        found.append(Breach(item=BudgetItem.WALL_TIME, spent=str(spent.wall_time), limit=str(budget.max_wall_time)))
    return tuple(found)


def should_converge(budget: Budget, spent: Spent) -> bool:
    """Return whether the circuit breaker asks the planner to finish what it has."""
    return budget.warn_at_iteration is not None and spent.iterations >= budget.warn_at_iteration


class TopUp(Value):
    """An addition to a budget, given by a person."""

    iterations: int = 0
    executor_failures: int = 0
    infrastructure_retries: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    wall_minutes: float = 0.0


def topped_up(budget: Budget, addition: TopUp) -> Budget:
    """Return `budget` with the bounded items raised; unbounded items stay unbounded.

    A negative amount raises nothing, and at most a year of working time is added at once.
    """

    def raised(limit: int | None, by: int) -> int | None:
        return None if limit is None else limit + max(by, 0)

    # not max() or min() alone: a NaN would pass, and fail the workflow's task again and again
    minutes = min(addition.wall_minutes, YEAR_MINUTES) if addition.wall_minutes > 0 else 0.0

    return budget.model_copy(
        update={
            "max_iterations": raised(budget.max_iterations, addition.iterations),
            "warn_at_iteration": raised(budget.warn_at_iteration, addition.iterations),
            "max_executor_failures": raised(budget.max_executor_failures, addition.executor_failures),
            "max_infrastructure_retries": raised(budget.max_infrastructure_retries, addition.infrastructure_retries),
            "max_tokens": raised(budget.max_tokens, addition.tokens),
            "max_cost_usd": None
            if budget.max_cost_usd is None
            else budget.max_cost_usd + (addition.cost_usd if addition.cost_usd > 0 else 0.0),
            "max_wall_time": None
            if budget.max_wall_time is None
            else budget.max_wall_time + timedelta(minutes=minutes),
        }
    )
