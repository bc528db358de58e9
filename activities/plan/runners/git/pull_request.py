"""The text of a pull request, made of what a plan's steps did."""

from collections.abc import Iterable

from activities.plan.records.account_text import describe_answer, section
from tightloop.plan.document.plan import Plan
from tightloop.plan.document.step import Capability
from tightloop.plan.result import StepRecord, StepStatus
from tightloop.value.scrub import scrub

PATHS_SHOWN = 50
STEPS_SHOWN = 100


def pull_request_text(title: str, plan: Plan, records: Iterable[StepRecord], paths: tuple[str, ...]) -> str:
    """Return Markdown: what and why, the steps with their results, decisions, risks and files."""
    known = {step.id: step for step in plan.steps}
    done = [r for r in records if r.result.status is StepStatus.COMPLETED and not r.undone]
    # Milestones do nothing. What is not in the plan is a step of a template, or one that took another back.
    shown = [r for r in done if r.step not in known or known[r.step].capability is not Capability.NONE]
    titles = {step.id: step.title or step.id for step in plan.steps}
    lines = [f"{titles.get(r.step, r.step)}: {r.result.summary}".removesuffix(": ") for r in shown]
    parts = [
        f"# {title}",
        plan.description or plan.title,
        section("What was done", lines, STEPS_SHOWN),
        section("Checks", [f"`{check.run}`" for check in plan.definition_of_done]),
        section("Decisions", [describe_answer(record.step, answer) for record in done for answer in record.answers]),
        section("Risks", plan.risks),
        section("Assumptions", plan.assumptions),
        section("Files", [f"`{path}`" for path in paths], PATHS_SHOWN),
        f"Plan `{plan.id}`",
    ]
    return scrub("\n\n".join(part for part in parts if part) + "\n")
