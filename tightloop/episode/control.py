"""Messages to an episode, its input, and its details."""

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import field_validator

from tightloop.episode.budget import TopUp
from tightloop.episode.check import Check, FailedCheck
from tightloop.episode.checkpoint import CheckpointRecord, MoveTarget, RestoreTarget, checkpoint_id, checkpoint_number
from tightloop.episode.model import RIGHT_INPUT, EpisodePhase, EpisodeRequest, EpisodeState, EpisodeStatus
from tightloop.episode.scenarios import HiddenScenarios
from tightloop.errors import InvalidRequestError
from tightloop.executor.model import ExecutorChoice, OnCrash
from tightloop.run.commands import Remark, read_amounts, read_argument, read_text
from tightloop.run.core import EPISODE_WORKFLOW_TYPE, RunCore, RunInput, Work
from tightloop.run.question import Answer, Question, QuestionKind
from tightloop.safety.rubric import Verdict
from tightloop.value import Document, clip, shorten
from tightloop.wording import budget_line, status_label


class ExecutorAmendment(Document):
    """Changes to the executor and its crash and permission rules. Empty fields keep their values."""

    name: str = ""
    fallback: tuple[str, ...] | None = None
    permissions: Verdict | None = None
    on_crash: OnCrash | None = None
    options: dict[str, Any] | None = None
    """All options of the executor. If None, the current options are kept, except those that the executor does not
    have.
    """

    def apply_to(self, choice: ExecutorChoice) -> ExecutorChoice:
        """Return the choice with the changes applied.

        A new executor starts with the model from its own settings.
        """
        # Deferred import: viewers of episodes change no executor.
        from tightloop.executor.options import OPTIONS

        other = bool(self.name) and self.name != choice.name
        known = OPTIONS.get(self.name) if other else None
        kept = {key: value for key, value in choice.options.items() if known is None or key in known.model_fields}
        return choice.evolve(
            name=self.name or choice.name,
            model="" if other else choice.model,
            options=kept if self.options is None else self.options,
            fallback=choice.fallback if self.fallback is None else self.fallback,
            permissions=self.permissions or choice.permissions,
            on_crash=self.on_crash or choice.on_crash,
        )


