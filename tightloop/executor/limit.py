"""Limits of agents and providers: their kinds, rules that detect them in output, and deliveries that failed at once."""

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any, NamedTuple, assert_never

from pydantic import Field

from tightloop.executor.model import AT_ONCE_S, ErrorKind, ExecutorOutcome, ExecutorStatus, LimitHit
from tightloop.executor.reset_time import Clock, find_any_wait, find_wait, read_wait
from tightloop.value import Value, shorten
from tightloop.wording import span

LONGEST_UNASKED_WAIT = timedelta(hours=6)
"""Longest wait without asking a person. If a wait is longer, a person is asked immediately. It is longer than any
5-hour window of a subscription.
"""


class LimitKind(StrEnum):
    """Kind of limit that a provider or an agent imposes."""

    TOOL_CALL_LIMIT = "tool_call_limit"
    RATE_LIMITED = "rate_limited"
    USAGE_EXHAUSTED = "usage_exhausted"
    OVERLOADED = "overloaded"
    AUTH = "auth"
    CONTEXT_FULL = "context_full"
    OFFLINE = "offline"
    UNKNOWN = "unknown"


class LimitSource(StrEnum):
    """The source from which a limit is known."""

    TEXT = "text"
    TYPED = "typed"
    HEADER = "header"
    SCREEN = "screen"
    """Notice in a window. Files in a repository can contain the same text."""
    REPORT = "report"
    """Report from the agent itself."""


class LimitAction(StrEnum):
    """What to do when a limit is reached."""

    WAIT = "wait"
    """Back off, then continue."""
    PERSON = "person"
    """Ask a person, because waiting does not help or takes too long."""
    REPLAN = "replan"
    """Create a new plan, because the same order would fail again. A smaller order is needed."""


class LimitSignal(Value):
    """The output of an agent or provider that has stopped. Unknown fields are omitted."""

    text: str = ""
    """Status lines, newest last. They never contain text from the model or output from tools."""
    status_code: int | None = None
    error_type: str = ""
    error_code: str = ""
    body: Any = None
    """Error as decoded JSON."""
    headers: Mapping[str, str] = Field(default_factory=dict)


def choose_action(limit: LimitHit) -> LimitAction:
    """Choose how to react to a limit. For an unknown kind of limit, the reaction is to wait.

    Strikes are counted elsewhere.
    """
    # An exhausted window without a reset time: the end of the wait would be unknown.
    far = limit.retry_after is not None and limit.retry_after > LONGEST_UNASKED_WAIT
    exhausted = limit.kind == LimitKind.USAGE_EXHAUSTED and limit.retry_after is None
    if far or exhausted or limit.monthly or limit.kind == LimitKind.AUTH:
        return LimitAction.PERSON
    return LimitAction.REPLAN if limit.kind == LimitKind.CONTEXT_FULL else LimitAction.WAIT


def explain(limit: LimitHit) -> str:
    """Explain the limit to the user in a sentence, and suggest what to do."""
    reason = f"it said {limit.evidence!r}" if limit.evidence else "without details"
    if limit.kind == LimitKind.AUTH:
        return (
            f"the agent's provider rejected the key or login ({reason}). On the worker's host, check that the key or "
            "login is valid, has not expired, and matches the base URL and model in use, then resume"
        )
    if limit.kind == LimitKind.CONTEXT_FULL:
        return f"the context of the agent's model is full ({reason}). Plan smaller steps"
    reset = "at an unknown time" if limit.retry_after is None else f"in {span(limit.retry_after.total_seconds())}"
    return (
        f"the agent's provider stopped the agent: {limit.kind}, which ends {reset} ({reason}). "
        "Add credit, use another key, model or agent, or resume after the reset"
    )


