"""Alerts that tell a person when a run needs attention, and the notices that may leave the host.

An alert contains everything that the run knows. Channels send a notice, which contains ids, kinds and counts. It
includes the reason and the goal only if the settings allow it.
"""

import hashlib
import json
import shlex
from datetime import datetime
from enum import StrEnum
from urllib.parse import quote

from tightloop.episode.control import find_restore_point
from tightloop.episode.failure import signature
from tightloop.episode.model import EpisodePhase, EpisodeRequest, EpisodeState
from tightloop.episode.progress.tracking import ProbabilityClass
from tightloop.run.question import ABOUT_WORK, Question, QuestionKind
from tightloop.value import Value, shorten
from tightloop.value.scrub import scrub
from tightloop.wording import top_up_options

GOAL_SHOWN = 200
ERROR_CHARACTERS = 160
CANCEL, ADD = "cancel", "add"


class AlertKind(StrEnum):
    """The cause of an alert.

    Every kind of question has a cause, except a pause that an operator requested. Some causes do not
    raise a question.
    """

    DEVIATION = "deviation"
    REPEATED_ERROR = "repeated_error"
    FATAL = "fatal"
    LIMIT = "limit"
    ALIGNMENT = "alignment"
    PROOF = "proof"
    ALREADY_GREEN = "already_green"
    PLANNER_GAVE_UP = "planner_gave_up"
    IMPOSSIBLE = "impossible"
    BUDGET = "budget"
    PERMISSION = "permission"
    WORK = "work"
    CRASH = "crash"
    DRIFT = "drift"
    GATE = "gate"
    POLICY = "policy"
    FAILED_STEP = "failed_step"
    UNMET = "unmet"
    CLARIFICATION = "clarification"
    SETUP = "setup"
    NO_EXECUTOR = "no_executor"
    """No worker polls the task queue of an activity."""
    FAILED = "failed"
    """The run ended without success."""
    FAILING = "failing"
    """Deliveries to the executor keep failing; they are repeated after a wait."""
    UNMOVED = "unmoved"
    """The work continues, but the checks show no progress."""
    OVERDUE = "overdue"
    """A plan step takes longer than its watchdog allows."""
    DIGEST = "digest"
    """Daily summary of a project; see `tightloop/loop/digest.py`."""


class Subject(StrEnum):
    """The kind of object that an alert is about."""

    EPISODE = "episode"
    PLAN = "plan"
    PROJECT = "project"


TITLES = {
    AlertKind.DEVIATION: "is off course and waiting",
    AlertKind.REPEATED_ERROR: "is waiting after repeating the same error",
    AlertKind.FATAL: "cannot continue and is waiting",
    AlertKind.LIMIT: "has reached its limits and is waiting",
    AlertKind.ALIGNMENT: "is waiting for a decision: allow or refuse",
    AlertKind.PROOF: "is waiting: its checks pass, but the proof has findings",
    AlertKind.ALREADY_GREEN: "is waiting: all checks pass before any work",
    AlertKind.PLANNER_GAVE_UP: "is waiting: its planner gave up",
    AlertKind.IMPOSSIBLE: "is waiting: the work was reported as impossible",
    AlertKind.BUDGET: "has spent its budget and is waiting",
    AlertKind.PERMISSION: "is asking for permission",
    AlertKind.WORK: "is waiting for a person to do the work",
    AlertKind.CRASH: "is waiting: a delivery was interrupted",
    AlertKind.DRIFT: "is waiting: somebody else changed files",
    AlertKind.GATE: "is waiting for approval",
    AlertKind.POLICY: "is waiting for approval",
    AlertKind.FAILED_STEP: "is asking about a failed step",
    AlertKind.UNMET: "is asking what to do: its definition of done is not met",
    AlertKind.CLARIFICATION: "asks a question",
    AlertKind.SETUP: "is waiting: the project's packages are not installed",
    AlertKind.NO_EXECUTOR: "is waiting: no worker is connected for its next step",
    AlertKind.FAILED: "failed",
    AlertKind.FAILING: "is running, but its executor keeps failing",
    AlertKind.UNMOVED: "is running, but its checks show no progress",
    AlertKind.OVERDUE: "has a step that is taking longer than expected",
    AlertKind.DIGEST: "has a digest",
}


