"""Alerts: messages to a person when an episode or a plan needs one, and the part that may leave the host.

An alert is made by the episode or the plan and knows what happened. A notice is what is sent: ids, kinds and counts,
and the words of the reason and the goal only where the settings say so.
"""

import hashlib
import json
import shlex
from datetime import datetime
from enum import StrEnum
from urllib.parse import quote

from tightloop.episode.control import way_back
from tightloop.episode.failure import signature
from tightloop.episode.model import EpisodePhase, EpisodeRequest, EpisodeState
from tightloop.episode.progress.tracking import ProbabilityClass
from tightloop.run.question import Question, QuestionKind
from tightloop.value import Value, shorten
from tightloop.value.scrub import scrub
from tightloop.wording import top_up_options

GOAL_SHOWN = 200
ERROR_CHARACTERS = 160
CANCEL = "cancel"


class AlertKind(StrEnum):
    """What a person is told about: each kind of question but an operator's own pause, and what is not a question."""

    DEVIATION = "deviation"
    REPEATED_ERROR = "repeated_error"
    FATAL = "fatal"
    LIMIT = "limit"
    ALIGNMENT = "alignment"
    PROOF = "proof"
    PLANNER_GAVE_UP = "planner_gave_up"
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
    NO_EXECUTOR = "no_executor"
    """No worker on its task queue took an activity."""
    FAILED = "failed"
    """The episode or the plan ended without success."""
    UNMOVED = "unmoved"
    """The work goes on, and the checks show no progress."""
    OVERDUE = "overdue"
    """A step of a plan takes longer than its watchdog allows."""
    DIGEST = "digest"
    """What happened in a project on a day; see `tightloop/ledger/model.py`."""


class Subject(StrEnum):
    """What an alert is about."""

    EPISODE = "episode"
    PLAN = "plan"
    PROJECT = "project"


TITLES = {
    AlertKind.DEVIATION: "left its course and waits",
    AlertKind.REPEATED_ERROR: "makes the same error again and again, and waits",
    AlertKind.FATAL: "cannot go on and waits",
    AlertKind.LIMIT: "ran into limits and waits",
    AlertKind.ALIGNMENT: "waits: something has to be allowed or refused",
    AlertKind.PROOF: "waits: its checks are green, and something speaks against them",
    AlertKind.PLANNER_GAVE_UP: "waits: its planner gave up",
    AlertKind.BUDGET: "spent its budget and waits",
    AlertKind.PERMISSION: "asks for a permission",
    AlertKind.WORK: "waits for a person to do the work",
    AlertKind.CRASH: "waits: a delivery broke off",
    AlertKind.DRIFT: "waits: somebody else changed files",
    AlertKind.GATE: "waits for an approval",
    AlertKind.POLICY: "waits for an approval",
    AlertKind.FAILED_STEP: "asks about a failed step",
    AlertKind.UNMET: "asks what to do: its definition of done does not hold",
    AlertKind.CLARIFICATION: "asks a question",
    AlertKind.NO_EXECUTOR: "waits: no worker is connected for its next step",
    AlertKind.FAILED: "failed",
    AlertKind.UNMOVED: "goes on, and its checks show no progress",
    AlertKind.OVERDUE: "has a step that takes longer than it should",
    AlertKind.DIGEST: "has a digest",
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
    question: str = ""
    """Id of the question that waits."""
    options: tuple[str, ...] = ()
    """Names of its options; the default, where there is one, comes first."""
    step: str = ""
    """Of a plan: the step, or the window of several."""
    reason: str = ""
    goal: str = ""


class Notice(Alert):
    """What leaves the host. Holds no code, no path and no text of a person unless the settings say `full`."""

    title: str
    text: str
    """All of it in a few lines; the field that chat services show."""
    page: str = ""
    """The episode or plan on the page."""
    link: str = ""
    """The same in the Temporal Web UI."""
    commands: tuple[str, ...] = ()
    """What answers it on the command line, the most likely one first."""

    def as_json(self) -> bytes:
        """Return the body of a webhook; what is empty is left out, and what the subject does not have."""
        unknown = {"subject"} if self.subject is Subject.EPISODE else {"iteration", "branch"}
        document = self.model_dump(mode="json", exclude=unknown | {"key"})
        if self.subject is Subject.PROJECT:
            document["project"] = document.pop("episode_id")
        filled = {name: value for name, value in document.items() if value not in ("", [], None)}
        return json.dumps({"id": self.key, **filled}, ensure_ascii=False).encode("utf-8", "replace")


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


def alert_kind(question: Question) -> AlertKind | None:
    """Return what to alert of when a question is asked; None: an operator asked for the pause and knows."""
    return None if question.kind is QuestionKind.OPERATOR else AlertKind(question.kind.value)


def alert_key(episode_id: str, kind: AlertKind, cause: str, since: datetime) -> str:
    """Return the id of a cause in an episode: its kind, its signature and the wait that it led to.

    A retry, a restarted worker and a run that takes the wait over have the same key. What comes back after a
    person ended the wait is another cause: that person believes it fixed.
    """
    # The key is the `webhook-id` of Standard Webhooks as well: by it a receiver drops what it got twice.
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
    """Return the alert of what happened, given as its time and its reason, and of what is asked about it."""
    at, reason = happened
    # The reason of a repeated error names the count, which differs each time; its signature does not.
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
        checkpoint_id=way_back(state, (question,) if question else ()),
        question=question.id if question else "",
        options=question.names if question else (),
        reason=shorten(reason, 600),
        goal=shorten(request.goal, GOAL_SHOWN),
    )