EVIDENCE_CHARACTERS = 200
LINE_CHARACTERS = 1_000
MAXIMUM_NODES = 400
"""Maximum number of JSON nodes to read per error. It limits the cost of processing a hostile body."""
MAXIMUM_DEPTH = 12

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
# Screens draw frames and wrap lines; codex 0.169 writes ’ where codex-acp 0.16 writes ', Claude Code · or ∙ by version.
_CHARACTERS: dict[int, str] = {
    **dict.fromkeys([*range(32), *range(0x7F, 0xA0), *range(0x2500, 0x2580)], " "),
    **dict.fromkeys([0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF, 0xAD], ""),
    **dict.fromkeys(map(ord, "’‘ʼ`´"), "'"),
    **dict.fromkeys(map(ord, "“”"), '"'),
    **dict.fromkeys(map(ord, "∙•‧⋅"), "·"),
    **dict.fromkeys(map(ord, "–—‑‐"), "-"),
    ord("…"): "...",
}
_PERCENT = re.compile(r"\d{1,15}(?:\.\d{1,9})?")
# OpenAI: x-ratelimit-reset-tokens "6m0s"; Anthropic: anthropic-ratelimit-tokens-reset, RFC 3339. Anthropic's
# unified headers are about a subscription and are read by name.
_RESET_HEADER = re.compile(r"(x-ratelimit)-reset-?(.*)|(anthropic-ratelimit)-(?!unified)(.+)-reset")
# Windows of 300 and 10 080 minutes: five hours, a week.
_CODEX_WINDOWS = ("primary", "secondary")


class Phrases:
    """Compiled phrases for recognising limits, loaded from a file."""

    def __init__(self) -> None:
        # Deferred import: callers that detect nothing do not pay for it.
        import yaml

        data = yaml.safe_load((resources.files("tightloop.executor") / "limit_phrases.yaml").read_text("utf-8"))

        def pattern(text: str) -> re.Pattern[str]:
            # Screens wrap lines and drop spaces, so each space of a phrase is optional.
            return re.compile(text.replace("{end}", data["end"]).replace(" ", r"\s*"), re.IGNORECASE)

        self.texts: list[tuple[LimitKind, float, re.Pattern[str]]] = [
            (LimitKind(entry["kind"]), entry["confidence"], pattern(f"(?:{'|'.join(entry['patterns'])})"))
            for entry in data["phrases"]
        ]
        self.words = [
            (LimitKind(entry["kind"]), pattern("|".join(f"(?:{words})" for words in entry["patterns"])))
            for entry in data["words"]
        ]
        self.codes: dict[str, LimitKind] = {
            code: LimitKind(kind) for kind in data["codes"] for code in data["codes"][kind]
        }
        self.statuses = {status: LimitKind(kind) for status, kind in data["statuses"].items()}
        self.fields: dict[str, frozenset[str]] = {name: frozenset(fields) for name, fields in data["fields"].items()}
        self.units_s: dict[str, float] = data["fields"]["wait"]
        self.status_head = pattern(data["status_head"])
        self.decoration = re.compile(data["decoration"])
        self.label = re.compile(rf"(?:{'|'.join(data['labels'])})[\s*·-]*", re.IGNORECASE)


phrases = cache(Phrases)


class Match(NamedTuple):
    """A recognised limit, with the evidence for it."""

    kind: LimitKind
    confidence: float
    evidence: str


def normalise(text: str) -> str:
    """Convert text to a single line of plain characters.

    Quotes, dashes, dots and spaces are simplified, and colours and frames are removed. This function is
    idempotent.
    """
    return " ".join(_ANSI.sub("", text).translate(_CHARACTERS).split())


def _squeeze(code: str) -> str:
    return code[:60].lower().replace("_", "").replace("-", "")


def decode(text: str) -> dict[str, Any] | None:
    """Return the JSON object at the start of a text, or None."""
    try:
        value, _ = json.JSONDecoder().raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def match_phrase(text: str, *, anchored: bool) -> Match | None:
    """Return the first phrase that matches the text, or None.

    If `anchored` is set, the phrase must match at the start of the text.
    """
    for kind, confidence, pattern in phrases().texts:
        if match := pattern.match(text) if anchored else pattern.search(text):
            return Match(kind, confidence, match[0])
    return None


def make_hit(match: Match, wait: timedelta | None, evidence: str, source: LimitSource) -> LimitHit:
    """Create a `LimitHit` from a match. The evidence is shortened."""
    return LimitHit(
        kind=match.kind.value,
        retry_after=wait,
        evidence=shorten(evidence, EVIDENCE_CHARACTERS),
        source=source.value,
        confidence=match.confidence,
        monthly=match.kind is LimitKind.USAGE_EXHAUSTED and "monthly" in evidence.lower(),
    )


