"""Makes tasks by rules alone."""

from activities.loop.tasks.port import TaskAnswer, TaskBriefing
from tightloop.loop.decomposition import tasks_by_rules
from tightloop.value import counted

NAME = "rules"


class RuleTaskPlanner:
    """One task for a goal, or one for each check that fails; needs neither a network nor a key."""

    async def plan(self, briefing: TaskBriefing) -> TaskAnswer:
        """Return the tasks; see the port."""
        tasks = tasks_by_rules(briefing.packet, briefing.checks)
        if tasks and not all(task.definition_of_done for task in tasks):
            problem = "nothing tells when the goal is reached: the project has no gate. Name one: --gate 'pytest -q'"
            return TaskAnswer(problem=problem, model=NAME)
        if tasks:
            return TaskAnswer(tasks=tasks, model=NAME)
        ran = sum(check.passed is not None for check in briefing.packet.checks)
        seen = f"{counted(ran, 'check')} ran and none fails" if ran else "no check could be run"
        return TaskAnswer(problem=f"there is nothing to do: no goal was given, and {seen}. Give a goal", model=NAME)
