"""Alerts: what a person is told when an episode or a plan needs one, and what of it may leave the host.

An alert is made by the episode or the plan and knows what happened. A notice is what is sent: ids, kinds and counts,
and the words of the reason and the goal only where the settings say so.
"""

import hashlib
import shlex
from datetime import datetime
from enum import StrEnum
from urllib.parse import quote

from tightloop.episode import EpisodePhase, EpisodeRequest, EpisodeState, Pause, PauseKind
from tightloop.executor import QuestionKind
from tightloop.failure import signature
from tightloop.scrub import scrub
from tightloop.tracking import ProbabilityClass
from tightloop.value import Value, shorten

GOAL_SHOWN = 200
ERROR_CHARACTERS = 160


class AlertKind(StrEnum):
    """What a person is told about."""

    DEVIATION = "deviation"
    REPEAT_ERROR = "repeat_error"
    FATAL = "fatal"
    LIMIT = "limit"
    ALIGNMENT = "alignment"
    PLANNER_GAVE_UP = "planner_gave_up"
    BUDGET = "budget"
    NO_EXECUTOR = "no_executor"
    """No worker on its task queue took an activity."""
    RESPONSE = "needs_response"
    """The executor asks for a permission, or for work to be done."""
    FAILED = "failed"
    """The episode ended without success."""
    APPROVAL = "approval"
    """A step of a plan waits for a person's yes."""
    OVERDUE = "overdue"
    """A step of a plan takes longer than its watchdog allows."""


class Subject(StrEnum):
    """What an alert is about."""

    EPISODE = "episode"
    PLAN = "plan"


TITLES = {
    AlertKind.DEVIATION: "left its course and waits",
    AlertKind.REPEAT_ERROR: "makes the same error again and again, and waits",
    AlertKind.FATAL: "cannot go on and waits",
    AlertKind.LIMIT: "ran into limits and waits",
    AlertKind.ALIGNMENT: "waits: the work is held to be wrong",
    AlertKind.PLANNER_GAVE_UP: "waits: its planner gave up",
    AlertKind.BUDGET: "spent its budget and waits",
    AlertKind.NO_EXECUTOR: "waits: no worker is connected for its next step",
    AlertKind.RESPONSE: "asks for an answer",
    AlertKind.FAILED: "failed",
    AlertKind.APPROVAL: "waits for an approval",
    AlertKind.OVERDUE: "has a step that takes longer than it should",
}
_PAUSES = {
    PauseKind.OPERATOR: None,
    PauseKind.BUDGET: AlertKind.BUDGET,
    PauseKind.REPEAT_ERROR: AlertKind.REPEAT_ERROR,
    PauseKind.FATAL: AlertKind.FATAL,
    PauseKind.LIMIT: AlertKind.LIMIT,
    PauseKind.DEVIATION: AlertKind.DEVIATION,
    PauseKind.ALIGNMENT: AlertKind.ALIGNMENT,
    PauseKind.PLANNER_GAVE_UP: AlertKind.PLANNER_GAVE_UP,
    PauseKind.RESPONSE: AlertKind.RESPONSE,
}


class Alert(Value):
    """What happened, once for each cause. Stays in Temporal and on our hosts."""

    key: str
    """32 hexadecimal digits; the same for every try to tell of this cause."""
    kind: AlertKind
    episode_id: str
    at: datetime
    """When it happened."""
    subject: Subject = Subject.EPISODE
    phase: EpisodePhase | str = EpisodePhase.OPENING
    """Of an episode, or a `PlanPhase`."""
    iteration: int = 0
    branch: int = 1
    checks: str = ""
    """Passed of all, such as `2/3`."""
    probability_class: ProbabilityClass | None = None
    checkpoint_id: str = ""
    question: QuestionKind | None = None
    step: str = ""
    """Of a plan: the step, or the window of several."""
    reason: str = ""
    goal: str = ""


class Notice(Value):
    """What leaves the host. Holds no code, no path and no text of a person unless the settings say `full`."""

    id: str
    kind: AlertKind
    episode_id: str
    at: datetime
    title: str
    text: str
    """All of it in a few lines; the field that chat services show."""
    phase: EpisodePhase | str
    iteration: int
    branch: int
    subject: Subject = Subject.EPISODE
    step: str = ""
    checks: str = ""
    probability_class: ProbabilityClass | None = None
    checkpoint_id: str = ""
    link: str = ""
    """The episode in the Temporal Web UI."""
    commands: tuple[str, ...] = ()
    """What answers it on the command line, the most likely one first."""
    reason: str = ""
    goal: str = ""

    def as_json(self) -> bytes:
        """Return the body of a webhook; what is empty is left out."""
        unknown = {"iteration", "branch"} if self.subject is Subject.PLAN else None
        return self.model_dump_json(exclude_defaults=True, exclude=unknown).encode()


class Delivery(Value):
    """What became of one alert on one channel."""

    channel: str
    at: datetime | None = None
    """When the channel took it; None where it did not."""
    seconds: float = 0.0
    """From what happened until then."""
    tries: int = 1
    error: str = ""
    known: bool = False
    """It was delivered earlier and not sent again."""


def alert_kind(pause: Pause) -> AlertKind | None:
    """Return what to alert of when a pause begins; None: an operator asked for it and knows."""
    return _PAUSES[pause.kind]