class Facts:
    """Facts collected from the fields of an error, including nested fields."""

    def __init__(self, headers: Mapping[str, Any] | None = None) -> None:
        self.codes: list[str] = []
        self.statuses: list[int] = []
        self.messages: list[str] = []
        self.quotas: list[str] = []
        self.waits: list[tuple[object, float]] = []
        self.resets: list[object] = []
        self.headers = {key.lower(): str(value) for key, value in (headers or {}).items()}
        self._nodes_left = MAXIMUM_NODES

    def collect(self, value: object, field: str = "", depth: int = 0) -> None:
        """Collect the facts in a value and in all nested values."""
        # Foreign fields quote tool calls or results, where any text can occur.
        self._nodes_left -= 1
        if self._nodes_left < 0 or depth > MAXIMUM_DEPTH or field in phrases().fields["foreign"]:
            return
        if isinstance(value, dict):
            if field in ("headers", "responseheaders"):
                self.headers.update({str(key).lower(): str(item) for key, item in value.items()})
            if field == "codexerrorinfo":
                self.codes += map(str, value)
            for key, item in value.items():
                self.collect(item, _squeeze(str(key)), depth + 1)
        elif isinstance(value, list):
            for item in value:
                self.collect(item, field, depth + 1)
        # `bool` is an `int`, but neither a status nor a wait.
        elif isinstance(value, str | int | float) and not isinstance(value, bool):
            self._collect_leaf(value, field, depth)

    def _collect_leaf(self, value: str | float, field: str, depth: int) -> None:
        fields = phrases().fields
        if field in fields["wait"]:
            self.waits.append((value, phrases().units_s[field]))
        elif field in fields["reset"]:
            self.resets.append(value)
        elif isinstance(value, str):
            if field == "quotaid":
                self.quotas.append(value)
            if field in fields["code"]:
                self.codes.append(value)
            if field in fields["message"]:
                # Gateways put the provider's error as JSON text into their own message.
                if value.lstrip().startswith("{") and (inner := decode(value)) is not None:
                    self.collect(inner, "", depth + 1)
                else:
                    message = normalise(value[:LINE_CHARACTERS])
                    self.messages.append(message)
                    self.statuses += [int(head[1]) for head in phrases().status_head.finditer(message)]
        # Other numbers in a status field are no HTTP errors, such as exit codes.
        elif field in fields["status"] and 400 <= value < 600:
            self.statuses.append(int(value))

    def find_limit(self, clock: Clock, source: LimitSource = LimitSource.TYPED) -> LimitHit | None:
        """Return the limit that the facts indicate, or None.

        Error codes take precedence over message text, followed by status codes and headers.
        """
        codes = phrases().codes
        coded = [Match(codes[squeezed], 1.0, code) for code in self.codes if (squeezed := _squeeze(code)) in codes]
        certain = next((match for match in coded if match.kind is not LimitKind.UNKNOWN), None)
        by_text = next((match for message in self.messages if (match := match_phrase(message, anchored=False))), None)
        in_headers = _match_headers(self.headers)
        # Gemini's QuotaFailure is the most precise: a daily quota does not reset within minutes.
        quotas = (("PerDay", LimitKind.USAGE_EXHAUSTED), ("PerMinute", LimitKind.RATE_LIMITED))
        quota = next(
            (Match(kind, 1.0, name) for period, kind in quotas for name in self.quotas if period in name), None
        )
        best = quota or certain
        if best is None or (best is certain and best.kind is LimitKind.RATE_LIMITED):
            # A daily or weekly quota also arrives with the code of a rate limit.
            exhausted = (match for match in (by_text, in_headers) if match and match.kind is LimitKind.USAGE_EXHAUSTED)
            best = next(exhausted, best)
        kinds = (
            (status, LimitKind.OVERLOADED if 500 <= status < 600 else phrases().statuses.get(status))
            for status in self.statuses
        )
        by_status = next((Match(kind, 0.8, f"HTTP {status}") for status, kind in kinds if kind), None)
        best = best or by_text or by_status or in_headers or next(iter(coded), None)
        if best is None:
            return None
        if best is in_headers and source is LimitSource.TYPED:
            source = LimitSource.HEADER
        waits = itertools.chain(
            [_header_wait(self.headers, clock)],
            # Waits before resets, because a wait does not depend on this host's clock.
            (read_wait(value, clock, unit=unit) for value, unit in self.waits),
            (read_wait(value, clock) for value in self.resets),
            (find_wait(message, clock) for message in self.messages),
        )
        wait = next((wait for wait in waits if wait is not None), None)
        return make_hit(best, wait, " ".join(self.messages) or best.evidence, source)