def notice_of(alert: Alert, *, page: str = "", link: str = "", full: bool = False) -> Notice:
    """Return what may leave the host.

    Args:
        alert: what happened.
        page: address of the episode or plan on the page.
        link: of the same in the Temporal Web UI.
        full: with the reason and the goal, without the secrets and the personal data in them.
    """
    title = f"{alert.subject.value.capitalize()} {alert.episode_id} {TITLES[alert.kind]}"
    reason, goal = (scrub(alert.reason), scrub(alert.goal)) if full else ("", "")
    commands = answers_to(alert)
    lines = (f"{title} ({_where(alert)}).", reason, f"Answer: {commands[0]}", page, link)
    text = "\n".join(line for line in lines if line)
    # Reason and goal hold people's words: they are scrubbed above, or left out.
    shared = {**dict(alert), "reason": reason, "goal": goal}
    return Notice(**shared, title=title, text=text, page=page, link=link, commands=commands)


def _where(alert: Alert) -> str:
    if alert.subject is Subject.PLAN:
        return f"{alert.phase}, {alert.step}" if alert.step else str(alert.phase)
    return f"{alert.phase}, iteration {alert.iteration}" + (f", checks {alert.checks}" if alert.checks else "")


def answers_to(alert: Alert) -> tuple[str, ...]:
    """Return the commands that answer an alert, the most likely one first, and the one that shows more last."""
    # People choose ids and write options; the command must survive being pasted into a shell.
    name = shlex.quote(alert.episode_id)
    is_plan = alert.subject is Subject.PLAN
    # An episode has one question at a time, a plan may have many.
    which = f" --question {shlex.quote(alert.question)}" if is_plan else ""
    said = [f"answer {name} {option}{which}" for option in alert.options if option != CANCEL]
    if alert.kind is AlertKind.BUDGET and (more := top_up_options(alert.reason)):
        said.insert(0, f"top-up {name} {more}")
    if alert.kind in _GUIDED:
        said.append(f'respond {name} "message for the planner"')
    if alert.checkpoint_id and alert.kind in _UNDONE:
        said.append(f"restore {name} {alert.checkpoint_id}")
    if CANCEL in alert.options:
        said.append(f"cancel {name}")
    return tuple(f"tightloop {words}" for words in (*said, f"status {name}"))


_GUIDED = frozenset(
    {
        AlertKind.DEVIATION,
        AlertKind.REPEATED_ERROR,
        AlertKind.UNMOVED,
        AlertKind.PLANNER_GAVE_UP,
        AlertKind.ALIGNMENT,
    }
)
"""Kinds at which a message helps the planner."""
_UNDONE = frozenset({AlertKind.DEVIATION, AlertKind.REPEATED_ERROR, AlertKind.ALIGNMENT, AlertKind.FAILED})
"""Kinds at which going back to a checkpoint is a way out."""


def episode_link(ui_url: str, namespace: str, episode_id: str) -> str:
    """Return the address of an episode in the Temporal Web UI; empty without a UI."""
    if not ui_url:
        return ""
    # An id may hold a slash, which would end the part of the path.
    return f"{ui_url.rstrip('/')}/namespaces/{quote(namespace, safe='')}/workflows/{quote(episode_id, safe='')}"


def delivery_line(alert: Alert, delivery: Delivery) -> str:
    """Return the line of the timeline and of the trail."""
    tries = f" in try {delivery.tries}" if delivery.tries > 1 else ""
    if delivery.at is None:
        return f"{alert.kind.value} could not be sent to {delivery.channel}{tries}: {delivery.error}"
    if delivery.known:
        return f"{alert.kind.value} was sent to {delivery.channel} before, at {delivery.at:%H:%M:%S}"
    return f"{alert.kind.value} sent to {delivery.channel} after {delivery.seconds:.2f} s{tries}"
