"""Permissions of an executor, and how crashes are handled."""

import hashlib
import json
import re
from collections.abc import Iterable
from datetime import timedelta
from typing import assert_never

from tightloop.executor.limit import LimitKind, LimitSource
from tightloop.executor.model import (
    SUMMARY_CHARACTERS,
    AgentMode,
    ExecutorReport,
    ExecutorStatus,
    Grant,
    LimitHit,
    OnCrash,
    ResumeToken,
)
from tightloop.run.question import Answer, Option, OptionGroup, Question, QuestionKind, evidence_of
from tightloop.safety.rubric import Verdict
from tightloop.value import Value, shorten

ALLOW, DENY = "allow", "deny"
WORK, CANCEL = "work", "cancel"
ANSWER, SKIP = "answer", "skip"
DONE, FAILED, REFUSED, LIMIT = "done", "failed", "refused", "limit"
IMPOSSIBLE, LEFT_RED = "impossible", "left red on purpose"
IN_A_WINDOW = frozenset({"cursor-gui"})
"""Executors that only watch an agent in an editor window.

The agent continues without them and can report results itself.
"""
_PERMISSION = (
    Option(
        name=ALLOW,
        effect="allow this action now and whenever the agent repeats it in this iteration",
        group=OptionGroup.ACCEPT,
    ),
    Option(name=DENY, effect="deny permission, and let the agent continue without it", group=OptionGroup.STOP),
)
_CLARIFICATION = (
    Option(name=ANSWER, effect="send your answer to the agent"),
    Option(name=SKIP, effect="let the agent decide on its own"),
)
_WORK = (
    Option(
        name=DONE,
        effect="report the work as done, and run the checks on the current files",
        group=OptionGroup.ACCEPT,
    ),
    Option(
        name=FAILED,
        effect="report that the work failed, count the iteration as failed, and send your reason to the planner",
        group=OptionGroup.STOP,
    ),
    Option(
        name=REFUSED,
        effect="report that the work will not be done, and tell the planner why",
        group=OptionGroup.STOP,
    ),
    Option(
        name=IMPOSSIBLE,
        effect="report that the work cannot be done (a person reads your reason and decides what to do)",
        needs_text="WHY",
        group=OptionGroup.STOP,
    ),
)
_IMPOSSIBLE = (
    Option(
        name=WORK,
        effect="continue working, and send the planner the reason and any text you add to this answer",
    ),
    Option(name=CANCEL, effect="end the episode and leave the files as they are", group=OptionGroup.STOP),
)
_CONTINUE = Option(
    name=LIMIT,
    effect=(
        "report that a limit stopped the agent, and tell the agent to continue (with a delay from the third "
        "report onward)"
    ),
)
_STATUS_OF = {FAILED: ExecutorStatus.FAILED, REFUSED: ExecutorStatus.REFUSED}


def permission_question(title: str, detail: str, fingerprint: str) -> Question:
    """Create a question for an agent's permission request.

    Requests with the same fingerprint lead to only one question.
    """
    return executor_question(QuestionKind.PERMISSION, title, detail, _PERMISSION).evolve(fingerprint=fingerprint)


def clarifying_question(title: str, detail: str, fingerprint: str) -> Question:
    """Create a question for an agent's request for information.

    Requests with the same fingerprint lead to only one question.
    """
    return executor_question(QuestionKind.CLARIFICATION, title, detail, _CLARIFICATION).evolve(fingerprint=fingerprint)


def work_question(title: str, detail: str = "") -> Question:
    """Create the question that asks a person to do the work.

    The question has no default, so that a plain `resume` cannot claim success.
    """
    return executor_question(QuestionKind.WORK, title, detail, _WORK)


def report_question() -> Question:
    """Return the question that an agent in a window answers in order to report its result.

    In the meantime, the executor continues to watch the window.
    """
    question = work_question(
        "the agent in the window is working and will report when it is done. To report on its behalf, stop the agent "
        "in the window first"
    )
    # Needs no answer: hooks, transcript and screen are observed meanwhile.
    return question.evolve(options=(*_WORK, _CONTINUE), blocks="")


def executor_question(kind: QuestionKind, title: str, detail: str, options: tuple[Option, ...]) -> Question:
    """Return a question about a delivery. Each line of `detail` becomes a piece of evidence."""
    evidence = evidence_of(detail)
    return Question(
        id="", kind=kind, title=title, evidence=evidence, options=options, blocks="the episode", by="the executor"
    )