def _match_headers(headers: Mapping[str, str]) -> Match | None:
    if headers.get("anthropic-ratelimit-unified-status") == "rejected":
        return Match(LimitKind.USAGE_EXHAUSTED, 0.9, "anthropic-ratelimit-unified-status: rejected")
    for window in _full_windows(headers):
        return Match(LimitKind.USAGE_EXHAUSTED, 0.9, f"x-codex-{window}-used-percent: 100")
    for name, _, used_up in _reset_headers(headers):
        if used_up:
            return Match(LimitKind.RATE_LIMITED, 0.8, f"{name}: {headers[name]}")
    # Last, because it does not tell the kind of limit.
    for name in ("retry-after-ms", "retry-after"):
        if name in headers:
            return Match(LimitKind.RATE_LIMITED, 0.6, f"{name}: {headers[name]}")
    return None


def _full_windows(headers: Mapping[str, str]) -> list[str]:
    used = {window: headers.get(f"x-codex-{window}-used-percent", "") for window in _CODEX_WINDOWS}
    return [window for window, text in used.items() if _PERCENT.fullmatch(text) and float(text) >= 100]


def _reset_headers(headers: Mapping[str, str]) -> Iterator[tuple[str, str, bool]]:
    """Yield the name and value of each header that contains a reset time.

    The flag is True if the corresponding quota has been used up.
    """
    for name, value in headers.items():
        if match := _RESET_HEADER.fullmatch(name):
            left = f"{match[1]}-remaining-{match[2]}".rstrip("-") if match[1] else f"{match[3]}-{match[4]}-remaining"
            yield name, value, headers.get(left) == "0"


def _header_wait(headers: Mapping[str, str], clock: Clock) -> timedelta | None:
    # The finer unit first.
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        if (header_wait := read_wait(headers.get(name, ""), clock, unit=unit)) is not None:
            return header_wait
    windows = _full_windows(headers) or _CODEX_WINDOWS[:1]
    values = [headers.get(f"x-codex-{window}-reset-after-seconds", "") for window in windows]
    values.append(headers.get("anthropic-ratelimit-unified-reset", ""))
    resets = list(_reset_headers(headers))
    for group in (values, [v for _, v, used_up in resets if used_up], [v for _, v, _ in resets]):
        waits = [wait for value in group if (wait := read_wait(value, clock)) is not None]
        if waits:
            # A request only succeeds once all windows have reset.
            return max(waits)
    return None


TEXT_CHARACTERS = 64_000
"""Maximum length of the part that is searched, at the end of a text."""
TEXT_LINES = 50
WRAPPED_LINES = 6
"""Maximum number of lines across which a screen wraps a status text."""
MAXIMUM_LABELS = 8

_QUOTED = re.compile(r"[\"'](\w{4,40})[\"']")
_ERROR_EVENTS = frozenset({"error", "turn.failed", "session.error"})


def detect(signal: str | LimitSignal, *, now: datetime, zone: tzinfo | None = None) -> LimitHit | None:
    """Return the limit that a signal reports, or None. This function never raises.

    Args:
        signal: the output. A string is treated as status lines.
        now: time of the output. If it has no time zone, UTC is assumed.
        zone: time zone for times without one. The default is the zone of `now`.
    """
    limit_signal = LimitSignal(text=signal) if isinstance(signal, str) else signal
    aware = now if now.tzinfo else now.replace(tzinfo=UTC)
    clock = Clock(aware, zone or aware.tzinfo or UTC)
    # Every response may carry the headers; without an error they only report the remaining quota.
    if limit_signal.status_code is None or limit_signal.status_code >= 400:
        facts = Facts(limit_signal.headers)
        if limit_signal.status_code is not None:
            facts.statuses.append(limit_signal.status_code)
        facts.codes += [limit_signal.error_code, limit_signal.error_type]
        facts.collect(limit_signal.body)
        if hit := facts.find_limit(clock):
            return hit
    lines = limit_signal.text[-TEXT_CHARACTERS:].splitlines()[-TEXT_LINES:]
    # The last reported limit counts, because an earlier one may have passed; one of the same kind may add the time.
    last: LimitHit | None = None
    for number, line in enumerate(lines):
        if line.lstrip().startswith("{"):
            hit = _read_event(lines[number:], clock)
        else:
            hit = _read_status(lines[number : number + WRAPPED_LINES], clock)
        if hit and last and hit.kind == last.kind and hit.retry_after is None:
            hit = last if last.retry_after is not None else hit
        last = hit or last
    return last


