"""The episode in words: status for programs, Markdown for the Temporal Web UI."""

import json
from collections.abc import Sequence

from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.episode.model import EpisodePhase, EpisodeRequest, EpisodeState, EpisodeStatus
from tightloop.run.core import RunCore
from tightloop.run.question import Question, QuestionKind
from tightloop.run.timeline import Work
from tightloop.value import clip, shorten
from tightloop.wording import budget_line, status_label

# For one look in the Web UI; `tightloop checkpoints` lists them all.
CHECKPOINTS_SHOWN = 12
STANDS_IN = " in place of "
"""Between the name of the executor that worked and of the one that was asked for."""
_ABOUT_THE_LAST = frozenset({QuestionKind.ALIGNMENT, QuestionKind.DEVIATION})


def way_back(state: EpisodeState, questions: tuple[Question, ...] = ()) -> str:
    """Return the checkpoint to go back to: the one before a change that a person is asked about."""
    last = state.last_checkpoint
    doubted = any(question.kind in _ABOUT_THE_LAST for question in questions)
    if last is not None and last.parent and doubted and state.phase is EpisodePhase.TRACKING:
        return last.parent
    return last.id if last is not None else ""


def status_of(
    request: EpisodeRequest,
    state: EpisodeState,
    core: RunCore,
    *,
    episode_id: str,
    run_id: str,
    status: str,
    work: Work | None = None,
) -> EpisodeStatus:
    """Return the snapshot that the `status` query answers with."""
    last = state.last_checkpoint
    return EpisodeStatus(
        episode_id=episode_id,
        run_id=run_id,
        status=status,
        phase=state.phase,
        work=work,
        goal=request.goal,
        workspace=request.workspace,
        iteration=state.iteration,
        branch=state.branch,
        plan=state.plan_title,
        executor=f"{state.stand_in}{STANDS_IN}{request.executor.name}".removeprefix(STANDS_IN),
        model=state.model or ("" if state.stand_in else request.executor.model),
        checks=state.checks_text,
        failed_checks=state.failed_checks,
        proof=state.proof,
        executor_error=state.executor_error,
        probability_class=state.probability_class,
        diagnosis=state.diagnosis,
        checkpoint_id=last.id if last else "",
        way_back=way_back(state, core.questions.waiting),
        tree=state.tree,
        questions=core.questions.waiting,
        drifts=core.drifts,
        spent=state.spent,
        budget=state.budget,
        runs=state.runs,
    )


def details_markdown(
    request: EpisodeRequest,
    state: EpisodeState,
    questions: tuple[Question, ...] = (),
    *,
    episode_id: str,
    status: str,
    work: Work | None = None,
) -> str:
    """Return the current details: where the episode is, and the exact JSON for what can be done next."""
    label = status_label(status, questions[0].kind.value if questions else None)
    lines = [f"**{label}** · iteration {state.iteration} · {state.phase.value} · branch {state.branch}", ""]
    for question in questions:
        lines += question_lines(question)
    lines += [
        f"- goal: {shorten(request.goal.splitlines()[0], 200) if request.goal else ''}",
        *([f"- now: {work.told()}"] if work is not None else []),
        f"- plan: {state.plan_title or 'none yet'}",
        f"- checks: {state.checks_text or 'not run yet'}",
        *(f"  - {check.status.value}: `{check.name}`" for check in state.failed_checks),
        *([f"- executor: `{clip(state.executor_error, 200)}`"] if state.executor_error else []),
        f"- class: {state.probability_class.value if state.probability_class else 'none yet'}",
        f"- budget: `{budget_line(state.spent, state.budget)}`",
    ]
    if state.diagnosis:
        lines.append(f"- diagnosis: {state.diagnosis}")
    lines += ["", "| checkpoint | iteration | branch | class | checks | reset event |", "|---|---|---|---|---|---|"]
    lines += [_checkpoint_row(record) for record in state.checkpoints[-CHECKPOINTS_SHOWN:]]
    if reset := reset_command(episode_id, state.checkpoints):
        lines += ["", f"To reset in Temporal, give run and event of a checkpoint: `{reset}`"]
    lines += ["", *_actions(state, questions)]
    return "\n".join(lines)


def reset_command(episode_id: str, records: Sequence[CheckpointRecord]) -> str:
    """Return how Temporal's command line resets an episode to the checkpoint before the newest; empty: it cannot."""
    known = [record for record in records if record.event_id and not record.discarded]
    if not known:
        return ""
    # Without the run, Temporal takes the event for one of the newest run.
    record = known[-2:][0]
    where = f"--workflow-id {episode_id} --run-id {record.run_id} --event-id {record.event_id}"
    return f'temporal workflow reset {where} --reason "back to {record.id}"'


def question_lines(question: Question) -> list[str]:
    """Return what is asked and why, as Markdown."""
    since = question.since.strftime(" since %Y-%m-%d %H:%M:%S UTC") if question.since else ""
    waits = "waits for a person" if question.needs_person else "may be answered"
    needs = "It needs a decision: a bare `resume` does not end this."
    needs = needs if question.needs_person and not question.default else ""
    return [
        f"**{question.id} {waits}**{since}: {question.title} ({question.kind.value}, by {question.by})",
        "",
        *(f"- {line}" for line in question.evidence),
        *(["", needs] if needs else []),
        "",
    ]


def _checkpoint_row(record: CheckpointRecord) -> str:
    verdict = record.probability_class.value if record.probability_class else ""
    name = f"~~{record.id}~~" if record.discarded else record.id
    event = f"{record.event_id} of run {record.run_id}" if record.event_id else ""
    return f"| {name} | {record.iteration} | {record.branch} | {verdict} | {record.checks} | {event} |"


def _actions(state: EpisodeState, questions: tuple[Question, ...]) -> list[str]:
    back = way_back(state, questions) or "ckpt-0"
    if state.phase is EpisodePhase.CLOSED:
        again = json.dumps({"restore": {"checkpoint_id": back}})
        back = "To go back, reset it to the event of a checkpoint, or start it again under its id with its input and"
        return [f"It has ended, and takes no messages. {back} `{again}`."]
    restore = json.dumps({"checkpoint_id": back, "reason": "why"})
    rows = [
        (f"{option.name}: {option.effect}", "update `answer`", question.json_for(option.name))
        for question in questions
        for option in question.options
    ]
    if not any(question.needs_person for question in questions):
        rows.append(("pause", "signal `pause`", '"why"'))
    if any(question.default for question in questions):
        rows.append((f"choose {questions[0].default}", "signal `resume`", "no input"))
    if any(question.kind is QuestionKind.BUDGET for question in questions):
        rows.append(("top up", "update `top_up`", '{"iterations": 5}'))
    rows.append(("tell the planner", "update `respond`", '"message for the planner"'))
    rows.append(("go back", "update `restore_checkpoint`", restore))
    rows.append(("stop for good", "signal `cancel`", '"why"'))
    return [
        "Next actions:",
        "",
        "| to | send | JSON |",
        "|---|---|---|",
        *(f"| {a} | {b} | `{c}` |" for a, b, c in rows),
    ]