def alert_key(episode_id: str, kind: AlertKind, cause: str, since: datetime) -> str:
    """Return the id of a cause in an episode: its kind, its signature and the wait that it led to.

    A retry, a restarted worker and a run that takes the wait over have the same key. What comes back after a
    person ended the wait is another cause: that person believes it mended.
    """
    parts = (episode_id, kind.value, cause, since.isoformat())
    return hashlib.sha256("\n".join(parts).encode("utf-8", "replace")).hexdigest()[:32]


def alert_of(
    request: EpisodeRequest, state: EpisodeState, kind: AlertKind, *, episode_id: str, happened: tuple[datetime, str]
) -> Alert:
    """Return the alert of what happened, given as its time and its reason."""
    at, reason = happened
    last, failure = state.last_checkpoint, state.failures.last
    counted = kind is AlertKind.REPEAT_ERROR and failure is not None
    cause = failure.signature if counted and failure is not None else signature(reason)
    question = state.pause.question if state.pause is not None else None
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
        checkpoint_id=last.id if last else "",
        question=question.kind if question else None,
        reason=shorten(reason, 600),
        goal=shorten(request.goal, GOAL_SHOWN),
    )


def notice_of(alert: Alert, *, link: str = "", full: bool = False) -> Notice:
    """Return what may leave the host.

    Args:
        alert: what happened.
        link: of the episode in the Temporal Web UI.
        full: with the reason and the goal, without the secrets and the personal data in them.
    """
    title = f"{alert.subject.value.capitalize()} {alert.episode_id} {TITLES[alert.kind]}"
    reason, goal = (scrub(alert.reason), scrub(alert.goal)) if full else ("", "")
    commands = answers_to(alert)
    lines = (f"{title} ({_where(alert)}).", reason, f"Answer: {commands[0]}", link)
    return Notice(
        id=alert.key,
        title=title,
        text="\n".join(line for line in lines if line),
        link=link,
        commands=commands,
        reason=reason,
        goal=goal,
        **{name: getattr(alert, name) for name in _SHARED},
    )


def _where(alert: Alert) -> str:
    if alert.subject is Subject.PLAN:
        return f"{alert.phase}, {alert.step}" if alert.step else str(alert.phase)
    return f"{alert.phase}, iteration {alert.iteration}" + (f", checks {alert.checks}" if alert.checks else "")


_SHARED = (
    "kind",
    "episode_id",
    "at",
    "subject",
    "step",
    "phase",
    "iteration",
    "branch",
    "checks",
    "probability_class",
    "checkpoint_id",
)


def answers_to(alert: Alert) -> tuple[str, ...]:
    """Return the commands that answer an alert, the most likely one first, and the one that shows more last."""
    name = shlex.quote(alert.episode_id)
    if alert.subject is Subject.PLAN:
        return tuple(f"tightloop plan {words}" for words in (*_plan_answers(alert, name), f"status {name}"))
    restore = [f"restore {name} {alert.checkpoint_id}"] if alert.checkpoint_id else []
    match alert.kind:
        case AlertKind.DEVIATION | AlertKind.REPEAT_ERROR:
            said = [f"resume {name}", f'respond {name} "what to do instead"', *restore]
        case AlertKind.BUDGET:
            said = [f"top-up {name} --iterations 5", f"abort {name}"]
        case AlertKind.ALIGNMENT:
            said = [f'respond {name} "what may be done"', f"resume {name}", *restore, f"abort {name}"]
        case AlertKind.PLANNER_GAVE_UP:
            said = [f'respond {name} "what may be done"', f"abort {name}"]
        case AlertKind.RESPONSE if alert.question is QuestionKind.WORK:
            said = [f"answer {name} done", f"answer {name} failed", f"answer {name} refused"]
        case AlertKind.RESPONSE:
            said = [f"answer {name} allow", f"answer {name} deny"]
        case AlertKind.FAILED:
            said = restore
        case _:
            said = [f"resume {name}", f"abort {name}"]
    return tuple(f"tightloop {words}" for words in (*said, f"status {name}"))


def _plan_answers(alert: Alert, name: str) -> tuple[str, ...]:
    step = shlex.quote(alert.step)
    match alert.kind:
        case AlertKind.APPROVAL:
            return (f"approve {name} {step}", f'reject {name} {step} --rationale "why"')
        case AlertKind.RESPONSE:
            return tuple(f"answer {name} {word} {step}" for word in ("retry", "skip", "abort", "replan"))
        case AlertKind.BUDGET:
            return (f"top-up {name} --cost-usd 1", f"cancel {name}")
        case AlertKind.OVERDUE | AlertKind.FAILED:
            return ()
        case _:
            return (f"resume {name}", f"cancel {name}")


def episode_link(ui_url: str, namespace: str, episode_id: str) -> str:
    """Return the address of an episode in the Temporal Web UI; empty where there is none."""
    if not ui_url:
        return ""
    return f"{ui_url.rstrip('/')}/namespaces/{quote(namespace, safe='')}/workflows/{quote(episode_id, safe='')}"


def delivery_line(alert: Alert, delivery: Delivery) -> str:
    """Return the line of the timeline and of the trail."""
    tries = f" in try {delivery.tries}" if delivery.tries > 1 else ""
    if delivery.at is None:
        return f"{alert.kind.value} could not be sent to {delivery.channel}{tries}: {delivery.error}"
    if delivery.known:
        return f"{alert.kind.value} was sent to {delivery.channel} before, at {delivery.at:%H:%M:%S}"
    return f"{alert.kind.value} sent to {delivery.channel} after {delivery.seconds:.2f} s{tries}"