def _read_event(lines: Sequence[str], clock: Clock) -> LimitHit | None:
    """Parse an event from an agent, or an error that was printed on several lines."""
    event = decode(lines[0]) or decode("\n".join(lines))
    if event is None or not _is_error(event):
        return None
    facts = Facts()
    if event.get("type") == "rate_limit_event":
        facts.codes.append("usage_limit_reached")
    facts.collect(event)
    return facts.find_limit(clock)


def _is_error(event: Mapping[str, Any]) -> bool:
    match event.get("type", event.get("method")):
        case None:
            return "error" in event
        case "result":
            # Claude Code reports a failed API call as `subtype: success` with `is_error: true`.
            failed = event.get("is_error") is True or event.get("status") == "error"
            return failed or str(event.get("subtype")).startswith("error_max")
        case "rate_limit_event":
            info = event.get("rate_limit_info")
            return isinstance(info, dict) and info.get("status") == "rejected"
        case "system":
            return event.get("subtype") == "api_retry"
        case str(name):
            return name in _ERROR_EVENTS
        case _:
            return False


def _read_status(lines: Sequence[str], clock: Clock) -> LimitHit | None:
    """Parse a status text that starts on the first line. It may continue on the following lines."""
    if not lines[0].strip():
        return None
    data = phrases()
    first, two, whole = (normalise("\n".join(line[:LINE_CHARACTERS] for line in lines[:n])) for n in (1, 2, len(lines)))
    for start in _find_starts(first):
        rest = whole[start:]
        # A screen may wrap the text, or drop its spaces: "You'vehityourweeklylimit".
        for form in (first[start:], two[start:], rest, "".join(first[start:].split()), "".join(rest.split())):
            if head := data.status_head.match(form):
                # Such as `unexpected status 429 ...: {body}` and `Error code: 429 - {'error': ...}`.
                facts = Facts()
                body = decode(rest[rest.find("{") :]) if "{" in rest else None
                facts.collect(body)
                facts.statuses.append(int(head[1]))
                facts.codes += _QUOTED.findall(rest) if body is None else []
                facts.messages.append(rest[:LINE_CHARACTERS])
                return facts.find_limit(clock, LimitSource.TEXT)
            if match := match_phrase(form, anchored=True):
                rest = rest[:LINE_CHARACTERS]
                return make_hit(match, find_wait(rest, clock), rest, LimitSource.TEXT)
    return None


def _find_starts(text: str) -> Iterator[int]:
    """Yield the positions at which a status text may start.

    These are the start of the text and the end of each label. The last and most specific position comes
    first.
    """
    data = phrases()

    def skip_decoration(position: int) -> int:
        match = data.decoration.match(text, position)
        return match.end() if match else position

    starts = [skip_decoration(0)]
    while len(starts) < MAXIMUM_LABELS and (label := data.label.match(text, starts[-1])):
        starts.append(skip_decoration(label.end()))
    return reversed(starts)


MAXIMUM_BODIES = 8
"""Maximum number of positions in an agent's last words at which to look for an error in JSON."""
LAST_WORDS_CHARACTERS = 4_000
WORDS_CONFIDENCE = 0.5
_KINDS: Mapping[str, ErrorKind] = {
    LimitKind.RATE_LIMITED: ErrorKind.RATE,
    LimitKind.OVERLOADED: ErrorKind.OVERLOADED,
    LimitKind.AUTH: ErrorKind.AUTH,
    LimitKind.CONTEXT_FULL: ErrorKind.CONTEXT_FULL,
    LimitKind.OFFLINE: ErrorKind.OFFLINE,
    LimitKind.TOOL_CALL_LIMIT: ErrorKind.BUDGET,
}


