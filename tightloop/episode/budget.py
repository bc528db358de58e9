"""Budget and spending of an episode."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from pydantic import AwareDatetime

from tightloop.episode.check import Check
from tightloop.executor.model import Usage
from tightloop.run.commands import Amounts
from tightloop.run.core import WHAT_CHARACTERS, Work
from tightloop.value import CallerInput, Duration, Value, shorten
from tightloop.wording import number_text

YEAR_MINUTES = 365.0 * 24 * 60
"""Maximum for one top-up, because a `timedelta` cannot represent infinity."""


class Budget(CallerInput):
    """The limits of an episode. `None` means unlimited."""

    # Tokens and cost have no default limit: if an agent does not report them, their sums are only lower bounds.
    max_iterations: int | None = 15
    """Maximum number of iterations. Each one plans, works and checks."""
    warn_at_iteration: int | None = 12
    """Circuit breaker: from this iteration on, the planner is asked to wrap up."""
    max_executor_failures: int | None = 6
    """Maximum number of executor runs that fail, time out or end with an unknown outcome."""
    max_infrastructure_retries: int | None = 200
    """Maximum number of activity retries, such as after a worker crash or an outage of an external service."""
    max_tokens: int | None = None
    """Maximum number of tokens used by all model calls."""
    max_cost_usd: float | None = None
    """Maximum cost of all model calls, at the configured prices."""
    max_wall_time: Duration | None = timedelta(hours=12)
    """Maximum working time. Pauses do not count."""
    until: AwareDatetime | None = None
    """Time at which the run pauses, as at any other limit, including a time zone. A delivery in progress is finished
    first.
    """

    @property
    def spent_at_once(self) -> str:
        """Name of the first limit that is zero or negative, or "" if there is none.

        A run cannot start with such a limit, and extending the limit has no effect.
        """
        bounds = ((item.bound, getattr(self, item.bound)) for item in BudgetItem)
        # The zero of the bound's own type: a timedelta cannot be compared with 0.
        return next((name for name, most in bounds if most is not None and most <= type(most)()), "")


class Spent(Value):
    """The resources that an episode has used across all runs and branches."""

    iterations: int = 0
    executor_failures: int = 0
    infrastructure_retries: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    calls: int = 0
    """Number of calls with reported usage: planner, reflector and judge calls. Each executor run counts as one call."""
    unreported_calls: int = 0
    """Number of calls whose token usage is unknown. If it is not zero, the token counts are lower bounds."""
    unpriced_calls: int = 0
    """Number of calls whose cost is unknown. If it is not zero, `cost_usd` is a lower bound."""
    wall_time: timedelta = timedelta()
    interventions: int = 0
    """Number of accepted messages from people."""

    @property
    def tokens(self) -> int:
        """Total number of input and output tokens."""
        return self.input_tokens + self.output_tokens

    def with_usage(self, usage: Usage | None) -> "Spent":
        """Return the total including the usage of another call. `None` means that no model was used."""
        if usage is None:
            return self
        return self.evolve(
            input_tokens=self.input_tokens + (usage.input_tokens or 0),
            cached_tokens=self.cached_tokens + (usage.cached_tokens or 0),
            output_tokens=self.output_tokens + (usage.output_tokens or 0),
            cost_usd=self.cost_usd + (usage.cost_usd or 0.0),
            calls=self.calls + 1,
            unreported_calls=self.unreported_calls + (0 if usage.known else 1),
            unpriced_calls=self.unpriced_calls + (1 if usage.cost_usd is None else 0),
        )


class BudgetItem(StrEnum):
    """A budget limit that was reached. The value is the field name in `Spent`."""

    ITERATIONS = "iterations"
    EXECUTOR_FAILURES = "executor_failures"
    INFRASTRUCTURE_RETRIES = "infrastructure_retries"
    TOKENS = "tokens"
    COST = "cost_usd"
    WALL_TIME = "wall_time"

    @property
    def bound(self) -> str:
        """Name of the corresponding field in `Budget`."""
        return f"max_{self.value}"


class Breach(Value):
    """A budget limit that was reached, with the amount spent."""

    item: BudgetItem
    spent: str
    limit: str

    def __str__(self) -> str:
        """Return the amount spent and the limit as text."""
        return f"{self.item.value} {self.spent} of {self.limit}"


def breaches(budget: Budget, spent: Spent) -> tuple[Breach, ...]:
    """Return the limits that have been reached, in the order of `BudgetItem`."""
    result: list[Breach] = []
    for item in BudgetItem:
        used, limit = getattr(spent, item.value), getattr(budget, item.bound)
        # In floating point, 0.7 + 0.2 + 0.1 is less than a limit of 1.0.
        used = round(used, 4) if item is BudgetItem.COST else used
        if limit is not None and used >= limit:
            write = str if item is BudgetItem.WALL_TIME else number_text
            result.append(Breach(item=item, spent=write(used), limit=write(limit)))
    return tuple(result)


def describe_end(until: datetime | None, now: datetime) -> str:
    """Return a string such as `until 2026-11-30 07:00 UTC` if a run has reached its end time.

    Return "" if there is time left.
    """
    return "" if until is None or now < until else f"until {until:%Y-%m-%d %H:%M %Z}"


def extend_budget(budget: Budget, first: Budget, spent: Spent) -> Budget:
    """Return `budget` with its exhausted limits raised.

    Each exhausted limit is set to the amount spent plus the corresponding amount in `first`. If no
    limit is exhausted, the run has reached the time `until`, which is removed.
    """
    raised: dict[str, Any] = {}
    for breach in breaches(budget, spent):
        field = breach.item.bound
        now, more = getattr(budget, field), getattr(first, field)
        # An iteration in progress may have exceeded the limit, so the addition starts from the spent amount.
        raised[field] = max(now, getattr(spent, breach.item.value)) + (now if more is None else more)
    if not raised:
        return budget.evolve(until=None)
    # The warning moves along; otherwise the planner would be asked to converge in every further iteration.
    if "max_iterations" in raised and budget.warn_at_iteration is not None and budget.max_iterations is not None:
        raised["warn_at_iteration"] = budget.warn_at_iteration + raised["max_iterations"] - budget.max_iterations
    return budget.evolve(**raised)


def should_converge(budget: Budget, spent: Spent) -> bool:
    """Return whether the planner should be asked to wrap up."""
    return budget.warn_at_iteration is not None and spent.iterations >= budget.warn_at_iteration


class TopUp(Amounts):
    """Amounts to add to the budget of an episode."""

    iterations: int = 0
    executor_failures: int = 0
    infrastructure_retries: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    wall_minutes: float = 0.0


def topped_up(budget: Budget, addition: TopUp) -> Budget:
    """Return `budget` with its limits raised.

    Unset limits stay unset, and negative amounts are ignored. One top-up adds at most one year of working time.
    """
    # A comparison instead of max(): NaN would pass through max() and fail the workflow task repeatedly.
    amounts = {name: amount if amount > 0 else 0 for name, amount in addition.amounts.items()}
    minutes = min(amounts.pop("wall_minutes"), YEAR_MINUTES)
    added: dict[str, Any] = {f"max_{name}": amount for name, amount in amounts.items()}
    time = timedelta(minutes=minutes)
    added |= {"warn_at_iteration": amounts["iterations"], "max_wall_time": time, "until": time}
    now = {name: getattr(budget, name) for name in added}
    return budget.evolve(**{name: limit + added[name] for name, limit in now.items() if limit is not None})


PROOF = "proof, check"
"""Label of a check that runs in a clean checkout."""


def check_work(check: Check, number: int, total: int, since: datetime, kind: str = "check") -> Work:
    """Return the `Work` to display while a single check is running."""
    label = f"{kind} {number} of {total}" if total > 1 else kind
    what = f"{label}: {shorten(check.title, WHAT_CHARACTERS)}"
    return Work(what=what, since=since, limit_s=check.timeout_s, ends_early=True)


def checks_work(checks: Sequence[Check], kind: str = "check") -> Work:
    """Return the `Work` to display while all checks are running as a group."""
    names = ", ".join(check.title for check in checks)
    plural = "" if len(checks) == 1 else "s"
    what = f"{kind}{plural}: {shorten(names, WHAT_CHARACTERS)}"
    return Work(what=what, limit_s=sum(check.timeout_s for check in checks), ends_early=True)