class Alert(Value):
    """An event that needs a person's attention. There is one alert per cause.

    Alerts never leave Temporal and our hosts.
    """

    key: str
    """Idempotency key, 32 hexadecimal digits. All attempts to report the same cause use the same key."""
    kind: AlertKind
    episode_id: str
    at: datetime
    """Time of the event."""
    subject: Subject = Subject.EPISODE
    phase: EpisodePhase | str = EpisodePhase.OPENING
    """Phase of the episode, or a `PlanPhase`."""
    iteration: int = 0
    branch: int = 1
    checks: str = ""
    """Number of passed checks out of all checks, such as `2/3`."""
    probability_class: ProbabilityClass | None = None
    checkpoint_id: str = ""
    question: str = ""
    """Id of the open question."""
    options: tuple[str, ...] = ()
    """Names of the options. The default option, if any, comes first."""
    step: str = ""
    """Plan step, or the window of several steps."""
    reason: str = ""
    goal: str = ""


class Notice(Alert):
    """A message that leaves the host.

    Unless the settings say `full`, the message contains no code, paths or human-written text.
    """

    title: str
    text: str
    """Complete message in a few lines. Chat services display this field."""
    page: str = ""
    """URL of the run on the tightloop web page."""
    link: str = ""
    """URL of the run in the Temporal Web UI."""
    commands: tuple[str, ...] = ()
    """Shell commands to answer the alert, most likely first."""

    def as_json(self) -> bytes:
        """Return the webhook body. Empty fields and fields that do not apply are omitted."""
        unknown = {"subject"} if self.subject is Subject.EPISODE else {"iteration", "branch"}
        document = self.model_dump(mode="json", exclude=unknown | {"key"})
        if self.subject is Subject.PROJECT:
            document["project"] = document.pop("episode_id")
        filled = {name: value for name, value in document.items() if value not in ("", [], None)}
        # Lone surrogates in a goal must not prevent the alert.
        return json.dumps({"id": self.key, **filled}, ensure_ascii=False).encode("utf-8", "replace")


class Delivery(Value):
    """Result of sending an alert to one channel."""

    channel: str
    at: datetime | None = None
    """Time when the channel accepted the alert, or None if it did not."""
    seconds: float = 0.0
    """Seconds from the event to the delivery."""
    tries: int = 1
    error: str = ""
    known: bool = False
    """True if the alert had already been delivered and was not sent again."""


def alert_kind(question: Question) -> AlertKind | None:
    """Return the kind of alert for a question, or None if an operator requested the pause."""
    return None if question.kind is QuestionKind.OPERATOR else AlertKind(question.kind.value)


def alert_key(episode_id: str, kind: AlertKind, cause: str, since: datetime) -> str:
    """Return the idempotency key of an alert.

    The key depends on the episode, the cause and the start of the wait. Retries, restarted workers and
    runs that continue the wait produce the same key. If a person ends the wait and the cause recurs, the
    key is different, because the person believed that the problem was fixed.
    """
    # The key is also the `webhook-id` of Standard Webhooks, which receivers use to drop duplicates.
    parts = (episode_id, kind.value, cause, since.isoformat())
    return hashlib.sha256("\n".join(parts).encode("utf-8", "replace")).hexdigest()[:32]


def alert_of(
    request: EpisodeRequest,
    state: EpisodeState,
    kind: AlertKind,
    *,
    episode_id: str,
    happened: tuple[datetime, str],
    question: Question | None = None,
) -> Alert:
    """Create the alert for an event in an episode.

    Args:
        request: the episode's request.
        state: the episode's state.
        kind: kind of the alert.
        episode_id: workflow id.
        happened: the event, with its time and reason.
        question: question that the event raised, if any.
    """
    at, reason = happened
    # The reason of a repeated error contains a count that changes each time; its signature is stable.
    failure = state.failures.last if kind is AlertKind.REPEATED_ERROR else None
    cause = failure.signature if failure is not None else signature(reason)
    return Alert(
        key=alert_key(episode_id, kind, cause, at),
        kind=kind,
        episode_id=episode_id,
        at=at,
        phase=state.phase,
        iteration=state.iteration,
        branch=state.branch,
        checks=state.checks_text,
        probability_class=state.probability_class,
        checkpoint_id=find_restore_point(state, (question,) if question else ()),
        question=question.id if question else "",
        options=question.names if question else (),
        reason="\n".join((shorten(reason, 600), *_last_lines(state, kind))),
        goal=shorten(request.goal, GOAL_SHOWN),
    )


def _last_lines(state: EpisodeState, kind: AlertKind) -> tuple[str, ...]:
    """Return the last lines of output from the failing check or the executor.

    The result is empty if the alert is not about either of them.
    """
    if kind in (AlertKind.FAILING, AlertKind.LIMIT):
        return (state.executor_error,) if state.executor_error else ()
    if kind in (*map(AlertKind, ABOUT_WORK - {QuestionKind.ALIGNMENT}), AlertKind.UNMOVED, AlertKind.FAILED):
        return tuple(f"{check}: {check.tail}" for check in state.failed_checks[:1])
    return ()


