"""The plan request that the loop itself writes about an iteration, from what was executed."""

from tightloop.episode.check import CheckReport, CheckResult
from tightloop.episode.model import EpisodeRequest, EpisodeState
from tightloop.episode.progress.history import history_line
from tightloop.executor.messages.message import Alignment, PlanMessage, PlanRequestMessage, Reflection
from tightloop.executor.model import ExecutorReport
from tightloop.value import clip

# Bounds keep prompts flat over an episode: 1 986 tokens at iteration 10, 2 070 at 100 (docs/reference/figures.md).
HISTORY_LINES = 20
CHANGES_LISTED = 40
TAIL_IN_MESSAGE = 400


def plan_request_of(
    episode: EpisodeRequest,
    state: EpisodeState,
    *,
    plan: PlanMessage | None,
    report: ExecutorReport | None,
    checks: CheckReport | None,
    changes: tuple[str, ...],
    before: PlanRequestMessage | None,
    checks_before: str,
) -> PlanRequestMessage:
    """Write PR-A_n+1 about the iteration that `state` ends.

    `before` is the plan request before this one, whose history goes on; `checks_before` is passed of all before the
    iteration, such as `1/3`; `changes` has one line for each changed file.
    """
    command = plan.steps[0].run if plan and plan.steps else ()
    line = history_line(
        state.iteration,
        state.plan_title or "no plan",
        command=command,
        before=checks_before,
        after=state.checks_text,
        changed=bool(changes),
    )
    failed = checks.failed if checks else ()
    listed = changes[:CHANGES_LISTED]
    if len(changes) > len(listed):
        listed = (*listed, f"... and {len(changes) - len(listed)} more")
    return PlanRequestMessage(
        project=episode.project_name,
        goal=episode.goal,
        iteration=state.iteration + 1,
        outcome=report.status.value if report else "nothing was delivered",
        report=_report_text(state, report),
        changes=listed,
        checks=tuple(_check_line(result) for result in checks.results) if checks else (),
        history=(*(before.history if before else ()), line)[-HISTORY_LINES:],
        reflection=_reflection(report, failed),
        alignment=Alignment(answer="yes", rationale="the report states what was executed, not what was claimed"),
    )


def _report_text(state: EpisodeState, report: ExecutorReport | None) -> str:
    if report is None:
        return state.plan_title or "The planner gave nothing to deliver."
    denied = tuple(f"It was not allowed: {line}" for line in report.denied)
    return "\n".join(part for part in (report.summary, report.error, *denied) if part) or "The executor said nothing."


def _check_line(result: CheckResult) -> str:
    line = f"{result.status.value}: {result.name}"
    if result.failing:
        line += " (" + ", ".join(result.failing[:5]) + ")"
    # The end of the output: tools print the cause last.
    return line if result.passed else f"{line}\n{clip(result.tail, TAIL_IN_MESSAGE)}"


def _reflection(report: ExecutorReport | None, failed: tuple[CheckResult, ...]) -> Reflection:
    diagnosis = "all checks pass"
    items: tuple[str, ...] = ("compare the result with the goal: claim it met, or plan what is missing",)
    if failed:
        diagnosis = f"failing checks ({len(failed)}): {', '.join(result.name for result in failed[:3])}"
        items = tuple(f"make '{result.name}' pass" for result in failed[:5])
    elif report is not None and not report.succeeded:
        diagnosis = f"the executor ended with {report.status.value}: {report.error or report.summary}"
        items = ("find out why the executor did not finish, then plan the rest of the work",)
    return Reflection(diagnosis=diagnosis, action_items=items)
