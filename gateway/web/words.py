"""How the page says things: states with a glyph and a colour, ages, amounts."""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from tightloop.episode.display import status_label
from tightloop.ledger import WorkflowLine

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


class Badge(NamedTuple):
    """A state as people see it: never by its colour alone."""

    word: str
    glyph: str
    tone: str
    """Class of the style sheet: `quiet`, `running`, `needs`, `paused`, `good` or `bad`."""


NEEDS_RESPONSE = Badge("NEEDS RESPONSE", "", "needs")
"""Its glyph is the dot that pulses."""
_TONES = {
    "quiet": ("○", ("idle", "created", "queued", "cancelled", "draft", "pending", "skipped", "ready", "waiting")),
    "running": ("◐", ("open", "running", "dispatching", "verifying", "retrying", "compensating", "planning")),
    "paused": ("❚❚", ("paused",)),
    "good": (
        "✓",
        ("succeeded", "completed", "complete", "verified", "done", "reused", "passed", "recovered", "connected"),
    ),
    "bad": ("✕", ("failed", "error", "terminated", "timed_out", "compensated", "undone", "blocked", "missing")),
}
_TONE_OF = {word: (glyph, tone) for tone, (glyph, words) in _TONES.items() for word in words}
_NEEDS = ("awaiting_response", "needs response")


def badge(status: str, *, waits: bool = False) -> Badge:
    """Return how a status is shown.

    Args:
        status: of an episode, plan, loop, task or step, in any case.
        waits: a person is needed, whatever the status says.
    """
    word = status.lower()
    if waits or word in _NEEDS:
        return NEEDS_RESPONSE
    glyph, tone = _TONE_OF.get(word, ("○", "quiet"))
    return Badge(status_label(word, None).replace("_", " ").capitalize(), glyph, tone)


def title_of(line: WorkflowLine) -> str:
    """Return what an episode or plan is called: its goal, else what it does without one, else its id."""
    return line.goal or ("What the checks show as open" if line.kind == "loop" else line.id)


def age(at: datetime | None, now: datetime | None = None) -> str:
    """Return how long ago something was, such as `12m`; empty where that is not known."""
    if at is None:
        return ""
    seconds = max(int(((now or datetime.now(UTC)) - at).total_seconds()), 0)
    for size, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def duration(span: timedelta | float | None) -> str:
    """Return a duration such as `1h 5m` or `8s`; empty where it is not known."""
    if span is None:
        return ""
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < _MINUTE:
        return f"{seconds:.0f}s"
    hours, minutes = divmod(int(seconds) // _MINUTE, 60)
    return f"{hours}h {minutes}m" if hours else f"{minutes}m {int(seconds) % _MINUTE}s"


def money(cost_usd: float) -> str:
    """Return a cost such as `$0.41`; empty where nothing was spent."""
    return f"${cost_usd:.2f}" if cost_usd >= 0.005 else "<$0.01" if cost_usd > 0 else ""


def moment(at: datetime | None) -> str:
    """Return a time for people, in UTC; empty where it is not known."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if at is not None else ""
