"""Finds a limit in typed errors and headers; the texts, codes and field names are data: `limit_phrases.yaml`."""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from tightloop.executor.limit import LimitKind, LimitSource
from tightloop.executor.model import LimitHit
from tightloop.executor.reset_time import Clock, find_wait, read_wait
from tightloop.value import shorten

EVIDENCE_CHARACTERS = 200
LINE_CHARACTERS = 1_000
MAXIMUM_NODES = 400
"""Parts of the JSON of one error that are read: a hostile body costs no more."""
MAXIMUM_DEPTH = 12

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
# Screens draw frames and wrap lines; codex 0.169 writes ’ where codex-acp 0.16 writes ', Claude Code · or ∙ by its age.
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
# OpenAI: x-ratelimit-reset-tokens "6m0s"; Anthropic: anthropic-ratelimit-tokens-reset, RFC 3339. The unified ones of
# Anthropic are about a subscription and are read by name.
_RESET_HEADER = re.compile(r"(x-ratelimit)-reset-?(.*)|(anthropic-ratelimit)-(?!unified)(.+)-reset")
# Of 300 and of 10 080 minutes: five hours, a week.
_CODEX_WINDOWS = ("primary", "secondary")


class Phrases:
    """The data file, compiled."""

    def __init__(self) -> None:
        """Read the file that is shipped with the package."""
        # Imported on first use: who detects nothing does not pay for it.
        import yaml

        data = yaml.safe_load((resources.files("tightloop.executor") / "limit_phrases.yaml").read_text("utf-8"))

        def pattern(text: str) -> re.Pattern[str]:
            return re.compile(text.replace("{end}", data["end"]).replace(" ", r"\s*"), re.IGNORECASE)

        self.texts: list[tuple[LimitKind, float, re.Pattern[str]]] = [
            (LimitKind(entry["kind"]), entry["confidence"], pattern(f"(?:{'|'.join(entry['patterns'])})"))
            for entry in data["phrases"]
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
    """What a limit was recognised by."""

    kind: LimitKind
    confidence: float
    evidence: str


def normalise(text: str) -> str:
    """Return one line with plain quotes, dashes, dots and spaces, without colours and frames. Idempotent."""
    return " ".join(_ANSI.sub("", text).translate(_CHARACTERS).split())


def _squeeze(word: str) -> str:
    return word[:60].lower().replace("_", "").replace("-", "")


def decode(text: str) -> dict[str, Any] | None:
    """Return the JSON object that a text begins with; None where it begins with none."""
    try:
        value, _ = json.JSONDecoder().raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def match_phrase(text: str, *, anchored: bool) -> Match | None:
    """Return the first phrase that a text begins with (`anchored`) or contains."""
    for kind, confidence, pattern in phrases().texts:
        if match := pattern.match(text) if anchored else pattern.search(text):
            return Match(kind, confidence, match[0])
    return None


def make_hit(match: Match, wait: timedelta | None, evidence: str, source: LimitSource) -> LimitHit:
    """Return the hit with its evidence bounded."""
    return LimitHit(
        kind=match.kind.value,
        retry_after=wait,
        evidence=shorten(evidence, EVIDENCE_CHARACTERS),
        source=source.value,
        confidence=match.confidence,
        monthly=match.kind is LimitKind.USAGE_EXHAUSTED and "monthly" in evidence.lower(),
    )


class Facts:
    """What the fields of an error say, at any depth of its body."""

    def __init__(self, headers: Mapping[str, Any] | None = None) -> None:
        """Begin with the headers of an answer."""
        self.codes: list[str] = []
        self.statuses: list[int] = []
        self.messages: list[str] = []
        self.quotas: list[str] = []
        self.waits: list[tuple[object, float]] = []
        self.resets: list[object] = []
        self.headers = {key.lower(): str(value) for key, value in (headers or {}).items()}
        self._nodes_left = MAXIMUM_NODES

    def collect(self, value: object, field: str = "", depth: int = 0) -> None:
        """Gather the facts of a value and of everything in it."""
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
                self._collect_message(value, depth)
        elif field in fields["status"] and 400 <= value < 600:
            self.statuses.append(int(value))

    def _collect_message(self, value: str, depth: int) -> None:
        if value.lstrip().startswith("{") and (inner := decode(value)) is not None:
            self.collect(inner, "", depth + 1)
            return
        message = normalise(value[:LINE_CHARACTERS])
        self.messages.append(message)
        self.statuses += [int(head[1]) for head in phrases().status_head.finditer(message)]

    def find_limit(self, clock: Clock, source: LimitSource = LimitSource.TYPED) -> LimitHit | None:
        """Return the limit that the facts show: typed codes first, then texts, statuses and headers."""
        codes = phrases().codes
        coded = [Match(codes[word], 1.0, code) for code in self.codes if (word := _squeeze(code)) in codes]
        certain = next((match for match in coded if match.kind is not LimitKind.UNKNOWN), None)
        said = next((match for message in self.messages if (match := match_phrase(message, anchored=False))), None)
        in_headers = _match_headers(self.headers)
        # Gemini's QuotaFailure says it best: a quota of a day does not come back within minutes.
        quotas = (("PerDay", LimitKind.USAGE_EXHAUSTED), ("PerMinute", LimitKind.RATE_LIMITED))
        quota = next((Match(kind, 1.0, name) for mark, kind in quotas for name in self.quotas if mark in name), None)
        found = quota or certain
        if found is None or (found is certain and found.kind is LimitKind.RATE_LIMITED):
            # A daily or weekly quota comes with the code of a rate limit, too.
            exhausted = (match for match in (said, in_headers) if match and match.kind is LimitKind.USAGE_EXHAUSTED)
            found = next(exhausted, found)
        kinds = (
            (status, LimitKind.OVERLOADED if 500 <= status < 600 else phrases().statuses.get(status))
            for status in self.statuses
        )
        by_status = next((Match(kind, 0.8, f"HTTP {status}") for status, kind in kinds if kind), None)
        found = found or said or by_status or in_headers or next(iter(coded), None)
        if found is None:
            return None
        if found is in_headers and source is LimitSource.TYPED:
            source = LimitSource.HEADER
        return make_hit(found, self._wait(clock), " ".join(self.messages) or found.evidence, source)

    def _wait(self, clock: Clock) -> timedelta | None:
        def waits() -> Iterator[timedelta | None]:
            yield _header_wait(self.headers, clock)
            # Waits before resets: a wait does not depend on the clock of this host.
            yield from (read_wait(value, clock, unit=unit) for value, unit in self.waits)
            yield from (read_wait(value, clock) for value in self.resets)
            yield from (find_wait(message, clock) for message in self.messages)

        return next((wait for wait in waits() if wait is not None), None)


def _match_headers(headers: Mapping[str, str]) -> Match | None:
    if headers.get("anthropic-ratelimit-unified-status") == "rejected":
        return Match(LimitKind.USAGE_EXHAUSTED, 0.9, "anthropic-ratelimit-unified-status: rejected")
    for window in _full_windows(headers):
        return Match(LimitKind.USAGE_EXHAUSTED, 0.9, f"x-codex-{window}-used-percent: 100")
    for name, _, used_up in _reset_headers(headers):
        if used_up:
            return Match(LimitKind.RATE_LIMITED, 0.8, f"{name}: {headers[name]}")
    for name in ("retry-after-ms", "retry-after"):
        if name in headers:
            return Match(LimitKind.RATE_LIMITED, 0.6, f"{name}: {headers[name]}")
    return None


def _full_windows(headers: Mapping[str, str]) -> list[str]:
    used = {window: headers.get(f"x-codex-{window}-used-percent", "") for window in _CODEX_WINDOWS}
    return [window for window, text in used.items() if _PERCENT.fullmatch(text) and float(text) >= 100]


def _reset_headers(headers: Mapping[str, str]) -> Iterator[tuple[str, str, bool]]:
    """Return name and value of each reset, and whether nothing is left until then."""
    for name, value in headers.items():
        if match := _RESET_HEADER.fullmatch(name):
            left = f"{match[1]}-remaining-{match[2]}".rstrip("-") if match[1] else f"{match[3]}-{match[4]}-remaining"
            yield name, value, headers.get(left) == "0"


def _header_wait(headers: Mapping[str, str], clock: Clock) -> timedelta | None:
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        if (asked := read_wait(headers.get(name, ""), clock, unit=unit)) is not None:
            return asked
    windows = _full_windows(headers) or _CODEX_WINDOWS[:1]
    values = [headers.get(f"x-codex-{window}-reset-after-seconds", "") for window in windows]
    values.append(headers.get("anthropic-ratelimit-unified-reset", ""))
    resets = list(_reset_headers(headers))
    for group in (values, [v for _, v, used_up in resets if used_up], [v for _, v, _ in resets]):
        waits = [wait for value in group if (wait := read_wait(value, clock)) is not None]
        if waits:
            return max(waits)
    return None