def report_on_work(report: ExecutorReport, answer: Answer, *, tree: str) -> ExecutorReport:
    """Return the report on work that a person did.

    The report is based on the person's answer and the resulting tree. If the answer says that the work is
    impossible, the report contains a question.
    """
    if answer.option == IMPOSSIBLE:
        question = impossible_question(f"{IMPOSSIBLE}: {answer.text}")
        return report.evolve(status=ExecutorStatus.NEEDS_PERSON, question=question, new_tree=tree)
    # The tree decides, because people also answer `done` without having changed a file.
    default_status = ExecutorStatus.COMPLETED if tree != report.new_tree else ExecutorStatus.NO_CHANGE
    reported = report.evolve(status=_STATUS_OF.get(answer.option, default_status), question=None, new_tree=tree)
    answer_text = shorten(f"{answer.by}: {answer.text or answer.option}", SUMMARY_CHARACTERS)
    return reported.evolve(
        summary=answer_text if reported.succeeded else "", error="" if reported.succeeded else answer_text
    )


def report_by_message(report: ExecutorReport, answer: Answer, *, executor: str, tree: str) -> ExecutorReport:
    """Return the report on a delivery for which the agent itself reported the result.

    The agent sent its report before the executor noticed that the delivery had finished. `tree` is the
    resulting tree.
    """
    if answer.option != LIMIT:
        return report_on_work(report, answer, tree=tree)
    answer_text = shorten(f"{answer.by}: {answer.text or answer.option}", SUMMARY_CHARACTERS)
    # Low confidence: only the agent's own word, which no provider confirms. A new turn has a new allowance at once.
    limit = LimitHit(
        kind=LimitKind.TOOL_CALL_LIMIT,
        retry_after=timedelta(),
        evidence=answer_text,
        source=LimitSource.REPORT,
        confidence=0.5,
    )
    token = ResumeToken(adapter=executor, session_id="window")
    return report.evolve(status=ExecutorStatus.LIMIT_HIT, limit=limit, resume=token, new_tree=tree)


ENDING_FILE = ".tightloop-ending"
"""File at the root of the working tree in which an executor can state that the work cannot be done."""
_ENDING = re.compile(rf"\s*({IMPOSSIBLE}|{LEFT_RED})\s*:\s*(\S.*)", re.IGNORECASE | re.DOTALL)
ENDING_HINT = f"""
If the goal cannot be reached, or a check should keep failing because it contradicts the goal, do not work around it.
Write one line to the file `{ENDING_FILE}` at the top of the project, and stop: `impossible: REASON`, or
`left red on purpose: REASON`. A person then decides.
"""
"""Last part of every message to an executor."""


def folder_hint(folder: str) -> str:
    """Return a sentence that tells the executor where the project's folder is.

    Return "" if the project is at the root of the repository.
    """
    where = f"The project is in the folder `{folder}`. Paths and commands are relative to the top of the repository."
    return f"\n{where}\n" if folder else ""


def read_ending(text: str) -> str:
    """Return the reason stated in an executor's ending file, or "" if the text is in any other form.

    For example: `impossible: the API was removed`.
    """
    match = _ENDING.match(text)
    return f"{match[1].lower()}: {' '.join(match[2].split())}" if match else ""


def impossible_question(reason: str, *, by: str = "the executor") -> Question:
    """Return the question to ask when the executor or planner claims that the work is impossible.

    `reason` starts with the kind of claim, such as `impossible: the API was removed`.
    """
    title = f"{by} stopped: {shorten(reason, SUMMARY_CHARACTERS)}"
    return executor_question(QuestionKind.IMPOSSIBLE, title, "", _IMPOSSIBLE).evolve(default=WORK, by=by)


def report_on_impossible(report: ExecutorReport, answer: Answer | None, *, tree: str) -> ExecutorReport:
    """Return the report on work that the executor gave up on but that a person wants to continue."""
    reason = report.question.title if report.question else ""
    text = f"{reason}; {answer.by}: {answer.text}" if answer and answer.text else reason
    return report.evolve(
        status=ExecutorStatus.REFUSED, question=None, new_tree=tree, error=shorten(text, SUMMARY_CHARACTERS)
    )


READING = frozenset({"read", "search", "think"})