class Amendment(Document):
    """Changes to the goal, checks, scenarios, executor or planner. Fields left empty keep their current values."""

    goal: str = ""
    definition_of_done: tuple[Check, ...] = ()
    scenarios: HiddenScenarios | None = None
    """New hidden scenarios. With a count of 0, all of them are withdrawn."""
    no_drafts: bool = False
    """Withdraw the drafted scenarios."""
    executor: ExecutorAmendment = ExecutorAmendment.model_construct()
    planner: str = ""
    by: str = "operator"

    @field_validator("executor", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def empty(self) -> bool:
        """True if the amendment changes nothing."""
        texts = (self.goal.strip(), self.planner.strip(), self.definition_of_done, self.scenarios, self.no_drafts)
        return not any(texts) and self.executor == ExecutorAmendment()

    def apply_to(self, request: EpisodeRequest) -> EpisodeRequest:
        """Return the request with the changes applied."""
        hidden = request.scenarios
        if self.scenarios is not None:
            hidden = (hidden or HiddenScenarios()).replace_by(self.scenarios, self.by)
        return request.evolve(
            goal=self.goal.strip() or request.goal,
            definition_of_done=self.definition_of_done or request.definition_of_done,
            scenarios=hidden,
            drafts=0 if self.no_drafts else request.drafts,
            executor=self.executor.apply_to(request.executor),
            planner=self.planner.strip() or request.planner,
        )


def with_check(request: EpisodeRequest, answer: Answer) -> Amendment:
    """Return the amendment that adds the check given in an answer.

    Raises:
        InvalidRequestError: the check is already in the definition of done, or is not a valid command.
    """
    check = Check(run=answer.text)
    if check.run in [other.run for other in request.definition_of_done]:
        raise InvalidRequestError(f"the check {shorten(check.run, 80)!r} is already in the definition of done")
    changed = request.with_check(check)
    changed.check()
    return Amendment(definition_of_done=changed.definition_of_done, by=answer.by)


class _Restore(Document):
    checkpoint_id: str
    reason: str = ""
    by: str = "operator"


def read_response(value: Any) -> Remark:
    """Parse the argument of `respond`.

    Raises:
        InvalidRequestError: the text is empty.
    """
    remark = read_text(value)
    if not remark.text:
        raise InvalidRequestError('respond: the message is empty. Example: "use the parser in lib/parse.py"')
    return remark


def message_effect(planner: str) -> str:
    """Return the reply to a message's sender, describing the message's effect on the planner."""
    if planner == "heuristic":
        return "the planner is rule-based and passes the message to the executor with the next plan"
    return "the planner will read the message"


def read_restore(value: Any, records: tuple[CheckpointRecord, ...], *, newest: int) -> RestoreTarget:
    """Parse the argument of `restore_checkpoint`.

    Args:
        value: an id, a number, or an object with a `checkpoint_id` and a `reason`.
        records: checkpoints in the state of the run.
        newest: number of the newest checkpoint. Checkpoints that are older than `records` are in the
            ledger.

    Raises:
        InvalidRequestError: the checkpoint is unknown. The message lists the existing checkpoints.
    """
    if not isinstance(value, dict):
        value = {"checkpoint_id": str(value) if value is not None else ""}
    # The list of checkpoints calls it `id`, so people send that.
    elif "id" in value and "checkpoint_id" not in value:
        value = {**{key: item for key, item in value.items() if key != "id"}, "checkpoint_id": value["id"]}
    arguments = read_argument(
        value, _Restore, what="restore_checkpoint", example='{"checkpoint_id": "ckpt-2", "reason": "wrong turn"}'
    )
    number = checkpoint_number(arguments.checkpoint_id)
    if number is None or number > newest:
        names = ", ".join(record.id for record in records[-12:]) or "none yet"
        raise InvalidRequestError(
            f"restore_checkpoint: the episode has no checkpoint {arguments.checkpoint_id!r}. Known checkpoints: "
            f"{names}. "
            'Example: {"checkpoint_id": "' + checkpoint_id(max(newest, 0)) + '"}'
        )
    return RestoreTarget(
        checkpoint_id=checkpoint_id(number), reason=shorten(arguments.reason, 500), by=shorten(arguments.by, 80)
    )


def read_move(value: Any) -> MoveTarget:
    """Parse the argument of `move`, which is a host's task queue or an object.

    Raises:
        InvalidRequestError: a field is invalid.
    """
    return read_argument(
        {"to": value} if isinstance(value, str) else value,
        MoveTarget,
        what="move",
        example='{"to": "tightloop-workspace-host-2-1a2b3c", "workspace": "/home/me/project"}',
    ).bounded


def read_top_up(value: Any) -> TopUp:
    """Parse the argument of `top_up`, which is a number of iterations or an object.

    Raises the same errors as `read_amounts`.
    """
    # `True` is an int in Python, but does not mean one iteration.
    if isinstance(value, int) and not isinstance(value, bool):
        value = {"iterations": value}
    return read_amounts(value, TopUp, example='{"iterations": 5} or {"cost_usd": 2.5, "wall_minutes": 60}')


def read_amendment(value: Any) -> Amendment:
    """Parse the argument of `amend_goal`, which is the new goal or an object.

    Raises:
        InvalidRequestError: the amendment changes nothing, or a field is invalid.
    """
    example = (
        '"make the tests pass on Python 3.13" or {"goal": "...", "definition_of_done": ["pytest -q"], '
        '"executor": {"name": "codex"}}'
    )
    amendment = read_argument(
        {"goal": value} if isinstance(value, str) else value, Amendment, what="amend_goal", example=example
    )
    if amendment.empty:
        raise InvalidRequestError(f"amend_goal: the request does not change anything. Example: {example}")
    if any(not check.run.strip() for check in amendment.definition_of_done):
        raise InvalidRequestError(f"amend_goal: a check has no command. Example: {example}")
    return amendment


class EpisodeInput(EpisodeRequest, RunInput):
    """The input of an episode's run: the request, and any state from the previous Temporal run."""

    state: EpisodeState | None = None
    restore: RestoreTarget | None = None
    """Checkpoint to start from, when a closed episode is restored or forked."""

    workflow_type: ClassVar[str] = EPISODE_WORKFLOW_TYPE
    right_input: ClassVar[str] = RIGHT_INPUT

    @property
    def title(self) -> str:
        return self.goal

    @property
    def executor_name(self) -> str:
        return self.executor.name

    @property
    def goes_on(self) -> bool:
        # A fork starts from another episode's checkpoint, so it is new itself.
        return self.replace or (self.restore is not None and not self.restore.episode_id)


# Fits one screen of the Web UI; `tightloop checkpoints` lists them all.
CHECKPOINTS_SHOWN = 12
FALLBACK_MARK = " in place of "
"""Text between the name of the executor that did the work and the name of the requested one."""
_ABOUT_THE_LAST = frozenset({QuestionKind.ALIGNMENT, QuestionKind.DEVIATION, QuestionKind.PROOF})


def find_restore_point(state: EpisodeState, questions: tuple[Question, ...] = ()) -> str:
    """Return the id of the checkpoint to restore.

    This is the newest checkpoint that contains neither the change in question nor work that a person
    refused. If there is no such checkpoint, the oldest known checkpoint is restored.
    """
    records = {record.id: record for record in state.checkpoints}
    record = state.last_checkpoint
    if record is None:
        return ""
    doubted = any(question.kind in _ABOUT_THE_LAST for question in questions)
    # Before TRACKING, the change in question is not part of the last checkpoint. A proof may be about later edits.
    is_delivered = state.phase is EpisodePhase.PROVING and record.tree == state.tree
    is_doubted = doubted and (state.phase is EpisodePhase.TRACKING or is_delivered)
    while record.parent and (is_doubted or record.refused):
        if record.parent not in records:
            return record.parent
        record, is_doubted = records[record.parent], False
    return record.id


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
    """Return the status snapshot for the `status` query."""
    last = state.last_checkpoint
    return EpisodeStatus.of(
        state,
        episode_id=episode_id,
        run_id=run_id,
        status=status,
        work=work,
        goal=request.goal,
        workspace=request.workspace,
        plan=state.plan_title,
        executor=f"{state.stand_in}{FALLBACK_MARK}{request.executor.name}".removeprefix(FALLBACK_MARK),
        # A stand-in uses the model of its own settings, never the requested executor's.
        model=state.model or ("" if state.stand_in else request.executor.model),
        checks=state.checks_text,
        check_report=state.checks,
        unattended=request.unattended,
        checkpoint_id=last.id if last else "",
        way_back=find_restore_point(state, core.questions.waiting),
        questions=core.questions.waiting,
        drifts=core.drifts,
        delivered=core.delivered,
        worktree=core.worktree,
        forked_from=core.forked_from,
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
    """Return the current details of an episode as Markdown.

    The details show the episode's state and the exact JSON for the possible next actions.
    """
    label = status_label(status, questions[0].kind.value if questions else None)
    lines = [f"**{label}** · iteration {state.iteration} · {state.phase.value} · branch {state.branch}", ""]
    for question in questions:
        lines += question_lines(question)
    lines += [
        f"- goal: {shorten(request.goal.splitlines()[0], 200) if request.goal else ''}",
        *([f"- now: {work.describe()}"] if work is not None else []),
        f"- plan: {state.plan_title or 'none yet'}",
        f"- checks: {state.checks_text or 'not run yet'}",
        *(line for check in state.failed_checks for line in _failed_check_lines(check)),
        *([f"- executor: `{clip(state.executor_error, 200)}`"] if state.executor_error else []),
        f"- class: {state.probability_class.value if state.probability_class else 'none yet'}",
        f"- budget: `{budget_line(state.spent, state.budget)}`",
        *(["- unattended: alerts instead of pauses for stuck work"] if request.unattended else []),
    ]
    if state.diagnosis:
        lines.append(f"- diagnosis: {state.diagnosis}")
    lines += ["", "| checkpoint | iteration | branch | class | checks | reset event |", "|---|---|---|---|---|---|"]
    lines += [_checkpoint_row(record) for record in state.checkpoints[-CHECKPOINTS_SHOWN:]]
    if reset := reset_command(episode_id, state.checkpoints):
        lines += ["", f"To reset in Temporal, use the run and event of a checkpoint: `{reset}`"]
    lines += ["", *_actions(state, questions)]
    return "\n".join(lines)


def _failed_check_lines(check: FailedCheck) -> list[str]:
    # Code spans, because an output may contain Markdown.
    lines = check.tail.replace("`", "'").splitlines()
    return [f"  - {check.status.value}: `{check.name}`", *(f"    - `{line}`" for line in lines)]


def reset_command(episode_id: str, records: Sequence[CheckpointRecord]) -> str:
    """Return the Temporal CLI command that resets an episode to the checkpoint before the newest one.

    Return "" if no checkpoint can be used.
    """
    usable_records = [record for record in records if record.event_id and not record.discarded]
    if not usable_records:
        return ""
    # Without a run id, Temporal resolves the event in the newest run.
    # The episode is at the newest one already; with a single one there is no other choice.
    record = usable_records[-2:][0]
    where = f"--workflow-id {episode_id} --run-id {record.run_id} --event-id {record.event_id}"
    return f'temporal workflow reset {where} --reason "back to {record.id}"'


def question_lines(question: Question) -> list[str]:
    """Return the Markdown lines of a question and its evidence."""
    since = question.since.strftime(" since %Y-%m-%d %H:%M:%S UTC") if question.since else ""
    waits = "waits for a person" if question.needs_person else "can be answered"
    needs = "This question needs a decision: `resume` alone does not answer it."
    needs = needs if question.needs_person and not question.default else ""
    return [
        f"**{question.id} {waits}**{since}: {question.title} ({question.kind.value}, by {question.by})",
        "",
        *question.markdown,
        *(["", needs] if needs else []),
        "",
    ]


def _checkpoint_row(record: CheckpointRecord) -> str:
    verdict = record.probability_class.value if record.probability_class else ""
    name = f"~~{record.id}~~" if record.discarded else record.id
    event = f"{record.event_id} of run {record.run_id}" if record.event_id else ""
    return f"| {name} | {record.iteration} | {record.branch} | {verdict} | {record.checks} | {event} |"


def _actions(state: EpisodeState, questions: tuple[Question, ...]) -> list[str]:
    # Before the first checkpoint the JSON still has to show the form of the message.
    back = find_restore_point(state, questions) or "ckpt-0"
    if state.phase is EpisodePhase.CLOSED:
        again = json.dumps({"restore": {"checkpoint_id": back}})
        back = (
            "To go back, reset the workflow to a checkpoint's event, or start the episode again with the same id, its "
            "input and"
        )
        return [f"The episode has ended and no longer accepts messages. {back} `{again}`."]
    restore = json.dumps({"checkpoint_id": back, "reason": "why"})
    rows = [
        (f"{option.name}: {option.effect}", "update `answer`", question.json_for(option.name))
        for question in questions
        for option in question.options
    ]
    # An episode that waits for a person is paused already.
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