def notice_of(alert: Alert, *, page: str = "", link: str = "", full: bool = False) -> Notice:
    """Build the notice for an alert. The notice may leave the host.

    Args:
        alert: alert to describe.
        page: URL of the run on the tightloop web page.
        link: URL of the run in the Temporal Web UI.
        full: include the scrubbed reason and goal.
    """
    title = f"{alert.subject.value.capitalize()} {alert.episode_id} {TITLES[alert.kind]}"
    reason, goal = (scrub(alert.reason), scrub(alert.goal)) if full else ("", "")
    commands = answer_commands(alert)
    # Phones and lists show only the first line.
    verb = "Answer" if alert.options else "See"
    lines = (f"{title} ({_where(alert)}).", reason, f"{verb}: {commands[0]}", page, link)
    text = "\n".join(line for line in lines if line)
    # Reason and goal are free text; they are scrubbed above or omitted.
    shared = {**dict(alert), "reason": reason, "goal": goal}
    return Notice(**shared, title=title, text=text, page=page, link=link, commands=commands)


def _where(alert: Alert) -> str:
    if alert.subject is Subject.PLAN:
        return f"{alert.phase}, {alert.step}" if alert.step else str(alert.phase)
    return f"{alert.phase}, iteration {alert.iteration}" + (f", checks {alert.checks}" if alert.checks else "")


def answer_commands(alert: Alert) -> tuple[str, ...]:
    """Return the shell commands for responding to an alert, most likely first.

    The last command shows the status.
    """
    # Ids and option names are free text; the command must survive being pasted into a shell.
    name = shlex.quote(alert.episode_id)
    is_plan = alert.subject is Subject.PLAN
    # An episode has one open question at a time, a plan may have several.
    which = f" --question {shlex.quote(alert.question)}" if is_plan else ""
    commands = [
        f"answer {name} {option}{' COMMAND' if option == ADD else ''}{which}"
        for option in alert.options
        if option != CANCEL
    ]
    if alert.kind is AlertKind.BUDGET and (more := top_up_options(alert.reason)):
        commands.insert(0, f"top-up {name} {more}")
    if alert.kind in _PLANNER_CAN_HELP:
        commands.append(f'respond {name} "message for the planner"')
    if alert.checkpoint_id and alert.kind in _RESTORABLE:
        commands.append(f"restore {name} {alert.checkpoint_id}")
    # Last, because people copy the first command.
    if CANCEL in alert.options:
        commands.append(f"cancel {name}")
    return tuple(f"tightloop {command}" for command in (*commands, f"status {name}"))


_PLANNER_CAN_HELP = frozenset(
    {
        AlertKind.DEVIATION,
        AlertKind.REPEATED_ERROR,
        AlertKind.UNMOVED,
        AlertKind.ALREADY_GREEN,
        AlertKind.PLANNER_GAVE_UP,
        AlertKind.IMPOSSIBLE,
        AlertKind.ALIGNMENT,
    }
)
"""Kinds of alerts for which a message to the planner can help."""
_RESTORABLE = frozenset({AlertKind.DEVIATION, AlertKind.REPEATED_ERROR, AlertKind.ALIGNMENT, AlertKind.FAILED})
"""Kinds of alerts for which restoring a checkpoint can help."""


def episode_link(ui_url: str, namespace: str, episode_id: str) -> str:
    """Return the URL of an episode in the Temporal Web UI, or "" if there is no UI."""
    if not ui_url:
        return ""
    # Ids may contain slashes, which would split the path segment.
    return f"{ui_url.rstrip('/')}/namespaces/{quote(namespace, safe='')}/workflows/{quote(episode_id, safe='')}"


def delivery_line(alert: Alert, delivery: Delivery) -> str:
    """Return the timeline entry for a delivery."""
    tries = f" on attempt {delivery.tries}" if delivery.tries > 1 else ""
    if delivery.at is None:
        return f"{alert.kind.value} alert could not be sent to channel {delivery.channel}{tries}: {delivery.error}"
    if delivery.known:
        return f"{alert.kind.value} alert was already sent to channel {delivery.channel} at {delivery.at:%H:%M:%S}"
    return f"{alert.kind.value} alert sent to channel {delivery.channel} after {delivery.seconds:.2f} s{tries}"