class PermissionRequest(Value):
    """An agent's request for permission to perform an action."""

    kind: str
    """Kind of the action, as defined by the Agent Client Protocol.

    One of `read`, `edit`, `delete`, `move`, `search`, `execute`, `think`, `fetch`, `switch_mode` and `other`.
    """
    title: str
    """Description for a person, such as `rm -rf build`. It is a single line."""
    command: str = ""
    paths: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """ID that is the same for repeated requests."""
        # Sorted, because an agent may list the same paths in another order.
        text = json.dumps([self.kind, self.command or self.title, sorted(self.paths)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def decide(request: PermissionRequest, *, mode: AgentMode, rule: Verdict, grants: Iterable[Grant] = ()) -> Verdict:
    """Decide whether an agent may perform the requested action.

    A person's earlier answer takes precedence over the mode, and the mode over the rule. Reading is
    always allowed. `read_only` denies everything else.
    """
    # First, because the person's decision overrides the rule.
    for grant in grants:
        if grant.fingerprint == request.fingerprint:
            return Verdict.ALLOW if grant.allowed else Verdict.DENY
    if request.kind in READING:
        return Verdict.ALLOW
    if mode is AgentMode.READ_ONLY:
        return Verdict.DENY
    return rule


RETRY, VERIFY = OnCrash.RETRY.value, OnCrash.VERIFY.value
WORKER_DIED = "the worker died during the delivery"
MOST_CLAIMS = 5
"""Maximum number of times that a delivery is started. Without this limit, a delivery that kills its worker every time
would be repeated forever.
"""
_OPTIONS = (
    Option(
        name=VERIFY,
        effect="do not deliver the plan again, but run the checks on the current files and tell the planner",
    ),
    Option(
        name=RETRY,
        effect="deliver the same plan again, on top of the current files",
        cons="side effects outside the working tree may occur twice",
    ),
    Option(name="cancel", effect="end the episode and leave the files as they are", group=OptionGroup.STOP),
)

_HAND_OFF = (
    Option(
        name=VERIFY,
        effect="confirm that the agent received the plan and has finished, and run the checks on the current files",
    ),
    Option(
        name=RETRY,
        effect="the plan was not received: send the plan again",
        cons="if the first delivery reached the agent after all, it will receive the plan twice",
    ),
    _OPTIONS[-1],
)


class Crash(Value):
    """Facts about a delivery that was interrupted."""

    cause: str = WORKER_DIED
    """Cause of the crash, if it is known."""
    moved: bool
    """True if the working tree is different from the delivery's initial tree."""
    effects_outside: str = ""
    """Declared side effects outside the working tree. It is empty if there are none."""
    processes_ended: int = 0
    """Number of processes that were still running and had to be killed."""
    claims: int = 1
    """Number of times that the delivery has been started."""
    session: str = ""
    """Agent session that can be resumed."""
    can_tell: bool = False
    """True if the executor keeps records that would show how a delivery ended."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """Facts about the crash, one sentence each."""
        ended = "1 process" if self.processes_ended == 1 else f"{self.processes_ended} processes"
        running = (
            f"killed {ended} that {'was' if self.processes_ended == 1 else 'were'} still running"
            if self.processes_ended
            else "no process was still running"
        )
        records_text = (
            "the agent's records do not show how the delivery ended" if self.can_tell else "the delivery left no report"
        )
        return (
            "files have changed since the delivery started"
            if self.moved
            else "no file has changed since the delivery started",
            running,
            records_text + (f", but the agent's session {self.session} can be resumed" if self.session else ""),
            f"effects outside the working tree: {self.effects_outside or 'none declared'}",
            f"the delivery was started {'once' if self.claims == 1 else f'{self.claims} times'}",
        )


def after_crash(policy: OnCrash, crash: Crash) -> OnCrash:
    """Choose how to react to an interrupted delivery.

    A delivery is repeated without asking only if the tree is unchanged and there are no side effects
    outside the tree.
    """
    match policy:
        case OnCrash.ASK | OnCrash.VERIFY:
            return policy
        case OnCrash.RETRY:
            harmless = not crash.moved and not crash.effects_outside
            return OnCrash.RETRY if harmless and crash.claims < MOST_CLAIMS else OnCrash.VERIFY
        case _:
            assert_never(policy)


def explain_crash(crash: Crash) -> str:
    """Explain a crash to the planner and the user.

    The same cause always produces the same text, so that repeated crashes can be recognized.
    """
    moved, *_ = crash.sentences
    return f"{crash.cause}, {moved}, and the plan was not delivered again"


def report_on_crash(report: ExecutorReport, *, tree: str) -> ExecutorReport:
    """Return the report on an interrupted delivery that a person decided not to repeat."""
    return report.evolve(status=ExecutorStatus.OUTCOME_UNKNOWN, question=None, new_tree=tree)


def crash_question(crash: Crash, title: str) -> Question:
    """Return the question to ask a person after a crash.

    A plain `resume` only runs the checks, because a person must explicitly agree to repeat side effects.
    """
    question_text = f"{crash.cause}: {title}. Deliver the plan again?"
    return executor_question(QuestionKind.CRASH, question_text, "\n".join(crash.sentences), _OPTIONS).evolve(
        default=VERIFY
    )


def hand_off_question(reason: str, title: str, identity: str) -> Question:
    """Return the question about a hand-off that the agent did not confirm.

    A plain `resume` only runs the checks.
    """
    question_text = f"{reason}. Check the chat. Hand over the plan again: {title}?"
    return executor_question(QuestionKind.CRASH, question_text, f"hand-off: {identity}", _HAND_OFF).evolve(
        default=VERIFY
    )