FROM_PLAN = frozenset({ErrorKind.STEP, ErrorKind.BUDGET})
"""Causes explained by the plan or one of our limits. The same delivery would fail again."""


def failed_at_once(outcome: ExecutorOutcome, took_s: float, *, moved: bool) -> bool:
    """Return True if a delivery ended in an error before it could do anything.

    Args:
        outcome: outcome of the delivery.
        took_s: duration of the delivery.
        moved: True if the working tree has changed.
    """
    is_error = outcome.status is ExecutorStatus.FAILED and outcome.error_kind not in FROM_PLAN
    return is_error and took_s < AT_ONCE_S and not moved


def refine_failure(outcome: ExecutorOutcome, now: datetime) -> ExecutorOutcome:
    """Look for a limit in the last words of an agent that failed immediately.

    The limit is added to the outcome of the delivery, even if its kind is UNKNOWN.
    """
    if outcome.limit is not None:
        return outcome
    limit = read_last_words(outcome.error or outcome.summary, now=now)
    if limit.kind == LimitKind.UNKNOWN:
        return outcome.evolve(limit=limit)
    refined = limited_outcome(limit, outcome.error)
    return outcome.evolve(
        status=refined.status, limit=limit, error=refined.error, error_kind=refined.error_kind or outcome.error_kind
    )


def limited_outcome(limit: LimitHit, error: str) -> ExecutorOutcome:
    """Return the outcome of a delivery that hit a provider limit. `error` is the agent's message."""
    kind = _KINDS.get(limit.kind)
    if limit.kind == LimitKind.USAGE_EXHAUSTED:
        # A provider names the time of a window that resets, but none for a quota that somebody has to raise.
        kind = ErrorKind.QUOTA if limit.retry_after is None else ErrorKind.USAGE_WINDOW
    match choose_action(limit):
        case LimitAction.WAIT:
            return ExecutorOutcome(status=ExecutorStatus.LIMIT_HIT, limit=limit, error=error, error_kind=kind)
        case LimitAction.PERSON:
            return ExecutorOutcome(status=ExecutorStatus.FATAL, limit=limit, error=explain(limit), error_kind=kind)
        case LimitAction.REPLAN:
            return ExecutorOutcome(status=ExecutorStatus.FAILED, limit=limit, error=explain(limit), error_kind=kind)
        case unknown:
            assert_never(unknown)


def read_last_words(text: str, *, now: datetime, zone: tzinfo | None = None) -> LimitHit:
    """Return the limit described by the last words of an agent that failed immediately.

    Unlike `detect`, this function searches the whole text for words and times, because the failure is
    certain. The kind is UNKNOWN if no word indicates a limit.
    """
    hit = detect(text, now=now, zone=zone)
    aware = now if now.tzinfo else now.replace(tzinfo=UTC)
    clock = Clock(aware, zone or aware.tzinfo or UTC)
    end = text[-TEXT_CHARACTERS:]
    if hit is None:
        facts = Facts()
        for brace in itertools.islice(re.finditer(r"\{", end), MAXIMUM_BODIES):
            facts.collect(decode(end[brace.start() :]))
        hit = facts.find_limit(clock, LimitSource.TEXT)
    whole = normalise(end[-LAST_WORDS_CHARACTERS:])
    if hit is None or hit.kind == LimitKind.UNKNOWN:
        named = ((kind, pattern) for kind, pattern in phrases().words if pattern.search(whole))
        kind, pattern = next(named, (LimitKind.UNKNOWN, re.compile("")))
        lines = [normalise(line) for line in end.splitlines() if line.strip()]
        line = next((line for line in lines if pattern.search(line)), whole) if kind is not LimitKind.UNKNOWN else ""
        match = Match(kind, WORDS_CONFIDENCE, line or (lines[-1] if lines else ""))
        hit = make_hit(match, hit.retry_after if hit else None, match.evidence, LimitSource.TEXT)
    if hit.retry_after is None and hit.kind not in (LimitKind.AUTH, LimitKind.CONTEXT_FULL):
        hit = hit.evolve(retry_after=find_any_wait(whole, clock))
    return hit
