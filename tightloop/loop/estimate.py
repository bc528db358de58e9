"""What dispatching a project's plan may take: bounds from the plan itself, since nobody knows more before."""

from datetime import timedelta

from tightloop.loop.model import LoopStatus, TaskState
from tightloop.value import Value


class Estimate(Value):
    """Upper bounds of what the tasks of a plan may take together; None: there is no bound, or the plan has none."""

    runs: int = 0
    """Tasks that are not dispatched yet; each becomes an episode. A conflict adds one."""
    at_once: int = 0
    """Those that wait for no other task."""
    parallel: int | None = None
    """Tasks at the same time."""
    executor: str = ""
    """Empty: the plan was made before it was recorded."""
    is_bounded: bool = False
    """Whether the plan says what its tasks may spend."""
    iterations: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None
    wall_time: timedelta | None = None
    """Of work, summed over the tasks."""
    checks: tuple[str, ...] = ()
    """The commands of all definitions of done, each once."""


def estimate_of(status: LoopStatus) -> Estimate:
    """Return what dispatching a plan may take."""
    tasks = tuple(task for task in status.tasks if task.state is TaskState.CREATED)
    runs, budget = len(tasks), status.budget
    commands = dict.fromkeys(check.run for task in tasks for check in task.definition_of_done)
    found = Estimate(
        runs=runs,
        at_once=sum(not task.dependencies for task in tasks),
        parallel=status.parallel or None,
        executor=status.executor,
        checks=tuple(commands),
    )
    if budget is None:
        return found
    return found.evolve(
        is_bounded=True,
        iterations=_sum(budget.max_iterations, runs),
        tokens=_sum(budget.max_tokens, runs),
        cost_usd=None if budget.max_cost_usd is None else budget.max_cost_usd * runs,
        wall_time=None if budget.max_wall_time is None else budget.max_wall_time * runs,
    )


def _sum(bound: int | None, runs: int) -> int | None:
    return None if bound is None else bound * runs
