"""Shows questions: what is asked, why, what each option does, and the command that chooses it."""

import shlex
from collections.abc import Iterable

from tightloop.cli.render.loop import loop_todo_lines
from tightloop.client import Status
from tightloop.episode.model import EpisodeStatus
from tightloop.loop.model import LoopStatus
from tightloop.plan.request import PlanStatus
from tightloop.question import Question, QuestionKind, top_up_options
from tightloop.safety.drift import Drift
from tightloop.value import counted

QUESTIONS_SHOWN = 12
_TEXTS = {"done": "what I did", "failed": "why", "refused": "why", "limit": "why", "deny": "why", "reject": "why"}
"""Options that say little without a text."""


def todo_lines(status: Status) -> list[str]:
    """Return everything that waits for a person, with the commands that answer it; empty where nothing waits."""
    if isinstance(status, LoopStatus):
        return loop_todo_lines(status)
    name = status.episode_id if isinstance(status, EpisodeStatus) else status.plan_id
    questions = status.questions
    lines: list[str] = []
    for question in questions[:QUESTIONS_SHOWN]:
        lines += question_lines(name, question, alone=len(questions) == 1)
        if question.kind is QuestionKind.BUDGET and (more := top_up_options(question.title)):
            lines.append(f"  tightloop top-up {name} {more}")
    if len(questions) > QUESTIONS_SHOWN:
        lines.append(f"... and {counted(len(questions) - QUESTIONS_SHOWN, 'more question')}")
    commands: list[str] = []
    if isinstance(status, PlanStatus):
        for wait in status.children[:QUESTIONS_SHOWN]:
            lines.append(f"{wait.step}: {wait.where} waits for a person: {wait.what}")
            lines += [*(f"  {line}" for line in wait.question.evidence), f"  {wait.command}"]
        if any(question.kind in (QuestionKind.FAILED_STEP, QuestionKind.UNMET) for question in questions):
            commands = [f"plan replan {name} FILE"]
    elif any(question.options for question in questions):
        # Temporal's own pause has no options: it takes no messages either.
        back = status.way_back or "CKPT"
        commands = [f'respond {name} "message for the planner"', f"restore {name} {back}", f"cancel {name}"]
    return [*lines, *(f"  tightloop {command}" for command in commands)]


def drift_lines(drifts: Iterable[Drift]) -> list[str]:
    """Return what others changed, what became of it, and how to bring it back."""
    return [line for drift in drifts for line in drift.report]


def question_lines(workflow_id: str, question: Question, *, alone: bool = True) -> list[str]:
    """Return one question with its evidence, and a command for each option.

    Args:
        workflow_id: the episode or plan that asks.
        question: what is asked.
        alone: it is the only one, so that the commands need not name it.
    """
    since = f" (since {question.since.astimezone():%Y-%m-%d %H:%M:%S})" if question.since else ""
    role = f" with role {question.role}" if question.role else ""
    who = f"{question.count} different people{role}" if question.count > 1 else f"a person{role}"
    given = ", ".join(f"{answer.by}: {answer.option}" for answer in question.answers)
    what = f"{question.step or 'It'} waits for {who}" if question.needs_person else "Nobody has to answer"
    lines = [f"{what}{f' ({given})' if given else ''}: {question.title}{since}"]
    lines += [f"  {line}" for line in question.evidence]
    for option in question.options:
        words = ["answer", workflow_id, option.name]
        words += [_TEXTS[option.name]] if option.name in _TEXTS else []
        words += [] if alone else ["--question", question.id]
        words += ["--by", "NAME"] if question.count > 1 else []
        effect = "; ".join(
            part
            for part in (
                option.effect,
                option.pros and f"+ {option.pros}",
                option.cons and f"- {option.cons}",
                option.cost and f"cost: {option.cost}",
            )
            if part
        )
        lines.append(f"  tightloop {shlex.join(words)}" + (f"   # {effect}" if effect else ""))
    return lines
