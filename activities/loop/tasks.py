"""Task planners, which split a goal into tasks, either with a model or by rules."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import BeforeValidator, Field

from activities.model.asking import WITHHELD, PromptedAsker, UnusableAnswerError
from activities.model.client import ModelService
from tightloop.episode.check import Check
from tightloop.executor.model import Usage
from tightloop.loop.model import DESCRIPTION_CHARACTERS, LoopTask, Packet
from tightloop.loop.plan import find_task_problem, task_id, tasks_by_rules
from tightloop.safety.drift import PromptPrivacy
from tightloop.value import Value, format_count, shorten
from tightloop.value.scrub import scrub


class TaskBriefing(Value):
    """A task planner's input."""

    packet: Packet
    checks: tuple[Check, ...] = ()
    """The project's gates."""
    prompt_privacy: PromptPrivacy = PromptPrivacy.FULL


class TaskAnswer(Value):
    """A list of tasks, or the reason why there are none."""

    tasks: tuple[LoopTask, ...] = ()
    problem: str = ""
    """Reason why there are no tasks."""
    model: str = ""
    usage: Usage | None = None
    transcript: bytes = Field(default=b"", repr=False)


class TaskPlanner(Protocol):
    """Derives tasks from a packet."""

    async def plan(self, briefing: TaskBriefing) -> TaskAnswer:
        """Split a goal into tasks without cyclic dependencies, or return the reason why this failed.

        Raises:
            PlannerError: the model service rejects the request; not retryable.
            PlannerUnavailableError: the service is busy or down; retryable.
        """
        ...


TaskPlanners = Callable[[str, str], TaskPlanner]
"""Returns the planner for a kind (`auto`, `openai` or `heuristic`) and a model.

If the model is empty, it comes from the settings.
"""


NAME = "rules"


class RuleTaskPlanner:
    """Creates one task for the goal or one for each failing check. This requires no network and no key."""

    async def plan(self, briefing: TaskBriefing) -> TaskAnswer:
        tasks = tasks_by_rules(briefing.packet, briefing.checks)
        if tasks and not all(task.definition_of_done for task in tasks):
            problem = "the project has no gate that can verify the goal. Specify a gate: --gate 'pytest -q'"
            return TaskAnswer(problem=problem, model=NAME)
        if tasks:
            return TaskAnswer(tasks=tasks, model=NAME)
        ran = sum(check.passed is not None for check in briefing.packet.checks)
        check_summary = f"{format_count(ran, 'check')} ran and none failed" if ran else "no check could be run"
        return TaskAnswer(
            problem=f"there is nothing to do: no goal is set, and {check_summary}. Specify a goal", model=NAME
        )


def task_planners(service: ModelService) -> TaskPlanners:
    """Return a factory for task planners. The kind `auto` uses rules if no model is configured."""

    def choose(kind: str, model: str) -> TaskPlanner:
        if not service.must_plan(kind):
            return RuleTaskPlanner()
        return ModelTaskPlanner(replace(service, models=(model, *service.models)) if model else service)

    return choose


PROMPTS = Path(__file__).parent / "prompts"


def _parse_list(value: object) -> object:
    """Convert null or a single item to a list. Models sometimes return these where a list is expected."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


class _Task(Value):
    id: str
    description: str
    priority: int = 1
    needs: Annotated[list[str], BeforeValidator(_parse_list)] = Field(default_factory=list)
    checks: Annotated[list[str], BeforeValidator(_parse_list)] = Field(default_factory=list)


class _Tasks(Value):
    """The model's response; its schema is `prompts/answer.json`."""

    tasks: list[_Task] = Field(default_factory=list)
    gave_up: str | None = ""


class ModelTaskPlanner:
    """Asks a model for tasks and validates its answer."""

    def __init__(self, service: ModelService) -> None:
        self._asker = PromptedAsker(service, PROMPTS, "tasks")

    async def plan(self, briefing: TaskBriefing) -> TaskAnswer:
        exchange = await self._asker.ask(
            "plan.md", apply_privacy(briefing), briefing.prompt_privacy, lambda value: self._read(value, briefing)
        )
        tasks = exchange.value or ()
        gave_up = "the model could not divide the goal into tasks" if exchange.value is not None else exchange.failure
        # An answer that gives up is parsed as a single task that holds its reason.
        reason = next((task.message for task in tasks if task.message), "")
        return TaskAnswer(
            tasks=() if reason else tasks,
            problem=shorten(reason or ("" if tasks else gave_up), 2_000),
            model=exchange.model,
            usage=exchange.usage,
            transcript=exchange.transcript,
        )

    def _read(self, value: dict[str, Any], briefing: TaskBriefing) -> tuple[LoopTask, ...]:
        answer = _Tasks.model_validate(value)
        if answer.gave_up and not answer.tasks:
            return (LoopTask(task_id=task_id(1), description="", message=answer.gave_up),)
        if not answer.tasks:
            raise UnusableAnswerError(
                "`tasks` is empty. Return at least one task, or explain in `gave_up` why no task is possible"
            )
        if value == self._asker.example:
            raise UnusableAnswerError("the answer repeats the example. Create tasks for the goal in the briefing")
        checks_by_command = {check.run: check for check in briefing.checks}
        # Validated with the model's own ids, so that it recognises the task in the message.
        if problem := find_task_problem(tuple(_task(task, checks_by_command) for task in answer.tasks)):
            raise UnusableAnswerError(problem)
        if not checks_by_command:
            raise UnusableAnswerError("the project has no checks that can verify a task. Explain this in `gave_up`")
        ids = {task.id: task_id(number) for number, task in enumerate(answer.tasks, start=1)}
        return tuple(
            task.evolve(
                task_id=ids[task.task_id], dependencies=tuple(ids[dependency] for dependency in task.dependencies)
            )
            for task in (_task(draft, checks_by_command) for draft in answer.tasks)
        )


def apply_privacy(briefing: TaskBriefing) -> TaskBriefing:
    """Remove the content that a briefing's prompt privacy does not allow."""
    if briefing.prompt_privacy is PromptPrivacy.FULL:
        return briefing
    packet = briefing.packet
    if briefing.prompt_privacy is PromptPrivacy.SUMMARY:
        # Names and counts stay; commit subjects and check output may quote anything.
        packet = packet.evolve(
            history=(WITHHELD,) if packet.history else (), failures=(WITHHELD,) if packet.failures else ()
        )
    return scrub.model(briefing.evolve(packet=packet))


def _task(task: _Task, checks_by_command: dict[str, Check]) -> LoopTask:
    # A model names commands, but only the project's own checks run. If it names none of them, all must pass.
    checks = tuple(checks_by_command[run] for run in dict.fromkeys(task.checks) if run in checks_by_command) or tuple(
        checks_by_command.values()
    )
    return LoopTask(
        task_id=task.id,
        description=shorten(task.description.strip(), DESCRIPTION_CHARACTERS),
        priority=min(max(task.priority, 1), 1_000),
        dependencies=tuple(dict.fromkeys(task.needs)),
        definition_of_done=checks,
    )
