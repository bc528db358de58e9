"""The text of a pull request, made of what a plan's steps did."""

from collections.abc import Iterable

from tightloop.plan.model import Capability, Plan
from tightloop.plan.result import StepRecord, StepStatus
from tightloop.scrub import scrub
from tightloop.value import shorten

PATHS_SHOWN = 50
STEPS_SHOWN = 100


def pull_request_text(title: str, plan: Plan, records: Iterable[StepRecord], paths: tuple[str, ...]) -> str:
    """Return Markdown: what and why, the steps with their results, decisions, risks and files."""
    known = {step.id: step for step in plan.steps}
    done = [r for r in records if r.result.status is StepStatus.COMPLETED and not r.undone]
    shown = [r for r in done if known.get(r.step) is None or known[r.step].capability is not Capability.NONE]
    parts = [f"# {title}", plan.description or plan.title]
    parts += _section("What was done", [_line(record, plan) for record in shown[:STEPS_SHOWN]], len(shown))
    parts += _section("Checks", [f"`{check.run}`" for check in plan.definition_of_done])
    decisions = [decision for record in done for decision in record.decisions]
    parts += _section("Decisions", [f"{d.step}: {_said(d.approved)} by {d.by}. {d.rationale}" for d in decisions])
    parts += _section("Risks", plan.risks)
    parts += _section("Assumptions", plan.assumptions)
    parts += _section("Files", [f"`{path}`" for path in paths[:PATHS_SHOWN]], len(paths))
    parts.append(f"Plan `{plan.id}`")
    return scrub("\n\n".join(part for part in parts if part) + "\n")


def _section(title: str, lines: Iterable[str], total: int | None = None) -> list[str]:
    items = [f"- {' '.join(line.split())}" for line in lines]
    if not items:
        return []
    more = [f"- and {total - len(items)} more"] if total is not None and total > len(items) else []
    return [f"## {title}", "\n".join([*items, *more])]


def _line(record: StepRecord, plan: Plan) -> str:
    title = next((step.title for step in plan.steps if step.id == record.step), "")
    said = f": {record.result.summary}" if record.result.summary else ""
    return shorten(f"{title or record.step}{said}", 300)


def _said(approved: bool) -> str:
    return "approved" if approved else "refused"
